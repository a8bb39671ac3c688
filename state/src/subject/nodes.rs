//! Nodes, their addresses, whether they are heard, and how they go.

use crate::model::{
    ApplianceId, Endpoint, Fingerprint, Millis, Name, NodeId, Revision, SealingKey, SigningKey, WireguardKey,
};
use crate::state::Touched;
use crate::subject::services::{self, Pair, Port};
use crate::view::records::{Gone, Liveness};
use crate::{Code, Context, Refusal, State};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// A node that exists in the registry, joined or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// For ever, and never given to another key.
    pub id: NodeId,
    /// `<name>.internal`.
    pub name: Name,
    /// Its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// Whether it forwards between others.
    pub hub: bool,
    /// The appliance on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appliance: Option<ApplianceId>,
    /// Endpoints given by the operator: they stand as given.
    pub endpoints: Vec<Endpoint>,
    /// When the node was added.
    pub added: Millis,
    /// SHA-256 of the outstanding token's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Fingerprint>,
    /// What it is since it joined; none before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
}

/// What a joined node is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// What it signs with.
    pub signing_key: SigningKey,
    /// Its tunnel key.
    pub wireguard_key: WireguardKey,
    /// What credentials are sealed to.
    pub sealing_key: SealingKey,
    /// Its mesh address.
    pub address: Ipv4Addr,
    /// The UDP port of its tunnel.
    pub listen_port: u16,
    /// Endpoints it declares for itself, each with its observed source address.
    pub endpoints: Vec<Endpoint>,
    /// Its own addresses with its port.
    pub local_endpoints: Vec<Endpoint>,
    /// `holdfast --version` of the machine.
    pub agent_version: String,
    /// When it joined.
    pub joined: Millis,
    /// The floor of its `seq`, as of its last change.
    pub seq: u64,
    /// Whether it is heard.
    pub liveness: Liveness,
    /// SHA-256 of its bearer secret.
    pub mesh_token: Fingerprint,
    /// SHA-256 of its client certificates.
    pub certificates: Vec<Fingerprint>,
}

/// A key that was a node's once. It keeps its id and, while that is free, its address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Departed {
    /// The id it had.
    pub id: NodeId,
    /// The name it had.
    pub name: Name,
    /// The org it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// The address it had.
    pub address: Ipv4Addr,
    /// SHA-256 of the bearer secret it had: good for being told that it is gone, and for nothing else.
    pub mesh_token: Fingerprint,
    /// Why it went.
    pub reason: Gone,
    /// With which change.
    pub revision: Revision,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nodes {
    /// By id.
    pub all: OrdMap<NodeId, Node>,
    /// Ids by name.
    pub by_name: OrdMap<Name, NodeId>,
    /// Ids of members by signing key.
    pub by_key: OrdMap<SigningKey, NodeId>,
    /// Ids of members by tunnel key.
    pub by_wireguard: OrdMap<WireguardKey, NodeId>,
    /// Addresses in use.
    pub addresses: OrdMap<Ipv4Addr, NodeId>,
    /// Addresses given back, with the change that did: handed out last, the longest free first.
    pub released: OrdMap<Ipv4Addr, Revision>,
    /// How many addresses of the prefix, from the lowest, have ever been handed out or passed over.
    pub frontier: u32,
    /// Keys that were a node's once.
    pub departed: OrdMap<SigningKey, Departed>,
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A node's full present state.
    Register(Box<Register>),
    /// Verdicts that changed by themselves.
    Judge {
        /// Each node with its new verdict.
        verdicts: Vec<(NodeId, Liveness)>,
    },
    /// The node leaves by its own wish.
    Leave {
        /// The key it signs with.
        key: SigningKey,
        /// Its id.
        node: NodeId,
    },
    /// An operator removes a node.
    Remove {
        /// Its name.
        name: Name,
        /// Even though it is live.
        force: bool,
        /// Its key may register again without being asked for.
        keep_admitted: bool,
        /// Whether it was heard within two minutes (soft state, so the caller says it).
        live: bool,
    },
    /// An operator revokes a node or a key.
    Revoke {
        /// Which.
        target: RevokeTarget,
    },
}

