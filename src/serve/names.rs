//! The appliance's own resolver: the same names that nodes answer, from the published state.

use crate::clock;
use crate::dataplane::resolver::{Listener, Names, serve};
use crate::listen::stop::Stop;
use crate::serve::accept::cannot_listen;
use crate::serve::appliance::Appliance;
use crate::tasks;
use anyhow::Context as _;
use ipnet::IpNet;
use state::State;
use state::model::Revision;
use state::view::records::{Mesh, NodeRecord};
use state::view::told;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Between two looks at who has been heard from where.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers on an address until the listener is dropped; follows the state until told to stop.
pub(super) fn start(address: SocketAddr, appliance: Arc<Appliance>, stop: Stop) -> anyhow::Result<Listener> {
    let state = appliance.handle.state();
    let (mesh, records) = shown(&state).context("there is no fleet yet")?;
    let allowed = allowed(address, &appliance, &state);
    let names = Arc::new(Names::new(&records, &mesh, state.revision, clock::wall(), allowed));
    let listener = serve(address, names.clone()).map_err(|error| cannot_listen(address, "DNS", &error))?;
    tasks::spawn("names", follow(address, names, appliance, stop));
    Ok(listener)
}

async fn follow(address: SocketAddr, names: Arc<Names>, appliance: Arc<Appliance>, mut stop: Stop) {
    let mut published = appliance.handle.watch();
    let mut served = (Revision(0), Vec::new());
    loop {
        let state = Arc::clone(&published.borrow_and_update());
        let wanted = (state.revision, allowed(address, &appliance, &state));
        if let Some((mesh, records)) = shown(&state).filter(|_| wanted != served) {
            names.publish(&records, &mesh, state.revision, wanted.1.clone());
            served = wanted;
        }
        names.confirmed(clock::wall());
        tokio::select! {
            changed = published.changed() => if changed.is_err() { return },
            () = sleep(PAUSE) => {}
            () = stop.requested() => return,
        }
    }
}

fn shown(state: &State) -> Option<(Mesh, Vec<NodeRecord>)> {
    let records = state.nodes.all.keys().filter_map(|id| told::record(state, *id)).collect();
    Some((state.mesh()?, records))
}

/// Beside loopback and the mesh: this machine, and where members were heard from.
fn allowed(address: SocketAddr, appliance: &Appliance, state: &State) -> Vec<IpNet> {
    let soft = appliance.authority.soft();
    let mut heard: Vec<IpAddr> = state.nodes.all.keys().filter_map(|id| soft.presence.of(*id)?.source).collect();
    heard.push(address.ip());
    heard.sort_unstable();
    heard.dedup();
    heard.into_iter().map(IpNet::from).collect()
}
