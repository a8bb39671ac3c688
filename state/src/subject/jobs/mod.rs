//! Work that happens once: queued for one node, leased to it under a fence, and answered for.
//!
//! A lease's deadline is not here: it lives on the primary's boot clock, because a heartbeat must cost no disk. What is
//! here is who holds which attempt, and that is what every later call is checked against.

mod apply;
mod binding;
mod probe;
mod results;
mod rules;

pub(crate) use apply::{apply, forget, moved};
pub use binding::{Binding, CredentialRevision, Level, Network};
pub use probe::Probe;
pub use results::{forgotten_rows, result_row};
pub use rules::held;
pub(crate) use rules::{decide, not_own};

use super::sources::Source;
use crate::Actor;
use crate::model::{Fingerprint, JobId, Millis, Name, NodeId, Revision};
use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often a job may be tried where nothing else was said: transient faults pass, and a fault that stays is shown.
pub const ATTEMPTS: u32 = 5;
/// The most that may be asked for.
pub const ATTEMPTS_MAX: u32 = 100;
/// The pause after a first failed attempt, milliseconds; each further one doubles it.
pub const BACKOFF: u64 = 2_000;
/// The longest pause, milliseconds.
pub const BACKOFF_MAX: u64 = 300_000;
/// Jobs of one node that are not over: hours of work, and a queue that is drained in no less is of no use.
pub const OPEN_PER_NODE: usize = 16_384;
/// Jobs of the fleet that are not over: one for each of 10,000 nodes several times, in about 64 MiB.
pub const OPEN: usize = 65_536;
/// Jobs of one node that are over and still shown.
pub const FINISHED_PER_NODE: usize = 1_000;
/// Jobs of the fleet that are over and still shown: in about 64 MiB.
pub const FINISHED: usize = 65_536;
/// Bytes of the reason why a job is stuck, longer ones are cut: a few lines for people.
pub const STUCK: usize = 1_024;
/// What a machine may say that it can do.
pub const CAPABILITIES: usize = 32;
/// The longest that a check may take, seconds.
pub const TIMEOUT_MAX: u16 = 3_600;

/// Which of a node's two independent, serial lanes takes a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// `network.*` jobs: short, never behind a workload.
    Network,
    /// Everything else.
    Workload,
}

/// What is to be done. Typed operations only; a kind is added here, and as one file on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Spec {
    /// Make the mesh on the node what it should be, and read it back.
    #[serde(rename = "network.ensure")]
    NetworkEnsure {},
    /// Read the mesh on the node and compare.
    #[serde(rename = "network.check")]
    NetworkCheck {},
    /// Take the mesh on the node down until its agent starts again.
    #[serde(rename = "network.withdraw")]
    NetworkWithdraw {},
    /// Ask a service for an answer, from the node.
    #[serde(rename = "service.check")]
    ServiceCheck {
        /// How.
        probe: Probe,
        /// The longest it may take, seconds.
        timeout_s: u16,
    },
    /// Build what the manifest in a source snapshot declares.
    #[serde(rename = "build.module")]
    BuildModule {
        /// The snapshot.
        source: Source,
    },
}

impl Spec {
    /// The kind as people write it, e.g. `service.check`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NetworkEnsure {} => "network.ensure",
            Self::NetworkCheck {} => "network.check",
            Self::NetworkWithdraw {} => "network.withdraw",
            Self::ServiceCheck { .. } => "service.check",
            Self::BuildModule { .. } => "build.module",
        }
    }

    /// The lane that takes it.
    pub const fn lane(&self) -> Lane {
        match self {
            Self::NetworkEnsure {} | Self::NetworkCheck {} | Self::NetworkWithdraw {} => Lane::Network,
            Self::ServiceCheck { .. } | Self::BuildModule { .. } => Lane::Workload,
        }
    }

    /// The capability that a node must report to be given it; none where every node will do.
    pub const fn needs(&self) -> Option<&'static str> {
        match self {
            Self::NetworkEnsure {} | Self::NetworkCheck {} | Self::NetworkWithdraw {} | Self::ServiceCheck { .. } => {
                None
            }
            Self::BuildModule { .. } => Some("build"),
        }
    }

    /// Whether a machine that reports these capabilities can do it.
    pub fn is_for(&self, capabilities: &BTreeMap<Name, Capability>) -> bool {
        let can =
            |need: &str| capabilities.iter().any(|(name, held)| name.as_str() == need && *held == Capability::Present);
        self.needs().is_none_or(can)
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Succeeded,
    /// Not done, and trying again would not help.
    Failed,
    /// Not done; another attempt may be made.
    Retryable,
}

