//! The law of plans, against a kernel that is only a value: applied, a plan leaves nothing to do, from wherever it began
//! and wherever it was stopped; and it never passes through a state that lets more in than before or after.

use super::*;
use crate::node::kernel::foreign_forward::Family;
use crate::node::kernel::wireguard::{Backend, Device, DeviceStep, PeerSeen};
use crate::node::kernel::{Link, names::Mark};
use crate::wire::dataplane::TunnelPeer;
use ipnet::IpNet;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use state::model::{Millis, NodeId, WireguardKey};
use state::view::records::Protocol;
use std::collections::{BTreeMap, BTreeSet};

const NOW: Millis = Millis(1_000_000_000);

pub(super) fn key(n: u8) -> WireguardKey {
    WireguardKey::from_bytes([n; 32])
}

pub(super) fn peer(n: u8, allowed: &[&str]) -> TunnelPeer {
    let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
    TunnelPeer { public_key: key(n), allowed, endpoint: None, keepalive: 0 }
}

pub(super) fn desired() -> Desired {
    Desired {
        ifname: "hf0".into(),
        mtu: 1420,
        address: "10.90.0.9".parse().unwrap(),
        address6: Some("fd90::9".parse().unwrap()),
        prefix: "10.90.0.0/16".parse().unwrap(),
        prefix6: Some("fd90::/64".parse().unwrap()),
        listen_port: 51820,
        private_key_file: "/nowhere/wireguard.key".into(),
        peers: Vec::new(),
        forward: false,
        firewall: Firewall::default(),
    }
}

fn mark() -> Mark {
    Mark::new(NodeId(uuid::Uuid::nil()))
}

pub(super) fn nothing(backend: Backend) -> Observed {
    Observed {
        at: NOW,
        mark: mark(),
        backend,
        key: key(255),
        link: None,
        strays: Vec::new(),
        addresses: BTreeSet::new(),
        addresses_elsewhere: Vec::new(),
        routes: BTreeSet::new(),
        routes_elsewhere: Vec::new(),
        device: None,
        port_holder: None,
        table: None,
        sysctls: BTreeMap::new(),
        sysctls_held: BTreeMap::new(),
        forward: BTreeMap::new(),
    }
}

/// What the data plane does when it is told of a tunnel.
fn data_plane(seen: &mut Observed) {
    if seen.backend == Backend::Userspace && seen.link.is_none() {
        seen.link = Some(new_link("tun"));
        seen.device.get_or_insert_with(|| Device { key: Some(seen.key), listen_port: 51820, ..Device::default() });
    }
}

fn new_link(kind: &str) -> LinkSeen {
    let (name, kind) = ("hf0".into(), kind.into());
    let link = Link { index: 7, name, kind, alias: None, mtu: 1500, up: false, loopback: false };
    LinkSeen { link, ours: true }
}

/// What observing adds for a desired state.
fn look(wanted: &Desired, seen: &mut Observed) {
    let old = std::mem::take(&mut seen.sysctls);
    if wanted.forward {
        let name = "net/ipv4/conf/hf0/forwarding".to_owned();
        let value = old.get(&name).cloned().flatten().or_else(|| seen.link.as_ref().map(|_| "0".into()));
        seen.sysctls.insert(name, value);
    }
}

