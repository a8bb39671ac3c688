//! From what a node holds to what its machine should be: pure.

use crate::node::claims::Claims;
use crate::node::held::Held;
use crate::node::plan::{Desired, Firewall, Opening};
use crate::wire::dataplane::{Proxy, Resolver, Told, Tunnel, TunnelPeer};
use crate::wire::roster::Roster;
use state::model::{Endpoint, Host, Millis, NodeId};
use state::topology::{self, Peer};
use state::view::records::{NodeRecord, Protocol, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Where programs of the machine itself find the resolver whatever the mesh address.
pub const RESOLVER_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 90);
/// DNS (RFC 1035, 4.2).
const DNS: u16 = 53;

/// What is the node's own and not the fleet's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// The node.
    pub id: NodeId,
    /// The mesh interface.
    pub ifname: String,
    /// The UDP port of the tunnel.
    pub listen_port: u16,
    /// The file with the tunnel's private key.
    pub private_key_file: PathBuf,
}

/// What the machine looks like from within.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Own addresses with the listen port that another machine might dial.
    pub local_endpoints: Vec<Endpoint>,
    /// Bytes of a packet inside the tunnel.
    pub mtu: u32,
}

/// What a node's machine should be: kernel, resolver and proxies.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Interface, peers, firewall.
    pub desired: Desired,
    /// Names.
    pub resolver: Resolver,
    /// Published services with a target.
    pub proxies: Vec<Proxy>,
}

impl Wanted {
    /// What the data plane is told of it, with the tunnel too where the kernel has no WireGuard.
    pub fn told(&self, userspace: bool) -> Told {
        let desired = &self.desired;
        let tunnel = userspace.then(|| Tunnel {
            ifname: desired.ifname.clone(),
            mtu: desired.mtu,
            listen_port: desired.listen_port,
            private_key_file: desired.private_key_file.clone(),
            peers: desired.peers.clone(),
        });
        Told { format: 1, tunnel, resolver: Some(self.resolver.clone()), proxies: self.proxies.clone() }
    }
}

/// Host names of endpoints and where they led when last asked.
pub type Resolved = BTreeMap<String, IpAddr>;

/// Works it out; none while the node's own record or a head is not held.
pub fn wanted(
    own: &Own,
    machine: &Machine,
    roster: &Roster,
    held: &Held,
    claims: &Claims,
    resolved: &Resolved,
    as_of: Millis,
) -> Option<Wanted> {
    let record = held.record(own.id)?;
    let mesh = held.mesh()?;
    let records: Vec<NodeRecord> = held.records().cloned().collect();
    let peers = topology::peers(own.id, &records, &BTreeSet::new());
    let desired = Desired {
        ifname: own.ifname.clone(),
        mtu: machine.mtu,
        address: record.address,
        address6: record.address6,
        prefix: mesh.prefix,
        prefix6: mesh.prefix6,
        listen_port: own.listen_port,
        private_key_file: own.private_key_file.clone(),
        peers: peers.iter().map(|peer| tunnel_peer(peer, machine, resolved)).collect(),
        forward: record.hub,
        firewall: Firewall { open: false, openings: openings(record, roster, claims) },
    };
    let six = record.address6.map(IpAddr::V6);
    let addresses = [IpAddr::V4(record.address), IpAddr::V4(RESOLVER_LOOPBACK)].into_iter().chain(six);
    let resolver = Resolver {
        listen: addresses.map(|ip| SocketAddr::new(ip, DNS)).collect(),
        optional: [IpAddr::V4(RESOLVER_LOOPBACK)].into_iter().chain(six).collect(),
        mesh: mesh.clone(),
        own: own.id,
        revision: held.revision().0,
        as_of,
        records,
    };
    Some(Wanted { desired, resolver, proxies: proxies(record, claims) })
}

/// The host names among the endpoints of this node's peers.
pub fn host_names(own: NodeId, held: &Held) -> BTreeSet<String> {
    let others = held.records().filter(|r| r.id != own);
    let endpoints = others.flat_map(|r| r.endpoints.iter());
    endpoints
        .filter_map(|endpoint| match endpoint.host() {
            Host::Name(name) => Some(name.clone()),
            Host::Address(_) => None,
        })
        .collect()
}

