//! The fleet at a glance, for people: what is up, what is behind, what is contested.

use crate::State;
use crate::model::{Millis, Name};
use crate::subject::services::Pair;
use crate::view::records::Liveness;
use serde::Serialize;

/// Counts and names that answer "is all well?".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The fleet's name; none before it is founded.
    pub fleet: Option<Name>,
    /// Nodes heard lately.
    pub here: usize,
    /// Nodes that are silent, with the time they were last heard.
    pub out_of_touch: Vec<(Name, Millis)>,
    /// Nodes that never finished joining.
    pub never_spoken: Vec<Name>,
    /// Pairs that more than one node claims, with the claimants.
    pub contested: Vec<(Pair, Vec<Name>)>,
    /// Addresses in use, and how many there are.
    pub addresses: (u64, u64),
}

/// The summary of a state.
pub fn summary(state: &State) -> Summary {
    let mut out_of_touch = Vec::new();
    let mut never_spoken = Vec::new();
    let mut here = 0;
    for node in state.nodes.all.values() {
        match liveness(node) {
            Liveness::Here => here += 1,
            Liveness::OutOfTouch { since } => out_of_touch.push((node.name.clone(), since)),
            Liveness::NeverSpoken => never_spoken.push(node.name.clone()),
        }
    }
    let name = |id| state.nodes.all.get(id).map(|node| node.name.clone());
    let contested = state.services.claims.iter().filter(|(_, by)| by.len() > 1);
    Summary {
        fleet: state.appliances.fleet.as_ref().map(|fleet| fleet.name.clone()),
        here,
        out_of_touch,
        never_spoken,
        contested: contested.map(|(pair, by)| (pair.clone(), by.keys().filter_map(name).collect())).collect(),
        addresses: (
            state.nodes.addresses.len() as u64,
            state.appliances.fleet.as_ref().map_or(0, |fleet| fleet.mesh_prefix.host_count()),
        ),
    }
}

/// A node's liveness, joined or not.
pub fn liveness(node: &crate::subject::nodes::Node) -> Liveness {
    node.member.as_ref().map_or(Liveness::NeverSpoken, |member| member.liveness)
}
