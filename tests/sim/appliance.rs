//! The primary: the real state and the real deadlines of leases, under a made-up writer that decides in batches, makes
//! them durable after a while, and answers only then. When it dies, what was not durable is gone.

use crate::agent::{Agent, Ask, Request};
use crate::chance::Chance;
use crate::fleet;
use crate::watch::Watch;
use holdfast::authority::leases::Leases;
use holdfast::authority::refusal;
use holdfast::node::client::CallError;
use holdfast::node::lanes::Input;
use holdfast::wire::jobs::{Extended, Leased, LeasedJob, Recorded};
use holdfast::wire::problem::Problem;
use state::model::{Fingerprint, Millis, NodeId, RequestId, Revision};
use state::subject::jobs::{self, Command};
use state::{Actor, Change, Context, Role, State, decide, hash_of};
use std::collections::BTreeMap;
use std::time::Duration;

/// What an answered call had.
#[derive(Clone)]
pub(crate) enum Answer {
    Nothing,
    Leased { token: String, job: Box<LeasedJob>, attempt: u32, expires_in_s: u64 },
    Recorded(Recorded),
    Refused(Box<Problem>),
}

/// A call that waits for the writer.
pub(crate) enum Wish {
    Ask(Request),
    /// Whatever has expired when it is decided.
    Reap,
    Operator(state::Command),
}

struct Batch {
    state: State,
    changes: Vec<(Change, Millis)>,
    receipts: BTreeMap<String, Answer>,
    answers: Vec<(Request, Answer)>,
}

pub(crate) struct Appliance {
    /// What was committed, and is published.
    pub(crate) state: State,
    journal: Vec<(Change, Millis)>,
    receipts: BTreeMap<String, Answer>,
    leases: Leases,
    pub(crate) queue: Vec<Wish>,
    deciding: Option<Batch>,
    pub(crate) up: bool,
    /// Which start of the store this is.
    pub(crate) life: u32,
    /// How far its wall clock is from where it began, milliseconds.
    pub(crate) wall: i64,
    latest: Millis,
}

fn hash(token: &str) -> Fingerprint {
    hash_of(b"token", &[token.as_bytes()])
}

impl Appliance {
    pub(crate) fn new(chance: &mut Chance) -> Self {
        let mut appliance = Self {
            state: State::default(),
            journal: Vec::new(),
            receipts: BTreeMap::new(),
            leases: Leases::default(),
            queue: Vec::new(),
            deciding: None,
            up: true,
            life: 0,
            wall: 0,
            latest: Millis(0),
        };
        appliance.queue.extend(fleet::commands().into_iter().map(Wish::Operator));
        let mut watch = Watch::default();
        while appliance.decide(Duration::ZERO, chance, &mut watch, &[]) {
            appliance.commit(&mut watch);
        }
        appliance
    }

    pub(crate) fn wall(&self, now: Duration) -> Millis {
        Millis((1_000_000_000 + now.as_millis() as i64 + self.wall) as u64)
    }

    fn context(&self, now: Duration, chance: &mut Chance) -> Context {
        let wall = self.wall(now);
        Context {
            actor: Actor::Appliance,
            org: None,
            role: Role::Admin,
            now: wall,
            clock_trusted: wall >= self.latest,
            entropy: chance.bytes(),
            request: RequestId(uuid::Uuid::nil()),
        }
    }

    /// A heartbeat: soft state alone.
    pub(crate) fn renew(
        &mut self,
        now: Duration,
        request: &Request,
        lease: &holdfast::node::lanes::Lease,
        watch: &mut Watch,
    ) -> Result<Extended, Box<Problem>> {
        let certificate = request.by.certificate();
        let (wall, trusted) = (self.wall(now), self.wall(now) >= self.latest);
        let held = jobs::held(&self.state, &certificate, lease.job, &hash(&lease.token), wall, trusted);
        let extended = held.map_err(|refusal| refusal::from_decision(&refusal)).and_then(|job| {
            let left = self.leases.extend(lease.job, job.attempt, now);
            left.ok_or_else(|| refusal::problem(409, "stale_lease", "refused", "its lease has expired", "stop"))
        });
        match &extended {
            Ok(left) => watch.extended(request.by, (lease.job, lease.attempt), now, *left, trusted.then_some(wall)),
            Err(refused) => watch.refused(request.by, (lease.job, lease.attempt), refused, now, wall),
        }
        extended.map(|left| Extended { expires_in_s: left.as_secs() })
    }

    /// The look for what has expired, each second.
    pub(crate) fn look(&mut self, now: Duration) {
        let wall = self.wall(now);
        self.leases.settle(&self.state, now, wall);
        if !self.leases.expired(now).is_empty() {
            self.queue.push(Wish::Reap);
        }
    }

