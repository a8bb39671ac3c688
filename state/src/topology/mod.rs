//! Who peers with whom: a pure function from all records to one node's peers.
//!
//! Two nodes are peered directly only if either can dial the other; else they meet at the hub of the pair, which both
//! ends work out alike. A direct peer on a guess would take the traffic from the hub and lead nowhere.
//!
//! Several hubs' take-over and the direct upgrade through NAT have their place here: the hub of a pair takes the hubs
//! known dead, and [`Path`] is where a probed path would be one more case.

use crate::model::{Endpoint, Name, NodeId, WireguardKey};
use crate::view::records::NodeRecord;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds between keepalives of the end that cannot be dialled: below the shortest UDP timeout of common NATs (RFC 4787
/// asks for 2 minutes, 30 s is met).
pub const KEEPALIVE: u16 = 25;

/// One WireGuard peer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node at the other end.
    pub node: NodeId,
    /// Its name.
    pub name: Name,
    /// Its tunnel key.
    pub key: WireguardKey,
    /// What may come from it and goes to it: its own addresses and, where it is a hub, those it forwards for.
    pub allowed: BTreeSet<IpNet>,
    /// Where it can be dialled from here, best first; empty when only it can dial.
    pub endpoints: Vec<Endpoint>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: u16,
}

/// How one node reaches another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// As a peer.
    Direct {
        /// Why that works, e.g. `both are in site one`.
        why: String,
    },
    /// Through a hub.
    Relayed {
        /// The hub.
        hub: NodeId,
        /// Its name.
        name: Name,
    },
    /// Not at all.
    None {
        /// Why not, and what would help.
        why: String,
    },
}

/// All of a node's peers, by id of the other end. `dead` are hubs known not to forward at present.
pub fn peers(own: NodeId, records: &[NodeRecord], dead: &BTreeSet<NodeId>) -> Vec<Peer> {
    let Some(me) = records.iter().find(|r| r.id == own) else { return Vec::new() };
    let mut peers: BTreeMap<NodeId, Peer> = BTreeMap::new();
    let hubs: Vec<&NodeRecord> = records.iter().filter(|r| r.hub && !dead.contains(&r.id)).collect();
    for other in records.iter().filter(|r| r.id != own) {
        match path_among(me, other, &hubs) {
            Path::Direct { .. } => {
                peers.entry(other.id).or_insert_with(|| peer(me, other)).allowed.extend(addresses(other));
            }
            Path::Relayed { hub, .. } => {
                // The hub of a pair is a hub that both ends reach directly, so it is a peer of this node.
                if let Some(hub) = hubs.iter().find(|h| h.id == hub) {
                    peers.entry(hub.id).or_insert_with(|| peer(me, hub)).allowed.extend(addresses(other));
                }
            }
            Path::None { .. } => {}
        }
    }
    peers.into_values().collect()
}

/// How `a` reaches `b`.
pub fn path(a: &NodeRecord, b: &NodeRecord, records: &[NodeRecord], dead: &BTreeSet<NodeId>) -> Path {
    let hubs: Vec<&NodeRecord> = records.iter().filter(|r| r.hub && !dead.contains(&r.id)).collect();
    path_among(a, b, &hubs)
}

fn path_among(a: &NodeRecord, b: &NodeRecord, hubs: &[&NodeRecord]) -> Path {
    if let Some(why) = direct(a, b) {
        return Path::Direct { why };
    }
    let reaches =
        |hub: &&&NodeRecord| hub.id != a.id && hub.id != b.id && direct(a, hub).is_some() && direct(b, hub).is_some();
    let best = hubs.iter().filter(reaches).min_by_key(|hub| (distance(a, hub) + distance(b, hub), hub.id));
    match best {
        Some(hub) => Path::Relayed { hub: hub.id, name: hub.name.clone() },
        None => {
            Path::None { why: format!("no hub that both reach, and neither {} nor {} can be dialled", a.name, b.name) }
        }
    }
}

