//! Once a day: everything in the store is read again and compared, also what nobody asks for. A damage is found while
//! there are copies, and not on the day it is needed. It waits for no call and no call waits for it.

use crate::cluster::SubmitError;
use crate::listen::stop::Stop;
use crate::serve::appliance::Appliance;
use crate::{clock, limits};
use state::model::Millis;
use state::store::{StoreError, Verified};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// What the last scrub found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// When it ended.
    pub at: Millis,
    /// What is wrong, in words; none: everything is as it was written.
    pub problem: Option<String>,
}

/// Scrubs every so often until told to stop, first after that time: opening the store has read all of it.
pub(super) async fn run(appliance: Arc<Appliance>, every: Duration, mut stop: Stop) {
    let mut pause = every;
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.requested() => return,
        }
        let found = tokio::select! {
            found = appliance.handle.verify() => judge(found, clock::wall()),
            () = stop.requested() => return,
        };
        // A store that is just being opened is read soon after.
        pause = if found.is_some() { every } else { limits::SCRUB_AGAIN.min(every) };
        let Some(scrubbed) = found else { continue };
        match &scrubbed.problem {
            Some(problem) => tracing::error!(problem, "the store does not verify; restore it from a copy"),
            None => tracing::info!("the whole store was read again and is as it was written"),
        }
        appliance.observed.scrubbed(scrubbed);
    }
}

/// What came of reading everything; none if it could not be read now.
pub(super) fn judge(found: Result<Result<Verified, StoreError>, SubmitError>, at: Millis) -> Option<Scrubbed> {
    match found {
        Ok(Ok(_)) => Some(Scrubbed { at, problem: None }),
        Ok(Err(error)) if error.may_pass() => None,
        Ok(Err(error)) => Some(Scrubbed { at, problem: Some(error.to_string()) }),
        Err(_) => None,
    }
}
