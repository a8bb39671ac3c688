//! The names of a fleet as one pure index: from the signed records to the answer of a question, without a DNS library.
//!
//! It says what is true of a name, never how that is put on the wire: times to live, flags and sizes are the resolver's.

mod reverse;
#[cfg(test)]
mod tests;

use super::records::{Liveness, Mesh, NodeRecord, Protocol, ServiceRecord, Verdict};
use crate::model::{Name, Revision};
use reverse::Reverse;
pub use reverse::reverse_zones;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is asked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its IPv4 addresses.
    A,
    /// Its IPv6 addresses.
    Aaaa,
    /// Port and target of a service.
    Srv,
    /// The name of an address.
    Ptr,
    /// The zone's own record.
    Soa,
    /// The zone's name server.
    Ns,
    /// Anything else: nothing is ever found, but whether the name exists is told.
    Other,
}

/// One record of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// An address of the name.
    Address(IpAddr),
    /// A service's port, and the node that it is on: `<node>.<suffix>`.
    Srv {
        /// The port on the node's mesh address.
        port: u16,
        /// The node.
        node: &'a Name,
    },
    /// The node that an address belongs to.
    Node(&'a Name),
    /// The zone's SOA; its serial is [`Zone::serial`].
    Soa,
    /// The zone's name server, `appliance.<suffix>`.
    Ns,
}

/// What is true of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// At least one record.
    Answer(Vec<Data<'a>>),
    /// The name exists, or names exist beneath it (RFC 8020), but it has nothing of the kind asked.
    NoData,
    /// No such name.
    NxDomain,
    /// Several nodes claim the service, so that nobody is answered. Their names, sorted.
    Contested(&'a [Name]),
}

/// An outcome, and the zone that it lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// How many of the asked name's last labels are the name of the zone.
    pub apex: usize,
    /// What is true.
    pub outcome: Outcome<'a>,
}

struct Host {
    name: Name,
    v4: Ipv4Addr,
    v6: Option<Ipv6Addr>,
}

enum Entry {
    /// A node or the publishers of a service, by their place in `hosts`.
    Hosts(Vec<usize>),
    Srv(Vec<(u16, usize)>),
    Contested(Vec<Name>),
    /// Only there because of names beneath it.
    Inner,
}

/// All names of a fleet at one revision.
pub struct Zone {
    suffix: Name,
    serial: u32,
    hosts: Vec<Host>,
    /// Without the suffix: `web-1`, `web.shop`, `_web._tcp.shop`.
    names: BTreeMap<String, Entry>,
    appliances: Vec<IpAddr>,
    reverse: Vec<Reverse>,
}

impl Zone {
    /// Indexes the records. `revision` is the highest among the heads they came under.
    pub fn new(records: &[NodeRecord], mesh: &Mesh, revision: Revision) -> Self {
        let hosts: Vec<Host> =
            records.iter().map(|r| Host { name: r.name.clone(), v4: r.address, v6: r.address6 }).collect();
        let mut names = BTreeMap::new();
        for (at, record) in records.iter().enumerate() {
            for service in &record.services {
                publish(&mut names, at, record, service);
            }
        }
        for (at, host) in hosts.iter().enumerate() {
            names.insert(host.name.to_string(), Entry::Hosts(vec![at]));
        }
        let mut appliances: Vec<IpAddr> = Vec::new();
        for record in records.iter().filter(|r| r.appliance.is_some()) {
            appliances.push(record.address.into());
            appliances.extend(record.address6.map(IpAddr::from));
        }
        if appliances.is_empty() {
            appliances.clone_from(&mesh.appliances);
        }
        let mut reverse = Reverse::of(mesh);
        for (at, host) in hosts.iter().enumerate() {
            for tree in &mut reverse {
                tree.insert(host.v4.into(), at);
                if let Some(v6) = host.v6 {
                    tree.insert(v6.into(), at);
                }
            }
        }
        let serial = u32::try_from(revision.0 & 0xffff_ffff).expect("32 bits are left");
        Self { suffix: mesh.suffix.clone(), serial, hosts, names, appliances, reverse }
    }

    /// The serial number of the zones: the low 32 bits of the revision.
    pub const fn serial(&self) -> u32 {
        self.serial
    }

    /// The top-level name, e.g. `internal`.
    pub const fn suffix(&self) -> &Name {
        &self.suffix
    }

