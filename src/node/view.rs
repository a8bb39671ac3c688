//! What the agent shows of itself: pure.

use crate::clock::rfc3339;
use crate::node::agent::Report;
use crate::node::directory::NodeFile;
use crate::node::kernel::wireguard::{Backend, PeerSeen};
use crate::node::upkeep::Seen;
use crate::wire::operator::{AgentView, PeerView, SCHEMA, ServiceView};
use state::model::{Endpoint, Millis, Name, Revision, WireguardKey};
use state::topology::{self, Path};
use state::view::records::{Epoch, NodeRecord, ServiceRecord};
use std::collections::{BTreeMap, BTreeSet};

/// What is shown, taken at one moment.
pub(super) struct Snapshot {
    node: NodeFile,
    own: Option<NodeRecord>,
    records: Vec<NodeRecord>,
    suffix: Option<Name>,
    backend: Backend,
    seen: Seen,
    authority: Option<Endpoint>,
    reachable: bool,
    confirmed: Millis,
    revision: Revision,
    roster_revision: Revision,
    epoch: Option<Epoch>,
}

impl Snapshot {
    pub(super) fn take(
        report: &Report<'_>,
        node: NodeFile,
        backend: Backend,
        seen: Seen,
        authority: Option<Endpoint>,
    ) -> Self {
        Self {
            own: node.node.and_then(|id| report.held.record(id)).cloned(),
            node,
            records: report.held.records().cloned().collect(),
            suffix: report.held.mesh().map(|mesh| mesh.suffix.clone()),
            backend,
            seen,
            authority,
            reachable: report.reachable,
            confirmed: report.confirmed,
            revision: report.held.revision(),
            roster_revision: report.trust.roster().revision,
            epoch: report.held.epoch(),
        }
    }

    /// The name that others resolve for a service.
    pub(super) fn service_name(&self, space: &Name, name: &Name) -> String {
        let suffix = self.suffix.as_ref().map_or("internal", Name::as_str);
        format!("{name}.{space}.{suffix}")
    }

    /// As people and programs read it; `peers` is what the tunnel says.
    pub(super) fn view(&self, peers: &BTreeMap<WireguardKey, PeerSeen>, now: Millis) -> AgentView {
        let own = self.own.as_ref();
        let mut problems = self.seen.problems.clone();
        if !self.reachable {
            problems.push(
                "no appliance answers, or it refuses this node, as its log says; what is shown is of the last contact"
                    .into(),
            );
        }
        let mut views = Vec::new();
        for other in self.records.iter().filter(|r| Some(r.id) != self.node.node) {
            let path = own.map(|own| topology::path(own, other, &self.records, &BTreeSet::new()));
            if let Some(Path::None { why }) = &path {
                problems.push(format!("no path to {}: {why}", other.name));
            }
            views.push(peer(other, path, peers, &self.records, now));
        }
        let known: BTreeSet<WireguardKey> = self.records.iter().map(|r| r.wireguard_key).collect();
        views.extend(peers.iter().filter(|(key, _)| !known.contains(key)).map(|(_, seen)| stranger(seen, now)));
        views.sort_by(|a, b| a.name.cmp(&b.name));
        AgentView {
            schema: SCHEMA,
            fleet: self.node.fleet_name.clone(),
            node: self.node.node,
            name: own.map(|r| r.name.clone()),
            address: own.map(|r| r.address),
            address6: own.and_then(|r| r.address6),
            ifname: self.node.ifname.clone(),
            listen_port: self.node.listen_port,
            tunnel: match self.backend {
                Backend::Kernel => "kernel".into(),
                Backend::Userspace => "userspace".into(),
            },
            up: self.seen.up,
            authority: self.authority.clone(),
            last_contact: (self.confirmed != Millis(0)).then(|| rfc3339(self.confirmed)),
            revision: self.revision,
            roster_revision: self.roster_revision,
            epoch: self.epoch,
            peers: views,
            services: own.into_iter().flat_map(|r| &r.services).map(service).collect(),
            problems,
        }
    }
}

