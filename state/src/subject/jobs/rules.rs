//! Who is given which job, and what their answers count: from a command about jobs to events or a refusal.

use super::{ATTEMPTS_MAX, BACKOFF, BACKOFF_MAX, TIMEOUT_MAX};
use super::{
    Answered, Binding, CAPABILITIES, Capability, Command, Complete, Drain, Event, FINISHED, FINISHED_PER_NODE, Job,
    Lane, Lease, Level, OPEN, OPEN_PER_NODE, Outcome, Phase, Spec, Wanted,
};
use crate::model::{Fingerprint, JobId, Millis, Name, NodeId, Revision};
use crate::subject::enrolment::holder;
use crate::subject::nodes::find;
use crate::subject::sources;
use crate::{Code, Context, Refusal, State, hash_of};
use std::collections::{BTreeMap, BTreeSet};

type Decision = Result<Vec<crate::Event>, Refusal>;

pub(crate) fn decide(state: &State, command: Command, context: &Context) -> Decision {
    match command {
        Command::Submit { jobs } => decide_submit(state, jobs, context),
        Command::Lease(lease) => decide_lease(state, *lease, context),
        Command::Complete(complete) => decide_complete(state, *complete, context),
        Command::Cancel { job } => decide_cancel(state, job, context),
        Command::Retry { job } => decide_retry(state, job, context),
        Command::Reap { expired } => Ok(decide_reap(state, &expired, context)),
        Command::Drain { name, until } => {
            let (node, drain) = (find(state, &name, context)?.id, Drain { until });
            let held = state.jobs.boards.get(&node).and_then(|board| board.drain);
            Ok(if held == Some(drain) { Vec::new() } else { vec![Event::Drained { node, drain }.into()] })
        }
        Command::Undrain { name } => {
            let node = find(state, &name, context)?.id;
            let held = state.jobs.boards.get(&node).and_then(|board| board.drain);
            Ok(held.map(|_| Event::Undrained { node }.into()).into_iter().collect())
        }
    }
}

/// The job whose present lease this certificate and token prove, at a heartbeat and at whatever else belongs to an
/// attempt. Whether the lease has expired is not known here; `trusted` is as in [`holder`].
///
/// # Errors
/// [`Code::CertificateRefused`], [`Code::NotFound`], [`Code::StaleLease`], [`Code::Superseded`],
/// [`Code::Cancelled`].
pub fn held<'a>(
    state: &'a State,
    certificate: &Fingerprint,
    id: JobId,
    token: &Fingerprint,
    now: Millis,
    trusted: bool,
) -> Result<&'a Job, Refusal> {
    let node = holder(state, certificate, now, trusted)?;
    let job = own(state, node, id)?;
    check_lease(state, job, token)?;
    if job.cancel {
        return Err(cancelled(id));
    }
    let drain = state.jobs.boards.get(&node).and_then(|board| board.drain);
    match drain.and_then(|drain| drain.until) {
        Some(until) if trusted && now >= until => Err(stale(id, "its node was to have stopped its work by now")),
        Some(_) | None => Ok(job),
    }
}

fn decide_submit(state: &State, jobs: Vec<Wanted>, context: &Context) -> Decision {
    let turned = turned(state, &jobs)?;
    let mut ids = BTreeSet::new();
    let mut more: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut events = Vec::new();
    for job in jobs {
        let node =
            state.nodes.all.get(&job.node).filter(|node| context.covers(node.org.as_ref())).ok_or_else(|| {
                let why = format!("no node {} is in the registry", job.node);
                Refusal::new(Code::NotFound, "nothing was queued", why, "`holdfast node ls` shows the nodes there are")
            })?;
        if let Spec::BuildModule { source } = &job.spec {
            sources::expect(state, source, node, context)?;
        }
        if let Err(why) = check_wanted(&job) {
            return Err(Refusal::new(Code::Invalid, "nothing was queued", why, "correct the job"));
        }
        if !ids.insert(job.id) || state.jobs.all.contains_key(&job.id) {
            let why = format!("there is a job {} already", job.id);
            return Err(Refusal::new(Code::Held, "nothing was queued", why, "ask again under a fresh id"));
        }
        *more.entry(job.node).or_default() += 1;
        let binding = match job.spec.lane() {
            Lane::Network if turned.contains(&job.node) => Binding { generation: next(state), ..Binding::default() },
            Lane::Network => Binding { generation: state.jobs.network(job.node).generation, ..Binding::default() },
            Lane::Workload => Binding::default(),
        };
        events.push(Event::Submitted { job, org: node.org.clone(), by: context.actor.clone(), binding }.into());
    }
    refuse_overfull(state, &more)?;
    events.extend(superseding(state, &turned));
    Ok(events)
}