fn tunnel_peer(peer: &Peer, machine: &Machine, resolved: &Resolved) -> TunnelPeer {
    let sockets = peer.endpoints.iter().filter_map(|endpoint| match endpoint.host() {
        Host::Address(ip) => Some(SocketAddr::new(*ip, endpoint.port())),
        Host::Name(name) => resolved.get(name).map(|ip| SocketAddr::new(*ip, endpoint.port())),
    });
    let own: Vec<IpAddr> = machine.local_endpoints.iter().filter_map(|e| e.socket()).map(|s| s.ip()).collect();
    // An address that this machine has too, such as a container bridge's, leads to this machine.
    let candidates: Vec<SocketAddr> = sockets.filter(|s| !own.contains(&s.ip())).collect();
    // Of several, the one that shares most leading bits with an own address: the network that both are on.
    let nearest = candidates.iter().enumerate().max_by_key(|(index, socket)| {
        let shared = own.iter().map(|ip| shared_bits(*ip, socket.ip())).max().unwrap_or(0);
        (shared, std::cmp::Reverse(*index))
    });
    TunnelPeer {
        public_key: peer.key,
        allowed: peer.allowed.iter().copied().collect(),
        endpoint: nearest.map(|(_, socket)| *socket),
        keepalive: peer.keepalive,
    }
}

/// Leading bits that two addresses share, from 8 on: less than that is no network of anybody's.
fn shared_bits(a: IpAddr, b: IpAddr) -> u32 {
    let shared = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => 0,
    };
    if shared < 8 { 0 } else { shared }
}

fn openings(record: &NodeRecord, roster: &Roster, claims: &Claims) -> Vec<Opening> {
    let open = |protocol, port| Opening { protocol, port, from: Vec::new() };
    let mut openings: BTreeSet<Opening> = [open(Protocol::Udp, DNS), open(Protocol::Tcp, DNS)].into();
    openings.extend(claims.iter().map(|claim| match claim.protocol {
        Protocol::Tcp | Protocol::Http => open(Protocol::Tcp, claim.port),
        Protocol::Udp => open(Protocol::Udp, claim.port),
    }));
    let here = roster.appliances.iter().filter(|a| Some(a.id) == record.appliance);
    openings.extend(
        here.flat_map(|a| a.mesh.iter().chain(&a.gateway)).map(|endpoint| open(Protocol::Tcp, endpoint.port())),
    );
    openings.into_iter().collect()
}

