//! The two ways in, and the secrets and certificates that prove membership afterwards.
//!
//! Secrets are random and long, so their SHA-256 is what is kept. Unknown, spent and expired tokens are refused alike.

use crate::model::{ApplianceId, Endpoint, Fingerprint, Millis, Name, NodeId, SealingKey, SigningKey, WireguardKey};
use crate::state::Touched;
use crate::subject::nodes::{self, Departed, Member, Node, find};
use crate::subject::services;
use crate::view::records::{Gone, Liveness};
use crate::{Code, Context, Refusal, State};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A token that lets one machine in, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The node it is for.
    pub node: NodeId,
    /// When it ends.
    pub expires: Millis,
    /// Which keys may use it.
    pub good_for: GoodFor,
}

/// Which keys may use a token: decided when it is made, never when it is presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoodFor {
    /// Any: the node has not joined yet.
    AnyKey,
    /// Only the node's recorded key.
    RecordedKey,
    /// New keys, which take over the node's name and address.
    NewKey,
}

/// A key that an operator let in before it registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// The id that it will have.
    pub id: NodeId,
    /// The name that it will have.
    pub name: Name,
    /// Its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// Its site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// Whether it forwards.
    pub hub: bool,
    /// Endpoints given by the operator.
    pub endpoints: Vec<Endpoint>,
}

/// A node's client certificate. The window is judged against it as well as against the X.509 one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Whose it is.
    pub node: NodeId,
    /// Good from.
    pub not_before: Millis,
    /// Good until.
    pub not_after: Millis,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Enrolment {
    /// Unspent tokens by the SHA-256 of their secret; at most one a node.
    pub tokens: OrdMap<Fingerprint, Token>,
    /// Reusable secrets, good for asking to be admitted and nothing else.
    pub admission_tokens: OrdMap<Fingerprint, Millis>,
    /// Keys let in that have not registered yet.
    pub admitted: OrdMap<SigningKey, Admitted>,
    /// Bearer secrets of nodes.
    pub mesh_tokens: OrdMap<Fingerprint, NodeId>,
    /// Client certificates by the SHA-256 of their DER.
    pub certificates: OrdMap<Fingerprint, Certificate>,
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a node and its first token, or with `replace` a token for new keys of a known node.
    AddNode(Box<AddNode>),
    /// A new token for a known node; the outstanding one ends.
    IssueToken {
        /// The node.
        name: Name,
        /// SHA-256 of the secret.
        token: Fingerprint,
        /// When it ends.
        expires: Millis,
    },
    /// A reusable secret for asking to be admitted.
    IssueAdmissionToken {
        /// SHA-256 of the secret.
        token: Fingerprint,
    },
    /// Lets a key in.
    Admit {
        /// The key.
        key: SigningKey,
        /// The node's name.
        name: Name,
        /// Its org.
        org: Option<Name>,
        /// Its site.
        site: Option<Name>,
        /// A fresh id, used unless the key had one before.
        id: NodeId,
    },
    /// Lets a key take over a dead node's name and address.
    Replace {
        /// The key.
        key: SigningKey,
        /// The node.
        name: Name,
        /// Whether it was heard within two minutes (soft state, so the caller says it).
        live: bool,
    },
    /// A machine joins, with a token or with an admitted key.
    Join(Box<Join>),
}

/// See [`Command::AddNode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddNode {
    /// A fresh id.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Its org.
    pub org: Option<Name>,
    /// Its site.
    pub site: Option<Name>,
    /// Whether it forwards.
    pub hub: bool,
    /// The appliance on the same machine.
    pub appliance: Option<ApplianceId>,
    /// Where everybody can dial it.
    pub endpoints: Vec<Endpoint>,
    /// SHA-256 of the token's secret.
    pub token: Fingerprint,
    /// When the token ends.
    pub expires: Millis,
    /// New keys shall take over a known node.
    pub replace: bool,
}

