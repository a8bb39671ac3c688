//! Who is let in: from a command about enrolment to events or a refusal.

use super::{AddNode, Added, Admitted, Command, Event, GoodFor, Join, Joined, Token, certificates};
use crate::model::{Name, NodeId, SigningKey};
use crate::subject::nodes::{self, Node, find};
use crate::subject::services;
use crate::view::records::Gone;
use crate::{Code, Context, Refusal, State};

/// The one refusal of every token that is not good, whatever the reason.
pub fn token_refused() -> Refusal {
    Refusal::new(
        Code::TokenRefused,
        "the token was refused",
        "it is unknown, spent or expired",
        "ask the operator for a new one: `holdfast node token NAME`",
    )
}

/// The id under which a key comes in: the one that it had before, else `fresh`. A key whose node was taken over left its
/// id to that node.
pub fn id_of(state: &State, key: &SigningKey, fresh: NodeId) -> NodeId {
    state.nodes.departed.get(key).filter(|d| d.reason != Gone::Moved).map_or(fresh, |d| d.id)
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
        Command::RenewCertificate { by, certificate, window } => {
            certificates::decide_renew(state, &by, certificate, window, context)
        }
        Command::IssueCertificate { key, seq, certificate, window } => {
            certificates::decide_issue(state, &key, seq, certificate, window)
        }
        Command::UseCertificate { certificate } => certificates::decide_use(state, &certificate, context),
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
    let id = id_of(state, &key, id);
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
    let mut events: Vec<crate::Event> = Vec::new();
    let (node, hub_of_appliance) = match &join.token {
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
            let id = id_of(state, &join.signing_key, node.id);
            if id != node.id {
                events.extend(under_former_id(node, id)?);
            }
            (id, node.appliance.is_some())
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
            if !taken_over {
                events.push(Event::NodeAdded { node: added }.into());
            }
            (admitted.id, false)
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
    nodes::refuse_held_wireguard(state, node, &join.wireguard_key)?;
    let held = state.nodes.all.get(&node).and_then(|n| n.member.as_ref()).map(|m| m.address);
    let address = held
        .or_else(|| state.nodes.allocate(fleet.mesh_prefix, &join.signing_key, hub_of_appliance))
        .ok_or_else(|| {
            Refusal::new(
                Code::AddressPoolExhausted,
                "the machine was not let in",
                format!("all {} addresses of {} are in use", fleet.mesh_prefix.host_count(), fleet.mesh_prefix),
                "`holdfast node rm` of a node that is gone frees its address",
            )
        })?;
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

/// A machine that was a node before and joins as one that was just added: that node gets the id that the machine had.
fn under_former_id(node: &Node, id: NodeId) -> Result<[crate::Event; 2], Refusal> {
    if node.member.is_some() {
        return Err(Refusal::new(
            Code::Held,
            "the signing key was refused",
            format!("it was another node's before, so it cannot take over `{}`", node.name),
            "join with a state directory that is new",
        ));
    }
    let Node { name, org, site, hub, appliance, endpoints, .. } = node.clone();
    Ok([
        nodes::Event::Departed { node: node.id, reason: Gone::Moved }.into(),
        Event::NodeAdded { node: Added { id, name, org, site, hub, appliance, endpoints } }.into(),
    ])
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
