//! What was read from a machine, as one value: everything a plan depends on and nothing else.

use super::Ruleset;
use crate::node::kernel::foreign_forward::{self, Family};
use crate::node::kernel::wireguard::{Backend, Device};
use crate::node::kernel::{Link, names::Mark};
use ipnet::IpNet;
use state::model::{Millis, WireguardKey};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The mesh's part of a machine as it was at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When, by the wall clock: what the age of a handshake is told by.
    pub at: Millis,
    /// What marks this node's objects.
    pub mark: Mark,
    /// Which WireGuard the machine has.
    pub backend: Backend,
    /// The public half of the key file.
    pub key: WireguardKey,
    /// The interface of the wanted name, whoever made it.
    pub link: Option<LinkSeen>,
    /// Interfaces with our mark under another name: left over from an earlier one.
    pub strays: Vec<Link>,
    /// Addresses of the interface, without link-local ones.
    pub addresses: BTreeSet<IpNet>,
    /// Our addresses on other interfaces: the address and the interface's name.
    pub addresses_elsewhere: Vec<(IpAddr, String)>,
    /// Routes of ours on the interface.
    pub routes: BTreeSet<IpNet>,
    /// The mesh prefixes routed elsewhere: the prefix and the interface's name.
    pub routes_elsewhere: Vec<(IpNet, String)>,
    /// The WireGuard device.
    pub device: Option<Device>,
    /// Who else holds the UDP port, in words.
    pub port_holder: Option<String>,
    /// The nftables table of our name.
    pub table: Option<TableSeen>,
    /// Kernel variables that must be on for this node to forward, and what they are; no value without the interface.
    pub sysctls: BTreeMap<String, Option<String>>,
    /// Kernel variables that were set here, and what they were before.
    pub sysctls_held: BTreeMap<String, String>,
    /// The forwarding policy of iptables and ip6tables, where the tools are there and it matters.
    pub forward: BTreeMap<Family, ForwardSeen>,
}

/// What an iptables table says of forwarding.
pub type ForwardSeen = foreign_forward::Seen;

/// An interface and whether it is this node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSeen {
    /// As the kernel has it.
    pub link: Link,
    /// It carries our mark, or was being made when we were stopped, or is held by our own data plane.
    pub ours: bool,
}

/// A table of our name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSeen {
    /// The comments of its rules and the names of chains that mark it, each once.
    pub marks: BTreeSet<String>,
    /// What it says; none if it holds what we would never write.
    pub ruleset: Option<Ruleset>,
}

impl TableSeen {
    /// Whether the node of this mark made it: others may have put something in, or taken something out, since.
    pub fn is_of(&self, mark: &Mark) -> bool {
        self.marks.contains(mark.as_str()) || self.marks.contains(mark.chain())
    }
}
