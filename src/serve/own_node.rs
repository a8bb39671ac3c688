//! `serve --node`: this machine as a node of its own mesh, by an agent in a process of its own.
//!
//! The agent is started again when it ends. Stopping the appliance stops it, which takes nothing of the mesh down.

use crate::files::{self, FileError};
use crate::listen::stop::Stop;
use crate::serve::appliance::{Appliance, Change};
use crate::serve::http::ok;
use crate::serve::operator::{line, mint};
use crate::wire::operator::Minted;
use crate::wire::token::Purpose;
use crate::{clock, entropy};
use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal};
use state::model::{Endpoint, Name, NodeId};
use state::subject::enrolment::{AddNode, Command};
use state::subject::nodes::Node;
use state::subject::services::in_space;
use state::{Actor, Role, State};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command as Process};
use tokio::time::{sleep, timeout};

/// Between two starts of the agent.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an agent may take to end.
const END: Duration = Duration::from_secs(3);
/// The tunnel's UDP port.
const PORT: u16 = 51820;

/// Keeps the agent running until told to stop.
pub(super) async fn run(dir: PathBuf, appliance: Arc<Appliance>, mut stop: Stop) {
    loop {
        match once(&dir, &appliance, &mut stop).await {
            Ok(true) => return,
            Ok(false) => tracing::warn!("this machine's own agent ended; it is started again"),
            Err(error) => tracing::error!(error = format!("{error:#}"), "this machine's own agent did not start"),
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = stop.requested() => return,
        }
    }
}

/// One life of the agent. True when it ended because everything does.
async fn once(dir: &Path, appliance: &Arc<Appliance>, stop: &mut Stop) -> anyhow::Result<bool> {
    end_former(dir).await?;
    let joined = own(appliance, &appliance.handle.state()).is_some_and(|node| node.member.is_some());
    if !joined || !dir.join("roster.json").exists() {
        join(dir, appliance).await?;
    }
    let mut agent = holdfast(&["agent", "run", "--state"], dir)?.spawn().context("starting the agent")?;
    tokio::select! {
        ended = agent.wait() => {
            ended.context("waiting for the agent")?;
            return Ok(false);
        }
        () = stop.requested() => {}
    }
    end(&mut agent).await;
    Ok(true)
}

/// Ends the agent that an appliance left behind when it was killed. That takes nothing of the mesh down.
async fn end_former(dir: &Path) -> anyhow::Result<()> {
    let lock = dir.join("agent.lock");
    let begin = clock::boot();
    while let Some(holder) = former(dir)? {
        // The number in the lock may be an earlier holder's, and a stranger's by now.
        if let Some(pid) = holder.parse().ok().and_then(Pid::from_raw).filter(|pid| holds_open(*pid, &lock)) {
            let signal = if clock::boot().saturating_sub(begin) < END { Signal::TERM } else { Signal::KILL };
            tracing::info!(pid = pid.as_raw_nonzero(), "ending the agent that a killed appliance left behind");
            rustix::process::kill_process(pid, signal).context("ending the former agent")?;
        }
        sleep(END / 10).await;
    }
    Ok(())
}

/// What the directory's agent lock says of its holder, if anybody holds it.
fn former(dir: &Path) -> anyhow::Result<Option<String>> {
    match files::lock(dir, "agent") {
        Ok(_) => Ok(None),
        Err(FileError::Locked { pid, .. }) => Ok(Some(pid)),
        Err(error) if files::is_absent(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn holds_open(pid: Pid, file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    open.into_iter().flatten().flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path == file))
}

async fn end(agent: &mut Child) {
    let pid = agent.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = rustix::process::kill_process(pid, Signal::TERM)
    {
        tracing::debug!(%error, "the agent was not told to end");
    }
    if timeout(END, agent.wait()).await.is_err()
        && let Err(error) = agent.kill().await
    {
        tracing::warn!(%error, "this machine's own agent did not end");
    }
}

fn own<'a>(appliance: &Appliance, state: &'a State) -> Option<&'a Node> {
    state.nodes.all.values().find(|node| node.appliance == Some(appliance.id))
}

async fn join(dir: &Path, appliance: &Arc<Appliance>) -> anyhow::Result<()> {
    if appliance.advertised.is_empty() {
        bail!("this appliance advertises no address: set `advertise` or start it with --advertise HOST");
    }
    let minted = token(appliance).await?;
    let mut child =
        holdfast(&["join", "-", "--state"], dir)?.stdin(Stdio::piped()).spawn().context("starting the join")?;
    let mut stdin = child.stdin.take().context("the join takes no token")?;
    stdin.write_all(minted.token.as_bytes()).await.context("giving the token")?;
    drop(stdin);
    let ended = child.wait().await.context("waiting for the join")?;
    if !ended.success() {
        bail!("this machine could not join its own mesh: {ended}");
    }
    Ok(())
}

async fn token(appliance: &Arc<Appliance>) -> anyhow::Result<Minted> {
    let refused =
        |refused: crate::authority::refusal::Refused| anyhow::anyhow!("{}: {}", refused.title, refused.detail);
    let fresh = mint(None).map_err(refused)?;
    let state = appliance.handle.state();
    let known = own(appliance, &state).map(|node| node.name.clone());
    let name = known.clone().unwrap_or_else(|| free_name(&state));
    let command = Command::AddNode(Box::new(AddNode {
        id: NodeId(entropy::uuid()),
        name: name.clone(),
        org: None,
        site: None,
        hub: true,
        appliance: Some(appliance.id),
        endpoints: appliance.advertised.iter().filter_map(at_tunnel).collect(),
        token: fresh.hash,
        expires: fresh.expires,
        replace: known.is_some(),
    }));
    let change = Change::new(command, Actor::Appliance, Role::System, None, axum::body::Bytes::new());
    appliance.change(change, |_| Ok(ok(&crate::wire::operator::Nothing {}))).await.map_err(refused)?;
    line(appliance, &state, fresh, Purpose::Join(name)).map_err(refused)
}

/// The advertised host with the tunnel's port.
fn at_tunnel(endpoint: &Endpoint) -> Option<Endpoint> {
    let text = endpoint.to_string();
    let (host, _) = text.rsplit_once(':')?;
    Endpoint::new(&format!("{host}:{PORT}")).ok()
}

/// The machine's host name, or another where that is no name or taken.
fn free_name(state: &State) -> Name {
    let host = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let label = host.split('.').next().unwrap_or_default().to_owned();
    let wished = Name::new(&label).ok().and_then(|name| name.unreserved().ok());
    let numbered = (1..=u32::MAX).filter_map(|n| Name::new(&format!("box-{n}")).ok());
    let free = |name: &Name| !state.nodes.by_name.contains_key(name) && in_space(state, name).next().is_none();
    wished.into_iter().chain(numbered).find(free).expect("one of so many names is free")
}

fn holdfast(arguments: &[&str], dir: &Path) -> anyhow::Result<Process> {
    let program = std::env::current_exe().context("finding this program")?;
    #[expect(clippy::disallowed_methods, reason = "the own node is a process of its own, so that it outlives nothing")]
    let mut process = Process::new(program);
    process.args(arguments).arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    Ok(process)
}
