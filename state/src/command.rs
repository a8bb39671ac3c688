//! What may be asked for, by subject.

use crate::subject::{appliances, enrolment, jobs, nodes, sources};
use crate::{Code, Context, Event, Refusal, Role, State};

/// A wish to change the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Of the fleet and its appliances.
    Appliances(appliances::Command),
    /// Of invitations, admission and joining.
    Enrolment(enrolment::Command),
    /// Of nodes that have joined, with what they publish.
    Nodes(nodes::Command),
    /// Of jobs and of who is given them.
    Jobs(jobs::Command),
    /// Of the source snapshots that builds are made from.
    Sources(sources::Command),
}

impl Command {
    /// The kind that the journal shows, e.g. `node.add`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Appliances(command) => command.kind(),
            Self::Enrolment(command) => command.kind(),
            Self::Nodes(command) => command.kind(),
            Self::Jobs(command) => command.kind(),
            Self::Sources(command) => command.kind(),
        }
    }
}

macro_rules! from_subject {
    ($($subject:ident => $variant:ident),*) => {$(
        impl From<$subject::Command> for Command {
            fn from(command: $subject::Command) -> Self {
                Self::$variant(command)
            }
        }
    )*};
}
from_subject!(appliances => Appliances, enrolment => Enrolment, nodes => Nodes, jobs => Jobs, sources => Sources);

/// Decides a command against a state: the events that it makes true, none if all is so already, or a refusal.
pub fn decide(state: &State, command: Command, context: &Context) -> Result<Vec<Event>, Refusal> {
    if context.role == Role::Viewer {
        return Err(Refusal::new(
            Code::Forbidden,
            format!("{} is not allowed to a viewer", command.kind()),
            "the role `viewer` may read and nothing else",
            "ask somebody with the role `admin`",
        ));
    }
    match command {
        Command::Appliances(command) => appliances::decide(state, command, context),
        Command::Enrolment(command) => enrolment::decide(state, command, context),
        Command::Nodes(command) => nodes::decide(state, command, context),
        Command::Jobs(command) => jobs::decide(state, command, context),
        Command::Sources(command) => sources::decide(state, command, context),
    }
}
