//! The gateway's calls about jobs: a lease, and what its holder says.
//!
//! A heartbeat and a line of a log move soft state alone. A completion is a change, judged in the writer's order; so is
//! a lease. Both are answered again to the byte when their answer was lost: a lease by its `Idempotency-Key`, from a
//! receipt, for it has a secret in it; a completion from what the state has recorded of that token and attempt.

use super::{Call, not_yours};
use crate::authority::logs::truncated;
use crate::authority::receipt::{Answer, Claim};
use crate::authority::refusal::{Refused, from_decision, invalid, problem};
use crate::authority::request::secret_hash;
use crate::authority::secrets;
use crate::cluster::Wish;
use crate::serve::appliance::{Change, now};
use crate::serve::http::{nothing, ok};
use crate::wire::jobs::{Completion, Extended, Held, LeaseRequest, Leased, LeasedJob, LogLines, Recorded};
use crate::{clock, entropy, limits};
use axum::body::Bytes;
use sha2::{Digest, Sha256};
use state::model::{Fingerprint, JobId, Millis, Name, NodeId};
use state::store::SideRow;
use state::subject::jobs::{self, Answered, Capability, Ended, Job, Outcome, Phase};
use state::{Actor, Code, Role, State};

impl Call<'_> {
    /// One job, or nothing.
    pub(super) async fn lease(&self) -> Result<Answer, Refused> {
        let mut asked: LeaseRequest = self.body()?;
        let state = self.state();
        if says_anew(&state, self.node, &asked)
            && !self.appliance.authority.soft().reports.take(self.node, clock::boot())
        {
            // It says so again when it asks again; until then it is taken for what it was.
            asked.capabilities = known(&state, self.node).map(|(name, held)| (name.to_string(), *held)).collect();
        }
        if nothing_for(&state, self.node, &asked, now().wall) {
            return Ok(nothing());
        }
        let secret = entropy::secret();
        let token = Fingerprint::from_bytes(Sha256::digest(secret.as_slice()).into());
        let command = jobs::Command::Lease(Box::new(jobs::Lease {
            certificate: self.client.certificate,
            lane: asked.lane,
            token,
            capabilities: asked.capabilities,
        }));
        let claim = match self.received.idempotency() {
            Some(value) => Some(Claim::by_header(value, format!("node {}", self.node), self.received.route())?),
            None => None,
        };
        let request = self.received.body.clone().unwrap_or_default();
        let change = Change::new(command, Actor::Node { id: self.node }, Role::Node, claim, request);
        let (appliance, node) = (self.appliance.clone(), self.node);
        self.appliance
            .change(change, move |state| {
                let Some(job) = leased_by(state, node, &token) else { return Ok(nothing()) };
                let left = appliance.authority.soft().leases.grant(job.id, job.attempt, clock::boot());
                let job_told = LeasedJob {
                    id: job.id,
                    kind: job.spec.kind().to_owned(),
                    lane: job.spec.lane(),
                    spec: job.spec.clone(),
                    binding: job.binding,
                    cancelled: job.cancel,
                };
                let lease_token = hex::encode(secret.as_slice());
                Ok(ok(&Leased { job: job_told, lease_token, attempt: job.attempt, expires_in_s: left.as_secs() }))
            })
            .await
    }

    /// A lease goes on.
    pub(super) fn heartbeat(&self, id: JobId) -> Result<Answer, Refused> {
        let held: Held = self.body()?;
        let state = self.state();
        let job = self.held(&state, id, &held.lease_token)?;
        let left = self.appliance.authority.soft().leases.extend(id, job.attempt, clock::boot());
        left.map(|left| ok(&Extended { expires_in_s: left.as_secs() })).ok_or_else(expired)
    }

    /// Progress of an attempt.
    pub(super) fn log(&self, id: JobId) -> Result<Answer, Refused> {
        let said: LogLines = self.body()?;
        if said.lines.len() > limits::LOG_LINES_AT_ONCE {
            return Err(invalid(format!("a request adds at most {} lines", limits::LOG_LINES_AT_ONCE)));
        }
        let state = self.state();
        let (job, lease) = (self.held(&state, id, &said.lease_token)?, token(&said.lease_token)?);
        let mut soft = self.appliance.authority.soft();
        if !soft.leases.live(id, job.attempt, clock::boot()) {
            return Err(expired());
        }
        soft.logs.add(
            id,
            job.attempt,
            said.from,
            said.lines.iter().map(|line| secrets::redacted(&state, &lease, line)),
        );
        Ok(nothing())
    }

    /// How an attempt ended.
    pub(super) async fn complete(&self, id: JobId) -> Result<Answer, Refused> {
        let said: Completion = self.body()?;
        let token = token(&said.lease_token)?;
        let state = self.state();
        let job = state.jobs.get(&id).filter(|job| job.node == self.node).ok_or_else(not_yours)?;
        let bytes = state::to_bytes(&said.result);
        let result = Fingerprint::from_bytes(Sha256::digest(&bytes).into());
        let answered = Answered { attempt: said.attempt, token, outcome: said.outcome, result };
        if let Some(ended) = job.ended(&answered) {
            // What was recorded stays answered, whatever would be thought of it now.
            return Ok(recorded(id, ended));
        }
        check_result(&state, &token, &said, bytes.len())?;
        let complete = jobs::Complete {
            certificate: self.client.certificate,
            job: id,
            token,
            attempt: said.attempt,
            outcome: said.outcome,
            result,
            stuck: said.stuck.as_deref().map(|why| truncated(secrets::redacted(&state, &token, why), jobs::STUCK)),
            live: false,
        };
        let judging = self.appliance.clone();
        let wish = Wish::at_decision(move |_| {
            let live = judging.authority.soft().leases.live(id, complete.attempt, clock::boot());
            jobs::Command::Complete(Box::new(jobs::Complete { live, ..complete })).into()
        });
        let mut change = Change::new(wish, Actor::Node { id: self.node }, Role::Node, None, Bytes::new());
        let life = u64::try_from(limits::RESULT_LIFE.as_millis()).expect("three months in milliseconds");
        let (key, expires) = (jobs::result_row(id, Some(said.attempt)), Some(clock::wall().plus(life)));
        change.rows.push(SideRow { key, value: bytes, expires });
        let told = self.appliance.change(change, move |state| {
            let ended = state.jobs.get(&id).and_then(|job| job.ended(&answered));
            ended.map(|ended| recorded(id, ended)).ok_or_else(not_yours)
        });
        told.await
    }

    /// The job whose present lease the token proves.
    fn held<'a>(&self, state: &'a State, id: JobId, lease_token: &str) -> Result<&'a Job, Refused> {
        let token = token(lease_token)?;
        let now = now().wall;
        let job = jobs::held(state, &self.client.certificate, id, &token, now, now >= state.at);
        job.map_err(|refusal| if refusal.code == Code::NotFound { not_yours() } else { from_decision(&refusal) })
    }
}

