//! What operators ask and are told of jobs.

use super::Instant;
#[cfg(doc)]
use super::SCHEMA;
use serde::{Deserialize, Serialize};
use state::model::{JobId, Name, NodeId, Revision};
use state::subject::jobs::{Lane, Outcome, Spec};
use state::subject::sources::Source;

/// `POST /v1/nodes/{name}/drain`: give a node no new jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainNode {
    /// In how many seconds what it still does must have stopped; absent, it may end its work.
    #[serde(default)]
    pub deadline_seconds: Option<u64>,
}

/// `POST /v1/jobs`: one job for each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunJob {
    /// What is to be done.
    pub spec: Spec,
    /// Where.
    pub on: On,
    /// How often it may be tried; the kind's own number where absent.
    #[serde(default)]
    pub attempts: Option<u32>,
}

/// `POST /v1/sources`: a source snapshot that is held now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSource {
    /// [`SCHEMA`].
    pub schema: u16,
    /// As a job names it.
    pub source: Source,
}

/// On which nodes a job is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// On each that has joined.
    All,
    /// On these.
    Nodes(Vec<Name>),
}

/// The words of [`JobView::state`].
pub const STATES: [&str; 7] = ["queued", "stuck", "leased", "succeeded", "failed", "cancelled", "superseded"];

/// One job. Every key is always there; what is unknown is `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// The job.
    pub id: JobId,
    /// E.g. `service.check`.
    pub kind: String,
    /// Which lane takes it.
    pub lane: Lane,
    /// The node's name; none once it is gone.
    pub node: Option<Name>,
    /// The node.
    pub node_id: NodeId,
    /// Its tenant.
    pub org: Option<Name>,
    /// What is to be done.
    pub spec: Spec,
    /// `queued`, `stuck` (it waits too, but something of it is still on the node), `leased`, `succeeded`, `failed`,
    /// `cancelled` or `superseded`.
    pub state: String,
    /// Somebody wants it stopped, and its node has not said yet that it has.
    pub cancelling: bool,
    /// The change since which something newer is wanted. Where its node still has it, it has been told to stop.
    pub superseded_by: Option<Revision>,
    /// The last attempt, from 1; 0 before.
    pub attempt: u32,
    /// The last attempt that may be made.
    pub attempts: u32,
    /// When it was asked for.
    pub created: Instant,
    /// Not before then, while it is queued.
    pub not_before: Option<Instant>,
    /// Since when its node has it.
    pub leased: Option<Instant>,
    /// Seconds until its node has lost it unless it says something.
    pub expires_in_s: Option<u64>,
    /// When it was over.
    pub completed_at: Option<Instant>,
    /// Why it is stuck, or why no other attempt is made.
    pub why: Option<String>,
}

/// `GET /v1/jobs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jobs {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The newest first, at most a thousand.
    pub jobs: Vec<JobView>,
}

/// What a node answered for one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultView {
    /// Which.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found; `null` if it is not kept any more.
    pub result: Option<serde_json::Value>,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The attempt that said it.
    pub attempt: u32,
    /// What it said.
    pub line: String,
}

/// `GET /v1/jobs/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The job.
    #[serde(flatten)]
    pub job: JobView,
    /// What came of its attempts, oldest first.
    pub results: Vec<ResultView>,
    /// The end of what it said on its way, oldest first; lost when the appliance starts again.
    pub log: Vec<LogLine>,
    /// How many lines it said before those.
    pub log_dropped: u64,
    /// Why it is where it is, in words.
    pub explanation: String,
}
