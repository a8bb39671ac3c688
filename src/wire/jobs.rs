//! The gateway listener (`/v1/agent/…`, mutual TLS): leases and what becomes of them.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `POST /v1/agent/lease` | [`LeaseRequest`] | 200 [`Leased`] or 204 |
//! | `POST /v1/agent/jobs/{id}/heartbeat` | [`Held`] | 200 [`Extended`] |
//! | `POST /v1/agent/jobs/{id}/log` | [`LogLines`] | 204 |
//! | `POST /v1/agent/jobs/{id}/complete` | [`Completion`] | 200 [`Recorded`] |
//! | `POST /v1/agent/jobs/{id}/source` | [`Held`] | 200 the archive, as [`MEDIA_SOURCE`] with its three headers |
//! | `POST /v1/agent/presence` | [`Presence`] | 200 [`Seen`] |
//! | `POST /v1/agent/certificate/renew` | [`Renewal`] | 200 [`Renewed`] |
//!
//! The certificate says who calls. Every call is checked against the state at the moment it is decided.

use serde::{Deserialize, Serialize};
use state::model::{FleetId, JobId, Millis, Revision};
pub use state::subject::jobs::Capability;
use state::subject::jobs::{Binding, Lane, Outcome, Spec};
use state::view::records::Epoch;
use std::collections::BTreeMap;

/// Asks for one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// Which lane; absent means any, as older agents ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<Lane>,
    /// What the machine can do, e.g. `build`; kept from the workload lane, or from one that names no lane.
    #[serde(default)]
    pub capabilities: BTreeMap<String, Capability>,
}

/// A job with the lease on it. No `Debug`: the token is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct Leased {
    /// The job.
    pub job: LeasedJob,
    /// 256 random bits in hexadecimal digits, which every later call about this attempt brings.
    pub lease_token: String,
    /// Which attempt this is, from 1. The fence: a higher one ends every lower one.
    pub attempt: u32,
    /// Seconds until the lease ends unless it is extended, counted from when the request was sent: with a repeated
    /// request, whose answer is the first one's, from when it was first sent.
    pub expires_in_s: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedJob {
    /// The job.
    pub id: JobId,
    /// Its kind, e.g. `service.check`.
    pub kind: String,
    /// The lane it belongs to.
    pub lane: Lane,
    /// The operation.
    pub spec: Spec,
    /// What it was asked under: `generation` and `credential_revision`, each left out where it is the first.
    #[serde(flatten)]
    pub binding: Binding,
    /// It was cancelled while something of an earlier attempt could not be ended: that is to be ended now, nothing is to
    /// begin, and the answer is `failed`, or `retryable` with what is still stuck.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
}

/// Proves that the caller holds the lease.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The lease's token.
    pub lease_token: String,
}

/// The media type of a source snapshot.
pub const MEDIA_SOURCE: &str = "application/vnd.holdfast.source+tar.zstd";
/// SHA-256 of the archive that follows.
pub const HEADER_SOURCE_SHA256: &str = "holdfast-source-sha256";
/// SHA-256 of what it holds, before it was compressed.
pub const HEADER_SOURCE_SNAPSHOT: &str = "holdfast-source-snapshot";
/// The id under which it was handed over.
pub const HEADER_SOURCE_ARTIFACT: &str = "holdfast-source-artifact-id";

/// A lease that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extended {
    /// Seconds until it ends unless it is extended again, counted from when the request was sent.
    pub expires_in_s: u64,
}

/// Progress of an attempt, bounded and without secrets.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLines {
    /// The lease's token.
    pub lease_token: String,
    /// Lines, oldest first.
    pub lines: Vec<String>,
    /// The number of the first of them among all that this attempt says, from 0. Lines are told in their order, and those
    /// below the highest number known are known: so telling them again, when an answer was lost, adds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// How an attempt ended.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// The lease's token.
    pub lease_token: String,
    /// Which attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found: an object of at most 64 KiB with nothing in it that looks like a secret.
    pub result: serde_json::Value,
    /// With `retryable` alone: what of the job cannot be ended, and why. Such an attempt is not one of those that the job may
    /// have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
}

/// A job as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The job.
    pub id: JobId,
    /// `queued` again, `succeeded`, `failed`, `cancelled` or `superseded`.
    pub status: String,
    /// The attempt that was recorded.
    pub attempt: u32,
    /// The change that did.
    pub revision: Revision,
}

/// The unchanged heartbeat of a node that holds a certificate: the session proves it, so nothing is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Presence {
    /// Made at random by each start of the agent.
    pub instance: uuid::Uuid,
    /// The revision of the roster that it holds.
    pub roster_revision: Revision,
    /// The revision of its peer list.
    pub held_revision: Revision,
    /// [`content`](crate::wire::peers::RegisterBody::content) of its last accepted register: anything else is a reason to
    /// register.
    pub registered: state::model::Fingerprint,
}

/// The answer to a presence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The fleet.
    pub fleet: FleetId,
    /// The revision of the newest head of the node's scopes.
    pub revision: Revision,
    /// The epoch in force.
    pub epoch: Epoch,
    /// The appliance's clock.
    pub now: Millis,
    /// The appliance does not know this presence: register in full.
    pub register: bool,
}

/// Asks for the next client certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    /// DER of a PKCS #10 request for a fresh key, in base64.
    pub certificate_request: String,
}

/// The next client certificate. The former one ends when this one has been used once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// PEM.
    pub certificate: String,
    /// When it ends.
    pub not_after: Millis,
}