    /// Decides what waits, unless a batch is on its way. True if one is then to be committed.
    pub(crate) fn decide(&mut self, now: Duration, chance: &mut Chance, watch: &mut Watch, agents: &[Agent]) -> bool {
        if self.deciding.is_some() || self.queue.is_empty() {
            return false;
        }
        let mut batch =
            Batch { state: self.state.clone(), changes: Vec::new(), receipts: BTreeMap::new(), answers: Vec::new() };
        let most = 1 + chance.below(8) as usize;
        let wishes: Vec<Wish> = self.queue.drain(..most.min(self.queue.len())).collect();
        for wish in wishes {
            self.decide_one(now, chance, wish, &mut batch, watch, agents);
        }
        self.deciding = Some(batch);
        true
    }

    fn decide_one(
        &mut self,
        now: Duration,
        chance: &mut Chance,
        wish: Wish,
        batch: &mut Batch,
        watch: &mut Watch,
        agents: &[Agent],
    ) {
        let request = match wish {
            Wish::Operator(command) => return drop(self.decided(now, chance, command, batch)),
            Wish::Reap => {
                let expired = self.leases.expired(now);
                let open = expired.iter().filter(|(job, attempt)| batch.state.jobs.is_open(*job, *attempt));
                open.for_each(|lease| watch.given_back(*lease, now, agents.iter()));
                return drop(self.decided(now, chance, Command::Reap { expired }.into(), batch));
            }
            Wish::Ask(request) => request,
        };
        let key = receipt_key(&request);
        let repeated = key.as_ref().and_then(|key| batch.receipts.get(key).or_else(|| self.receipts.get(key)));
        if let Some(answer) = repeated {
            return batch.answers.push((request, answer.clone()));
        }
        let certificate = request.by.certificate();
        let answer = match &request.ask {
            Ask::Lease { .. } => {
                let token = format!("{:032x}{:032x}", chance.wide(), chance.wide());
                let lane = if request.lane == 0 { jobs::Lane::Network } else { jobs::Lane::Workload };
                let lease =
                    jobs::Lease { certificate, lane: Some(lane), token: hash(&token), capabilities: BTreeMap::new() };
                match self.decided(now, chance, Command::Lease(Box::new(lease)).into(), batch) {
                    Err(refusal) => Answer::Refused(refusal::from_decision(&refusal)),
                    Ok(events) => match jobs::leased(&events) {
                        None => Answer::Nothing,
                        Some((id, attempt)) => {
                            let expires_in_s = self.leases.grant(id, attempt, now).as_secs();
                            watch.granted(id, attempt, now);
                            let leased = &batch.state.jobs.all[&id];
                            assert_eq!(leased.node, request.by.node(), "{id} went to another node");
                            let spec = leased.spec.clone();
                            let (kind, lane) = (spec.kind().to_owned(), spec.lane());
                            let (binding, cancelled) = (leased.binding, leased.cancel);
                            let job = Box::new(LeasedJob { id, kind, lane, spec, binding, cancelled });
                            Answer::Leased { token, job, attempt, expires_in_s }
                        }
                    },
                }
            }
            Ask::Complete(lease, finish, stuck) => {
                let answered = jobs::Answered {
                    attempt: lease.attempt,
                    token: hash(&lease.token),
                    outcome: finish.outcome,
                    result: hash_of(b"result", &[&state::to_bytes(&finish.result)]),
                };
                let jobs::Answered { attempt, token, outcome, result } = answered.clone();
                let complete = jobs::Complete {
                    certificate,
                    job: lease.job,
                    token,
                    attempt,
                    outcome,
                    result,
                    stuck: stuck.clone(),
                    live: self.leases.live(lease.job, lease.attempt, now),
                };
                match self.decided(now, chance, Command::Complete(Box::new(complete)).into(), batch) {
                    Err(refusal) => Answer::Refused(refusal::from_decision(&refusal)),
                    Ok(events) => {
                        if !events.is_empty() {
                            watch.counts((lease.job, lease.attempt), now, agents.iter());
                        }
                        let ended = batch.state.jobs.all[&lease.job].ended(&answered).unwrap();
                        let (status, revision) = (ended.status.clone(), ended.revision);
                        Answer::Recorded(Recorded { id: lease.job, status, attempt, revision })
                    }
                }
            }
            Ask::Renew(_) => unreachable!("a heartbeat never comes to the writer"),
        };
        if let (Some(key), Answer::Leased { .. }) = (key, &answer) {
            batch.receipts.insert(key, answer.clone());
        }
        if let (Answer::Refused(refused), Ask::Complete(lease, ..)) = (&answer, &request.ask) {
            watch.refused(request.by, (lease.job, lease.attempt), refused, now, self.wall(now));
        }
        batch.answers.push((request, answer));
    }

