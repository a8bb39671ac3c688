//! Everything that is true, as one immutable value: persistent maps, so that a copy to decide on costs nothing.

use crate::model::{Millis, RequestId, Revision};
use crate::{Actor, Event};
use serde::{Deserialize, Serialize};

/// One decided wish with all its events: what users see as an entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its number, gap-free from 1.
    pub change: Revision,
    /// Who asked.
    pub actor: Actor,
    /// In which call.
    pub request: RequestId,
    /// What was asked for, e.g. `node.add`.
    pub kind: String,
    /// The version of that kind's events: 1.
    pub v: u16,
    /// What became true.
    pub events: Vec<Event>,
}

/// The state after a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The number of the last change applied.
    pub revision: Revision,
    /// When it was decided.
    pub at: Millis,
}

impl State {
    /// Makes a change true. It cannot refuse, reads no clock and has no effect elsewhere.
    pub fn apply(&mut self, change: &Change, at: Millis) {
        debug_assert_eq!(change.change.0, self.revision.0 + 1, "changes are gap-free");
        self.revision = change.change;
        self.at = at;
        for event in &change.events {
            match *event {}
        }
    }
}
