//! The only home of clocks. Decisions take times as arguments; what asks here is glue.

use rustix::time::{ClockId, clock_gettime};
use state::model::Millis;
use std::time::Duration;

/// Wall-clock time: for display, certificate validity and the skew window of signed requests, never for leases.
pub fn wall() -> Millis {
    let t = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
    Millis(seconds * 1000 + nanos / 1_000_000)
}

/// Time since boot, suspend included (`CLOCK_BOOTTIME`): what deadlines and silences are measured by. It cannot step.
pub fn boot() -> Duration {
    let t = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// A wall-clock instant as RFC 3339 in UTC, e.g. `2026-11-29T23:50:04.120Z`.
pub fn rfc3339(at: Millis) -> String {
    let nanos = i128::from(at.0) * 1_000_000;
    time::OffsetDateTime::from_unix_timestamp_nanos(nanos)
        .ok()
        .and_then(|t| t.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| format!("{}ms", at.0))
}
