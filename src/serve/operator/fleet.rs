//! `status` and `mesh ls`.

use super::Call;
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, from_decision};
use crate::clock::rfc3339;
use crate::limits;
use crate::serve::http::ok;
use crate::wire::operator::{MeshNode, MeshView, NodeCounts, SCHEMA, StatusView};
use state::view::status::{liveness, summary};
use state::{Refusal, State};
use std::sync::Arc;

pub(super) async fn mesh(call: Call) -> Result<Answer, Refused> {
    let state = call.state();
    let fleet = state.fleet().map_err(unfounded)?;
    let (used, all) = summary(&state).addresses;
    let in_order = state.nodes.by_name.values().filter_map(|id| state.nodes.all.get(id));
    let nodes = in_order.filter_map(|node| {
        let member = node.member.as_ref()?;
        let own = member.endpoints.iter().filter(|endpoint| !node.endpoints.contains(endpoint));
        Some(MeshNode {
            name: node.name.clone(),
            site: node.site.clone(),
            address: member.address,
            address6: None,
            hub: node.hub,
            endpoints: node.endpoints.iter().chain(own).cloned().collect(),
            local_endpoints: member.local_endpoints.clone(),
            liveness: liveness(node).into(),
        })
    });
    Ok(ok(&MeshView {
        schema: SCHEMA,
        prefix: fleet.mesh_prefix,
        prefix6: fleet.mesh_prefix6,
        suffix: fleet.suffix.clone(),
        addresses_used: used,
        addresses_free: all.saturating_sub(used),
        nodes: nodes.collect(),
    }))
}

pub(super) async fn status(call: Call) -> Result<Answer, Refused> {
    let state = call.state();
    let hashed = Arc::clone(&state);
    let state_hash = crate::tasks::blocking(move || state::store::state_hash(&hashed)).await;
    let fleet = state.fleet().map_err(unfounded)?;
    let epoch = state.appliances.epoch.ok_or_else(|| {
        unfounded(Refusal::new(
            state::Code::Conflict,
            "there is no epoch yet",
            "the fleet is not founded",
            "start the appliance",
        ))
    })?;
    let found = summary(&state);
    let soft = call.appliance.authority.soft();
    let contested: Vec<String> =
        found.contested.iter().map(|(pair, _)| format!("{}.{}", pair.name, pair.space)).collect();
    Ok(ok(&StatusView {
        schema: SCHEMA,
        fleet: fleet.name.clone(),
        fleet_id: fleet.id,
        appliance: call.appliance.id,
        version: concat!("holdfast ", env!("CARGO_PKG_VERSION")).to_owned(),
        fingerprint: call.appliance.pin,
        advertised: call.appliance.advertised.clone(),
        epoch,
        revision: state.revision,
        state_hash: Some(state_hash),
        since: rfc3339(call.appliance.since),
        mesh_prefix: fleet.mesh_prefix,
        nodes: NodeCounts {
            here: found.here as u64,
            out_of_touch: found.out_of_touch.len() as u64,
            never_spoken: found.never_spoken.len() as u64,
        },
        pending: soft.pending.iter().count() as u64,
        attention: attention(&call, &state, &soft, &contested),
        contested,
    }))
}

/// What needs a person, in words.
fn attention(call: &Call, state: &State, soft: &crate::authority::Soft, contested: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    if call.appliance.advertised.is_empty() {
        out.push("no node can be added: set `advertise` to a host that nodes can reach".to_owned());
    }
    if crate::clock::wall() < state.at {
        out.push("this machine's clock is behind the journal's: nothing expires until it is set".to_owned());
    }
    out.extend(stuck(state));
    let scrub = call.appliance.observed.last_scrub();
    out.extend(scrub.and_then(|scrub| scrub.problem).map(|problem| format!("the store does not verify: {problem}")));
    out.extend(contested.iter().map(|name| format!("{name} is claimed by more than one node, so it answers for none")));
    let doubled = state.nodes.all.values().filter(|n| soft.presence.of(n.id).is_some_and(|heard| heard.duplicate));
    out.extend(doubled.map(|node| {
        format!("duplicate identity: two machines are `{}`; stop the copy and remove its state directory", node.name)
    }));
    out
}

/// Jobs of which something cannot be ended: the first few, and how many more there are.
fn stuck(state: &State) -> Vec<String> {
    let boards = state.jobs.boards.values();
    let open = boards.flat_map(|board| board.queued.iter().map(|(_, _, id)| id).chain(&board.leased));
    let jobs = open.filter_map(|id| state.jobs.get(id));
    let mut stuck = jobs.filter_map(|job| Some((job, job.stuck.as_ref()?, state.nodes.all.get(&job.node)?)));
    let told = stuck.by_ref().take(limits::STUCK_SHOWN).map(|(job, stuck, node)| {
        let (id, name, why) = (job.id, &node.name, &stuck.why);
        format!("job {id} is stuck on node `{name}`: {why}; end that there, or restart the machine")
    });
    let mut told: Vec<String> = told.collect();
    match stuck.count() {
        0 => {}
        more => told.push(format!("{more} more jobs are stuck: `holdfast job ls --only stuck`")),
    }
    told
}

fn unfounded(refusal: Refusal) -> Refused {
    from_decision(&refusal)
}