/// See [`Command::Join`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// SHA-256 of the presented secret; none for a key on the admission list.
    pub token: Option<Fingerprint>,
    /// The key that the request was signed with.
    pub signing_key: SigningKey,
    /// The tunnel key.
    pub wireguard_key: WireguardKey,
    /// The sealing key.
    pub sealing_key: SealingKey,
    /// UDP port of the tunnel.
    pub listen_port: u16,
    /// The machine's own addresses.
    pub local_endpoints: Vec<Endpoint>,
    /// Version of its binary.
    pub agent_version: String,
    /// SHA-256 of the bearer secret that it is given.
    pub mesh_token: Fingerprint,
    /// SHA-256 of the DER of the client certificate that it is given.
    pub certificate: Fingerprint,
    /// The certificate's window.
    pub window: (Millis, Millis),
    /// The `seq` of a registering request; 0 with a token.
    pub seq: u64,
}

impl Command {
    /// The kind that the journal shows.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::AddNode(_) => "node.add",
            Self::IssueToken { .. } => "node.token",
            Self::IssueAdmissionToken { .. } => "admission.token",
            Self::Admit { .. } => "node.admit",
            Self::Replace { .. } => "node.replace",
            Self::Join(_) => "node.join",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// A node exists in the registry.
    NodeAdded {
        /// The node, not joined yet.
        node: Added,
    },
    /// A token for a node is good; any other one of that node is not any more.
    TokenIssued {
        /// SHA-256 of its secret.
        token: Fingerprint,
        /// Which node, until when, for which keys.
        grant: Token,
    },
    /// A reusable admission secret is good.
    AdmissionTokenIssued {
        /// SHA-256 of it.
        token: Fingerprint,
    },
    /// A key is let in.
    KeyAdmitted {
        /// The key.
        key: SigningKey,
        /// What it will be.
        admitted: Admitted,
    },
    /// A machine has joined: token spent, keys bound, address assigned, certificate issued.
    Joined(Joined),
}

/// See [`Event::Joined`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The node.
    pub node: NodeId,
    /// The spent token; none for an admitted key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Fingerprint>,
    /// What it signs with.
    pub signing_key: SigningKey,
    /// Its tunnel key.
    pub wireguard_key: WireguardKey,
    /// Its sealing key.
    pub sealing_key: SealingKey,
    /// Its address.
    pub address: Ipv4Addr,
    /// UDP port of its tunnel.
    pub listen_port: u16,
    /// Its own addresses.
    pub local_endpoints: Vec<Endpoint>,
    /// Version of its binary.
    pub agent_version: String,
    /// SHA-256 of its bearer secret.
    pub mesh_token: Fingerprint,
    /// SHA-256 of its certificate.
    pub certificate: Fingerprint,
    /// The certificate's window.
    pub not_before: Millis,
    /// The certificate's window.
    pub not_after: Millis,
    /// Floor of its `seq`.
    pub seq: u64,
}

/// What an operator says of a node when adding it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// The node.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Its org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// Its site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// Whether it forwards.
    pub hub: bool,
    /// The appliance on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appliance: Option<ApplianceId>,
    /// Where everybody can dial it.
    pub endpoints: Vec<Endpoint>,
}

/// The one refusal of every token that is not good, whatever the reason.
pub fn token_refused() -> Refusal {
    Refusal::new(
        Code::TokenRefused,
        "the token was refused",
        "it is unknown, spent or expired",
        "ask the operator for a new one: `holdfast node token NAME`",
    )
}

pub(crate) fn decide(state: &State, command: Command, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    match command {
        Command::AddNode(add) => decide_add(state, *add, context),
        Command::IssueToken { name, token, expires } => {
            let node = find(state, &name, context)?;
            let good_for = if node.member.is_some() { GoodFor::RecordedKey } else { GoodFor::AnyKey };
            Ok(vec![Event::TokenIssued { token, grant: Token { node: node.id, expires, good_for } }.into()])
        }
        Command::IssueAdmissionToken { token } => Ok(vec![Event::AdmissionTokenIssued { token }.into()]),
        Command::Admit { key, name, org, site, id } => decide_admit(state, key, name, org, site, id, context),
        Command::Replace { key, name, live } => decide_replace(state, key, &name, live, context),
        Command::Join(join) => decide_join(state, *join, context),
    }
}

