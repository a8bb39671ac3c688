//! What an event about enrolment makes of the state.

use super::{Added, Certificate, Enrolment, Event, Joined, certificates};
use crate::State;
use crate::state::Touched;
use crate::subject::jobs;
use crate::subject::nodes::{Departed, Member, Node};
use crate::view::records::{Gone, Liveness};

/// Ends every token and certificate of a node that departs. Its bearer secret stays known: it opens nothing any more,
/// but lets the node's next request reach the refusal that carries its tombstone.
pub(crate) fn forget(state: &mut State, node: &Node) {
    let part = &mut state.enrolment;
    if let Some(token) = &node.token {
        part.tokens.remove(token);
    }
    if let Some(member) = &node.member {
        part.end_certificates(member);
    }
    // A key that was to take this node over would otherwise come in under an id that was another's.
    if let Some(key) = part.admitted.iter().find(|(_, admitted)| admitted.id == node.id).map(|(key, _)| *key) {
        part.admitted.remove(&key);
    }
}

impl Enrolment {
    fn end_certificates(&mut self, member: &Member) {
        for certificate in &member.certificates {
            self.certificates.remove(certificate);
        }
    }
}

pub(crate) fn apply(state: &mut State, event: &Event, touched: &mut Touched) {
    match event {
        Event::NodeAdded { node } => {
            state.nodes.by_name.insert(node.name.clone(), node.id);
            let Added { id, name, org, site, hub, appliance, endpoints } = node.clone();
            let added = state.at;
            let node = Node { id, name, org, site, hub, appliance, endpoints, added, token: None, member: None };
            state.nodes.all.insert(id, node);
        }
        Event::TokenIssued { token, grant } => {
            let Some(node) = state.nodes.all.get_mut(&grant.node) else { return };
            if let Some(former) = node.token.replace(*token) {
                state.enrolment.tokens.remove(&former);
            }
            state.enrolment.tokens.insert(*token, grant.clone());
        }
        Event::AdmissionTokenIssued { token } => {
            state.enrolment.admission_tokens.insert(*token, state.at);
        }
        Event::KeyAdmitted { key, admitted } => {
            state.enrolment.admitted.insert(*key, admitted.clone());
        }
        Event::Joined(joined) => join(state, joined, touched),
        Event::CertificateIssued { node, certificate, not_before, not_after } => {
            let record = Certificate { node: *node, not_before: *not_before, not_after: *not_after };
            certificates::issued(state, *certificate, record);
        }
        Event::CertificatesRetired { node, certificates } => certificates::retire(state, *node, certificates),
    }
}

fn join(state: &mut State, joined: &Joined, touched: &mut Touched) {
    let (at, revision, id, key) = (state.at, state.revision, joined.node, joined.signing_key);
    let Some(prefix) = state.appliances.fleet.as_ref().map(|f| f.mesh_prefix) else { return };
    let Some(node) = state.nodes.all.get_mut(&id) else { return };
    let former = node.member.replace(Member {
        signing_key: key,
        wireguard_key: joined.wireguard_key,
        sealing_key: joined.sealing_key,
        address: joined.address,
        listen_port: joined.listen_port,
        endpoints: Vec::new(),
        local_endpoints: joined.local_endpoints.clone(),
        agent_version: joined.agent_version.clone(),
        joined: at,
        seq: joined.seq,
        liveness: Liveness::Here,
        mesh_token: joined.mesh_token,
        certificates: vec![joined.certificate],
    });
    if joined.token.is_some() {
        node.token = None;
    }
    let (name, org) = (node.name.clone(), node.org.clone());
    let (part, nodes) = (&mut state.enrolment, &mut state.nodes);
    if let Some(former) = former {
        part.end_certificates(&former);
        nodes.by_key.remove(&former.signing_key);
        nodes.by_wireguard.remove(&former.wireguard_key);
        if former.signing_key == key {
            part.mesh_tokens.remove(&former.mesh_token);
        } else {
            let (address, mesh_token) = (joined.address, former.mesh_token);
            let departed = Departed { id, name, org, address, mesh_token, reason: Gone::Moved, revision };
            nodes.departed.insert(former.signing_key, departed);
            jobs::moved(&mut state.jobs, id);
        }
    }
    if let Some(token) = &joined.token {
        part.tokens.remove(token);
    }
    if let Some(departed) = nodes.departed.remove(&key) {
        part.mesh_tokens.remove(&departed.mesh_token);
    }
    part.admitted.remove(&key);
    part.mesh_tokens.insert(joined.mesh_token, id);
    let certificate = Certificate { node: id, not_before: joined.not_before, not_after: joined.not_after };
    part.certificates.insert(joined.certificate, certificate);
    nodes.by_key.insert(key, id);
    nodes.by_wireguard.insert(joined.wireguard_key, id);
    nodes.take(prefix, joined.address, id);
    touched.insert(id);
}
