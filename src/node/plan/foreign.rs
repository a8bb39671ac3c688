//! What belongs to somebody else: never adopted, never deleted, always named.

use super::{Desired, Observed};
use crate::node::kernel::names::MESH_TABLE;
use ipnet::IpNet;
use std::net::IpAddr;

/// An object that this node wants and another has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The object.
    pub what: What,
    /// Its owner, in words.
    pub who: String,
}

/// The kinds of objects that can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An interface of our name without our mark.
    Interface(String),
    /// The tunnel's UDP port.
    Port(u16),
    /// The node's mesh address.
    Address(IpAddr),
    /// The mesh prefix, routed elsewhere.
    Prefix(IpNet),
    /// A table of our name without our mark.
    Table,
}

impl std::error::Error for Foreign {}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = &self.who;
        match &self.what {
            What::Interface(name) => write!(
                f,
                "the interface {name} is {who} and was not made by this node; remove it or join with another --ifname"
            ),
            What::Port(port) => {
                write!(f, "the UDP port {port} is held by {who}; stop that or join with another --port")
            }
            What::Address(address) => {
                write!(f, "the mesh address {address} is already on {who}; remove it there")
            }
            What::Prefix(prefix) => {
                write!(
                    f,
                    "the mesh prefix {prefix} is already routed to {who}; remove that route or renumber that network"
                )
            }
            What::Table => {
                write!(f, "the nftables table inet {MESH_TABLE} is {who} and was not made by this node; delete it")
            }
        }
    }
}

/// All that was seen of somebody else's in the way of what is wanted; the interface first.
pub fn foreign(desired: &Desired, seen: &Observed) -> Vec<Foreign> {
    let mut found = Vec::new();
    if let Some(link) = seen.link.as_ref().filter(|link| !link.ours) {
        let who = match &link.link.alias {
            Some(alias) => format!("a {} marked `{alias}`", link.link.kind),
            None => format!("a {}", link.link.kind),
        };
        found.push(Foreign { what: What::Interface(desired.ifname.clone()), who });
    }
    if let Some(who) = &seen.port_holder {
        found.push(Foreign { what: What::Port(desired.listen_port), who: who.clone() });
    }
    for (address, who) in &seen.addresses_elsewhere {
        found.push(Foreign { what: What::Address(*address), who: who.clone() });
    }
    for (prefix, who) in &seen.routes_elsewhere {
        found.push(Foreign { what: What::Prefix(*prefix), who: who.clone() });
    }
    if let Some(table) = &seen.table
        && !table.is_of(&seen.mark)
    {
        let who = match table.marks.first() {
            Some(mark) => format!("marked `{mark}`"),
            None => "unmarked".into(),
        };
        found.push(Foreign { what: What::Table, who });
    }
    found
}
