//! The promises, each checked at the moment at which it could be broken.

use crate::agent::Agent;
use crate::fleet::Identity;
use holdfast::limits;
use holdfast::wire::problem::Problem;
use state::Event;
use state::model::{JobId, Millis, NodeId, Revision};
use state::subject::{jobs, nodes};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A lease that ended is given back within this: a look each second, and batches that come to nothing.
const REAPED: Duration = Duration::from_secs(30);

/// How often something happened, so that a run in which nothing did is not taken for a good one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leased: u64,
    pub(crate) extended: u64,
    pub(crate) completed: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) stopped: u64,
    pub(crate) retried: u64,
    pub(crate) superseded: u64,
    pub(crate) stuck: u64,
    pub(crate) repeated: u64,
    pub(crate) refused: u64,
    pub(crate) too_late: u64,
    pub(crate) revoked_holding: u64,
    pub(crate) revoked_calls: u64,
    pub(crate) rejoined: u64,
    pub(crate) drained: u64,
    pub(crate) drained_calls: u64,
    pub(crate) restarts: u64,
    pub(crate) undone: u64,
    pub(crate) reopened: u64,
    pub(crate) pauses: u64,
    pub(crate) overslept: u64,
    pub(crate) kills: u64,
    pub(crate) orphans: u64,
    pub(crate) steps: u64,
    pub(crate) cuts: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) reordered: u64,
}

impl Seen {
    fn all(&mut self) -> [&mut u64; 29] {
        let Self { leased, extended, completed, expired, cancelled, stopped, retried, superseded, stuck, .. } = self;
        let Self { repeated, refused, too_late, revoked_holding, revoked_calls, rejoined, drained, .. } = self;
        let Self { drained_calls, restarts, undone, reopened, pauses, overslept, kills, orphans, .. } = self;
        let Self { steps, cuts, lost, doubled, reordered, .. } = self;
        [
            leased,
            extended,
            completed,
            expired,
            cancelled,
            stopped,
            retried,
            superseded,
            stuck,
            repeated,
            refused,
            too_late,
            revoked_holding,
            revoked_calls,
            rejoined,
            drained,
            drained_calls,
            restarts,
            undone,
            reopened,
            pauses,
            overslept,
            kills,
            orphans,
            steps,
            cuts,
            lost,
            doubled,
            reordered,
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.all().into_iter().zip(other.clone().all()).for_each(|(sum, more)| *sum += *more);
    }

    pub(crate) fn everything_happened(&mut self) {
        let shown = format!("{self:?}");
        assert!(self.all().into_iter().all(|count| *count > 0), "something never happened: {shown}");
    }
}

/// What is known of every job, from the journal and from the nodes, apart from the state that is under test.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) seen: Seen,
    /// Whose a job is.
    owner: BTreeMap<JobId, NodeId>,
    /// The highest attempt in the journal.
    leased: BTreeMap<JobId, u32>,
    /// The last attempt that is over in the journal.
    over: BTreeMap<JobId, u32>,
    /// Jobs that are over in the journal.
    ended: BTreeMap<JobId, &'static str>,
    /// Jobs that somebody wants stopped, in the journal.
    unwanted: BTreeSet<JobId>,
    /// Jobs whose last attempt could not be ended.
    stuck: BTreeSet<JobId>,
    /// What a network job was asked under.
    asked_under: BTreeMap<JobId, Revision>,
    /// What is wanted of a node's network is of this generation.
    newest: BTreeMap<NodeId, Revision>,
    /// Nodes that are gone, in the journal.
    gone: BTreeSet<NodeId>,
    /// Nodes that are given nothing, in the journal, and from when on they must have stopped.
    drained: BTreeMap<NodeId, Option<Millis>>,
    /// When the lease of each attempt ends, by every answer that was made.
    ends: BTreeMap<(JobId, u32), Duration>,
    /// The highest attempt that began on a node.
    began: BTreeMap<JobId, u32>,
}

impl Watch {
    /// A committed event, in the order of the journal.
    pub(crate) fn committed(&mut self, event: &Event) {
        match event {
            Event::Jobs(event) => self.job(event),
            Event::Nodes(nodes::Event::Departed { node, .. }) => {
                let theirs = self.owner.iter().filter(|(_, owner)| *owner == node).map(|(job, _)| *job);
                let open: Vec<JobId> = theirs.filter(|job| !self.ended.contains_key(job)).collect();
                let held = |job: &JobId| self.leased.get(job) > self.over.get(job);
                self.seen.revoked_holding += u64::from(open.iter().any(held));
                self.ended.extend(open.into_iter().map(|job| (job, "gone")));
                self.gone.insert(*node);
                self.drained.remove(node);
            }
            Event::Appliances(_) | Event::Enrolment(_) | Event::Nodes(_) | Event::Services(_) | Event::Sources(_) => {}
        }
    }