fn decide_add(state: &State, add: AddNode, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    state.fleet()?;
    let org = add.org.clone().or_else(|| context.org.clone());
    if add.replace {
        let node = find(state, &add.name, context)?;
        let good_for = if node.member.is_some() { GoodFor::NewKey } else { GoodFor::AnyKey };
        let grant = Token { node: node.id, expires: add.expires, good_for };
        return Ok(vec![Event::TokenIssued { token: add.token, grant }.into()]);
    }
    if !context.covers(org.as_ref()) {
        return Err(Refusal::new(
            Code::NotFound,
            format!("node `{}` was not added", add.name),
            "there is no such org for you",
            "leave --org out",
        ));
    }
    let name = refuse_taken_name(state, add.name, None)?;
    let node = Added {
        id: add.id,
        name,
        org,
        site: add.site,
        hub: add.hub,
        appliance: add.appliance,
        endpoints: add.endpoints,
    };
    let grant = Token { node: add.id, expires: add.expires, good_for: GoodFor::AnyKey };
    Ok(vec![Event::NodeAdded { node }.into(), Event::TokenIssued { token: add.token, grant }.into()])
}

/// A node's name must be no reserved word, no other node's, no admitted key's and no space's.
fn refuse_taken_name(state: &State, name: Name, own: Option<&SigningKey>) -> Result<Name, Refusal> {
    let what = format!("node `{name}` was not added");
    let name = name
        .unreserved()
        .map_err(|error| Refusal::new(Code::Invalid, what.clone(), error.to_string(), "choose another name"))?;
    if let Some(holder) = state.nodes.by_name.get(&name).and_then(|id| state.nodes.all.get(id)) {
        let todo = match holder.member {
            None => format!("it never joined: `holdfast node token {name}` gives it a new token"),
            Some(_) => {
                format!("choose another name, or let new keys take it over with `holdfast node add {name} --replace`")
            }
        };
        return Err(Refusal::new(Code::Held, what, format!("there is a node `{name}` already"), todo));
    }
    if state.enrolment.admitted.iter().any(|(key, admitted)| admitted.name == name && Some(key) != own) {
        let why = format!("an admitted key that has not registered yet has the name `{name}`");
        return Err(Refusal::new(Code::Held, what, why, "choose another name"));
    }
    if services::in_space(state, &name).next().is_some() {
        let why = format!("there is a space `{name}`, and both would be `{name}.internal`");
        return Err(Refusal::new(Code::Held, what, why, "choose another name"));
    }
    Ok(name)
}

fn decide_admit(
    state: &State,
    key: SigningKey,
    name: Name,
    org: Option<Name>,
    site: Option<Name>,
    id: NodeId,
    context: &Context,
) -> Result<Vec<crate::Event>, Refusal> {
    let org = org.or_else(|| context.org.clone());
    if !context.covers(org.as_ref()) {
        return Err(Refusal::new(
            Code::NotFound,
            "the key was not admitted",
            "there is no such org for you",
            "leave --org out",
        ));
    }
    refuse_member_key(state, &key)?;
    let name = refuse_taken_name(state, name, Some(&key))?;
    // A key whose node was taken over left its id to that node.
    let id = state.nodes.departed.get(&key).filter(|d| d.reason != Gone::Moved).map_or(id, |d| d.id);
    let admitted = Admitted { id, name, org, site, hub: false, endpoints: Vec::new() };
    if state.enrolment.admitted.get(&key) == Some(&admitted) {
        return Ok(Vec::new());
    }
    Ok(vec![Event::KeyAdmitted { key, admitted }.into()])
}

fn refuse_member_key(state: &State, key: &SigningKey) -> Result<(), Refusal> {
    match state.nodes.by_key.get(key).and_then(|id| state.nodes.all.get(id)) {
        None => Ok(()),
        Some(holder) => Err(Refusal::new(
            Code::Held,
            "the key was not admitted",
            format!("it is the key of node `{}` already", holder.name),
            "there is nothing to do",
        )),
    }
}

