//! What a lane is told and what it asks for in return.

use super::{Outdated, Stale};
use crate::node::client::CallError;
use crate::wire::jobs::{Extended, Leased, LeasedJob, Recorded};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use state::model::JobId;
use state::subject::jobs::Outcome;
use std::time::Duration;
use zeroize::Zeroizing;

/// When an input arrives, and chance to go with it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Time since boot: all waiting is measured by it.
    pub boot: Duration,
    /// Uniform over its whole range.
    pub chance: u128,
}

/// How work ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// Done, not done, or to be tried again.
    pub outcome: Outcome,
    /// What was found.
    pub result: Value,
}

/// Why work did not begin. Nothing of it has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// A higher attempt, or this very one, has begun on this machine before.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// Something newer has been asked of this machine's network before.
    #[error(transparent)]
    Outdated(#[from] Outdated),
    /// What an earlier attempt left running cannot be ended.
    #[error("{0}")]
    Stuck(String),
    /// It was cancelled, and nothing of an earlier attempt runs any more.
    #[error("it was cancelled")]
    Cancelled,
    /// The machine refused: a file, a process.
    #[error("{0}")]
    Failed(String),
}

/// Numbers a question of a lane, so that its answer is known: one that comes late or twice changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(pub(super) u64);

/// Something that happened.
pub enum Input {
    /// The time of [`Lane::deadline`] has come.
    Tick,
    /// The answer to [`Output::Lease`].
    Leased(Call, Result<Option<Box<Leased>>, CallError>),
    /// Whether the work of [`Output::Begin`] runs.
    Begun(Result<(), NotBegun>),
    /// The work tells how far it is.
    Said(String),
    /// The work ended by itself, and nothing of it runs any more.
    Finished(Finish),
    /// The work of [`Output::Kill`] was ended and nothing of it runs any more; or, whoever ended it, why something still
    /// does.
    Killed(Result<(), String>),
    /// The answer to [`Output::Renew`].
    Renewed(Call, Result<Extended, CallError>),
    /// The answer to [`Output::Complete`].
    Completed(Call, Result<Recorded, CallError>),
    /// The agent ends.
    Stop,
}

/// Something to be done. Those about a job name the lease that they are made under.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask for a job. The same key means the same question again, whose answer may have got lost.
    Lease {
        /// The question.
        call: Call,
        /// Makes the question the same.
        key: u128,
    },
    /// Write the fence, see that nothing of an earlier attempt runs, then do the work.
    Begin {
        /// What.
        job: Box<LeasedJob>,
        /// Which attempt.
        attempt: u32,
    },
    /// Extend the lease.
    Renew(Call, Lease),
    /// Tell how far the work is. No answer is waited for.
    Log(Lease, String),
    /// End the work and all it has started, and see it ended. Work that has just ended by itself says so instead.
    Kill,
    /// Answer for the attempt.
    Complete(Call, Lease, Finish),
    /// Answer for the attempt that something of the job cannot be ended, and why. The answer comes back as
    /// [`Input::Completed`].
    Stuck(Call, Lease, String),
    /// The lane is at its end: it asks for nothing any more.
    Ended,
    /// As [`Output::Ended`], without having been told to: why, and what an operator must do.
    Halted(String),
    /// Tell the log, as news.
    Info(String),
    /// Tell the log, as something that should not be.
    Warn(String),
    /// Tell the log, as something that an operator must look at.
    Error(String),
}

/// What proves that this machine holds an attempt. Its token is wiped when dropped and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: u32,
    /// What every call about it brings.
    pub token: Zeroizing<String>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lease on attempt {} of {}", self.attempt, self.job)
    }
}
