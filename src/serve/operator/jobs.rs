//! `job run|ls|show|cancel|retry`, `explain JOB`, `node drain|undrain`.

use super::{Call, no_node, views};
use crate::authority::Soft;
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, from_decision, invalid, problem};
use crate::clock::{self, rfc3339};
use crate::serve::appliance::Appliance;
use crate::serve::http::ok;
use crate::wire::operator::{DrainNode, JobDetail, JobView, Jobs, LogLine, On, ResultView, RunJob, SCHEMA, STATES};
use crate::{entropy, limits};
use state::model::{JobId, Millis, Name, Revision};
use state::store::RowKey;
use state::subject::jobs::{ATTEMPTS, Command, Ended, Job, Phase, Stuck, Wanted, result_row};
use state::view::records::Liveness;
use state::view::status::liveness;
use state::{Context, State};
use std::collections::{BTreeMap, BTreeSet};

pub(super) async fn run(call: Call) -> Result<Answer, Refused> {
    let RunJob { spec, on, attempts } = call.body()?;
    let state = call.state();
    let context = call.context(&state);
    let nodes = match on {
        On::Nodes(names) if names.is_empty() => return Err(invalid("no node is named")),
        On::Nodes(names) => {
            let found = names.iter().map(|name| state::subject::nodes::find(&state, name, &context));
            found.map(|node| node.map(|node| node.id)).collect::<Result<Vec<_>, _>>().map_err(|r| from_decision(&r))?
        }
        On::All => {
            let mine = state.nodes.all.values().filter(|node| context.covers(node.org.as_ref()));
            mine.filter(|node| node.member.is_some()).map(|node| node.id).collect()
        }
    };
    if nodes.is_empty() {
        return Err(problem(409, "conflict", "nothing was queued", "no node has joined yet", "add one first"));
    }
    if nodes.iter().collect::<BTreeSet<_>>().len() < nodes.len() {
        return Err(invalid("a node is named twice"));
    }
    let attempts = attempts.unwrap_or(ATTEMPTS);
    let wanted = |node| Wanted { id: JobId(entropy::uuid()), node, spec: spec.clone(), attempts };
    let jobs: Vec<Wanted> = nodes.into_iter().map(wanted).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let appliance = call.appliance.clone();
    call.change(Command::Submit { jobs }, move |state| {
        let soft = appliance.authority.soft();
        let queued = ids.iter().filter_map(|id| state.jobs.get(id));
        Ok(ok(&Jobs { schema: SCHEMA, jobs: queued.map(|job| view(state, &soft, job)).collect() }))
    })
    .await
}

pub(super) async fn list(call: Call) -> Result<Answer, Refused> {
    let (mut wanted, mut node) = (None, None);
    for part in call.received.query().split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("state", word)) if STATES.contains(&word) => wanted = Some(word),
            Some(("node", name)) => node = Some(Name::new(name).map_err(|error| invalid(error.to_string()))?),
            Some(_) | None => {
                let detail = format!("`{part}` is not state={} or node=NAME", STATES.join("|"));
                return Err(invalid(detail));
            }
        }
    }
    let state = call.state();
    let context = call.context(&state);
    let node = match node {
        Some(name) => Some(state::subject::nodes::find(&state, &name, &context).map_err(|r| from_decision(&r))?.id),
        None => None,
    };
    let soft = call.appliance.authority.soft();
    let jobs = state.jobs.all.values().rev().filter(|job| {
        context.covers(job.org.as_ref())
            && wanted.is_none_or(|wanted| wanted == word(job))
            && node.is_none_or(|node| node == job.node)
    });
    let jobs = jobs.take(limits::JOBS_SHOWN).map(|job| view(&state, &soft, job)).collect();
    Ok(ok(&Jobs { schema: SCHEMA, jobs }))
}

pub(super) async fn show(call: Call, id: JobId) -> Result<Answer, Refused> {
    let kept = kept(&call, id).await?;
    let state = call.state();
    detail(&call.appliance, &state, &call.context(&state), &kept, id).map(|detail| ok(&detail))
}

pub(super) async fn cancel(call: Call, id: JobId) -> Result<Answer, Refused> {
    detail_after(call, Command::Cancel { job: id }, id).await
}

pub(super) async fn retry(call: Call, id: JobId) -> Result<Answer, Refused> {
    detail_after(call, Command::Retry { job: id }, id).await
}

async fn detail_after(call: Call, command: Command, id: JobId) -> Result<Answer, Refused> {
    let kept = kept(&call, id).await?;
    let (appliance, context) = (call.appliance.clone(), call.context(&call.state()));
    call.change(command, move |state| detail(&appliance, state, &context, &kept, id).map(|detail| ok(&detail))).await
}