/// The nodes whose networks these jobs want otherwise than they are wanted until now.
fn turned(state: &State, jobs: &[Wanted]) -> Result<BTreeSet<NodeId>, Refusal> {
    let mut wanted: BTreeMap<NodeId, Level> = BTreeMap::new();
    for (node, level) in jobs.iter().filter_map(|job| Some((job.node, job.spec.wants()?))) {
        if *wanted.entry(node).or_insert(level) != level {
            let why = format!("the network of node {node} is wanted both up and down");
            return Err(Refusal::new(Code::Invalid, "nothing was queued", why, "ask for one after the other"));
        }
    }
    let other = wanted.into_iter().filter(|(node, level)| state.jobs.network(*node).wanted != *level);
    Ok(other.map(|(node, _)| node).collect())
}

/// The number of the change that is being decided.
fn next(state: &State) -> Revision {
    Revision(state.revision.0 + 1)
}

/// Ends the network jobs of these nodes that wait. What runs is stopped at its next heartbeat.
fn superseding(state: &State, turned: &BTreeSet<NodeId>) -> Vec<crate::Event> {
    let boards = turned.iter().filter_map(|node| Some((*node, state.jobs.boards.get(node)?)));
    let waiting = boards.flat_map(|(node, board)| {
        let network = board.queued.iter().filter(|(lane, _, _)| *lane == Lane::Network);
        network.map(move |(_, _, id)| (node, *id))
    });
    let (over, jobs): (Vec<NodeId>, Vec<JobId>) = waiting.unzip();
    if jobs.is_empty() {
        return Vec::new();
    }
    let superseded = Event::Superseded { jobs, generation: next(state) };
    [superseded.into()].into_iter().chain(surplus(state, &over)).collect()
}

fn check_wanted(job: &Wanted) -> Result<(), String> {
    if !(1..=ATTEMPTS_MAX).contains(&job.attempts) {
        return Err(format!("it asks for {} attempts, and 1 to {ATTEMPTS_MAX} can be made", job.attempts));
    }
    match &job.spec {
        Spec::ServiceCheck { timeout_s, .. } if !(1..=TIMEOUT_MAX).contains(timeout_s) => {
            Err(format!("it may take {timeout_s} s, and 1 to {TIMEOUT_MAX} can be given"))
        }
        Spec::ServiceCheck { probe, .. } => probe.check(),
        Spec::BuildModule { .. } | Spec::NetworkEnsure {} | Spec::NetworkCheck {} | Spec::NetworkWithdraw {} => Ok(()),
    }
}

fn refuse_overfull(state: &State, more: &BTreeMap<NodeId, usize>) -> Result<(), Refusal> {
    let full = |why: String| {
        let todo = "wait until some are over, or cancel some: `holdfast job ls` shows them";
        Err(Refusal::new(Code::QueueFull, "nothing was queued", why, todo))
    };
    for (node, more) in more {
        let open = state.jobs.boards.get(node).map_or(0, |board| board.queued.len() + board.leased.len());
        if open + more > OPEN_PER_NODE {
            return full(format!("node {node} has {open} jobs to do, and may have {OPEN_PER_NODE}"));
        }
    }
    let open = state.jobs.all.len() - state.jobs.finished.len();
    if open + more.values().sum::<usize>() > OPEN {
        return full(format!("{open} jobs are to be done, and {OPEN} may be"));
    }
    Ok(())
}

