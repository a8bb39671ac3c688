//! The promises, each checked at the moment at which it could be broken.

use state::Event;
use state::model::JobId;
use state::subject::jobs;
use std::collections::BTreeMap;

/// How often something happened, so that a run in which nothing did is not taken for a good one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leased: u64,
    pub(crate) completed: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) repeated: u64,
    pub(crate) refused: u64,
    pub(crate) restarts: u64,
    pub(crate) undone: u64,
    pub(crate) pauses: u64,
    pub(crate) kills: u64,
    pub(crate) orphans: u64,
    pub(crate) steps: u64,
    pub(crate) cuts: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
}

impl Seen {
    fn all(&mut self) -> [&mut u64; 15] {
        let Self { leased, completed, expired, cancelled, repeated, refused, restarts, undone, .. } = self;
        let Self { pauses, kills, orphans, steps, cuts, lost, doubled, .. } = self;
        [
            leased, completed, expired, cancelled, repeated, refused, restarts, undone, pauses, kills, orphans, steps,
            cuts, lost, doubled,
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
    /// The highest attempt in the journal.
    leased: BTreeMap<JobId, u32>,
    /// The last attempt that is over in the journal.
    over: BTreeMap<JobId, u32>,
    /// Jobs that are over in the journal.
    ended: BTreeMap<JobId, &'static str>,
    /// The highest attempt that began on a node.
    began: BTreeMap<JobId, u32>,
}

impl Watch {
    /// A committed event, in the order of the journal.
    pub(crate) fn committed(&mut self, event: &Event) {
        let Event::Jobs(event) = event else { return };
        match event {
            jobs::Event::Leased { job, attempt, .. } => {
                self.seen.leased += 1;
                assert!(!self.ended.contains_key(job), "{job} was leased after its end");
                let former = self.leased.insert(*job, *attempt).unwrap_or(0);
                assert!(*attempt > former, "attempt {attempt} of {job} was leased after attempt {former}");
                assert_eq!(self.over.get(job).copied().unwrap_or(0), former, "{job} was leased twice at a time");
            }
            jobs::Event::Completed { job, answered, phase, stuck: _ } => {
                self.seen.completed += 1;
                assert!(!self.ended.contains_key(job), "more than one completion of {job} counted");
                self.ends(*job, answered.attempt, phase);
            }
            jobs::Event::Expired { job, attempt, phase } => {
                self.seen.expired += 1;
                assert!(!self.ended.contains_key(job), "{job} expired after its end");
                self.ends(*job, *attempt, phase);
            }
            jobs::Event::Cancelled { job } => {
                self.seen.cancelled += 1;
                assert!(self.ended.insert(*job, "cancelled").is_none(), "{job} ended twice");
            }
            jobs::Event::Superseded { jobs, .. } => {
                for job in jobs {
                    assert!(self.ended.insert(*job, "superseded").is_none(), "{job} ended twice");
                }
            }
            jobs::Event::Submitted { .. }
            | jobs::Event::CancelAsked { .. }
            | jobs::Event::Retried { .. }
            | jobs::Event::Forgotten { .. }
            | jobs::Event::Drained { .. }
            | jobs::Event::Undrained { .. }
            | jobs::Event::CapabilitiesReported { .. } => {}
        }
    }

    fn ends(&mut self, job: JobId, attempt: u32, phase: &jobs::Phase) {
        assert_eq!(self.leased.get(&job), Some(&attempt), "a lower fence was obeyed for {job}");
        let former = self.over.insert(job, attempt).unwrap_or(0);
        assert!(former < attempt, "attempt {attempt} of {job} ended twice");
        if phase.is_over() {
            self.ended.insert(job, phase.as_str());
        }
    }

    /// An attempt's work begins on a node where `running` is all that runs.
    pub(crate) fn begins<'a>(&mut self, job: JobId, attempt: u32, running: impl Iterator<Item = &'a (JobId, u32)>) {
        for (other, n) in running {
            assert!(*other != job, "attempt {attempt} of {job} begins while attempt {n} runs");
        }
        let former = self.began.insert(job, attempt).unwrap_or(0);
        assert!(former < attempt, "attempt {attempt} of {job} begins after attempt {former} began");
    }
}