pub(super) async fn drain(call: Call, name: Name) -> Result<Answer, Refused> {
    let DrainNode { deadline_seconds } = call.body()?;
    let until = deadline_seconds.map(|seconds| clock::wall().plus(seconds.saturating_mul(1000)));
    node_after(call, Command::Drain { name: name.clone(), until }, name).await
}

pub(super) async fn undrain(call: Call, name: Name) -> Result<Answer, Refused> {
    node_after(call, Command::Undrain { name: name.clone() }, name).await
}

async fn node_after(call: Call, command: Command, name: Name) -> Result<Answer, Refused> {
    let appliance = call.appliance.clone();
    let context = call.context(&call.state());
    call.change(command, move |state| {
        let node = state.nodes.by_name.get(&name).and_then(|id| state.nodes.all.get(id));
        let node = node.ok_or_else(|| no_node(state, &name, &context))?;
        Ok(ok(&views::node(&appliance, state, node)))
    })
    .await
}

/// The results of a job that are kept, by attempt.
async fn kept(call: &Call, id: JobId) -> Result<BTreeMap<RowKey, Vec<u8>>, Refused> {
    let unread = |error: String| problem(503, "store_restarting", "the results were not read", error, "ask again");
    let rows = call.appliance.handle.rows(result_row(id, None)).await.map_err(|error| unread(error.to_string()))?;
    let rows = rows.map_err(|error| unread(error.to_string()))?;
    Ok(rows.into_iter().map(|row| (row.key, row.value)).collect())
}

fn detail(
    appliance: &Appliance,
    state: &State,
    context: &Context,
    kept: &BTreeMap<RowKey, Vec<u8>>,
    id: JobId,
) -> Result<JobDetail, Refused> {
    let job = state.jobs.get(&id).filter(|job| context.covers(job.org.as_ref())).ok_or_else(|| unknown(id))?;
    let results = job.results.iter().map(|Ended { answered, .. }| ResultView {
        attempt: answered.attempt,
        outcome: answered.outcome,
        result: kept.get(&result_row(id, Some(answered.attempt))).and_then(|bytes| serde_json::from_slice(bytes).ok()),
    });
    let soft = appliance.authority.soft();
    let log = soft.logs.of(id);
    let line = |(attempt, line): &(u32, String)| LogLine { attempt: *attempt, line: line.clone() };
    Ok(JobDetail {
        schema: SCHEMA,
        job: view(state, &soft, job),
        results: results.collect(),
        log: log.map(|log| log.lines.iter().map(line).collect()).unwrap_or_default(),
        log_dropped: log.map_or(0, |log| log.dropped),
        explanation: explanation(state, job, context),
    })
}

fn unknown(id: JobId) -> Refused {
    let detail = format!("no job {id} is known");
    problem(404, "not_found", "there is no such job", detail, "`holdfast job ls` shows the jobs there are")
}

fn view(state: &State, soft: &Soft, job: &Job) -> JobView {
    let (mut not_before, mut leased, mut expires_in_s, mut why) = (None, None, None, None);
    match &job.phase {
        Phase::Queued { not_before: at } => {
            not_before = Some(rfc3339(*at));
            why = job.stuck.as_ref().map(|stuck| stuck.why.clone());
        }
        Phase::Leased { since, .. } => {
            leased = Some(rfc3339(*since));
            expires_in_s = soft.leases.left(job.id, job.attempt, clock::boot()).map(|left| left.as_secs());
        }
        Phase::Failed { why: reason } => why = Some(reason.clone()),
        Phase::Succeeded | Phase::Cancelled | Phase::Superseded { .. } => {}
    }
    JobView {
        id: job.id,
        kind: job.spec.kind().to_owned(),
        lane: job.spec.lane(),
        node: state.nodes.all.get(&job.node).map(|node| node.name.clone()),
        node_id: job.node,
        org: job.org.clone(),
        spec: job.spec.clone(),
        state: word(job).to_owned(),
        cancelling: job.cancel,
        superseded_by: newer(state, job),
        attempt: job.attempt,
        attempts: job.attempts,
        created: rfc3339(job.created),
        not_before,
        leased,
        expires_in_s,
        completed_at: job.completed_at.map(rfc3339),
        why,
    }
}

/// The word for where a job is.
fn word(job: &Job) -> &'static str {
    let queued = matches!(job.phase, Phase::Queued { .. });
    if queued && job.stuck.is_some() { "stuck" } else { job.phase.as_str() }
}

/// Since when something newer is wanted than what an open or superseded job was asked under.
fn newer(state: &State, job: &Job) -> Option<Revision> {
    match &job.phase {
        Phase::Queued { .. } | Phase::Leased { .. } => state.jobs.superseded_by(job),
        Phase::Superseded { generation } => Some(*generation),
        Phase::Succeeded | Phase::Failed { .. } | Phase::Cancelled => None,
    }
}