/// A job that is to be queued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// A fresh id.
    pub id: JobId,
    /// The node that is to do it.
    pub node: NodeId,
    /// What.
    pub spec: Spec,
    /// How often it may be tried, 1 to [`ATTEMPTS_MAX`].
    pub attempts: u32,
}

/// Whether a machine can do something. Absent from the report and unknown are different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// It can.
    Present,
    /// It cannot.
    Absent,
    /// It could not be found out.
    Unknown,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its id, for ever.
    pub id: JobId,
    /// The node that does it.
    pub node: NodeId,
    /// That node's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// What is to be done.
    pub spec: Spec,
    /// When it was asked for.
    pub created: Millis,
    /// Who asked.
    pub by: Actor,
    /// What is happening to it.
    pub phase: Phase,
    /// The last attempt that was leased, from 1; 0 before. The fence: it only grows.
    pub attempt: u32,
    /// The last attempt that may be made.
    pub attempts: u32,
    /// What it was asked under.
    #[serde(default, skip_serializing_if = "Binding::is_default")]
    pub binding: Binding,
    /// What its node could not end. Known to be over once a later attempt has ended and was not stuck.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<Stuck>,
    /// Somebody wants it stopped, and its node has not said yet that it has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
    /// What came of its attempts, oldest first. Nothing is ever taken out.
    pub results: Vec<Ended>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Millis>,
}

impl Job {
    /// The attempt for which exactly this was answered.
    pub fn ended(&self, answered: &Answered) -> Option<&Ended> {
        self.results.iter().find(|ended| ended.answered == *answered)
    }
}

/// Something of a job that its node cannot end. No attempt is begun beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The attempt that said so.
    pub attempt: u32,
    /// What is there and why it cannot be ended, in the node's words.
    pub why: String,
}

/// What is happening to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Phase {
    /// It waits for its node.
    Queued {
        /// Not leased before.
        not_before: Millis,
    },
    /// Its node has its last attempt.
    Leased {
        /// SHA-256 of the lease's token.
        token: Fingerprint,
        /// Since when.
        since: Millis,
    },
    /// Done.
    Succeeded,
    /// Not done, and no other attempt is made.
    Failed {
        /// Why no other.
        why: String,
    },
    /// Stopped because somebody wanted it so.
    Cancelled,
    /// Not done, because something newer is wanted.
    Superseded {
        /// Since which generation.
        generation: Revision,
    },
}

impl Phase {
    /// Whether it is over: neither queued nor leased.
    pub const fn is_over(&self) -> bool {
        match self {
            Self::Queued { .. } | Self::Leased { .. } => false,
            Self::Succeeded | Self::Failed { .. } | Self::Cancelled | Self::Superseded { .. } => true,
        }
    }

    /// The word for it, e.g. `queued`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Leased { .. } => "leased",
            Self::Succeeded => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
            Self::Superseded { .. } => "superseded",
        }
    }
}

/// What a node answered for an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Which attempt.
    pub attempt: u32,
    /// SHA-256 of the lease's token.
    pub token: Fingerprint,
    /// How it ended.
    pub outcome: Outcome,
    /// SHA-256 of the result's bytes, which are kept beside the state.
    pub result: Fingerprint,
}

