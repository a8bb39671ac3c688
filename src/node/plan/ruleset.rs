//! The mesh's firewall table: what it should say, and what a listing of it says, in the JSON of libnftables-json(5).
//!
//! The skeleton (chains, rules, sets) is replaced whole; what is open is in sets, changed element by element, so that
//! counters and established connections stay.

use super::observed::TableSeen;
use super::{Desired, Opening};
use crate::node::kernel::names::{MARK_CHAIN, MESH_TABLE, Mark};
use serde_json::{Value, json};
use state::view::records::Protocol;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

const OPEN: &str = "open";
const OPEN_FROM4: &str = "open_from4";
const OPEN_FROM6: &str = "open_from6";

/// A table's contents without counters and handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    /// Chains, rules and empty sets.
    pub skeleton: Skeleton,
    /// What the sets hold.
    pub elements: BTreeSet<Element>,
}

/// Chains with their rules in order, and sets, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skeleton {
    sets: BTreeMap<String, Value>,
    chains: BTreeMap<String, Value>,
    rules: BTreeMap<String, Vec<Value>>,
}

/// One open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// UDP, else TCP.
    pub udp: bool,
    /// The port.
    pub port: u16,
    /// From where only; none for the whole mesh.
    pub from: Option<IpAddr>,
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", if self.udp { "udp" } else { "tcp" }, self.port)?;
        self.from.map_or(Ok(()), |from| write!(f, " from {from}"))
    }
}

impl Ruleset {
    /// What the table should say.
    pub fn wanted(desired: &Desired, mark: &Mark) -> Self {
        let elements = desired.firewall.openings.iter().flat_map(elements).collect();
        Self { skeleton: skeleton(desired, mark), elements }
    }

    /// Commands that put the table in place in one transaction, whether or not there was one.
    pub fn replace(&self) -> Value {
        let table = json!({"table": {"family": "inet", "name": MESH_TABLE}});
        let Skeleton { sets, chains, rules } = &self.skeleton;
        let mut commands = vec![json!({"add": table}), json!({"delete": table}), json!({"add": table})];
        commands.extend(sets.values().map(|set| json!({"add": {"set": set}})));
        commands.extend(chains.values().map(|chain| json!({"add": {"chain": chain}})));
        commands.extend(rules.values().flatten().map(|rule| json!({"add": {"rule": rule}})));
        commands.extend(self.elements.iter().map(|element| json!({"add": element.command()})));
        json!({"nftables": commands})
    }

    /// Commands that take elements out and put others in, in one transaction.
    pub fn change(close: &BTreeSet<Element>, open: &BTreeSet<Element>) -> Value {
        let closed = close.iter().map(|element| json!({"delete": element.command()}));
        let opened = open.iter().map(|element| json!({"add": element.command()}));
        json!({"nftables": closed.chain(opened).collect::<Vec<_>>()})
    }

    /// Commands that delete the table.
    pub fn delete() -> Value {
        json!({"nftables": [{"delete": {"table": {"family": "inet", "name": MESH_TABLE}}}]})
    }
}

fn skeleton(desired: &Desired, mark: &Mark) -> Skeleton {
    let mut skeleton = Skeleton::default();
    skeleton.set(OPEN, json!(["inet_proto", "inet_service"]));
    skeleton.set(OPEN_FROM4, json!(["ipv4_addr", "inet_proto", "inet_service"]));
    skeleton.set(OPEN_FROM6, json!(["ipv6_addr", "inet_proto", "inet_service"]));
    skeleton.hook("input");
    skeleton.hook("forward");
    if desired.forward {
        skeleton.hook("output");
    }
    skeleton.chain("from_mesh", json!({}));
    skeleton.chain(mark.chain(), json!({}));

    let matches = |left: Value, right: Value| json!({"match": {"op": "==", "left": left, "right": right}});
    let meta = |key: &str| json!({"meta": {"key": key}});
    let from_mesh = matches(meta("iifname"), json!(desired.ifname));
    let to_mesh = matches(meta("oifname"), json!(desired.ifname));
    let known = json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}});
    let counter = json!({"counter": {"packets": 0, "bytes": 0}});
    let (accept, drop) = (json!({"accept": null}), json!({"drop": null}));
    let within = |source: Option<&str>, set: &str| {
        let port = json!({"payload": {"protocol": "th", "field": "dport"}});
        let source = source.map(|protocol| json!({"payload": {"protocol": protocol, "field": "saddr"}}));
        let parts: Vec<Value> = source.into_iter().chain([meta("l4proto"), port]).collect();
        matches(json!({"concat": parts}), json!(format!("@{set}")))
    };
    let mut rule = |chain: &str, parts: &[&Value]| skeleton.rule(chain, parts, mark);

    rule("input", &[&from_mesh, &json!({"jump": {"target": "from_mesh"}})]);
    rule("from_mesh", &[&known, &counter, &accept]);
    let icmp = matches(meta("l4proto"), json!({"set": ["icmp", "ipv6-icmp"]}));
    rule("from_mesh", &[&icmp, &counter, &accept]);
    rule("from_mesh", &[&within(None, OPEN), &counter, &accept]);
    rule("from_mesh", &[&within(Some("ip"), OPEN_FROM4), &counter, &accept]);
    rule("from_mesh", &[&within(Some("ip6"), OPEN_FROM6), &counter, &accept]);
    rule("from_mesh", &[&counter, if desired.firewall.open { &accept } else { &drop }]);

    if desired.forward {
        let flags = json!({"payload": {"protocol": "tcp", "field": "flags"}});
        let syn = json!({"match": {"op": "in", "left": flags, "right": "syn"}});
        let size = json!({"tcp option": {"name": "maxseg", "field": "size"}});
        let clamp = json!({"mangle": {"key": size, "value": {"rt": {"key": "mtu"}}}});
        rule("forward", &[&from_mesh, &to_mesh, &syn, &clamp]);
        rule("forward", &[&from_mesh, &to_mesh, &counter, &accept]);
        // What leaves by the interface it came from makes the kernel advise a shorter way, which there is not.
        for (protocol, advice) in [("icmp", "redirect"), ("icmpv6", "nd-redirect")] {
            let kind = matches(json!({"payload": {"protocol": protocol, "field": "type"}}), json!(advice));
            rule("output", &[&to_mesh, &kind, &counter, &drop]);
        }
    }
    // Answers to what this machine's own containers asked of the mesh come back this way.
    rule("forward", &[&from_mesh, &known, &counter, &accept]);
    rule("forward", &[&from_mesh, &counter, &drop]);
    skeleton
}

