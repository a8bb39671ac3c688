//! What operators are shown of nodes: the state with what has been heard beside it.

use crate::authority::records::Records;
use crate::clock::rfc3339;
use crate::serve::appliance::Appliance;
use crate::wire::operator::{DrainView, NodeView, ServiceView};
use state::State;
use state::model::{Endpoint, Millis};
use state::subject::nodes::Node;
use state::subject::services::verdict;
use state::view::records::Liveness;
use state::view::status::liveness;
use std::net::SocketAddr;

pub(super) fn node(appliance: &Appliance, state: &State, node: &Node) -> NodeView {
    let soft = appliance.authority.soft();
    let heard = soft.presence.of(node.id);
    let claims = state.services.by_node.get(&node.id);
    let services: Vec<ServiceView> = claims
        .into_iter()
        .flatten()
        .map(|(pair, port)| ServiceView {
            space: pair.space.clone(),
            name: pair.name.clone(),
            protocol: port.protocol,
            port: port.port,
            verdict: verdict(state, node.id, pair).into(),
        })
        .collect();
    let mut spaces: Vec<_> = services.iter().map(|service| service.space.clone()).collect();
    spaces.dedup();
    let seen = heard.and_then(|heard| heard.last.map(|_| heard.last_wall)).or(match liveness(node) {
        Liveness::OutOfTouch { since } => Some(since),
        Liveness::Here | Liveness::NeverSpoken => None,
    });
    let board = state.jobs.boards.get(&node.id);
    let drain = board.and_then(|board| board.drain);
    let member = node.member.as_ref();
    let declared = node.endpoints.first().or(member.and_then(|member| member.endpoints.first())).cloned();
    let observed = || {
        let source = heard.and_then(|heard| heard.source)?;
        Endpoint::from_socket(SocketAddr::new(source, member?.listen_port)).ok()
    };
    NodeView {
        id: node.id,
        name: node.name.clone(),
        site: node.site.clone(),
        hub: node.hub,
        address: member.map(|member| member.address),
        address6: None,
        endpoint: declared.or_else(observed),
        liveness: liveness(node).into(),
        last_seen: seen.map(|at: Millis| rfc3339(at)),
        spaces,
        services,
        signing_key: member.map(|member| member.signing_key),
        agent_version: member.map(|member| member.agent_version.clone()),
        declared_revision: member.and_then(|_| Records::standing(state, node.id)).map(|(_, revision)| revision),
        drain: drain.map(|drain| DrainView { until: drain.until.map(rfc3339) }),
        capabilities: board.map(|board| board.capabilities.clone()).unwrap_or_default(),
        held_revision: heard.filter(|heard| heard.last.is_some()).map(|heard| heard.held),
    }
}