fn decide_lease(state: &State, lease: Lease, context: &Context) -> Decision {
    let node = holder(state, &lease.certificate, context.now, context.clock_trusted)?;
    let board = state.jobs.boards.get(&node);
    let mut events = Vec::new();
    let mut capabilities = board.map(|board| board.capabilities.clone()).unwrap_or_default();
    if lease.lane != Some(Lane::Network) {
        let reported = read_capabilities(lease.capabilities)?;
        if reported != capabilities {
            capabilities.clone_from(&reported);
            events.push(Event::CapabilitiesReported { node, capabilities: reported }.into());
        }
    }
    let Some(board) = board.filter(|board| board.drain.is_none()) else { return Ok(events) };
    let lanes = lease.lane.map_or(vec![Lane::Network, Lane::Workload], |lane| vec![lane]);
    let firsts = lanes.into_iter().filter_map(|lane| {
        let from = (lane, Millis(0), JobId(uuid::Uuid::nil()));
        let waiting = board.queued.range(from..).take_while(|(of, _, _)| *of == lane);
        let can = |id: &JobId| state.jobs.get(id).is_some_and(|job| job.spec.is_for(&capabilities));
        waiting.map(|(_, due, id)| (*due, *id)).find(|(_, id)| can(id))
    });
    // A clock that is not to be believed must not keep work back: a pause is a courtesy.
    let due = firsts.min().filter(|(due, _)| *due <= context.now || !context.clock_trusted);
    if let Some(job) = due.and_then(|(_, id)| state.jobs.get(&id)) {
        events.push(Event::Leased { job: job.id, attempt: job.attempt + 1, token: lease.token }.into());
    }
    Ok(events)
}

fn read_capabilities(reported: BTreeMap<String, Capability>) -> Result<BTreeMap<Name, Capability>, Refusal> {
    let refused = |why: String| {
        Refusal::new(Code::Invalid, "the capabilities were refused", why, "this agent and this appliance do not match")
    };
    if reported.len() > CAPABILITIES {
        return Err(refused(format!("there are {}, and {CAPABILITIES} are kept", reported.len())));
    }
    let read = |(name, held): (String, Capability)| Name::new(&name).map(|name| (name, held));
    reported.into_iter().map(read).collect::<Result<_, _>>().map_err(|error| refused(error.to_string()))
}

fn decide_complete(state: &State, complete: Complete, context: &Context) -> Decision {
    let Complete { certificate, job: id, token, attempt, outcome, result, stuck, live } = complete;
    let node = holder(state, &certificate, context.now, context.clock_trusted)?;
    let job = own(state, node, id)?;
    let answered = Answered { attempt, token, outcome, result };
    if job.ended(&answered).is_some() {
        return Ok(Vec::new());
    }
    check_lease(state, job, &token)?;
    if attempt != job.attempt {
        return Err(stale(id, "the lease is of another attempt"));
    }
    if !live {
        return Err(stale(id, "the lease has expired"));
    }
    let phase = match (outcome, &stuck) {
        (Outcome::Succeeded, _) => Phase::Succeeded,
        // Neither a cancel nor its attempts end a job of which something still runs.
        (Outcome::Retryable, Some(_)) if attempt < ATTEMPTS_MAX => again(job, context),
        (Outcome::Failed | Outcome::Retryable, _) if job.cancel => Phase::Cancelled,
        (Outcome::Retryable, Some(why)) => {
            Phase::Failed { why: format!("after {attempt} attempts it is stuck: {why}") }
        }
        (Outcome::Failed, _) => Phase::Failed { why: format!("attempt {attempt} failed for good") },
        (Outcome::Retryable, None) => after(job, "it failed", context),
    };
    let over = if phase.is_over() { vec![node] } else { vec![] };
    let completed = Event::Completed { job: id, answered, phase, stuck };
    Ok([completed.into()].into_iter().chain(surplus(state, &over)).collect())
}