fn make(wanted: &Desired, seen: &mut Observed, step: &Step) {
    let set_link = |seen: &mut Observed, change: &dyn Fn(&mut Link)| {
        change(&mut seen.link.as_mut().expect("an interface to change").link);
    };
    match step.clone() {
        Step::ReplaceTable => {
            let ruleset = Some(Ruleset::wanted(wanted, &seen.mark));
            seen.table = Some(TableSeen { marks: BTreeSet::from([seen.mark.as_str().into()]), ruleset });
        }
        Step::ChangeOpenings { close, open } => {
            let table = seen.table.as_mut().unwrap().ruleset.as_mut().unwrap();
            table.elements = table.elements.difference(&close).chain(&open).copied().collect();
        }
        Step::DeleteLink { index, .. } => {
            seen.strays.retain(|stray| stray.index != index);
            if seen.link.as_ref().is_some_and(|link| link.link.index == index) {
                lose_link(seen);
            }
        }
        Step::CreateLink => {
            assert!(seen.link.is_none());
            seen.link = Some(new_link("wireguard"));
            seen.device = Some(Device::default());
        }
        Step::MarkLink => set_link(seen, &|link| link.alias = Some(mark().as_str().into())),
        Step::SetMtu(mtu) => set_link(seen, &|link| link.mtu = mtu),
        Step::SetUp => set_link(seen, &|link| link.up = true),
        Step::AddAddress(net) => assert!(seen.addresses.insert(net)),
        Step::RemoveAddress(net) => assert!(seen.addresses.remove(&net)),
        Step::AddRoute(net) => assert!(seen.link.as_ref().unwrap().link.up && seen.routes.insert(net)),
        Step::RemoveRoute(net) => assert!(seen.routes.remove(&net)),
        Step::Device(change) => {
            let device = seen.device.as_mut().unwrap();
            match change {
                DeviceStep::Key => device.key = Some(seen.key),
                DeviceStep::Port(port) => device.listen_port = port,
                DeviceStep::Remove(key) => assert!(device.peers.remove(&key).is_some()),
                DeviceStep::Set(change) => {
                    let moved = change.allowed.clone().unwrap_or_default();
                    device.peers.values_mut().for_each(|peer| peer.allowed.retain(|net| !moved.contains(net)));
                    let peer: &mut PeerSeen = device.peers.entry(change.key).or_default();
                    peer.allowed = change.allowed.unwrap_or(std::mem::take(&mut peer.allowed));
                    peer.endpoint = change.endpoint.or(peer.endpoint);
                    peer.keepalive = change.keepalive.unwrap_or(peer.keepalive);
                }
            }
        }
        Step::SetSysctl { name, value } => {
            seen.sysctls_held.entry(name.clone()).or_insert("0".into());
            seen.sysctls.insert(name, Some(value));
        }
        Step::RestoreSysctl { name, .. } => assert!(seen.sysctls_held.remove(&name).is_some()),
        Step::AllowForward(family, chain) => {
            seen.forward.get_mut(&family).unwrap().ours.push((chain, "hf0".into()));
        }
        Step::WithdrawForward { family, chain, ifname } => {
            seen.forward.get_mut(&family).unwrap().ours.retain(|rule| *rule != (chain.clone(), ifname.clone()));
        }
    }
}

fn lose_link(seen: &mut Observed) {
    seen.link = None;
    seen.addresses.clear();
    seen.routes.clear();
    seen.sysctls.values_mut().for_each(|value| *value = None);
    if seen.backend == Backend::Kernel {
        seen.device = None;
    }
}

fn openings() -> impl Strategy<Value = BTreeSet<Opening>> {
    let from = btree_set(prop_oneof![Just("10.90.0.1"), Just("10.90.0.2"), Just("fd90::1")], 0..3);
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Http)];
    let opening = (protocol, 1u16..4, from).prop_map(|(protocol, port, from)| Opening {
        protocol,
        port,
        from: from.into_iter().map(|ip| ip.parse().unwrap()).collect(),
    });
    btree_set(opening, 0..4)
}

