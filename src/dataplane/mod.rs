//! The data plane, `holdfast dataplane`: the one long-lived process of a node. It holds what must not end with the
//! agent: the userspace tunnel, the resolver and the proxies.
//!
//! It is what the agent last told it over its socket, keeps that beside the socket, and comes up alone from it. No
//! signal takes anything down: SIGTERM ends the process, but the tunnel's interface stays with its addresses and routes,
//! and the next start goes on from there. Only [`Order::Stop`] takes the node out of the mesh.
//!
//! [`Order::Stop`]: crate::wire::dataplane::Order::Stop

pub mod client;
mod control;
mod plane;
mod proxy;
pub mod resolver;
mod sockets;
#[cfg(test)]
mod tests;
mod tunnel;
mod wireguard;

use crate::{files, limits};
use anyhow::{Context, Result};
use plane::Plane;
use rustix::process::{Resource, Rlimit};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The socket for orders, in the state directory.
pub const SOCKET: &str = "dataplane.sock";
/// What it was told last.
const TOLD: &str = "dataplane.json";
/// Where peers were last heard.
const HEARD: &str = "dataplane-heard.json";
/// What a data plane that the agent started writes.
const LOG: &str = "dataplane.log";
/// How often it looks whether everything is as told.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the data plane on a runtime of its own, small because the process is always there.
pub fn main(state_dir: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .thread_stack_size(512 * 1024)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(run(state_dir))
}

/// Runs the data plane of a state directory until it is ordered to stop.
pub async fn run(state_dir: &Path) -> Result<()> {
    // Refused to the leader of a process group, as a shell or systemd starts it: it needs none of its own then.
    let _ = rustix::process::setsid();
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(limits::DESCRIPTORS, |most| most.min(limits::DESCRIPTORS));
    if limit.current.is_some_and(|now| now < wanted) {
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })?;
    }
    files::check_private_dir(state_dir)?;
    let _lock = files::lock(state_dir, "dataplane")?;
    let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let plane = Arc::new(Mutex::new(Plane::remembered(state_dir)?));
    plane.lock().await.look().await;
    let listener = control::bind(&state_dir.join(SOCKET))?;
    let orders = control::serve(listener, plane.clone());
    tokio::pin!(orders);
    loop {
        tokio::select! {
            () = &mut orders => break,
            _ = hangup.recv() => {}
            () = tokio::time::sleep(LOOK) => plane.lock().await.look().await,
        }
    }
    files::remove(&state_dir.join(SOCKET))?;
    Ok(())
}
