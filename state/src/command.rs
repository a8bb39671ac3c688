//! What may be asked for, by subject.

use crate::{Context, Event, Refusal, State};

/// A wish to change the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {}

/// Decides a command against a state: the events that it makes true, none if it is true already, or a refusal.
pub fn decide(_state: &State, command: Command, _context: &Context) -> Result<Vec<Event>, Refusal> {
    match command {}
}