fn proxies(record: &NodeRecord, claims: &Claims) -> Vec<Proxy> {
    let mut proxies = BTreeMap::new();
    for claim in claims.iter() {
        let Some(target) = claim.target else { continue };
        // Served before the verdict too: others may resolve the name a moment before this node hears of it, and nobody
        // is sent here for a name that is not ours.
        let mut judged = record.services.iter().filter(|s| s.space == claim.space && s.name == claim.name);
        let serving = judged.all(|s| s.verdict == Verdict::Routed);
        let addresses = [IpAddr::V4(record.address)].into_iter().chain(record.address6.map(IpAddr::V6));
        for listen in addresses.map(|ip| SocketAddr::new(ip, claim.port)) {
            let proxy = Proxy { listen, target, protocol: claim.protocol, serving };
            // Two names of one port and target: served while either is.
            proxies.entry(listen).and_modify(|p: &mut Proxy| p.serving |= serving).or_insert(proxy);
        }
    }
    proxies.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::held::Extent;
    use crate::node::testing::{Fleet, name, node, web};
    use crate::wire::operator::Publish;

    fn of(fleet: &Fleet, machine: &Machine, claims: &Claims, resolved: &Resolved) -> Wanted {
        let trust = fleet.trust();
        let mut held = Held::default();
        held.accept(&trust, &fleet.full(), Extent::Full);
        let own = Own { id: node(0), ifname: "hf0".into(), listen_port: 51820, private_key_file: "/x".into() };
        wanted(&own, machine, trust.roster(), &held, claims, resolved, Millis(5)).unwrap()
    }

    fn on(addresses: &[&str]) -> Machine {
        Machine { local_endpoints: addresses.iter().map(|a| a.parse().unwrap()).collect(), mtu: 1420 }
    }

    fn opened(wanted: &Wanted) -> Vec<(Protocol, u16)> {
        wanted.desired.firewall.openings.iter().map(|o| (o.protocol, o.port)).collect()
    }

    #[test]
    fn within_a_site_the_address_on_a_shared_network_is_dialled() {
        let mut fleet = Fleet::new();
        fleet.set(0, |r| r.site = Some(name("one")));
        fleet.set(1, |r| {
            r.site = Some(name("one"));
            let locals = ["172.17.0.1:51820", "10.1.2.3:51820", "192.168.7.9:51820"];
            r.local_endpoints = locals.iter().map(|e| e.parse().unwrap()).collect();
        });
        let machine = on(&["172.17.0.1:51820", "192.168.7.2:51820"]);
        let peers = of(&fleet, &machine, &Claims::default(), &Resolved::new()).desired.peers;
        assert_eq!(peers[0].endpoint, Some("192.168.7.9:51820".parse().unwrap()));
        assert_eq!(peers[0].allowed, ["10.90.0.2/32".parse::<ipnet::IpNet>().unwrap()]);
    }

    #[test]
    fn a_host_name_is_dialled_where_it_leads() {
        let mut fleet = Fleet::new();
        fleet.set(0, |_| {});
        fleet.set(1, |r| r.endpoints = vec!["vpn.example.org:7".parse().unwrap()]);
        let endpoint =
            |resolved: &Resolved| of(&fleet, &on(&[]), &Claims::default(), resolved).desired.peers[0].endpoint;
        assert_eq!(endpoint(&Resolved::new()), None);
        let resolved = Resolved::from([("vpn.example.org".into(), "203.0.113.7".parse().unwrap())]);
        assert_eq!(endpoint(&resolved), Some("203.0.113.7:7".parse().unwrap()));
    }

    #[test]
    fn only_the_resolver_services_and_an_appliances_listeners_are_open_to_the_mesh() {
        let mut fleet = Fleet::new();
        fleet.set(0, |_| {});
        let dns = [(Protocol::Tcp, 53), (Protocol::Udp, 53)];
        let bare = of(&fleet, &on(&[]), &Claims::default(), &Resolved::new());
        assert_eq!(opened(&bare), dns);
        let id = fleet.appliance_id;
        fleet.set(0, |r| {
            r.appliance = Some(id);
            r.hub = true;
        });
        let claim = |service: &str, protocol, port| Publish {
            space: name("s"),
            name: name(service),
            protocol,
            port,
            target: None,
        };
        let claims = Claims::new(vec![claim("a", Protocol::Http, 80), claim("b", Protocol::Udp, 80)]);
        let full = of(&fleet, &on(&[]), &claims, &Resolved::new());
        let expected =
            [(Protocol::Tcp, 53), (Protocol::Tcp, 80), (Protocol::Tcp, 4300), (Protocol::Udp, 53), (Protocol::Udp, 80)];
        assert_eq!(opened(&full), expected);
        assert!(full.desired.forward && !bare.desired.forward);
    }

    #[test]
    fn a_target_is_served_unless_its_name_is_contested() {
        let mut fleet = Fleet::new();
        fleet.set(0, |r| r.services = vec![web(Verdict::Contested { with: vec![name("n1")] })]);
        let target = Some("127.0.0.1:3000".parse().unwrap());
        let contested = Publish { space: name("shop"), name: name("web"), protocol: Protocol::Http, port: 80, target };
        let unjudged = Publish { name: name("api"), port: 81, ..contested.clone() };
        let wanted = of(&fleet, &on(&[]), &Claims::new(vec![contested, unjudged]), &Resolved::new());
        let served: Vec<_> = wanted.proxies.iter().map(|p| (p.listen.to_string(), p.serving)).collect();
        assert_eq!(served, [("10.90.0.1:80".into(), false), ("10.90.0.1:81".into(), true)]);
        assert!(wanted.told(false).tunnel.is_none());
        assert_eq!(wanted.told(true).tunnel.unwrap().peers, wanted.desired.peers);
    }
}