/// Why two nodes can be peers, if they can. Symmetric but for the wording.
fn direct(a: &NodeRecord, b: &NodeRecord) -> Option<String> {
    let dialled = |node: &NodeRecord| format!("{} can be dialled at {}", node.name, node.endpoints[0]);
    if let (Some(site), true) = (&a.site, same_site(a, b))
        && !(a.local_endpoints.is_empty() && b.local_endpoints.is_empty())
    {
        return Some(format!("both are in site {site}"));
    }
    [b, a].into_iter().find(|node| !node.endpoints.is_empty()).map(dialled)
}

fn same_site(a: &NodeRecord, b: &NodeRecord) -> bool {
    a.site.is_some() && a.site == b.site
}

/// 0 within a site, 1 between two; a node without a site is a site of its own.
fn distance(a: &NodeRecord, b: &NodeRecord) -> u32 {
    u32::from(!same_site(a, b))
}

fn addresses(node: &NodeRecord) -> impl Iterator<Item = IpNet> {
    let four = IpNet::new(node.address.into(), 32).ok();
    let six = node.address6.and_then(|a| IpNet::new(a.into(), 128).ok());
    four.into_iter().chain(six)
}

fn peer(me: &NodeRecord, other: &NodeRecord) -> Peer {
    let mut endpoints = Vec::new();
    if same_site(me, other) {
        endpoints.extend(other.local_endpoints.iter().cloned());
    }
    endpoints.extend(other.endpoints.iter().cloned());
    let dialable = !me.endpoints.is_empty() || (same_site(me, other) && !me.local_endpoints.is_empty());
    Peer {
        node: other.id,
        name: other.name.clone(),
        key: other.wireguard_key,
        allowed: BTreeSet::new(),
        endpoints,
        keepalive: if dialable { 0 } else { KEEPALIVE },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Revision, SealingKey, SigningKey};
    use crate::view::records::Liveness;
    use proptest::prelude::*;

    fn node(n: u8, site: Option<&str>, endpoint: bool, local: bool, hub: bool) -> NodeRecord {
        let listen = |host: &str| Endpoint::new(&format!("{host}.{n}:51820")).unwrap();
        NodeRecord {
            format: 1,
            id: NodeId(uuid::Uuid::from_u128(u128::from(n))),
            revision: Revision(1),
            name: Name::new(&format!("n{n}")).unwrap(),
            org: None,
            site: site.map(|s| Name::new(s).unwrap()),
            hub,
            appliance: None,
            address: std::net::Ipv4Addr::new(10, 90, 0, n),
            address6: None,
            signing_key: SigningKey::from_bytes([n; 32]),
            wireguard_key: WireguardKey::from_bytes([n; 32]),
            sealing_key: SealingKey::from_bytes([n; 32]),
            listen_port: 51820,
            endpoints: if endpoint { vec![listen("198.51.100")] } else { vec![] },
            local_endpoints: if local { vec![listen("192.168.0")] } else { vec![] },
            liveness: Liveness::Here,
            services: vec![],
        }
    }

    fn shown(own: u8, records: &[NodeRecord]) -> Vec<String> {
        let own = NodeId(uuid::Uuid::from_u128(u128::from(own)));
        peers(own, records, &BTreeSet::new())
            .iter()
            .map(|p| {
                let allowed: Vec<String> = p.allowed.iter().map(|a| a.addr().to_string()).collect();
                let at = p.endpoints.first().map_or("-".into(), ToString::to_string);
                format!("{} at {at} for {} every {}", p.name, allowed.join(" "), p.keepalive)
            })
            .collect()
    }

    #[test]
    fn nodes_behind_nat_meet_at_the_hub_and_dialable_ones_directly() {
        let fleet = [
            node(1, Some("one"), true, true, true),
            node(2, Some("two"), true, true, false),
            node(3, Some("three"), false, true, false),
            node(4, Some("four"), false, true, false),
        ];
        assert_eq!(
            shown(3, &fleet),
            [
                "n1 at 198.51.100.1:51820 for 10.90.0.1 10.90.0.4 every 25",
                "n2 at 198.51.100.2:51820 for 10.90.0.2 every 25",
            ]
        );
        assert_eq!(
            shown(1, &fleet),
            [
                "n2 at 198.51.100.2:51820 for 10.90.0.2 every 0",
                "n3 at - for 10.90.0.3 every 0",
                "n4 at - for 10.90.0.4 every 0",
            ]
        );
    }

    #[test]
    fn a_site_is_direct_by_local_addresses() {
        let fleet = [node(1, Some("one"), false, true, false), node(2, Some("one"), false, true, false)];
        assert_eq!(shown(1, &fleet), ["n2 at 192.168.0.2:51820 for 10.90.0.2 every 0"]);
        let strangers = [node(1, None, false, true, false), node(2, None, false, true, false)];
        assert_eq!(shown(1, &strangers), [""; 0]);
        assert_eq!(
            path(&strangers[0], &strangers[1], &strangers, &BTreeSet::new()),
            Path::None { why: "no hub that both reach, and neither n1 nor n2 can be dialled".into() }
        );
    }

    #[test]
    fn the_nearer_hub_serves_a_pair_and_a_dead_one_none() {
        let fleet = [
            node(1, Some("far"), true, true, true),
            node(2, Some("near"), true, true, true),
            node(3, Some("near"), false, false, false),
            node(4, Some("other"), false, true, false),
        ];
        let by = |dead: &[u8]| {
            let dead = dead.iter().map(|n| NodeId(uuid::Uuid::from_u128(u128::from(*n)))).collect();
            match path(&fleet[2], &fleet[3], &fleet, &dead) {
                Path::Relayed { name, .. } => name.to_string(),
                other @ (Path::Direct { .. } | Path::None { .. }) => format!("{other:?}"),
            }
        };
        assert_eq!(by(&[]), "n2");
        assert_eq!(by(&[2]), "n1");
    }

    proptest! {
        #[test]
        fn both_ends_agree_and_no_address_is_allowed_twice(
            shape in proptest::collection::vec((0u8..4, any::<bool>(), any::<bool>(), any::<bool>()), 2..12)
        ) {
            let sites = [None, Some("a"), Some("b"), Some("c")];
            let fleet: Vec<NodeRecord> = shape
                .iter()
                .zip(1u8..)
                .map(|((site, endpoint, local, hub), n)| node(n, sites[usize::from(*site)], *endpoint, *local, *hub))
                .collect();
            let none = BTreeSet::new();
            for a in &fleet {
                let mine = peers(a.id, &fleet, &none);
                let allowed: Vec<&IpNet> = mine.iter().flat_map(|p| p.allowed.iter()).collect();
                let distinct: BTreeSet<&IpNet> = allowed.iter().copied().collect();
                prop_assert_eq!(allowed.len(), distinct.len());
                for b in &fleet {
                    if a.id == b.id {
                        continue;
                    }
                    let (there, back) = (path(a, b, &fleet, &none), path(b, a, &fleet, &none));
                    match (&there, &back) {
                        (Path::Direct { .. }, Path::Direct { .. }) => {
                            let theirs = peers(b.id, &fleet, &none);
                            let dials = |list: &[Peer], to: NodeId| {
                                list.iter().any(|p| p.node == to && !p.endpoints.is_empty())
                            };
                            prop_assert!(dials(&mine, b.id) || dials(&theirs, a.id));
                        }
                        (Path::Relayed { hub: x, .. }, Path::Relayed { hub: y, .. }) => {
                            prop_assert_eq!(x, y);
                            let at_hub = peers(*x, &fleet, &none);
                            prop_assert!(at_hub.iter().any(|p| p.node == a.id) && at_hub.iter().any(|p| p.node == b.id));
                        }
                        (Path::None { .. }, Path::None { .. }) => {}
                        (Path::Direct { .. } | Path::Relayed { .. } | Path::None { .. }, _) => {
                            prop_assert!(false, "{:?} against {:?}", there, back);
                        }
                    }
                }
            }
        }
    }
}
