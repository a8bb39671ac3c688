//! A fleet of nodes in one process against one running appliance: what it costs while nothing happens, how fast a
//! change reaches everybody, and how many signed heartbeats it takes. Prints lines `name value unit`.
//!
//! Usage: `load idle|fanout|heartbeat HOLDFAST OPERATOR_SOCKET APPLIANCE_PID DIR NODES SECONDS_OR_EVENTS`.
//! Each node is real: it joins with a token, pins, signs, holds the stream and verifies all that it is sent.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program, not the product")]

use anyhow::{Context, Result, bail};
use holdfast::keys::NodeKeys;
use holdfast::node::client::{Appliances, Client, Sequence, Signer};
use holdfast::node::directory::Directory;
use holdfast::node::held::{Extent, Held};
use holdfast::node::join::{Wishes, join};
use holdfast::node::trust::Trust;
use holdfast::wire::peers::{Envelope, RegisterBody, ServiceClaim};
use state::model::{Name, Revision};
use state::view::records::Protocol;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

struct Node {
    client: Client,
    trust: Trust,
    held: Held,
    body: RegisterBody,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [what, binary, socket, pid, dir, nodes, amount] = arguments.as_slice() else {
        bail!("usage: load idle|fanout|heartbeat HOLDFAST SOCKET PID DIR NODES SECONDS_OR_EVENTS");
    };
    let (pid, count, amount): (u32, usize, u64) = (pid.parse()?, nodes.parse()?, amount.parse()?);
    let prefix = Path::new(dir).file_name().and_then(|name| name.to_str()).context("DIR")?;
    let mut fleet = Vec::with_capacity(count);
    for n in 0..count {
        fleet.push(enrol(binary, socket, &Path::new(dir).join(format!("node{n}")), &format!("{prefix}-{n}")).await?);
    }
    match what.as_str() {
        "idle" => idle(fleet, pid, Duration::from_secs(amount), || revision(binary, socket)).await,
        "fanout" => fanout(fleet, amount).await,
        "heartbeat" => heartbeat(fleet, pid, Duration::from_secs(amount)).await,
        other => bail!("there is no load `{other}`"),
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
    Ok(Node { client: Client::new(appliances, Arc::new(signer)), trust, held, body })
}

/// The number of the journal's last change.
fn revision(binary: &str, socket: &str) -> Result<u64> {
    let told = std::process::Command::new(binary).args(["--socket", socket, "status", "-o", "json"]).output()?;
    let status: serde_json::Value = serde_json::from_slice(&told.stdout)?;
    status["revision"].as_u64().context("revision")
}

/// Every node holds its stream and beats every five seconds; nothing changes.
async fn idle(fleet: Vec<Node>, pid: u32, length: Duration, revision: impl Fn() -> Result<u64>) -> Result<()> {
    let count = fleet.len();
    for (n, node) in fleet.into_iter().enumerate() {
        tokio::spawn(async move {
            tokio::time::sleep(holdfast::limits::HEARTBEAT * u32::try_from(n).unwrap_or(0) / 100).await;
            let mut watch = node.client.watch(node.held.revision()).await?;
            let beats = async {
                loop {
                    node.client.register(node.body.clone()).await?;
                    tokio::time::sleep(holdfast::limits::HEARTBEAT).await;
                }
            };
            let changes = async {
                while watch.next().await?.is_some() {}
                Ok(())
            };
            tokio::select! { end = beats => end, end = changes => end }
                .map_err(|e: holdfast::node::client::CallError| anyhow::anyhow!(e))
        });
    }
    // The first beats set what joining left out, and settle.
    tokio::time::sleep(holdfast::limits::HEARTBEAT * 3).await;
    let held = revision()?;
    let (begun, before) = (Instant::now(), cpu_seconds(pid)?);
    tokio::time::sleep(length).await;
    let share = (cpu_seconds(pid)? - before) / begun.elapsed().as_secs_f64();
    println!("idle{count}_journal_entries {} in {} s", revision()? - held, length.as_secs());
    println!("idle{count}_core_percent {:.3} %", share * 100.0);
    Ok(())
}

/// One node publishes something else again and again; timed until every other node has received and verified it.
async fn fanout(mut fleet: Vec<Node>, events: u64) -> Result<()> {
    let mut publisher = fleet.pop().context("at least two nodes")?;
    let count = fleet.len();
    let start = publisher.client.list().await?;
    publisher.held.accept(&publisher.trust, &start, Extent::Full);
    let (arrived, mut arrivals) = mpsc::unbounded_channel::<(Revision, Instant)>();
    for mut node in fleet {
        let list = node.client.list().await?;
        node.held.accept(&node.trust, &list, Extent::Full);
        let mut watch = node.client.watch(node.held.revision()).await?;
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Ok(Some(list)) = watch.next().await {
                let accepted = node.held.accept(&node.trust, &list, Extent::Delta);
                if accepted.alarms.is_empty() && arrived.send((node.held.revision(), Instant::now())).is_err() {
                    return;
                }
            }
        });
    }
    let mut taken = Vec::new();
    for event in 0..events {
        tokio::time::sleep(Duration::from_millis(50)).await;
        while arrivals.try_recv().is_ok() {}
        publisher.body.services = vec![ServiceClaim {
            space: Name::new("bench")?,
            name: Name::new("event")?,
            protocol: Protocol::Tcp,
            port: u16::try_from(1000 + event)?,
        }];
        let begun = Instant::now();
        let revision = publisher.client.register(publisher.body.clone()).await?.revision;
        let mut last = begun;
        let mut have = 0;
        while have < count {
            let next =
                tokio::time::timeout(Duration::from_secs(5), arrivals.recv()).await.context("a stream fell silent")?;
            let (held, at) = next.context("every stream has ended")?;
            if held >= revision {
                have += 1;
                last = last.max(at);
            }
        }
        taken.push((last - begun).as_secs_f64() * 1e3);
    }
    taken.sort_by(f64::total_cmp);
    let at = |q: f64| taken[((taken.len() - 1) as f64 * q) as usize];
    println!("fanout{count}_p50_ms {:.3} ms", at(0.5));
    println!("fanout{count}_p99_ms {:.3} ms", at(0.99));
    Ok(())
}

/// Every node sends signed, unchanged heartbeats as fast as they are answered.
async fn heartbeat(fleet: Vec<Node>, pid: u32, length: Duration) -> Result<()> {
    let before = cpu_seconds(pid)?;
    let begun = Instant::now();
    let tasks: Vec<_> = fleet
        .into_iter()
        .map(|node| {
            tokio::spawn(async move {
                let mut count = 0u64;
                while begun.elapsed() < length {
                    node.client.register(node.body.clone()).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    let used = cpu_seconds(pid)? - before;
    println!("hb_signed_per_s {:.1} /s", count as f64 / begun.elapsed().as_secs_f64());
    println!("hb_signed_per_cpu_s {:.1} /cpu_s", count as f64 / used);
    Ok(())
}

/// User and system time of a process so far (proc(5), fields 14 and 15, in hundredths of a second).
fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = text.rsplit_once(')').context("stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}
