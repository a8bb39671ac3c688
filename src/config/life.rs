//! How long something lives, as people write it: `90s`, `30m`, `1h` or `7d`.

use crate::limits;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The seconds that a text such as `1h` means; none if it means none.
pub fn seconds(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit)
}

/// The life of a client certificate, within its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Life(Duration);

/// Why a text is not a [`Life`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no life of a certificate: give a number with s, m, h or d, from 10s to 90d, such as 7d")]
pub struct LifeError(String);

impl Default for Life {
    fn default() -> Self {
        Self(limits::CERTIFICATE_LIFE)
    }
}

impl From<Life> for Duration {
    fn from(life: Life) -> Self {
        life.0
    }
}

impl std::str::FromStr for Life {
    type Err = LifeError;
    fn from_str(text: &str) -> Result<Self, LifeError> {
        let life = seconds(text).map(Duration::from_secs);
        let fits = |life: &Duration| (limits::CERTIFICATE_LIFE_MIN..=limits::CERTIFICATE_LIFE_MAX).contains(life);
        life.filter(fits).map(Self).ok_or_else(|| LifeError(text.chars().take(64).collect()))
    }
}

impl TryFrom<String> for Life {
    type Error = LifeError;
    fn try_from(text: String) -> Result<Self, LifeError> {
        text.parse()
    }
}

impl From<Life> for String {
    fn from(life: Life) -> Self {
        let seconds = life.0.as_secs();
        match [(24 * 3600, 'd'), (3600, 'h'), (60, 'm')].iter().find(|(unit, _)| seconds.is_multiple_of(*unit)) {
            Some((unit, letter)) => format!("{}{letter}", seconds / unit),
            None => format!("{seconds}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_read_and_written_by_its_unit() {
        for text in ["10s", "90s", "5m", "36h", "7d", "90d"] {
            assert_eq!(String::from(text.parse::<Life>().unwrap()), text);
        }
        assert_eq!(String::from(Life::default()), "7d");
        assert_eq!("168h".parse::<Life>(), Ok(Life::default()));
        for bad in ["", "7", "9s", "91d", "1.5h", "-1d", "7 d", "1é", "999999999999999999d"] {
            assert!(bad.parse::<Life>().unwrap_err().to_string().contains(&format!("`{bad}`")));
        }
    }
}