fn decide_replace(
    state: &State,
    key: SigningKey,
    name: &Name,
    live: bool,
    context: &Context,
) -> Result<Vec<crate::Event>, Refusal> {
    let node = find(state, name, context)?;
    refuse_member_key(state, &key)?;
    if live {
        return Err(Refusal::new(
            Code::NodeLive,
            format!("node `{name}` was not replaced"),
            "it was heard within the last two minutes",
            "stop its agent first, or wait until it has been silent that long",
        ));
    }
    Ok(vec![admitted_as(node, key)])
}

fn decide_join(state: &State, join: Join, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    let fleet = state.fleet()?;
    let (node, first, hub_of_appliance) = match &join.token {
        Some(token) => {
            let grant =
                state.enrolment.tokens.get(token).filter(|t| !context.expired(t.expires)).ok_or_else(token_refused)?;
            let node = state.nodes.all.get(&grant.node).ok_or_else(token_refused)?;
            let recorded = node.member.as_ref().map(|m| m.signing_key);
            match grant.good_for {
                GoodFor::AnyKey if recorded.is_some() => return Err(token_refused()),
                GoodFor::RecordedKey if recorded != Some(join.signing_key) => return Err(token_refused()),
                GoodFor::AnyKey | GoodFor::RecordedKey | GoodFor::NewKey => {}
            }
            (node.id, None, node.appliance.is_some())
        }
        None => {
            let admitted = state
                .enrolment
                .admitted
                .get(&join.signing_key)
                .ok_or_else(|| nodes::not_admitted(&join.signing_key))?;
            let taken_over = state.nodes.all.get(&admitted.id).is_some_and(|node| node.name == admitted.name);
            let name = match taken_over {
                true => admitted.name.clone(),
                false => refuse_taken_name(state, admitted.name.clone(), Some(&join.signing_key))?,
            };
            let added = Added {
                id: admitted.id,
                name,
                org: admitted.org.clone(),
                site: admitted.site.clone(),
                hub: admitted.hub,
                appliance: None,
                endpoints: admitted.endpoints.clone(),
            };
            (admitted.id, (!taken_over).then_some(added), false)
        }
    };
    if let Some(holder) = state.nodes.by_key.get(&join.signing_key).filter(|id| **id != node) {
        let holder = state.nodes.all.get(holder).map_or_else(String::new, |n| n.name.to_string());
        return Err(Refusal::new(
            Code::Held,
            "the signing key was refused",
            format!("node `{holder}` has the same signing key"),
            "use a state directory of its own for each node",
        ));
    }
    nodes::refuse_held_wireguard(state, Some(node), &join.wireguard_key)?;
    let held = state.nodes.all.get(&node).and_then(|n| n.member.as_ref()).map(|m| m.address);
    let address = held.or_else(|| state.nodes.allocate(fleet.mesh_prefix, &join.signing_key, hub_of_appliance)).ok_or_else(|| {
        Refusal::new(
            Code::AddressPoolExhausted,
            "the machine was not let in",
            format!("all {} addresses of {} are in use", fleet.mesh_prefix.host_count(), fleet.mesh_prefix),
            "`holdfast node rm` of a node that is gone frees its address; `holdfast mesh grow` takes a larger prefix",
        )
    })?;
    let mut events: Vec<crate::Event> = first.map(|node| Event::NodeAdded { node }.into()).into_iter().collect();
    events.push(
        Event::Joined(Joined {
            node,
            token: join.token,
            signing_key: join.signing_key,
            wireguard_key: join.wireguard_key,
            sealing_key: join.sealing_key,
            address,
            listen_port: join.listen_port,
            local_endpoints: join.local_endpoints,
            agent_version: join.agent_version,
            mesh_token: join.mesh_token,
            certificate: join.certificate,
            not_before: join.window.0,
            not_after: join.window.1,
            seq: join.seq,
        })
        .into(),
    );
    Ok(events)
}

/// The event that lets a key in as this node.
pub(crate) fn admitted_as(node: &Node, key: SigningKey) -> crate::Event {
    let admitted = Admitted {
        id: node.id,
        name: node.name.clone(),
        org: node.org.clone(),
        site: node.site.clone(),
        hub: node.hub,
        endpoints: node.endpoints.clone(),
    };
    Event::KeyAdmitted { key, admitted }.into()
}