    fn job(&mut self, event: &jobs::Event) {
        match event {
            jobs::Event::Submitted { job, binding, .. } => {
                assert!(!self.gone.contains(&job.node), "{} was queued for a node that is gone", job.id);
                self.owner.insert(job.id, job.node);
                if job.spec.lane() == jobs::Lane::Network {
                    self.asked_under.insert(job.id, binding.generation);
                    let newest = self.newest.entry(job.node).or_default();
                    *newest = binding.generation.max(*newest);
                }
            }
            jobs::Event::Leased { job, attempt, .. } => {
                self.seen.leased += 1;
                assert!(!self.ended.contains_key(job), "{job} was leased after its end");
                let ends = self.stuck.contains(job);
                assert!(ends || !self.unwanted.contains(job), "{job} was leased after it was cancelled");
                self.not_superseded(*job, "leased");
                assert!(!self.drained.contains_key(&self.owner[job]), "{job} was leased to a drained node");
                let former = self.leased.insert(*job, *attempt).unwrap_or(0);
                assert!(*attempt > former, "attempt {attempt} of {job} was leased after attempt {former}");
                assert_eq!(self.over.get(job).copied().unwrap_or(0), former, "{job} was leased twice at a time");
            }
            jobs::Event::Completed { job, answered, phase, stuck } => {
                self.seen.completed += 1;
                assert!(!self.ended.contains_key(job), "a completion of {job} counted after its end");
                self.not_superseded(*job, "completed");
                match stuck {
                    Some(_) => self.stuck.insert(*job),
                    None => self.stuck.remove(job),
                };
                self.ends(*job, answered.attempt, phase);
            }
            jobs::Event::Expired { job, attempt, phase } => {
                self.seen.expired += 1;
                assert!(!self.ended.contains_key(job), "{job} expired after its end");
                self.ends(*job, *attempt, phase);
            }
            jobs::Event::CancelAsked { job } => {
                assert!(!self.ended.contains_key(job), "{job} was to be stopped after its end");
                self.unwanted.insert(*job);
            }
            jobs::Event::Cancelled { job } => {
                self.seen.cancelled += 1;
                assert!(self.ended.insert(*job, "cancelled").is_none(), "{job} ended twice");
            }
            jobs::Event::Superseded { jobs, .. } => {
                for job in jobs {
                    self.seen.superseded += 1;
                    assert!(self.ended.insert(*job, "superseded").is_none(), "{job} ended twice");
                }
            }
            jobs::Event::Retried { job, .. } => {
                self.seen.retried += 1;
                let ended = self.ended.remove(job);
                assert!(!matches!(ended, Some("succeeded" | "gone")), "{job} was tried again: {ended:?}");
                self.unwanted.remove(job);
            }
            jobs::Event::Drained { node, drain } => {
                self.seen.drained += u64::from(drain.until.is_some());
                self.drained.insert(*node, drain.until);
            }
            jobs::Event::Undrained { node } => drop(self.drained.remove(node)),
            jobs::Event::Forgotten { .. } | jobs::Event::CapabilitiesReported { .. } => {}
        }
    }

    fn ends(&mut self, job: JobId, attempt: u32, phase: &jobs::Phase) {
        assert_eq!(self.leased.get(&job), Some(&attempt), "a lower fence was obeyed for {job}");
        let former = self.over.insert(job, attempt).unwrap_or(0);
        assert!(former < attempt, "attempt {attempt} of {job} ended twice");
        let unwanted = self.unwanted.contains(&job);
        self.seen.stopped += u64::from(unwanted);
        assert!(phase.is_over() || !unwanted || self.stuck.contains(&job), "{job} goes on although it was cancelled");
        if phase.is_over() {
            self.ended.insert(job, phase.as_str());
        }
    }

    /// A lease was granted, though its batch may come to nothing.
    pub(crate) fn granted(&mut self, job: JobId, attempt: u32, now: Duration) {
        self.ends.insert((job, attempt), now + limits::LEASE);
    }

    /// A primary starts: every lease that is open is good for a whole one more.
    pub(crate) fn started(&mut self, now: Duration) {
        self.ends.values_mut().for_each(|end| *end = (*end).max(now + limits::LEASE));
    }