fn peer(
    other: &NodeRecord,
    path: Option<Path>,
    peers: &BTreeMap<WireguardKey, PeerSeen>,
    records: &[NodeRecord],
    now: Millis,
) -> PeerView {
    let (via, why) = match path {
        Some(Path::Relayed { hub, name }) => {
            let why = format!("neither can be dialled by the other; both reach {name}");
            (Some((hub, name)), Some(why))
        }
        Some(Path::Direct { why } | Path::None { why }) => (None, Some(why)),
        None => (None, None),
    };
    let direct = via.is_none();
    let hop = via.as_ref().and_then(|(hub, _)| records.iter().find(|r| r.id == *hub)).unwrap_or(other);
    let seen = peers.get(&hop.wireguard_key);
    PeerView {
        name: Some(other.name.clone()),
        address: Some(other.address),
        endpoint: seen.and_then(|seen| seen.endpoint),
        via: via.map(|(_, name)| name),
        path: why,
        received_bytes: seen.filter(|_| direct).map(|seen| seen.received),
        sent_bytes: seen.filter(|_| direct).map(|seen| seen.sent),
        handshake_age_seconds: seen.and_then(|seen| age(seen, now)),
        liveness: Some(other.liveness.into()),
    }
}

fn stranger(seen: &PeerSeen, now: Millis) -> PeerView {
    PeerView {
        name: None,
        address: None,
        endpoint: seen.endpoint,
        via: None,
        path: None,
        received_bytes: Some(seen.received),
        sent_bytes: Some(seen.sent),
        handshake_age_seconds: age(seen, now),
        liveness: None,
    }
}

fn age(seen: &PeerSeen, now: Millis) -> Option<u64> {
    seen.handshake.map(|at| now.since(at) / 1000)
}

fn service(service: &ServiceRecord) -> ServiceView {
    ServiceView {
        space: service.space.clone(),
        name: service.name.clone(),
        protocol: service.protocol,
        port: service.port,
        verdict: service.verdict.clone().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{Fleet, name, node, public};

    fn snapshot(fleet: &Fleet) -> Snapshot {
        Snapshot {
            node: NodeFile {
                format: 1,
                fleet: fleet.id,
                fleet_name: name("lab"),
                root_key: public(&fleet.root),
                ifname: "hf0".into(),
                listen_port: 51820,
                appliances: vec![],
                node: Some(node(0)),
                name: name("n0"),
                site: None,
            },
            own: fleet.records.get(&node(0)).cloned(),
            records: fleet.records.values().cloned().collect(),
            suffix: Some(name("internal")),
            backend: Backend::Userspace,
            seen: Seen { up: true, ..Seen::default() },
            authority: None,
            reachable: true,
            confirmed: Millis(0),
            revision: Revision(7),
            roster_revision: Revision(1),
            epoch: None,
        }
    }

    #[test]
    fn each_path_is_direct_through_a_hub_or_told_to_be_missing() {
        let mut fleet = Fleet::new();
        fleet.set(0, |r| r.endpoints.clear());
        fleet.set(1, |r| r.hub = true);
        fleet.set(2, |r| r.endpoints.clear());
        let hub = fleet.records[&node(1)].wireguard_key;
        let seen = PeerSeen { handshake: Some(Millis(60_000)), ..PeerSeen::default() };
        let peers = BTreeMap::from([(hub, seen.clone()), (WireguardKey::from_bytes([200; 32]), seen)]);
        let view = snapshot(&fleet).view(&peers, Millis(65_000));
        let shown: Vec<_> =
            view.peers.iter().map(|p| (p.name.clone(), p.via.clone(), p.handshake_age_seconds)).collect();
        let n = |text| Some(name(text));
        assert_eq!(shown, [(None, None, Some(5)), (n("n1"), None, Some(5)), (n("n2"), n("n1"), Some(5))]);
        assert_eq!(view.problems, Vec::<String>::new());
        assert_eq!(view.last_contact, None);

        fleet.set(1, |r| r.hub = false);
        let mut lonely = snapshot(&fleet);
        lonely.reachable = false;
        let view = lonely.view(&BTreeMap::new(), Millis(65_000));
        assert!(view.problems[0].starts_with("no appliance answers"));
        assert!(view.problems[1].starts_with("no path to n2: no hub"), "{:?}", view.problems);
    }
}