/// Ends every token and certificate of a node that departs. Its bearer secret stays known: it opens nothing any more,
/// but lets the node's next request reach the refusal that carries its tombstone.
pub(crate) fn forget(state: &mut State, node: &Node) {
    let part = &mut state.enrolment;
    if let Some(token) = &node.token {
        part.tokens.remove(token);
    }
    if let Some(member) = &node.member {
        part.end_certificates(member);
    }
    // A key that was to take this node over would otherwise come in under an id that was another's.
    if let Some(key) = part.admitted.iter().find(|(_, admitted)| admitted.id == node.id).map(|(key, _)| *key) {
        part.admitted.remove(&key);
    }
}

impl Enrolment {
    fn end_certificates(&mut self, member: &Member) {
        for certificate in &member.certificates {
            self.certificates.remove(certificate);
        }
    }
}

pub(crate) fn apply(state: &mut State, event: &Event, touched: &mut Touched) {
    match event {
        Event::NodeAdded { node } => {
            state.nodes.by_name.insert(node.name.clone(), node.id);
            let Added { id, name, org, site, hub, appliance, endpoints } = node.clone();
            let added = state.at;
            let node = Node { id, name, org, site, hub, appliance, endpoints, added, token: None, member: None };
            state.nodes.all.insert(id, node);
        }
        Event::TokenIssued { token, grant } => {
            let Some(node) = state.nodes.all.get_mut(&grant.node) else { return };
            if let Some(former) = node.token.replace(*token) {
                state.enrolment.tokens.remove(&former);
            }
            state.enrolment.tokens.insert(*token, grant.clone());
        }
        Event::AdmissionTokenIssued { token } => {
            state.enrolment.admission_tokens.insert(*token, state.at);
        }
        Event::KeyAdmitted { key, admitted } => {
            state.enrolment.admitted.insert(*key, admitted.clone());
        }
        Event::Joined(joined) => join(state, joined, touched),
    }
}

fn join(state: &mut State, joined: &Joined, touched: &mut Touched) {
    let (at, revision, id, key) = (state.at, state.revision, joined.node, joined.signing_key);
    let Some(prefix) = state.appliances.fleet.as_ref().map(|f| f.mesh_prefix) else { return };
    let Some(node) = state.nodes.all.get_mut(&id) else { return };
    let former = node.member.replace(Member {
        signing_key: key,
        wireguard_key: joined.wireguard_key,
        sealing_key: joined.sealing_key,
        address: joined.address,
        listen_port: joined.listen_port,
        endpoints: Vec::new(),
        local_endpoints: joined.local_endpoints.clone(),
        agent_version: joined.agent_version.clone(),
        joined: at,
        seq: joined.seq,
        liveness: Liveness::Here,
        mesh_token: joined.mesh_token,
        certificates: vec![joined.certificate],
    });
    if joined.token.is_some() {
        node.token = None;
    }
    let (name, org) = (node.name.clone(), node.org.clone());
    let (part, nodes) = (&mut state.enrolment, &mut state.nodes);
    if let Some(former) = former {
        part.end_certificates(&former);
        nodes.by_key.remove(&former.signing_key);
        nodes.by_wireguard.remove(&former.wireguard_key);
        if former.signing_key == key {
            part.mesh_tokens.remove(&former.mesh_token);
        } else {
            let (address, mesh_token) = (joined.address, former.mesh_token);
            let departed = Departed { id, name, org, address, mesh_token, reason: Gone::Moved, revision };
            nodes.departed.insert(former.signing_key, departed);
        }
    }
    if let Some(token) = &joined.token {
        part.tokens.remove(token);
    }
    if let Some(departed) = nodes.departed.remove(&key) {
        part.mesh_tokens.remove(&departed.mesh_token);
    }
    part.admitted.remove(&key);
    part.mesh_tokens.insert(joined.mesh_token, id);
    let certificate = Certificate { node: id, not_before: joined.not_before, not_after: joined.not_after };
    part.certificates.insert(joined.certificate, certificate);
    nodes.by_key.insert(key, id);
    nodes.by_wireguard.insert(joined.wireguard_key, id);
    nodes.take(prefix, joined.address, id);
    touched.insert(id);
}
