//! What an appliance notices of itself and shows: what the last scrub found, and what was refused.

use crate::serve::scrub::Scrubbed;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Refusals since the start of the process, by code: counted where they go out, which knows no appliance. There are as
/// many codes as the program has.
static REFUSED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// A refusal goes out.
pub fn refused(code: &str) {
    let mut counts = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    match counts.get_mut(code) {
        Some(count) => *count += 1,
        None => drop(counts.insert(code.to_owned(), 1)),
    }
}

/// The refusals so far, by code.
pub fn refusals() -> BTreeMap<String, u64> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What was noticed since the start. Lost with the process.
#[derive(Debug, Default)]
pub struct Observed(Mutex<Option<Scrubbed>>);

impl Observed {
    /// A scrub ended.
    pub fn scrubbed(&self, found: Scrubbed) {
        *self.scrub() = Some(found);
    }

    /// What the last scrub found; none before the first.
    pub fn last_scrub(&self) -> Option<Scrubbed> {
        self.scrub().clone()
    }

    fn scrub(&self) -> MutexGuard<'_, Option<Scrubbed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