impl Skeleton {
    fn set(&mut self, name: &str, kind: Value) {
        let set = json!({"family": "inet", "table": MESH_TABLE, "name": name, "type": kind});
        self.sets.insert(name.into(), set);
    }

    fn hook(&mut self, name: &str) {
        self.chain(name, json!({"type": "filter", "hook": name, "prio": 0, "policy": "accept"}));
    }

    fn chain(&mut self, name: &str, mut chain: Value) {
        chain["family"] = json!("inet");
        chain["table"] = json!(MESH_TABLE);
        chain["name"] = json!(name);
        self.chains.insert(name.into(), chain);
    }

    fn rule(&mut self, chain: &str, parts: &[&Value], mark: &Mark) {
        let rule = json!({
            "family": "inet", "table": MESH_TABLE, "chain": chain, "comment": mark.as_str(), "expr": parts,
        });
        self.rules.entry(chain.into()).or_default().push(rule);
    }
}

fn elements(opening: &Opening) -> Vec<Element> {
    let udp = match opening.protocol {
        Protocol::Udp => true,
        Protocol::Tcp | Protocol::Http => false,
    };
    let element = |from| Element { udp, port: opening.port, from };
    match opening.from[..] {
        [] => vec![element(None)],
        ref some => some.iter().map(|from| element(Some(*from))).collect(),
    }
}

impl Element {
    fn set(self) -> &'static str {
        match self.from {
            None => OPEN,
            Some(IpAddr::V4(_)) => OPEN_FROM4,
            Some(IpAddr::V6(_)) => OPEN_FROM6,
        }
    }

    fn command(self) -> Value {
        let port = [json!(if self.udp { "udp" } else { "tcp" }), json!(self.port)];
        let parts: Vec<Value> = self.from.map(|from| json!(from)).into_iter().chain(port).collect();
        let elem = json!([{ "concat": parts }]);
        json!({"element": {"family": "inet", "table": MESH_TABLE, "name": self.set(), "elem": elem}})
    }

    fn read(set: &str, value: &Value) -> Option<Self> {
        let parts = value.get("concat")?.as_array()?;
        let (from, protocol, port) = match &parts[..] {
            [protocol, port] => (None, protocol, port),
            [from, protocol, port] => (Some(from.as_str()?.parse().ok()?), protocol, port),
            _ => return None,
        };
        let udp = match protocol.as_str()? {
            "udp" => true,
            "tcp" => false,
            _ => return None,
        };
        let element = Self { udp, port: u16::try_from(port.as_u64()?).ok()?, from };
        (element.set() == set).then_some(element)
    }
}

impl TableSeen {
    /// Reads a listing of the table.
    pub fn read(listing: &Value) -> Self {
        let objects = listing["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let comments = objects.iter().filter_map(|object| object.get("rule")?["comment"].as_str());
        let chains = objects.iter().filter_map(|object| object.get("chain")?["name"].as_str());
        let marks = comments.chain(chains.filter(|name| name.starts_with(MARK_CHAIN)));
        Self { marks: marks.map(str::to_owned).collect(), ruleset: read(objects) }
    }
}

fn read(objects: &[Value]) -> Option<Ruleset> {
    let mut ruleset = Ruleset { skeleton: Skeleton::default(), elements: BTreeSet::new() };
    let skeleton = &mut ruleset.skeleton;
    for object in objects {
        let (kind, value) = object.as_object()?.iter().next()?;
        let mut value = value.clone();
        value.as_object_mut()?.remove("handle");
        let name = |field: &str| Some(value.get(field)?.as_str()?.to_owned());
        match kind.as_str() {
            "metainfo" | "table" => {}
            "set" => {
                let name = name("name")?;
                let held = value.as_object_mut()?.remove("elem").unwrap_or(json!([]));
                for element in held.as_array()? {
                    ruleset.elements.insert(Element::read(&name, element)?);
                }
                skeleton.sets.insert(name, value);
            }
            "chain" => {
                skeleton.chains.insert(name("name")?, value);
            }
            "rule" => {
                let chain = name("chain")?;
                for part in value.get_mut("expr")?.as_array_mut()? {
                    if part.get("counter").is_some() {
                        *part = json!({"counter": {"packets": 0, "bytes": 0}});
                    }
                }
                skeleton.rules.entry(chain).or_default().push(value);
            }
            _ => return None,
        }
    }
    Some(ruleset)
}
