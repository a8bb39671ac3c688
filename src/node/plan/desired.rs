//! What a node's mesh should be in the kernel, as one value.

use crate::wire::dataplane::TunnelPeer;
use ipnet::IpNet;
use state::model::Prefix;
use state::view::records::Protocol;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// The mesh interface with all that belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Interface name, at most 15 characters: `hf0`.
    pub ifname: String,
    /// Bytes of an inner packet.
    pub mtu: u32,
    /// The node's mesh address.
    pub address: Ipv4Addr,
    /// Its second one, where the fleet has an IPv6 prefix.
    pub address6: Option<Ipv6Addr>,
    /// The mesh prefix: routed to the interface as a whole.
    pub prefix: Prefix,
    /// The IPv6 prefix, likewise.
    pub prefix6: Option<ipnet::Ipv6Net>,
    /// UDP port of the tunnel.
    pub listen_port: u16,
    /// The file with the tunnel's private key.
    pub private_key_file: PathBuf,
    /// All peers. Allowed addresses are disjoint over them (proven before anything is applied).
    pub peers: Vec<TunnelPeer>,
    /// Whether this node forwards between others: sysctl, forward rules, MSS clamp.
    pub forward: bool,
    /// What may come in over the mesh.
    pub firewall: Firewall,
}

impl Desired {
    /// The node's own addresses, each with its full length.
    pub fn addresses(&self) -> impl Iterator<Item = IpNet> {
        [Some(IpAddr::V4(self.address)), self.address6.map(IpAddr::V6)].into_iter().flatten().map(IpNet::from)
    }

    /// The mesh prefixes: what the interface's routes lead to.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        [Some(IpNet::V4(self.prefix.net())), self.prefix6.map(IpNet::V6)].into_iter().flatten()
    }
}

/// What may come in over the mesh interface beside established connections and ICMP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// Everything may.
    pub open: bool,
    /// Ports that may, sorted: the resolver, published services, an appliance's own listeners.
    pub openings: Vec<Opening>,
}

/// One port that is open to the mesh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opening {
    /// TCP or UDP (`Http` counts as TCP).
    pub protocol: Protocol,
    /// The port on this node.
    pub port: u16,
    /// From whom: empty for the whole mesh.
    pub from: Vec<IpAddr>,
}
