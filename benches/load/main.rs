//! A fleet of nodes in one process against one running appliance. Prints lines `name value unit`.
//!
//! Usage: `load WHAT HOLDFAST OPERATOR_SOCKET APPLIANCE_PID DIR NODES SECONDS_OR_EVENTS`, where WHAT is `idle`, `fanout`,
//! `heartbeat`, `presence`, `lease` or `siege`. Each node is real: it joins with a token, and what it is sent is verified.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program, not the product")]

mod fleet;
mod gateway;
mod kept;
mod signed;

use anyhow::{Result, bail};
use fleet::Appliance;
use std::path::Path;
use std::time::Duration;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [what, binary, socket, pid, dir, nodes, amount] = arguments.as_slice() else {
        bail!("usage: load WHAT HOLDFAST SOCKET PID DIR NODES SECONDS_OR_EVENTS");
    };
    let (pid, count, amount): (u32, usize, u64) = (pid.parse()?, nodes.parse()?, amount.parse()?);
    // Where receivers verify or strangers storm, both cores are theirs. Where only bytes are sent and read, a second thread would take from the
    // appliance what it costs to wake it.
    let mut runtime = match what.as_str() {
        "idle" | "fanout" | "heartbeat" | "siege" => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let appliance = Appliance { binary: binary.clone(), socket: socket.clone(), pid };
    runtime.block_on(async {
        let fleet = appliance.nodes(Path::new(dir), count).await?;
        let length = Duration::from_secs(amount);
        match what.as_str() {
            "idle" => signed::idle(&appliance, fleet, length).await,
            "fanout" => signed::fanout(fleet, amount).await,
            "heartbeat" => signed::heartbeat(&appliance, fleet, length).await,
            "presence" => gateway::presence(&appliance, fleet, length).await,
            "lease" => gateway::lease(&appliance, fleet, length).await,
            "siege" => gateway::siege(fleet, length).await,
            other => bail!("there is no load `{other}`"),
        }
    })
}