    /// A lease is extended, at a time by the primary's wall clock, if that is to be believed.
    pub(crate) fn extended(
        &mut self,
        by: Identity,
        (job, attempt): (JobId, u32),
        now: Duration,
        left: Duration,
        wall: Option<Millis>,
    ) {
        self.seen.extended += 1;
        self.holds((job, attempt), now, "extended");
        assert!(!self.gone.contains(&by.node()), "the lease of {job} was extended for a node that is gone");
        assert!(!self.ended.contains_key(&job), "the lease of {job} was extended after its end");
        assert!(!self.unwanted.contains(&job), "the lease of {job} was extended after it was cancelled");
        self.not_superseded(job, "extended");
        let until = self.drained.get(&by.node()).copied().flatten();
        let over = until.zip(wall).is_some_and(|(until, wall)| wall >= until);
        assert!(!over, "the lease of {job} was extended although its node was to have stopped");
        assert!(left <= limits::LEASE, "the lease of {job} was extended for {left:?}");
        self.ends.insert((job, attempt), now + left);
    }

    /// A completion is decided to count.
    pub(crate) fn counts<'a>(&self, work: (JobId, u32), now: Duration, agents: impl Iterator<Item = &'a Agent>) {
        self.holds(work, now, "completed");
        let running = agents.flat_map(|agent| agent.work.iter().flatten()).any(|running| *running == work);
        assert!(!running, "attempt {} of {} is answered for while it runs", work.1, work.0);
    }

    /// A holder's call about an attempt is refused.
    pub(crate) fn refused(&mut self, by: Identity, work: (JobId, u32), refused: &Problem, now: Duration, wall: Millis) {
        let late = self.ends.get(&work).is_some_and(|end| *end <= now);
        self.seen.too_late += u64::from(late && refused.code == "stale_lease");
        self.seen.revoked_calls += u64::from(self.gone.contains(&by.node()) && refused.code == "certificate_refused");
        let until = self.drained.get(&by.node()).copied().flatten();
        self.seen.drained_calls += u64::from(!late && until.is_some_and(|until| wall >= until));
    }

    fn not_superseded(&self, job: JobId, what: &str) {
        let newest = self.owner.get(&job).and_then(|node| self.newest.get(node));
        let current = self.asked_under.get(&job).is_none_or(|asked| Some(asked) >= newest);
        assert!(current, "{job} was {what} although something newer is wanted");
    }

    fn holds(&self, (job, attempt): (JobId, u32), now: Duration, what: &str) {
        let end = self.ends[&(job, attempt)];
        assert!(now < end, "attempt {attempt} of {job} was {what} at {now:?} after its lease had ended at {end:?}");
    }

    /// An attempt's work begins on a node where `running` is all that runs.
    pub(crate) fn begins(&mut self, job: JobId, attempt: u32, running: impl Iterator<Item = (JobId, u32)>) {
        for (other, n) in running {
            assert!(other != job, "attempt {attempt} of {job} begins while attempt {n} runs");
        }
        let former = self.began.insert(job, attempt).unwrap_or(0);
        assert!(former < attempt, "attempt {attempt} of {job} begins after attempt {former} began");
    }

    /// Whatever runs on a node that could have stopped it runs under a lease.
    pub(crate) fn looks<'a>(&mut self, now: Duration, agents: impl Iterator<Item = &'a Agent>) {
        for agent in agents {
            for (job, attempt) in agent.answerable(now) {
                let end = self.ends[&(job, attempt)];
                assert!(now < end, "attempt {attempt} of {job} runs at {now:?}, and its lease ended at {end:?}");
            }
        }
    }

    /// A lease ends by itself: not before its end, and whoever could stop its work in time has, told or not.
    pub(crate) fn given_back<'a>(&self, work: (JobId, u32), now: Duration, agents: impl Iterator<Item = &'a Agent>) {
        let end = self.ends[&work];
        assert!(end <= now, "attempt {} of {} is given back at {now:?}, before its end at {end:?}", work.1, work.0);
        let runs = agents.flat_map(|agent| agent.answerable(now)).any(|running| running == work);
        assert!(!runs, "attempt {} of {} is given back while it runs", work.1, work.0);
    }

    /// What has expired is given back soon by a primary that is up.
    pub(crate) fn reaps(&self, now: Duration) {
        let held = self.leased.iter().filter(|(job, attempt)| {
            self.over.get(job).is_none_or(|over| over < attempt) && !self.ended.contains_key(job)
        });
        for (job, attempt) in held {
            let end = self.ends[&(*job, *attempt)];
            assert!(now < end + REAPED, "attempt {attempt} of {job} is not given back; its lease ended at {end:?}");
        }
    }

    /// What runs on a node that slept through the end of its lease.
    pub(crate) fn wakes(&mut self, now: Duration, agent: &Agent) {
        let slept_through = |work: &(JobId, u32)| self.ends[work] <= now;
        self.seen.overslept += u64::from(agent.work.iter().flatten().any(slept_through));
    }
}