/// What is revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevokeTarget {
    /// A node by name.
    Name(Name),
    /// A key, of a node or not.
    Key(SigningKey),
}

/// See [`Command::Register`]. The caller has checked signature, sequence and audience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The key it was signed with.
    pub key: SigningKey,
    /// Its tunnel key.
    pub wireguard_key: WireguardKey,
    /// Its sealing key.
    pub sealing_key: SealingKey,
    /// UDP port of its tunnel.
    pub listen_port: u16,
    /// What it declares for itself: kept where the address is `source`.
    pub endpoints: Vec<Endpoint>,
    /// Its own addresses.
    pub local_endpoints: Vec<Endpoint>,
    /// Its claims. Those that [`services::judge`] refuses are left out.
    pub services: Vec<(Pair, Port)>,
    /// Version of its binary.
    pub agent_version: String,
    /// Where the request came from.
    pub source: IpAddr,
    /// Sequence number of the request.
    pub seq: u64,
}

impl Command {
    /// The kind that the journal shows.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Register(_) => "node.register",
            Self::Judge { .. } => "node.liveness",
            Self::Leave { .. } => "node.leave",
            Self::Remove { .. } => "node.remove",
            Self::Revoke { .. } => "node.revoke",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// A node presents itself differently.
    Registered {
        /// The node.
        node: NodeId,
        /// Tunnel key.
        wireguard_key: WireguardKey,
        /// Sealing key.
        sealing_key: SealingKey,
        /// UDP port of its tunnel.
        listen_port: u16,
        /// Its self-declared endpoints that stand.
        endpoints: Vec<Endpoint>,
        /// Its own addresses.
        local_endpoints: Vec<Endpoint>,
        /// Version of its binary.
        agent_version: String,
    },
    /// The floor of a node's `seq`, with any change of it.
    SeqReached {
        /// The node.
        node: NodeId,
        /// The floor.
        seq: u64,
    },
    /// A node's liveness is this from now on.
    LivenessChanged {
        /// The node.
        node: NodeId,
        /// The verdict.
        liveness: Liveness,
    },
    /// A node is gone, with its claims, certificates and secrets.
    Departed {
        /// The node.
        node: NodeId,
        /// Why.
        reason: Gone,
    },
    /// A key that is no node's is struck off the admission list.
    KeyRefused {
        /// The key.
        key: SigningKey,
    },
}

pub(crate) fn decide(state: &State, command: Command, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    match command {
        Command::Register(register) => decide_register(state, *register),
        Command::Judge { verdicts } => Ok(verdicts
            .into_iter()
            .filter(|(id, liveness)| member(state, *id).is_some_and(|m| m.liveness != *liveness))
            .map(|(node, liveness)| Event::LivenessChanged { node, liveness }.into())
            .collect()),
        Command::Leave { key, node } => match state.nodes.by_key.get(&key) {
            Some(id) if *id == node => Ok(vec![Event::Departed { node, reason: Gone::Left }.into()]),
            Some(_) | None => Err(not_admitted(&key)),
        },
        Command::Remove { name, force, keep_admitted, live } => {
            let node = find(state, &name, context)?;
            if live && !force {
                return Err(Refusal::new(
                    Code::NodeLive,
                    format!("node `{name}` was not removed"),
                    "it was heard within the last two minutes",
                    "stop its agent first (`holdfast agent leave` there does both), or give --force",
                ));
            }
            let mut events = vec![Event::Departed { node: node.id, reason: Gone::Removed }.into()];
            if let (true, Some(member)) = (keep_admitted, &node.member) {
                events.push(super::enrolment::admitted_as(node, member.signing_key));
            }
            Ok(events)
        }
        Command::Revoke { target } => decide_revoke(state, target, context),
    }
}

