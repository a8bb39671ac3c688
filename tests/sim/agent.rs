//! A node: its two real lanes, and a made-up machine that runs their work and may be paused or killed.

use crate::chance::Chance;
use crate::fleet::Identity;
use holdfast::limits;
use holdfast::node::lanes::{Call, Finish, Input, Lane, Lease, Moment, NotBegun, Output, Stale};
use state::model::JobId;
use state::subject::jobs::{Lane as Which, Outcome};
use std::collections::BTreeMap;
use std::time::Duration;

/// A question on its way to the appliance.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) agent: usize,
    /// Whose certificate it was sent under.
    pub(crate) by: Identity,
    /// In which order it was sent.
    pub(crate) sent: u64,
    pub(crate) life: u32,
    pub(crate) lane: usize,
    pub(crate) call: Call,
    pub(crate) ask: Ask,
}

#[derive(Clone)]
pub(crate) enum Ask {
    Lease {
        key: u128,
    },
    Renew(Lease),
    /// With why something of it cannot be ended.
    Complete(Lease, Finish, Option<String>),
}

/// What a machine has to do next, or sends.
pub(crate) enum Act {
    /// The work may begin when what ran before it is gone.
    Begin {
        lane: usize,
        serial: u64,
    },
    /// What runs is gone then.
    Kill {
        lane: usize,
    },
    Send {
        lane: usize,
        call: Call,
        ask: Ask,
    },
    /// Something to tell the lane at once.
    Tell {
        lane: usize,
        input: Input,
    },
}

pub(crate) struct Agent {
    pub(crate) identity: Identity,
    pub(crate) lanes: [Lane; 2],
    /// Which start of the agent this is.
    pub(crate) life: u32,
    pub(crate) up: bool,
    /// It does nothing before.
    pub(crate) paused: Duration,
    /// It has been up and not paused since.
    pub(crate) awake: Duration,
    /// On disk.
    fence: BTreeMap<JobId, u32>,
    /// What is being started, by lane.
    pub(crate) starting: [Option<(JobId, u32, u64)>; 2],
    /// What runs, by lane: it outlives the agent.
    pub(crate) work: [Option<(JobId, u32)>; 2],
    /// What cannot be ended as yet.
    pub(crate) remains: BTreeMap<JobId, u32>,
    serial: u64,
}

fn lanes() -> [Lane; 2] {
    [Lane::new(Which::Network), Lane::new(Which::Workload)]
}

impl Agent {
    pub(crate) fn new(identity: Identity) -> Self {
        Self {
            identity,
            lanes: lanes(),
            life: 0,
            up: true,
            paused: Duration::ZERO,
            awake: Duration::ZERO,
            fence: BTreeMap::new(),
            starting: [None; 2],
            work: [None; 2],
            remains: BTreeMap::new(),
            serial: 0,
        }
    }

    /// What runs on it, if it is awake and has been long enough to have ended what it must not go on with.
    pub(crate) fn answerable(&self, now: Duration) -> impl Iterator<Item = (JobId, u32)> {
        let answerable = self.up && self.paused <= now && now >= self.awake + limits::LEASE_MARGIN;
        self.work.iter().flatten().copied().filter(move |_| answerable)
    }

    /// All that runs on it, whether or not that can be ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = (JobId, u32)> {
        let remains = self.remains.iter().map(|(job, attempt)| (*job, *attempt));
        self.work.iter().flatten().copied().chain(remains)
    }

    /// The agent dies at once. What it had started goes on.
    pub(crate) fn die(&mut self) {
        (self.up, self.paused) = (false, Duration::ZERO);
        self.life += 1;
        self.starting = [None; 2];
    }

    /// The agent starts: before anything else, it ends what an earlier start left running. True if there was any.
    pub(crate) fn start(&mut self, now: Duration) -> bool {
        let orphans = self.work.iter().any(Option::is_some);
        self.work = [None; 2];
        self.lanes = lanes();
        (self.up, self.awake, self.paused) = (true, now, now);
        orphans
    }

    pub(crate) fn handle(&mut self, now: Duration, chance: &mut Chance, lane: usize, input: Input) -> Vec<Act> {
        let outputs = self.lanes[lane].handle(Moment { boot: now, chance: chance.wide() }, input);
        outputs.into_iter().filter_map(|output| self.carry_out(lane, output)).collect()
    }

    fn carry_out(&mut self, lane: usize, output: Output) -> Option<Act> {
        match output {
            Output::Lease { call, key } => Some(Act::Send { lane, call, ask: Ask::Lease { key } }),
            Output::Renew(call, lease) => Some(Act::Send { lane, call, ask: Ask::Renew(lease) }),
            Output::Complete(call, lease, finish) => {
                Some(Act::Send { lane, call, ask: Ask::Complete(lease, finish, None) })
            }
            Output::Begin { job, attempt } => {
                if let Some(begun) = self.fence.get(&job.id).copied().filter(|begun| *begun >= attempt) {
                    let stale = NotBegun::Stale(Stale { attempt, begun });
                    return Some(Act::Tell { lane, input: Input::Begun(Err(stale)) });
                }
                self.fence.insert(job.id, attempt);
                if self.remains.contains_key(&job.id) {
                    let stuck = NotBegun::Stuck("it does not end".into());
                    return Some(Act::Tell { lane, input: Input::Begun(Err(stuck)) });
                }
                if job.cancelled {
                    return Some(Act::Tell { lane, input: Input::Begun(Err(NotBegun::Cancelled)) });
                }
                self.serial += 1;
                self.starting[lane] = Some((job.id, attempt, self.serial));
                Some(Act::Begin { lane, serial: self.serial })
            }
            Output::Kill => {
                self.starting[lane] = None;
                Some(Act::Kill { lane })
            }
            Output::Ended | Output::Halted(_) => panic!("a lane ended that nobody had stopped"),
            Output::Stuck(call, lease, why) => {
                let finish = Finish { outcome: Outcome::Retryable, result: serde_json::json!({}) };
                Some(Act::Send { lane, call, ask: Ask::Complete(lease, finish, Some(why)) })
            }
            Output::Log(..) | Output::Info(_) | Output::Warn(_) | Output::Error(_) => None,
        }
    }
}