/// Why a job is where it is, in words: for one that waits, what it waits for.
fn explanation(state: &State, job: &Job, context: &Context) -> String {
    match &job.phase {
        Phase::Queued { not_before } => {
            let waits = waits(state, job, *not_before, context);
            let stuck = job.stuck.as_ref().map(|stuck| still_there(job, stuck));
            stuck.map_or(waits.clone(), |stuck| format!("{stuck}. Until then: {waits}"))
        }
        Phase::Leased { since, .. } => {
            let since = rfc3339(*since);
            let told = "has been told to stop; it has not said yet that it has";
            let newer = state.jobs.superseded_by(job);
            if let Some(until) = overdue(state, job, context).filter(|_| newer.is_none()) {
                return format!(
                    "its node has it since {since}, was to have stopped it by {until} because it is drained, and is told \
                     so: it waits again when its lease ends"
                );
            }
            match (newer, job.cancel, &job.stuck) {
                (Some(newer), _, _) => format!(
                    "something newer is wanted since change {newer}; its node has it since {since} and is told to stop, \
                     and it is over when its lease ends"
                ),
                (None, true, _) => format!("its node has it since {since} and {told}"),
                (None, false, Some(stuck)) => {
                    let (attempt, before, why) = (job.attempt, stuck.attempt, &stuck.why);
                    format!("its node has attempt {attempt} since {since}; attempt {before} was stuck: {why}")
                }
                (None, false, None) => {
                    format!("its node is at attempt {} of {} since {since}", job.attempt, job.attempts)
                }
            }
        }
        Phase::Succeeded => format!("it was done by attempt {}", job.attempt),
        Phase::Failed { why } => format!("it failed: {why}"),
        Phase::Cancelled => "it was cancelled".to_owned(),
        Phase::Superseded { generation } => format!(
            "it was not done, because something newer is wanted since change {generation}: `holdfast journal ls` shows \
             what"
        ),
    }
}

/// When the node of a leased job was to have stopped it, if that has passed.
fn overdue(state: &State, job: &Job, context: &Context) -> Option<String> {
    let drain = state.jobs.boards.get(&job.node)?.drain?;
    let until = drain.until.filter(|until| context.clock_trusted && *until <= context.now && !job.cancel)?;
    Some(rfc3339(until))
}

/// What a job is stuck on, and what to do about it.
fn still_there(job: &Job, stuck: &Stuck) -> String {
    let (attempt, why) = (stuck.attempt, &stuck.why);
    let then = if job.cancel { "it is over" } else { "it goes on by itself" };
    format!(
        "what attempt {attempt} left on the node cannot be ended: {why}. Nothing is begun beside it: end that on the \
         machine, or restart the machine, and {then}"
    )
}

fn waits(state: &State, job: &Job, not_before: Millis, context: &Context) -> String {
    let Some(node) = state.nodes.all.get(&job.node) else { return "its node is gone".to_owned() };
    let name = &node.name;
    match (&node.member, liveness(node)) {
        (None, _) => return format!("node `{name}` has not joined yet"),
        (Some(_), Liveness::OutOfTouch { since }) => {
            return format!("node `{name}` has been out of touch since {}", rfc3339(since));
        }
        (Some(_), Liveness::Here | Liveness::NeverSpoken) => {}
    }
    let Some(board) = state.jobs.boards.get(&job.node) else { return "its node has not asked for it yet".to_owned() };
    if board.drain.is_some() {
        return format!("node `{name}` is drained; `holdfast node undrain {name}` gives it work again");
    }
    if let Some(need) = job.spec.needs().filter(|_| !job.spec.is_for(&board.capabilities)) {
        return format!("node `{name}` does not report the capability `{need}`, which this kind of job needs");
    }
    if not_before > context.now && context.clock_trusted {
        let (attempt, attempts) = (job.attempt, job.attempts);
        return format!(
            "attempt {attempt} of {attempts} came to nothing; the next is not before {}",
            rfc3339(not_before)
        );
    }
    let lane = job.spec.lane();
    let same_lane = |id: &&JobId| state.jobs.get(id).is_some_and(|other| other.spec.lane() == lane);
    if let Some(other) = board.leased.iter().find(same_lane) {
        return format!("node `{name}` does one job of a lane at a time, and is at job {other}");
    }
    let before = board.queued.iter().filter(|(of, _, _)| *of == lane).take_while(|(_, _, id)| *id != job.id);
    let takeable = |id: &JobId| state.jobs.get(id).is_some_and(|other| other.spec.is_for(&board.capabilities));
    let before = before.filter(|(_, _, id)| takeable(id)).count();
    match before {
        0 => format!("node `{name}` has not asked for it yet"),
        before => format!("node `{name}` does one job of a lane at a time, and {before} come before it"),
    }
}
