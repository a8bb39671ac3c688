//! The appliance's own resolver: the same names that nodes answer, from the published state.

use crate::clock;
use crate::dataplane::resolver::{Listener, Names, serve};
use crate::limits;
use crate::listen::stop::Stop;
use crate::serve::appliance::Appliance;
use crate::tasks;
use anyhow::Context as _;
use ipnet::IpNet;
use state::State;
use state::view::records::{Mesh, NodeRecord};
use state::view::told;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::sleep;

/// Answers on an address until the listener is dropped; follows the state until told to stop.
pub(super) fn start(address: SocketAddr, appliance: Arc<Appliance>, stop: Stop) -> anyhow::Result<Listener> {
    let state = appliance.handle.state();
    let (mesh, records) = shown(&state).context("there is no fleet yet")?;
    let names = Arc::new(Names::new(&records, &mesh, state.revision, clock::wall(), members(&appliance, &state)));
    let listener = serve(address, names.clone())
        .with_context(|| format!("cannot listen on {address} (DNS, port {})", address.port()))?;
    tasks::spawn("names", follow(names, appliance, stop));
    Ok(listener)
}

async fn follow(names: Arc<Names>, appliance: Arc<Appliance>, mut stop: Stop) {
    let mut published = appliance.handle.watch();
    loop {
        let state = Arc::clone(&published.borrow_and_update());
        if let Some((mesh, records)) = shown(&state) {
            names.publish(&records, &mesh, state.revision, members(&appliance, &state));
            names.confirmed(clock::wall());
        }
        tokio::select! {
            changed = published.changed() => if changed.is_err() { return },
            () = sleep(limits::KEEP_ALIVE) => {}
            () = stop.requested() => return,
        }
    }
}

fn shown(state: &State) -> Option<(Mesh, Vec<NodeRecord>)> {
    let records = state.nodes.all.keys().filter_map(|id| told::record(state, *id)).collect();
    Some((state.mesh()?, records))
}

/// Where members were heard from: answered here, like the mesh itself.
fn members(appliance: &Appliance, state: &State) -> Vec<IpNet> {
    let soft = appliance.authority.soft();
    let heard = state.nodes.all.keys().filter_map(|id| soft.presence.of(*id)?.source);
    heard.map(IpNet::from).collect()
}