/// An attempt that its node answered for, as it was recorded. Whoever says the same again is told this again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// What the node answered.
    #[serde(flatten)]
    pub answered: Answered,
    /// The word for what became of the job then, see [`Phase::as_str`].
    pub status: String,
    /// The change that recorded it.
    pub revision: Revision,
}

/// What a node has to do, and whether it is given any of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Board {
    /// Waiting jobs in the order in which a lane takes them.
    pub queued: OrdSet<(Lane, Millis, JobId)>,
    /// Jobs that the node has.
    pub leased: OrdSet<JobId>,
    /// Jobs that are over, the oldest first.
    pub finished: OrdSet<(Millis, JobId)>,
    /// What is wanted of the node's network.
    #[serde(default, skip_serializing_if = "Network::is_default")]
    pub network: Network,
    /// The node is given nothing new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What the machine says that it can do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capabilities: BTreeMap<Name, Capability>,
}

/// A node that is given nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// When what it still does must have stopped: no lease is extended after that. Without it, it may end its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Jobs {
    /// By id. Shared with the states before: the map is copied in leaves of many jobs, and a job is full of strings.
    pub all: OrdMap<JobId, Arc<Job>>,
    /// By node. Nodes without any are left out.
    pub boards: OrdMap<NodeId, Board>,
    /// Jobs that are over, the oldest first.
    pub finished: OrdSet<(Millis, JobId)>,
}

impl Jobs {
    /// A job.
    pub fn get(&self, id: &JobId) -> Option<&Job> {
        self.all.get(id).map(Arc::as_ref)
    }

    /// The jobs that are leased, each with its attempt and when that was leased.
    pub fn open(&self) -> impl Iterator<Item = (JobId, u32, Millis)> {
        let leased = self.boards.values().flat_map(|board| board.leased.iter());
        leased.filter_map(|id| self.get(id)).filter_map(|job| match job.phase {
            Phase::Leased { since, .. } => Some((job.id, job.attempt, since)),
            Phase::Queued { .. }
            | Phase::Succeeded
            | Phase::Failed { .. }
            | Phase::Cancelled
            | Phase::Superseded { .. } => None,
        })
    }

    /// Whether this attempt at a job is leased.
    pub fn is_open(&self, id: JobId, attempt: u32) -> bool {
        let job = self.get(&id).filter(|job| job.attempt == attempt);
        job.is_some_and(|job| matches!(job.phase, Phase::Leased { .. }))
    }

    /// The jobs of a node: those that wait, in their order by lane, then those that it has, then those that are over.
    pub fn of(&self, node: NodeId) -> impl Iterator<Item = &Job> {
        let board = self.boards.get(&node);
        let ids = board.into_iter().flat_map(|board| {
            let waiting = board.queued.iter().map(|(_, _, id)| id);
            waiting.chain(&board.leased).chain(board.finished.iter().map(|(_, id)| id))
        });
        ids.filter_map(|id| self.get(id))
    }
}

/// The job that these events lease, with the attempt.
pub fn leased(events: &[crate::Event]) -> Option<(JobId, u32)> {
    events.iter().find_map(|event| match event {
        crate::Event::Jobs(Event::Leased { job, attempt, .. }) => Some((*job, *attempt)),
        crate::Event::Jobs(_)
        | crate::Event::Appliances(_)
        | crate::Event::Enrolment(_)
        | crate::Event::Nodes(_)
        | crate::Event::Services(_)
        | crate::Event::Sources(_) => None,
    })
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Queues jobs, all or none.
    Submit {
        /// Which.
        jobs: Vec<Wanted>,
    },
    /// A node asks for one job. With none to give, nothing changes.
    Lease(Box<Lease>),
    /// A node says how an attempt ended.
    Complete(Box<Complete>),
    /// Somebody wants a job stopped.
    Cancel {
        /// Which.
        job: JobId,
    },
    /// Somebody wants a job tried again, or a waiting one at once.
    Retry {
        /// Which.
        job: JobId,
    },
    /// Leases that have expired by the primary's boot clock.
    Reap {
        /// Each job with its attempt.
        expired: Vec<(JobId, u32)>,
    },
    /// A node is to be given nothing new.
    Drain {
        /// Its name.
        name: Name,
        /// When what it still does must have stopped.
        until: Option<Millis>,
    },
    /// A node is to be given work again.
    Undrain {
        /// Its name.
        name: Name,
    },
}

