//! `node add|token|replace|ls|show|rm`.

use super::token::{advertised, line, mint};
use super::{Call, no_node, views};
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, invalid};
use crate::serve::http::ok;
use crate::wire::operator::{AddNode, MintToken, Nodes, Removed, ReplaceNode, SCHEMA};
use crate::wire::token::Purpose;
use crate::{clock, entropy, limits};
use state::State;
use state::model::{Name, NodeId};
use state::subject::{enrolment, nodes};

pub(super) async fn list(call: Call) -> Result<Answer, Refused> {
    let state = call.state();
    let in_order = state.nodes.by_name.values().filter_map(|id| state.nodes.all.get(id));
    let nodes = in_order.map(|node| views::node(&call.appliance, &state, node)).collect();
    Ok(ok(&Nodes { schema: SCHEMA, nodes }))
}

pub(super) async fn show(call: Call, name: Name) -> Result<Answer, Refused> {
    let state = call.state();
    let node = named(&state, &name).ok_or_else(|| no_node(&state, &name, &call.context(&state)))?;
    Ok(ok(&views::node(&call.appliance, &state, node)))
}

fn named<'a>(state: &'a State, name: &Name) -> Option<&'a nodes::Node> {
    state.nodes.all.get(state.nodes.by_name.get(name)?)
}

pub(super) async fn add(call: Call) -> Result<Answer, Refused> {
    let asked: AddNode = call.body()?;
    advertised(&call.appliance)?;
    if asked.endpoints.len() > limits::ENDPOINTS {
        return Err(invalid(format!("a node has at most {} endpoints", limits::ENDPOINTS)));
    }
    let fresh = mint(asked.ttl_seconds)?;
    let command = enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: NodeId(entropy::uuid()),
        name: asked.name.clone(),
        org: asked.org,
        site: asked.site,
        hub: asked.hub,
        appliance: None,
        endpoints: asked.endpoints,
        token: fresh.hash,
        expires: fresh.expires,
        replace: asked.replace,
    }));
    let appliance = call.appliance.clone();
    call.change(command, move |state| line(&appliance, state, fresh, Purpose::Join(asked.name)).map(|line| ok(&line)))
        .await
}

pub(super) async fn token(call: Call, name: Name) -> Result<Answer, Refused> {
    let asked: MintToken = call.body()?;
    advertised(&call.appliance)?;
    let fresh = mint(asked.ttl_seconds)?;
    let command = enrolment::Command::IssueToken { name: name.clone(), token: fresh.hash, expires: fresh.expires };
    let appliance = call.appliance.clone();
    call.change(command, move |state| line(&appliance, state, fresh, Purpose::Join(name)).map(|line| ok(&line))).await
}

pub(super) async fn replace(call: Call, name: Name) -> Result<Answer, Refused> {
    let asked: ReplaceNode = call.body()?;
    let live = is_live(&call, &call.state(), &name);
    let appliance = call.appliance.clone();
    let of = name.clone();
    call.change(enrolment::Command::Replace { key: asked.key, name, live }, move |state| {
        let node = named(state, &of).ok_or_else(|| invalid("the node is gone"))?;
        Ok(ok(&views::node(&appliance, state, node)))
    })
    .await
}

pub(super) async fn remove(call: Call, name: Name) -> Result<Answer, Refused> {
    let (mut force, mut keep_admitted) = (false, false);
    for part in call.received.query().split('&').filter(|part| !part.is_empty()) {
        match part {
            "force=true" => force = true,
            "keep_admitted=true" => keep_admitted = true,
            "force=false" | "keep_admitted=false" => {}
            other => return Err(invalid(format!("`{other}` is not force=true|false or keep_admitted=true|false"))),
        }
    }
    let state = call.state();
    let live = is_live(&call, &state, &name);
    let node = named(&state, &name);
    let signing_key = node.and_then(|node| node.member.as_ref()).map(|member| member.signing_key);
    let removed = Removed { schema: SCHEMA, name: Some(name.clone()), signing_key, still_admitted: keep_admitted };
    let answer =
        call.change(nodes::Command::Remove { name, force, keep_admitted, live }, move |_| Ok(ok(&removed))).await?;
    if let Some(node) = node {
        call.appliance.authority.soft().presence.forget(node.id);
    }
    Ok(answer)
}

fn is_live(call: &Call, state: &State, name: &Name) -> bool {
    let soft = call.appliance.authority.soft();
    state.nodes.by_name.get(name).is_some_and(|id| soft.presence.is_live(*id, clock::boot()))
}