fn decide_revoke(state: &State, target: RevokeTarget, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    let departed = |node: &Node| vec![Event::Departed { node: node.id, reason: Gone::Revoked }.into()];
    match target {
        RevokeTarget::Name(name) => find(state, &name, context).map(departed),
        RevokeTarget::Key(key) => {
            if let Some(node) = state.nodes.by_key.get(&key).and_then(|id| state.nodes.all.get(id)) {
                return find(state, &node.name, context).map(departed);
            }
            let admitted = state.enrolment.admitted.contains_key(&key);
            let readmitted =
                state.nodes.departed.get(&key).is_some_and(|d| !matches!(d.reason, Gone::Revoked | Gone::Moved));
            if context.org.is_none() && (admitted || readmitted) {
                return Ok(vec![Event::KeyRefused { key }.into()]);
            }
            Err(Refusal::new(
                Code::NotFound,
                "nothing was revoked",
                format!("no node has the key {key}, and it is not on the admission list"),
                "`holdfast node ls` and `holdfast node pending` show the keys there are",
            ))
        }
    }
}

fn decide_register(state: &State, register: Register) -> Result<Vec<crate::Event>, Refusal> {
    let id = *state.nodes.by_key.get(&register.key).ok_or_else(|| not_admitted(&register.key))?;
    let (node, member) = state
        .nodes
        .all
        .get(&id)
        .and_then(|n| n.member.as_ref().map(|m| (n, m)))
        .ok_or_else(|| not_admitted(&register.key))?;
    refuse_held_wireguard(state, id, &register.wireguard_key)?;
    let endpoints: Vec<Endpoint> =
        register.endpoints.into_iter().filter(|e| e.socket().is_some_and(|s| s.ip() == register.source)).collect();
    let mut events: Vec<crate::Event> = Vec::new();
    let same = member.wireguard_key == register.wireguard_key
        && member.sealing_key == register.sealing_key
        && member.listen_port == register.listen_port
        && member.endpoints == endpoints
        && member.local_endpoints == register.local_endpoints
        && member.agent_version == register.agent_version;
    if !same {
        events.push(
            Event::Registered {
                node: id,
                wireguard_key: register.wireguard_key,
                sealing_key: register.sealing_key,
                listen_port: register.listen_port,
                endpoints,
                local_endpoints: register.local_endpoints,
                agent_version: register.agent_version,
            }
            .into(),
        );
    }
    if member.liveness != Liveness::Here {
        events.push(Event::LivenessChanged { node: id, liveness: Liveness::Here }.into());
    }
    let wanted =
        register.services.into_iter().filter(|(pair, _)| services::judge(state, node.id, pair).is_ok()).collect();
    events.extend(services::difference(state, id, &wanted));
    if !events.is_empty() {
        events.push(Event::SeqReached { node: id, seq: register.seq }.into());
    }
    Ok(events)
}

/// The node of that name, if the actor may know of it.
pub fn find<'a>(state: &'a State, name: &Name, context: &Context) -> Result<&'a Node, Refusal> {
    let node = state.nodes.by_name.get(name).and_then(|id| state.nodes.all.get(id));
    node.filter(|node| context.covers(node.org.as_ref())).ok_or_else(|| {
        Refusal::new(
            Code::NotFound,
            format!("there is no node `{name}`"),
            "no node of that name is in the registry",
            "`holdfast node ls` shows the nodes there are",
        )
    })
}

fn member(state: &State, id: NodeId) -> Option<&Member> {
    state.nodes.all.get(&id)?.member.as_ref()
}

/// The refusal of a key that is not on the admission list.
pub fn not_admitted(key: &SigningKey) -> Refusal {
    Refusal::new(
        Code::NotAdmitted,
        "this machine is not admitted",
        format!("signing key {key} is not admitted"),
        "an operator can let it in with `holdfast node admit KEY`, or give a token with `holdfast node add`",
    )
}

/// Refuses a tunnel key that another node has.
pub(crate) fn refuse_held_wireguard(state: &State, own: NodeId, key: &WireguardKey) -> Result<(), Refusal> {
    match state.nodes.by_wireguard.get(key).filter(|id| **id != own).and_then(|id| state.nodes.all.get(id)) {
        None => Ok(()),
        Some(holder) => Err(Refusal::new(
            Code::Held,
            "the WireGuard key was refused",
            format!("node `{}` has the same WireGuard key", holder.name),
            "join the copy with a state directory that is new, so that it makes keys of its own",
        )),
    }
}