/// What becomes of a job whose attempt came to nothing, though not for good.
fn after(job: &Job, why: &str, context: &Context) -> Phase {
    if job.attempt >= job.attempts {
        return Phase::Failed { why: format!("attempt {} of {} was the last: {why}", job.attempt, job.attempts) };
    }
    again(job, context)
}

/// Back to the queue after a pause.
fn again(job: &Job, context: &Context) -> Phase {
    let doubled = BACKOFF.saturating_mul(1 << (job.attempt - 1).min(32));
    let longest = doubled.min(BACKOFF_MAX);
    let chance = hash_of(b"holdfast/backoff/v1", &[&context.entropy, job.id.0.as_bytes()]);
    let chance = chance.as_bytes().iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte));
    Phase::Queued { not_before: context.now.plus(chance % (longest + 1)) }
}

fn decide_reap(state: &State, expired: &[(JobId, u32)], context: &Context) -> Vec<crate::Event> {
    let mut over = Vec::new();
    let mut events: Vec<crate::Event> = Vec::new();
    for (id, attempt) in expired {
        let open = state.jobs.is_open(*id, *attempt);
        let Some(job) = state.jobs.get(id).filter(|_| open) else { continue };
        let phase = match state.jobs.superseded_by(job) {
            Some(generation) => Phase::Superseded { generation },
            None if job.cancel => Phase::Cancelled,
            None => after(job, "its lease ended without an answer", context),
        };
        if phase.is_over() {
            over.push(job.node);
        }
        events.push(Event::Expired { job: *id, attempt: *attempt, phase }.into());
    }
    events.extend(surplus(state, &over));
    events
}

/// Makes room for jobs of these nodes that are over now: the oldest others are forgotten.
fn surplus(state: &State, over: &[NodeId]) -> Option<crate::Event> {
    let mut more: BTreeMap<NodeId, usize> = BTreeMap::new();
    over.iter().for_each(|node| *more.entry(*node).or_default() += 1);
    let mut oldest: BTreeSet<(Millis, JobId)> = BTreeSet::new();
    for (node, more) in more {
        let Some(board) = state.jobs.boards.get(&node) else { continue };
        let surplus = (board.finished.len() + more).saturating_sub(FINISHED_PER_NODE);
        oldest.extend(board.finished.iter().take(surplus).copied());
    }
    let surplus = (state.jobs.finished.len() + over.len()).saturating_sub(FINISHED);
    oldest.extend(state.jobs.finished.iter().take(surplus).copied());
    let jobs: Vec<JobId> = oldest.into_iter().map(|(_, id)| id).collect();
    (!jobs.is_empty()).then(|| Event::Forgotten { jobs }.into())
}

fn decide_cancel(state: &State, id: JobId, context: &Context) -> Decision {
    let job = find_job(state, id, context)?;
    match job.phase {
        Phase::Queued { .. } | Phase::Leased { .. } if job.cancel => Ok(Vec::new()),
        // Something of it runs: it is over when its node has seen that end.
        Phase::Queued { .. } if job.stuck.is_some() => Ok(vec![Event::CancelAsked { job: id }.into()]),
        Phase::Queued { .. } => {
            Ok([Event::Cancelled { job: id }.into()].into_iter().chain(surplus(state, &[job.node])).collect())
        }
        Phase::Leased { .. } => Ok(vec![Event::CancelAsked { job: id }.into()]),
        Phase::Cancelled => Ok(Vec::new()),
        Phase::Succeeded | Phase::Failed { .. } | Phase::Superseded { .. } => Err(Refusal::new(
            Code::Conflict,
            format!("job {id} was not cancelled"),
            format!("it is over: {}", job.phase.as_str()),
            "there is nothing to stop any more",
        )),
    }
}