/// See [`Command::Lease`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// SHA-256 of the client certificate that asks.
    pub certificate: Fingerprint,
    /// Which lane; none means any.
    pub lane: Option<Lane>,
    /// SHA-256 of the token of the lease that may come of it.
    pub token: Fingerprint,
    /// What the machine says that it can do. Not kept from the network lane.
    pub capabilities: BTreeMap<String, Capability>,
}

/// See [`Command::Complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// SHA-256 of the client certificate that speaks.
    pub certificate: Fingerprint,
    /// The job.
    pub job: JobId,
    /// SHA-256 of the lease's token.
    pub token: Fingerprint,
    /// Which attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// SHA-256 of the result's bytes.
    pub result: Fingerprint,
    /// With [`Outcome::Retryable`]: why something of the job cannot be ended.
    pub stuck: Option<String>,
    /// Whether the lease has not expired by the primary's boot clock, at the moment of the decision.
    pub live: bool,
}

impl Command {
    /// The kind that the journal shows.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Submit { .. } => "job.submit",
            Self::Lease(_) => "job.lease",
            Self::Complete(_) => "job.complete",
            Self::Cancel { .. } => "job.cancel",
            Self::Retry { .. } => "job.retry",
            Self::Reap { .. } => "job.reap",
            Self::Drain { .. } => "node.drain",
            Self::Undrain { .. } => "node.undrain",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// A job waits for its node.
    Submitted {
        /// The job.
        job: Wanted,
        /// Its node's tenant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        org: Option<Name>,
        /// Who asked for it.
        by: Actor,
        /// What it was asked under.
        #[serde(default, skip_serializing_if = "Binding::is_default")]
        binding: Binding,
    },
    /// A node has a job.
    Leased {
        /// The job.
        job: JobId,
        /// Which attempt.
        attempt: u32,
        /// SHA-256 of the lease's token.
        token: Fingerprint,
    },
    /// A node answered for an attempt.
    Completed {
        /// The job.
        job: JobId,
        /// What it answered.
        answered: Answered,
        /// What becomes of the job.
        phase: Phase,
        /// Why something of it cannot be ended. Such an attempt is not one of those that it may have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stuck: Option<String>,
    },
    /// A lease expired.
    Expired {
        /// The job.
        job: JobId,
        /// Which attempt.
        attempt: u32,
        /// What becomes of the job.
        phase: Phase,
    },
    /// A job is to be stopped; its node has it still.
    CancelAsked {
        /// The job.
        job: JobId,
    },
    /// A job that no node had is not done.
    Cancelled {
        /// The job.
        job: JobId,
    },
    /// Jobs that waited are not done, because something newer is wanted.
    Superseded {
        /// Which.
        jobs: Vec<JobId>,
        /// Since which generation.
        generation: Revision,
    },
    /// A job is to be tried again.
    Retried {
        /// The job.
        job: JobId,
        /// Not leased before.
        not_before: Millis,
        /// The last attempt that may be made.
        attempts: u32,
    },
    /// Jobs that were over are not shown any more.
    Forgotten {
        /// Which.
        jobs: Vec<JobId>,
    },
    /// A node is given nothing new.
    Drained {
        /// The node.
        node: NodeId,
        /// How.
        drain: Drain,
    },
    /// A node is given work again.
    Undrained {
        /// The node.
        node: NodeId,
    },
    /// What a machine can do.
    CapabilitiesReported {
        /// The node.
        node: NodeId,
        /// All of it.
        capabilities: BTreeMap<Name, Capability>,
    },
}
