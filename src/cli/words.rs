//! Durations and instants as people write and read them.

use crate::config::seconds;
use crate::wire::operator::LivenessWord;
use state::model::{JobId, Millis};
use std::time::Duration;

/// Reads `90s`, `30m`, `1h` or `7d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text).ok_or_else(|| "give a number with s, m, h or d, such as 1h".to_owned())?;
    let life = Some(seconds).filter(|life| (1..=366 * 24 * 3600).contains(life));
    life.map(Duration::from_secs).ok_or_else(|| "give at least 1s and at most a year".to_owned())
}

/// Reads the id of a job.
pub(super) fn job(text: &str) -> Result<JobId, String> {
    text.parse().map_err(|_| "it is not a job's id; `holdfast job ls` lists them".to_owned())
}

/// A duration by its largest unit: `4m`.
pub(super) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long before `now` an RFC 3339 instant was.
pub(super) fn since(instant: &str, now: Millis) -> Option<Duration> {
    let at = time::OffsetDateTime::parse(instant, &time::format_description::well_known::Rfc3339).ok()?;
    let at = u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()?;
    Some(Duration::from_millis(now.since(Millis(at))))
}

/// `here`, `out of touch 4m` or `never spoken`.
pub(super) fn liveness(word: LivenessWord, last_seen: Option<&str>, now: Millis) -> String {
    match word {
        LivenessWord::Here => "here".to_owned(),
        LivenessWord::NeverSpoken => "never spoken".to_owned(),
        LivenessWord::OutOfTouch => match last_seen.and_then(|instant| since(instant, now)) {
            Some(silent) => format!("out of touch {}", short(silent)),
            None => "out of touch".to_owned(),
        },
    }
}

/// A value, or `-`.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Values with commas between them, or `-`.
pub(super) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if values.is_empty() { "-".to_owned() } else { values.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown_by_their_unit() {
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for bad in ["", "1", "h", "-1h", "1.5h", "0s", "999999999999999999d", "1é"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!([59, 60, 7200, 200_000].map(|s| short(Duration::from_secs(s))), ["59s", "1m", "2h", "2d"]);
    }

    #[test]
    fn silence_is_counted_from_the_last_word() {
        let now = Millis(1_700_000_240_000);
        let heard = crate::clock::rfc3339(Millis(1_700_000_000_000));
        assert_eq!(liveness(LivenessWord::OutOfTouch, Some(&heard), now), "out of touch 4m");
        assert_eq!(liveness(LivenessWord::OutOfTouch, None, now), "out of touch");
    }
}