fn decide_retry(state: &State, id: JobId, context: &Context) -> Decision {
    let job = find_job(state, id, context)?;
    let refused =
        |why: &str, todo: &str| Err(Refusal::new(Code::Conflict, format!("job {id} was not queued again"), why, todo));
    // A machine that left may have come back as another tenant's.
    if state.nodes.all.get(&job.node).is_none_or(|node| node.org != job.org) {
        return refused("its node is gone", "run the same on another node: `holdfast job run`");
    }
    if !matches!(job.phase, Phase::Succeeded) && state.jobs.superseded_by(job).is_some() {
        return refused(
            "something newer is wanted than what it was asked under",
            "run the same again: `holdfast job run`",
        );
    }
    if let Spec::BuildModule { source } = &job.spec
        && !state.sources.holds(source)
    {
        return refused("its source is not kept any more", "run it anew: `holdfast job run build.module --source DIR`");
    }
    match job.phase {
        Phase::Queued { not_before } if not_before <= context.now => Ok(Vec::new()),
        Phase::Queued { .. } => {
            Ok(vec![Event::Retried { job: id, not_before: context.now, attempts: job.attempts }.into()])
        }
        Phase::Leased { .. } => refused("its node is at it", "wait until that attempt has ended, or cancel it"),
        Phase::Succeeded => refused("it is done", "run the same again: `holdfast job run`"),
        Phase::Failed { .. } | Phase::Cancelled | Phase::Superseded { .. } => {
            refuse_overfull(state, &BTreeMap::from([(job.node, 1)]))?;
            let attempts = job.attempts.max(job.attempt + 1);
            Ok(vec![Event::Retried { job: id, not_before: context.now, attempts }.into()])
        }
    }
}

/// The job, if the actor may know of it.
fn find_job<'a>(state: &'a State, id: JobId, context: &Context) -> Result<&'a Job, Refusal> {
    let job = state.jobs.get(&id).filter(|job| context.covers(job.org.as_ref()));
    job.ok_or_else(|| not_found(id, "`holdfast job ls` shows the jobs there are"))
}

/// The job, if it is this node's.
fn own(state: &State, node: NodeId, id: JobId) -> Result<&Job, Refusal> {
    state.jobs.get(&id).filter(|job| job.node == node).ok_or_else(|| not_own(id))
}

/// The refusal of a job that is not the node's that asks, whether there is one of that id or not.
pub(crate) fn not_own(id: JobId) -> Refusal {
    not_found(id, "stop what belongs to it")
}

/// Refuses a token that is not that of the present lease, and what nobody wants any more.
fn check_lease(state: &State, job: &Job, token: &Fingerprint) -> Result<(), Refusal> {
    match &job.phase {
        Phase::Leased { token: held, .. } if held == token => {
            state.jobs.superseded_by(job).map_or(Ok(()), |generation| Err(superseded(job.id, generation)))
        }
        Phase::Leased { .. } => Err(stale(job.id, "the lease is not the present one")),
        Phase::Queued { .. } => Err(stale(job.id, "the lease has ended, and the job waits for its next attempt")),
        Phase::Succeeded | Phase::Failed { .. } => Err(stale(job.id, "the job is over")),
        Phase::Cancelled => Err(cancelled(job.id)),
        Phase::Superseded { generation } => Err(superseded(job.id, *generation)),
    }
}

fn not_found(id: JobId, todo: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no job {id}"), "no job of that id is known", todo)
}

fn stale(id: JobId, why: &str) -> Refusal {
    Refusal::new(Code::StaleLease, format!("nothing was done for job {id}"), why, "stop what belongs to that attempt")
}

fn cancelled(id: JobId) -> Refusal {
    let todo = "stop what belongs to it, and then say how far it came";
    Refusal::new(Code::Cancelled, format!("job {id} was cancelled"), "somebody wants it stopped", todo)
}

fn superseded(id: JobId, generation: Revision) -> Refusal {
    let why = format!("something newer is wanted since change {generation}");
    Refusal::new(Code::Superseded, format!("nothing was done for job {id}"), why, "stop what belongs to it")
}