prop_compose! {
    fn wanted()(
        holders in btree_map(1u8..9, 1u8..4, 0..8),
        idle in btree_set(1u8..5, 0..3),
        endpoint in proptest::option::of(1u8..4),
        keepalive in prop_oneof![Just(0u16), Just(25)],
        forward: bool, open: bool, v6: bool,
        openings in openings(),
        mtu in prop_oneof![Just(1420u32), Just(1280)],
        listen_port in prop_oneof![Just(51820u16), Just(51821)],
    ) -> Desired {
        let mut peers: BTreeMap<u8, TunnelPeer> = idle.into_iter().map(|n| (n, peer(n, &[]))).collect();
        for (address, holder) in holders {
            let peer = peers.entry(holder).or_insert_with(|| peer(holder, &[]));
            peer.allowed.push(format!("10.90.0.{address}/32").replace(".9/", ".10/").parse().unwrap());
            peer.endpoint = endpoint.map(|n| format!("192.0.2.{n}:51820").parse().unwrap());
            peer.keepalive = keepalive;
        }
        let base = desired();
        Desired {
            peers: peers.into_values().collect(),
            forward, mtu, listen_port,
            address6: base.address6.filter(|_| v6),
            prefix6: base.prefix6.filter(|_| v6),
            firewall: Firewall { open, openings: openings.into_iter().collect() },
            ..base
        }
    }
}

