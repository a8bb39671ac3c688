//! What nodes publish, and who else claims it.
//!
//! Claims arrive with a node's register (see [`super::nodes`]), because a register takes effect as one change. A pair
//! that two nodes claim is contested, which is state, not liveness: only a withdrawal, a removal or a revocation ends it.

use crate::model::{Name, NodeId};
use crate::state::Touched;
use crate::view::records::{Protocol, Verdict};
use crate::{Code, Refusal, State};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};

/// A service in a space, written `space/service`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pair {
    /// The space.
    pub space: Name,
    /// The service.
    pub name: Name,
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.space, self.name)
    }
}

impl std::str::FromStr for Pair {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (space, name) =
            text.split_once('/').ok_or_else(|| format!("`{text}` is not SPACE/SERVICE, such as shop/web"))?;
        let part = |text: &str| Name::new(text).map_err(|e| e.to_string());
        Ok(Self { space: part(space)?, name: part(name)? })
    }
}

impl TryFrom<String> for Pair {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pair> for String {
    fn from(pair: Pair) -> Self {
        pair.to_string()
    }
}

/// How a claimed service is reached on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Protocol.
    pub protocol: Protocol,
    /// Port on the mesh address.
    pub port: u16,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Services {
    /// Claims of each pair by node. No entry is empty.
    pub claims: OrdMap<Pair, OrdMap<NodeId, Port>>,
    /// The same by node.
    pub by_node: OrdMap<NodeId, OrdMap<Pair, Port>>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// A node claims a pair, or claims it differently from now on.
    Claimed {
        /// The node.
        node: NodeId,
        /// The pair.
        pair: Pair,
        /// How it is reached.
        port: Port,
    },
    /// A node claims a pair no longer.
    Withdrawn {
        /// The node.
        node: NodeId,
        /// The pair.
        pair: Pair,
    },
}

/// Judges one claim of a node: a refusal keeps it out of the registry, so that it contests nothing.
pub fn judge(state: &State, node: NodeId, pair: &Pair) -> Result<(), Refusal> {
    let refuse =
        |code, why: String, todo: &str| Err(Refusal::new(code, format!("`{pair}` was not published"), why, todo));
    if let Err(error) = pair.space.clone().unreserved() {
        return refuse(Code::Invalid, error.to_string(), "choose another space");
    }
    if state.nodes.by_name.contains_key(&pair.space) {
        let why = format!("a node is called `{}`, and both would be `{0}.internal`", pair.space);
        return refuse(Code::Held, why, "choose another space");
    }
    let org = state.nodes.all.get(&node).and_then(|n| n.org.as_ref());
    let publishers = in_space(state, &pair.space).flat_map(|(_, by)| by.keys());
    match publishers.filter_map(|id| state.nodes.all.get(id)).find(|n| n.org.as_ref() != org) {
        Some(_) => refuse(Code::Held, format!("space `{}` belongs to another org", pair.space), "choose another space"),
        None => Ok(()),
    }
}

/// The claimed pairs of a space.
pub fn in_space<'a>(state: &'a State, space: &'a Name) -> impl Iterator<Item = (&'a Pair, &'a OrdMap<NodeId, Port>)> {
    // The first pair of a space that there could be: no name sorts before `0`.
    let first = Pair { space: space.clone(), name: Name::new("0").expect("a digit is a name") };
    state.services.claims.range(first..).take_while(move |(pair, _)| pair.space == *space)
}

/// The events that lead from a node's recorded claims to the given ones.
pub(crate) fn difference(state: &State, node: NodeId, wanted: &OrdMap<Pair, Port>) -> Vec<crate::Event> {
    let empty = OrdMap::new();
    let held = state.services.by_node.get(&node).unwrap_or(&empty);
    let gone = held.keys().filter(|pair| !wanted.contains_key(*pair));
    let new = wanted.iter().filter(|(pair, port)| held.get(*pair) != Some(*port));
    gone.map(|pair| Event::Withdrawn { node, pair: pair.clone() }.into())
        .chain(new.map(|(pair, port)| Event::Claimed { node, pair: pair.clone(), port: *port }.into()))
        .collect()
}

/// What becomes of a recorded claim.
pub fn verdict(state: &State, node: NodeId, pair: &Pair) -> Verdict {
    let others = state.services.claims.get(pair).into_iter().flat_map(|by| by.keys()).filter(|id| **id != node);
    let with: Vec<Name> = others.filter_map(|id| state.nodes.all.get(id)).map(|n| n.name.clone()).collect();
    if with.is_empty() { Verdict::Routed } else { Verdict::Contested { with } }
}

pub(crate) fn apply(state: &mut State, event: &Event, touched: &mut Touched) {
    match event {
        Event::Claimed { node, pair, port } => {
            let part = &mut state.services;
            part.claims.entry(pair.clone()).or_default().insert(*node, *port);
            part.by_node.entry(*node).or_default().insert(pair.clone(), *port);
            touched.extend(part.claims[pair].keys());
        }
        Event::Withdrawn { node, pair } => withdraw(state, *node, pair, touched),
    }
}

/// Ends all claims of a node that departs.
pub(crate) fn withdraw_all(state: &mut State, node: NodeId, touched: &mut Touched) {
    let pairs: Vec<Pair> = state.services.by_node.get(&node).into_iter().flat_map(|by| by.keys().cloned()).collect();
    for pair in pairs {
        withdraw(state, node, &pair, touched);
    }
}

fn withdraw(state: &mut State, node: NodeId, pair: &Pair, touched: &mut Touched) {
    let part = &mut state.services;
    if let Some(by) = part.claims.get_mut(pair) {
        touched.extend(by.keys());
        by.remove(&node);
        if by.is_empty() {
            part.claims.remove(pair);
        }
    }
    if let Some(by) = part.by_node.get_mut(&node) {
        by.remove(pair);
        if by.is_empty() {
            part.by_node.remove(&node);
        }
    }
}