/// The hash of a lease's token.
fn token(lease_token: &str) -> Result<Fingerprint, Refused> {
    secret_hash(lease_token).ok_or_else(|| invalid("`lease_token` is not 64 digits"))
}

/// Refuses a completion that may not be kept. `token` is the hash of its lease's; `length` is that of its result in bytes.
fn check_result(state: &State, token: &Fingerprint, said: &Completion, length: usize) -> Result<(), Refused> {
    if !said.result.is_object() {
        return Err(invalid("`result` is not an object"));
    }
    if said.stuck.is_some() && said.outcome != Outcome::Retryable {
        return Err(invalid("`stuck` is given, and the outcome is not `retryable`"));
    }
    if length > limits::RESULT {
        let detail = format!("the result has {length} bytes, and {} are kept", limits::RESULT);
        return Err(problem(413, "too_large", "the result was refused", detail, "say less"));
    }
    match secrets::in_result(state, token, &said.result) {
        None => Ok(()),
        Some(why) => {
            let detail = format!("it has {why}");
            let todo = "leave it out: results are kept, and shown to whoever may see the job";
            Err(problem(422, Code::RefusedResult.as_str(), "the result was refused", detail, todo))
        }
    }
}

fn recorded(id: JobId, ended: &Ended) -> Answer {
    let Ended { answered, status, revision } = ended;
    ok(&Recorded { id, status: status.clone(), attempt: answered.attempt, revision: *revision })
}

fn leased_by<'a>(state: &'a State, node: NodeId, token: &Fingerprint) -> Option<&'a Job> {
    let leased = state.jobs.boards.get(&node)?.leased.iter().filter_map(|id| state.jobs.get(id));
    leased.into_iter().find(|job| matches!(&job.phase, Phase::Leased { token: held, .. } if held == token))
}

/// Whether asking the writer would come to nothing: the node has nothing that it could be given, nothing that it was
/// given without hearing of it, and says nothing new.
fn nothing_for(state: &State, node: NodeId, asked: &LeaseRequest, now: Millis) -> bool {
    let Some(board) = state.jobs.boards.get(&node) else { return asked.capabilities.is_empty() };
    let can = |id: &JobId| state.jobs.get(id).is_some_and(|job| job.spec.is_for(&board.capabilities));
    let due = |(lane, due, id): &(jobs::Lane, Millis, JobId)| {
        asked.lane.is_none_or(|asked| asked == *lane) && (*due <= now || now < state.at) && can(id)
    };
    let given =
        |id: &JobId| state.jobs.get(id).is_some_and(|job| asked.lane.is_none_or(|asked| asked == job.spec.lane()));
    !says_anew(state, node, asked) && !board.leased.iter().any(given) && !board.queued.iter().any(due)
}

/// Whether a question for work changes what is known of what the node's machine can do.
fn says_anew(state: &State, node: NodeId, asked: &LeaseRequest) -> bool {
    let said = asked.capabilities.iter().map(|(name, held)| (name.as_str(), *held));
    asked.lane != Some(jobs::Lane::Network) && !said.eq(known(state, node).map(|(name, held)| (name.as_str(), *held)))
}

/// What is known of what a node's machine can do.
fn known(state: &State, node: NodeId) -> impl Iterator<Item = (&Name, &Capability)> {
    state.jobs.boards.get(&node).into_iter().flat_map(|board| &board.capabilities)
}

pub(super) fn expired() -> Refused {
    let todo = "stop what belongs to that attempt";
    problem(409, Code::StaleLease.as_str(), "nothing was done for the job", "its lease has expired", todo)
}
