//! Refusals: answers, not faults. Each says what was refused, why, and what to do.

use serde::{Deserialize, Serialize};

/// The stable code of a refusal, as the API and the CLI show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Something in the request is malformed or not allowed there.
    Invalid,
    /// A token that is unknown, spent or expired: the three are not told apart.
    TokenRefused,
    /// A client certificate that opens nothing: unknown, retired, revoked and expired are not told apart.
    CertificateRefused,
    /// The signing key is not on the admission list.
    NotAdmitted,
    /// The node id is bound to another key.
    WrongKey,
    /// Signed for another fleet.
    WrongAudience,
    /// Signed under a lower epoch than this appliance's.
    EpochBehind,
    /// A `seq` at or below the floor.
    Replayed,
    /// Name, key, address or id is held by somebody else, who is named.
    Held,
    /// The mesh prefix has no free address.
    AddressPoolExhausted,
    /// The node was heard within two minutes.
    NodeLive,
    /// The lease on a job has expired or ended, or is another's.
    StaleLease,
    /// Somebody wants the job stopped.
    Cancelled,
    /// Something newer is wanted than what the job was asked under.
    Superseded,
    /// A job's result that is not kept: too large, or with something in it that looks like a secret.
    RefusedResult,
    /// So much waits already that nothing more is taken.
    QueueFull,
    /// No such object, or not yours to know.
    NotFound,
    /// The actor's role does not allow it.
    Forbidden,
    /// Done already in another way, e.g. a fleet initialised twice.
    Conflict,
}

/// A refusal. `what` happened, `why`, and what to `todo` about it: one line each, nothing secret in any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// What was refused.
    pub what: String,
    /// Why.
    pub why: String,
    /// The way out.
    pub todo: String,
}

impl Refusal {
    /// A refusal with all its three lines.
    pub fn new(code: Code, what: impl Into<String>, why: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { code, what: what.into(), why: why.into(), todo: todo.into() }
    }
}

impl Code {
    /// The code as text, e.g. `token_refused`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::TokenRefused => "token_refused",
            Self::CertificateRefused => "certificate_refused",
            Self::NotAdmitted => "not_admitted",
            Self::WrongKey => "wrong_key",
            Self::WrongAudience => "wrong_audience",
            Self::EpochBehind => "epoch_behind",
            Self::Replayed => "replayed",
            Self::Held => "held",
            Self::AddressPoolExhausted => "address_pool_exhausted",
            Self::NodeLive => "node_live",
            Self::StaleLease => "stale_lease",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
            Self::RefusedResult => "refused_result",
            Self::QueueFull => "queue_full",
            Self::NotFound => "not_found",
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
        }
    }
}