    /// Answers a question. `labels` are in lower case, the leftmost first, without the root's empty one. `None` when the
    /// name lies in none of our zones.
    pub fn ask(&self, labels: &[&[u8]], kind: Kind) -> Option<Reply<'_>> {
        let (last, inner) = labels.split_last()?;
        if *last == self.suffix.as_str().as_bytes() {
            return Some(Reply { apex: 1, outcome: self.forward(inner, kind) });
        }
        self.reverse.iter().find_map(|tree| {
            let (apex, found) = tree.ask(labels, kind)?;
            let outcome = match found {
                reverse::Found::Host(at) => Outcome::Answer(vec![Data::Node(&self.hosts[at].name)]),
                reverse::Found::Other(outcome) => outcome,
            };
            Some(Reply { apex, outcome })
        })
    }

    fn forward(&self, labels: &[&[u8]], kind: Kind) -> Outcome<'_> {
        if labels.is_empty() {
            return apex(kind);
        }
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        if !labels.iter().all(|label| label.iter().all(plain)) {
            return Outcome::NxDomain;
        }
        if labels == [b"appliance"] {
            return addresses(self.appliances.iter().copied(), kind);
        }
        let name = String::from_utf8_lossy(&labels.join(&b'.')).into_owned();
        match self.names.get(&name) {
            None => Outcome::NxDomain,
            Some(Entry::Inner) => Outcome::NoData,
            Some(Entry::Contested(who)) => Outcome::Contested(who),
            Some(Entry::Hosts(hosts)) => {
                let all = hosts.iter().map(|at| &self.hosts[*at]);
                addresses(all.flat_map(|h| [Some(IpAddr::V4(h.v4)), h.v6.map(IpAddr::V6)]).flatten(), kind)
            }
            Some(Entry::Srv(targets)) if kind == Kind::Srv => {
                let record = |(port, at): &(u16, usize)| Data::Srv { port: *port, node: &self.hosts[*at].name };
                Outcome::Answer(targets.iter().map(record).collect())
            }
            Some(Entry::Srv(_)) => Outcome::NoData,
        }
    }
}

/// Enters one service of a node. The names above it exist as long as anybody's record has it, so that a publisher that
/// falls silent takes its own name with it and no other.
fn publish(names: &mut BTreeMap<String, Entry>, at: usize, record: &NodeRecord, service: &ServiceRecord) {
    let ServiceRecord { space, name, protocol, port, verdict } = service;
    let transport = match protocol {
        Protocol::Tcp | Protocol::Http => "_tcp",
        Protocol::Udp => "_udp",
    };
    let above = format!("{transport}.{space}");
    let (address, srv) = (format!("{name}.{space}"), format!("_{name}.{above}"));
    for inner in [space.to_string(), above] {
        names.entry(inner).or_insert(Entry::Inner);
    }
    match verdict {
        Verdict::Contested { with } => {
            for key in [address, srv] {
                contest(names.entry(key).or_insert(Entry::Inner), &record.name, with);
            }
        }
        Verdict::Routed if record.liveness == Liveness::Here => {
            match names.entry(address).or_insert_with(|| Entry::Hosts(Vec::new())) {
                Entry::Hosts(hosts) => hosts.push(at),
                Entry::Contested(_) | Entry::Srv(_) | Entry::Inner => {}
            }
            match names.entry(srv).or_insert_with(|| Entry::Srv(Vec::new())) {
                Entry::Srv(targets) => targets.push((*port, at)),
                Entry::Contested(_) | Entry::Hosts(_) | Entry::Inner => {}
            }
        }
        Verdict::Routed => {}
    }
}

/// A contested claim wins over whatever was entered before: nothing is routed while one side says so.
fn contest(entry: &mut Entry, own: &Name, with: &[Name]) {
    let mut who = match entry {
        Entry::Contested(who) => std::mem::take(who),
        Entry::Hosts(_) | Entry::Srv(_) | Entry::Inner => Vec::new(),
    };
    who.extend(with.iter().chain([own]).cloned());
    who.sort();
    who.dedup();
    *entry = Entry::Contested(who);
}

fn apex<'a>(kind: Kind) -> Outcome<'a> {
    match kind {
        Kind::Soa => Outcome::Answer(vec![Data::Soa]),
        Kind::Ns => Outcome::Answer(vec![Data::Ns]),
        Kind::A | Kind::Aaaa | Kind::Srv | Kind::Ptr | Kind::Other => Outcome::NoData,
    }
}

fn addresses<'a>(all: impl Iterator<Item = IpAddr>, kind: Kind) -> Outcome<'a> {
    let wanted = |ip: &IpAddr| match kind {
        Kind::A => ip.is_ipv4(),
        Kind::Aaaa => ip.is_ipv6(),
        Kind::Srv | Kind::Ptr | Kind::Soa | Kind::Ns | Kind::Other => false,
    };
    let found: Vec<Data<'a>> = all.filter(wanted).map(Data::Address).collect();
    if found.is_empty() { Outcome::NoData } else { Outcome::Answer(found) }
}