/// What something else may do to us.
fn damage(seen: &mut Observed, kind: u8) {
    match kind {
        0 => seen.table = None,
        1 => lose_link(seen),
        2 => {
            seen.addresses.pop_first();
            seen.routes.clear();
        }
        3 => seen.device.iter_mut().for_each(|device| drop(device.peers.pop_first())),
        4 => seen.link.iter_mut().for_each(|link| (link.link.up, link.link.alias) = (false, None)),
        5 => seen.device.iter_mut().for_each(|device| (device.key, device.listen_port) = (None, 1)),
        6 => drop(seen.forward.insert(
            Family::V4,
            ForwardSeen { drops: true, chain: "FORWARD".into(), ours: vec![("DOCKER-USER".into(), "hf0".into())] },
        )),
        _ => seen.strays.push(Link { index: 9, name: "old0".into(), ..new_link("tun").link }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_applied_plan_leaves_nothing_to_do_wherever_it_was_stopped(
        userspace: bool,
        states in proptest::collection::vec((wanted(), proptest::option::of(0u8..8), 0usize..30), 1..4),
    ) {
        let mut seen = nothing(if userspace { Backend::Userspace } else { Backend::Kernel });
        for (wanted, hurt, stop) in states {
            check(&wanted).unwrap();
            hurt.into_iter().for_each(|kind| damage(&mut seen, kind));
            data_plane(&mut seen);
            look(&wanted, &mut seen);
            let first = plan(&wanted, &seen);
            for step in first.steps.iter().take(stop) {
                make(&wanted, &mut seen, step);
            }
            data_plane(&mut seen);
            look(&wanted, &mut seen);
            for step in &plan(&wanted, &seen).steps {
                make(&wanted, &mut seen, step);
            }
            look(&wanted, &mut seen);
            prop_assert_eq!(plan(&wanted, &seen), Plan::default());
            let device = seen.device.as_ref().unwrap();
            for peer in &wanted.peers {
                let allowed: BTreeSet<IpNet> = peer.allowed.iter().copied().collect();
                prop_assert_eq!(&device.peers[&peer.public_key].allowed, &allowed);
            }
            prop_assert_eq!(device.peers.len(), wanted.peers.len());
        }
    }

    #[test]
    fn the_firewall_is_first_and_removals_are_last(wanted in wanted(), other in wanted()) {
        let mut seen = nothing(Backend::Kernel);
        for wanted in [&wanted, &other] {
            look(wanted, &mut seen);
            let steps = plan(wanted, &seen).steps;
            let first = |kind: fn(&Step) -> bool| steps.iter().position(kind).unwrap_or(usize::MAX);
            let last = |kind: fn(&Step) -> bool| steps.iter().rposition(kind).unwrap_or(0);
            let firewall = |step: &Step| matches!(step, Step::ReplaceTable | Step::ChangeOpenings { .. });
            prop_assert!(last(firewall) == 0);
            let adds = |step: &Step| matches!(step, Step::AddRoute(_) | Step::AddAddress(_) | Step::Device(DeviceStep::Set(_)));
            let removes = |step: &Step| {
                matches!(step, Step::RemoveRoute(_) | Step::RemoveAddress(_) | Step::Device(DeviceStep::Remove(_)))
            };
            prop_assert!(last(adds) < first(removes));
            let peers = |step: &Step| matches!(step, Step::Device(DeviceStep::Set(_)));
            prop_assert!(first(|step| matches!(step, Step::AddRoute(_))) >= last(peers));
            steps.iter().for_each(|step| make(wanted, &mut seen, step));
        }
    }
}

#[test]
fn an_endpoint_learnt_by_roaming_is_overwritten_only_when_the_handshake_is_old() {
    let mut wanted = desired();
    wanted.peers = vec![TunnelPeer { endpoint: Some("192.0.2.1:1".parse().unwrap()), ..peer(1, &["10.90.0.1/32"]) }];
    let mut seen = nothing(Backend::Kernel);
    plan(&wanted, &seen).steps.iter().for_each(|step| make(&wanted, &mut seen, step));
    let set = |seen: &mut Observed, endpoint: Option<&str>, age: Option<u64>| {
        let peer = seen.device.as_mut().unwrap().peers.get_mut(&key(1)).unwrap();
        peer.endpoint = endpoint.map(|text| text.parse().unwrap());
        peer.handshake = age.map(|ms| Millis(NOW.0 - ms));
    };
    let told = |seen: &Observed| plan(&wanted, seen).to_string();
    set(&mut seen, Some("198.51.100.9:9"), Some(179_000));
    assert_eq!(told(&seen), "");
    let pushed = format!("peer {}: at 192.0.2.1:1\n", key(1));
    set(&mut seen, Some("198.51.100.9:9"), Some(181_000));
    assert_eq!(told(&seen), pushed);
    set(&mut seen, Some("198.51.100.9:9"), None);
    assert_eq!(told(&seen), pushed);
    set(&mut seen, None, Some(1000));
    assert_eq!(told(&seen), pushed);
    set(&mut seen, Some("192.0.2.1:1"), None);
    assert_eq!(told(&seen), "");
}

#[test]
fn what_belongs_to_somebody_else_is_named_and_left_out() {
    let wanted = desired();
    let mut seen = nothing(Backend::Userspace);
    seen.link = Some(LinkSeen { ours: false, ..new_link("bridge") });
    let found = plan(&wanted, &seen);
    assert_eq!(found.steps, []);
    assert_eq!(
        found.to_string(),
        "refused: the interface hf0 is a bridge and was not made by this node; remove it or join with another --ifname\n"
    );

    let mut seen = nothing(Backend::Kernel);
    seen.table = Some(TableSeen { marks: BTreeSet::new(), ruleset: None });
    assert_eq!(plan(&wanted, &seen).steps, []);
    assert!(plan(&wanted, &seen).to_string().contains("inet holdfast_mesh is unmarked"));

    let mut seen = nothing(Backend::Kernel);
    seen.port_holder = Some("process 7 (x)".into());
    seen.addresses_elsewhere = vec![("10.90.0.9".parse().unwrap(), "eth0".into())];
    seen.routes_elsewhere = vec![("10.90.0.0/16".parse().unwrap(), "eth0".into())];
    let told = plan(&wanted, &seen).to_string();
    for part in [
        "refused: the UDP port 51820 is held by process 7 (x); stop that or join with another --port\n",
        "refused: the mesh address 10.90.0.9 is already on eth0; remove it there\n",
        "refused: the mesh prefix 10.90.0.0/16 is already routed to eth0; remove that route or renumber that network\n",
    ] {
        assert!(told.contains(part), "{told}");
    }
    for part in ["10.90.0.9/32", "add 10.90.0.0/16", "listen on"] {
        assert!(!told.contains(part), "{told}");
    }
    assert!(told.contains("address: add fd90::9/128\n"), "{told}");
}
