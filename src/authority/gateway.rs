//! The gateway's callers, known by their client certificates, and their unchanged heartbeat.

use crate::authority::Authority;
use crate::authority::records::Records;
use crate::authority::refusal::{self, Refused};
use crate::authority::request::Now;
use crate::wire::jobs::{Presence, Seen};
use crate::wire::roster::Roster;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use state::State;
use state::model::{Fingerprint, NodeId, Revision};
use state::subject::enrolment;
use state::view::records::Liveness;
use std::net::IpAddr;

/// The node that a certificate is good for now. Whatever is wrong with it, the refusal is the same.
pub fn identify(state: &State, certificate: &Fingerprint, now: Now) -> Result<NodeId, Refused> {
    enrolment::holder(state, certificate, now.wall, now.wall >= state.at).map_err(|r| refusal::from_decision(&r))
}

/// The DER of the CAs that the roster in force names, with its revision.
pub fn authorities(state: &State) -> (Revision, Vec<Vec<u8>>) {
    let Some(roster) = &state.appliances.roster else { return (Revision(0), Vec::new()) };
    let named = serde_json::from_str(&roster.document).map_or_else(|_| Vec::new(), |roster: Roster| roster.appliances);
    (roster.revision, named.iter().filter_map(|appliance| STANDARD.decode(&appliance.ca).ok()).collect())
}

impl Authority {
    /// The unchanged heartbeat of a node. It has been heard; whether it must register in full is in the answer.
    pub fn presence(&self, state: &State, node: NodeId, source: IpAddr, presence: &Presence, now: Now) -> Option<Seen> {
        let known = {
            let soft = &mut self.soft().presence;
            soft.hear(node, source, now.boot, now.wall);
            soft.holds(node, presence.held_revision);
            soft.knows(node, presence.instance, presence.registered)
        };
        let member = state.nodes.all.get(&node)?.member.as_ref()?;
        let roster = state.appliances.roster.as_ref().map_or(Revision(0), |roster| roster.revision);
        Some(Seen {
            fleet: state.appliances.fleet.as_ref()?.id,
            revision: Records::standing(state, node).map_or(Revision(0), |(_, revision)| revision),
            epoch: state.appliances.epoch?,
            now: now.wall,
            register: !known || member.liveness != Liveness::Here || presence.roster_revision < roster,
        })
    }
}