impl Nodes {
    /// The address for a joining key: its former one while that is free, the reserved `.1` for the first appliance's own
    /// machine, the lowest one never handed out, or else the one that has been free the longest.
    pub fn allocate(&self, prefix: crate::model::Prefix, key: &SigningKey, first_appliance: bool) -> Option<Ipv4Addr> {
        let free = |address: &Ipv4Addr| prefix.contains(*address) && !self.addresses.contains_key(address);
        let former = self.departed.get(key).map(|d| d.address).filter(free);
        let reserved = first_appliance.then(|| prefix.hosts().next()).flatten().filter(free);
        let fresh = || prefix.hosts().nth(self.frontier.max(1) as usize);
        let oldest = || self.released.iter().min_by_key(|(_, since)| **since).map(|(address, _)| *address);
        former.or(reserved).or_else(fresh).or_else(oldest)
    }

    /// Records an address as in use.
    pub(crate) fn take(&mut self, prefix: crate::model::Prefix, address: Ipv4Addr, node: NodeId) {
        self.addresses.insert(address, node);
        self.released.remove(&address);
        let offset = u32::from(address) - u32::from(prefix.net().network()) - 1;
        if offset >= self.frontier.max(1) {
            self.frontier = offset + 1;
        }
    }
}

pub(crate) fn apply(state: &mut State, event: &Event, touched: &mut Touched) {
    match event {
        Event::Registered {
            node,
            wireguard_key,
            sealing_key,
            listen_port,
            endpoints,
            local_endpoints,
            agent_version,
        } => {
            let Some(member) = state.nodes.all.get_mut(node).and_then(|n| n.member.as_mut()) else { return };
            state.nodes.by_wireguard.remove(&member.wireguard_key);
            state.nodes.by_wireguard.insert(*wireguard_key, *node);
            member.wireguard_key = *wireguard_key;
            member.sealing_key = *sealing_key;
            member.listen_port = *listen_port;
            member.endpoints.clone_from(endpoints);
            member.local_endpoints.clone_from(local_endpoints);
            member.agent_version.clone_from(agent_version);
            touched.insert(*node);
        }
        Event::SeqReached { node, seq } => {
            if let Some(member) = state.nodes.all.get_mut(node).and_then(|n| n.member.as_mut()) {
                member.seq = member.seq.max(*seq);
            }
        }
        Event::LivenessChanged { node, liveness } => {
            if let Some(member) = state.nodes.all.get_mut(node).and_then(|n| n.member.as_mut()) {
                member.liveness = *liveness;
                touched.insert(*node);
            }
        }
        Event::Departed { node, reason } => depart(state, *node, *reason, touched),
        Event::KeyRefused { key } => {
            state.enrolment.admitted.remove(key);
            if let Some(departed) = state.nodes.departed.get_mut(key).filter(|d| d.reason != Gone::Moved) {
                departed.reason = Gone::Revoked;
            }
        }
    }
}

fn depart(state: &mut State, id: NodeId, reason: Gone, touched: &mut Touched) {
    services::withdraw_all(state, id, touched);
    let revision = state.revision;
    let Some(node) = state.nodes.all.remove(&id) else { return };
    super::enrolment::forget(state, &node);
    super::jobs::forget(state, id);
    state.nodes.by_name.remove(&node.name);
    touched.insert(id);
    touched.gone.insert(id, reason);
    let Some(member) = node.member else { return };
    state.nodes.by_key.remove(&member.signing_key);
    state.nodes.by_wireguard.remove(&member.wireguard_key);
    state.nodes.addresses.remove(&member.address);
    state.nodes.released.insert(member.address, revision);
    let Member { address, mesh_token, .. } = member;
    let departed = Departed { id, name: node.name, org: node.org, address, mesh_token, reason, revision };
    state.nodes.departed.insert(member.signing_key, departed);
}