    fn decided(
        &self,
        now: Duration,
        chance: &mut Chance,
        command: state::Command,
        batch: &mut Batch,
    ) -> Result<Vec<state::Event>, state::Refusal> {
        let context = self.context(now, chance);
        let kind = command.kind().to_owned();
        let events = decide(&batch.state, command, &context)?;
        if !events.is_empty() {
            let change = Change {
                change: Revision(batch.state.revision.0 + 1),
                actor: context.actor,
                request: context.request,
                kind,
                v: 1,
                events: events.clone(),
            };
            batch.state.apply(&change, context.now);
            batch.changes.push((change, context.now));
        }
        Ok(events)
    }

    /// The batch is durable: it is published, and its calls are answered.
    pub(crate) fn commit(&mut self, watch: &mut Watch) -> Vec<(Request, Answer)> {
        let Some(batch) = self.deciding.take() else { return Vec::new() };
        batch.changes.iter().flat_map(|(change, _)| &change.events).for_each(|event| watch.committed(event));
        self.latest = batch.changes.iter().map(|(_, at)| *at).fold(self.latest, Millis::max);
        self.journal.extend(batch.changes);
        self.receipts.extend(batch.receipts);
        self.state = batch.state;
        batch.answers
    }

    /// The primary dies. A batch on its way becomes durable or not; nobody is answered.
    pub(crate) fn die(&mut self, durable: bool, watch: &mut Watch) {
        self.break_off(durable, watch);
        self.leases = Leases::default();
        self.up = false;
    }

    /// The disk fails, and the store is opened anew under a primary that lives on: a batch on its way becomes durable
    /// or not, and nobody that waits for it is answered.
    pub(crate) fn break_off(&mut self, durable: bool, watch: &mut Watch) {
        if durable {
            self.commit(watch);
        } else if self.deciding.take().is_some_and(|batch| !batch.changes.is_empty()) {
            watch.seen.undone += 1;
        }
        self.queue.clear();
        self.life += 1;
    }

    /// The journal says all that is true.
    pub(crate) fn check_journal(&self) {
        let mut replayed = State::default();
        for (change, at) in &self.journal {
            replayed.apply(&serde_json::from_slice(&state::to_bytes(change)).unwrap(), *at);
        }
        assert_eq!(replayed, self.state);
    }

    /// Whether a node has nothing to do and nothing that it does: then the writer is not asked.
    pub(crate) fn nothing_for(&self, node: NodeId) -> bool {
        self.state.jobs.boards.get(&node).is_none_or(|board| board.queued.is_empty() && board.leased.is_empty())
    }
}

/// Under which the answer to a lease is kept. A completion is answered again from what the state has recorded of it.
fn receipt_key(request: &Request) -> Option<String> {
    match &request.ask {
        Ask::Lease { key } => Some(format!("{} lease {key:032x}", request.agent)),
        Ask::Complete(..) | Ask::Renew(_) => None,
    }
}

/// An answer as the lane that asked takes it.
pub(crate) fn told(request: &Request, answer: Answer) -> Input {
    let call = request.call;
    match (&request.ask, answer) {
        (Ask::Lease { .. }, Answer::Leased { token, job, attempt, expires_in_s }) => {
            let leased = Leased { job: *job, lease_token: token, attempt, expires_in_s };
            Input::Leased(call, Ok(Some(Box::new(leased))))
        }
        (Ask::Lease { .. }, Answer::Refused(problem)) => Input::Leased(call, Err(CallError::Refused(problem))),
        (Ask::Lease { .. }, Answer::Nothing | Answer::Recorded(_)) => Input::Leased(call, Ok(None)),
        (Ask::Complete(..), Answer::Recorded(recorded)) => Input::Completed(call, Ok(recorded)),
        (Ask::Complete(..), Answer::Refused(problem)) => Input::Completed(call, Err(CallError::Refused(problem))),
        (Ask::Complete(..) | Ask::Renew(_), _) => panic!("an answer to another question"),
    }
}

/// No answer came.
pub(crate) fn unanswered(request: &Request) -> Input {
    let lost = || CallError::Unreachable("no answer in time".into());
    match &request.ask {
        Ask::Lease { .. } => Input::Leased(request.call, Err(lost())),
        Ask::Renew(_) => Input::Renewed(request.call, Err(lost())),
        Ask::Complete(..) => Input::Completed(request.call, Err(lost())),
    }
}
