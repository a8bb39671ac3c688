//! Real nodes against a running appliance: each has joined with a token.

use anyhow::{Context, Result, bail};
use holdfast::keys::NodeKeys;
use holdfast::node::client::{Appliances, Client, Sequence, Signer};
use holdfast::node::directory::Directory;
use holdfast::node::held::Held;
use holdfast::node::join::{Wishes, join};
use holdfast::node::trust::Trust;
use holdfast::wire::peers::{Envelope, RegisterBody};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The appliance that is measured.
pub(crate) struct Appliance {
    pub(crate) binary: String,
    pub(crate) socket: String,
    pub(crate) pid: u32,
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) client: Client,
    pub(crate) trust: Trust,
    pub(crate) held: Held,
    pub(crate) body: RegisterBody,
}

impl Appliance {
    /// So many fresh nodes, in directories of their own under `dir` and named after it.
    pub(crate) async fn nodes(&self, dir: &Path, count: usize) -> Result<Vec<Node>> {
        let prefix = dir.file_name().and_then(|name| name.to_str()).context("DIR")?;
        let mut fleet = Vec::with_capacity(count);
        for n in 0..count {
            fleet.push(
                enrol(&self.binary, &self.socket, &dir.join(format!("node{n}")), &format!("{prefix}-{n}")).await?,
            );
        }
        Ok(fleet)
    }

    /// The number of the journal's last change.
    pub(crate) fn revision(&self) -> Result<u64> {
        let told = std::process::Command::new(&self.binary)
            .args(["--socket", &self.socket, "status", "-o", "json"])
            .output()?;
        let status: serde_json::Value = serde_json::from_slice(&told.stdout)?;
        status["revision"].as_u64().context("revision")
    }

    /// User and system time of its process so far, in seconds (proc(5), fields 14 and 15, in hundredths of a second).
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let after_name = text.rsplit_once(')').context("stat")?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
    }
}

async fn enrol(binary: &str, socket: &str, dir: &Path, name: &str) -> Result<Node> {
    let made = std::process::Command::new(binary).args(["--socket", socket, "node", "add", name]).output()?;
    if !made.status.success() {
        bail!("node add {name}: {}", String::from_utf8_lossy(&made.stderr));
    }
    let token = String::from_utf8(made.stdout)?;
    // The appliance lets 16 enrolments a second back in from one source: a fleet of hundreds has to wait its turn.
    let mut tries = 0;
    while let Err(failure) = join(token.trim(), dir, Wishes::default()).await {
        tries += 1;
        if tries > 200 {
            bail!("{name} did not join: {failure}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let directory = Directory::new(dir);
    let node = directory.node()?.context("node.json")?;
    let keys = NodeKeys::read(dir)?;
    let public = keys.public();
    let trust = Trust::new(node.root_key, node.fleet, directory.roster()?.context("roster.json")?)?;
    let (held, alarms) = Held::read(&trust, &directory.peers()?.context("peers.json")?)?;
    if let Some(alarm) = alarms.first() {
        bail!("{name}: {alarm}");
    }
    let appliances = Appliances::from(trust.roster());
    let signer = Signer::new(keys.signing, Some(directory.mesh_token()?), Sequence::open(dir)?);
    let body = RegisterBody {
        envelope: Envelope { seq: 0, audience: node.fleet, epoch: held.epoch() },
        instance: uuid::Uuid::nil(),
        wireguard_key: public.wireguard_key,
        sealing_key: public.sealing_key,
        listen_port: node.listen_port,
        endpoints: vec![],
        local_endpoints: vec![],
        services: vec![],
        agent_version: env!("CARGO_PKG_VERSION").into(),
        roster_revision: trust.roster().revision,
        held_revision: held.revision(),
        knock: None,
    };
    Ok(Node {
        name: name.into(),
        dir: dir.into(),
        client: Client::new(appliances, Arc::new(signer)),
        trust,
        held,
        body,
    })
}
