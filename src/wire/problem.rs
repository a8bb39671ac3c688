//! Errors as `application/problem+json` (RFC 9457) with a stable `code`.

use crate::wire::signed::Signed;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `about:holdfast/<code>`.
    pub r#type: String,
    /// What was refused.
    pub title: String,
    /// Why.
    pub detail: String,
    /// What to do.
    pub todo: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// With `clock_skew`: the appliance's signed clock, [`Clock`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Signed>,
    /// With `not_admitted` to a formerly admitted key: the signed tombstone of its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstone: Option<Signed>,
    /// With `replayed`: the `seq` that the next request must exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
    /// How long the appliance wants not to be asked again: the answer's `Retry-After`, which is no part of its body.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

/// The appliance's clock, signed, for a machine whose own is off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The fleet.
    pub fleet: state::model::FleetId,
    /// The appliance's wall clock.
    pub now: state::model::Millis,
    /// How far the request's timestamp lay from it, in milliseconds, positive when the request was ahead.
    pub skew_ms: i64,
    /// Good for one retry, in place of a clock.
    pub nonce: String,
}
