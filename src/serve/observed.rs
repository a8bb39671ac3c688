//! What an appliance notices of itself and shows: what the last scrub found.

use crate::serve::scrub::Scrubbed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was noticed since the start. Lost with the process.
#[derive(Debug, Default)]
pub struct Observed(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    scrub: Option<Scrubbed>,
}

impl Observed {
    /// A scrub ended.
    pub fn scrubbed(&self, found: Scrubbed) {
        self.seen().scrub = Some(found);
    }

    /// What the last scrub found; none before the first.
    pub fn last_scrub(&self) -> Option<Scrubbed> {
        self.seen().scrub.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
