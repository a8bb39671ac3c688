//! What happened, as the journal keeps it: every id, time and random value is inside, so that applying needs nothing
//! else.

use crate::subject::{appliances, enrolment, jobs, nodes, services, sources};
use serde::{Deserialize, Serialize};

/// One fact. Kinds are only ever added; a reader that does not know one stops before it applies anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "subject", content = "event")]
pub enum Event {
    /// Of the fleet and its appliances.
    Appliances(appliances::Event),
    /// Of invitations, admission and joining.
    Enrolment(enrolment::Event),
    /// Of nodes that have joined.
    Nodes(nodes::Event),
    /// Of what nodes publish.
    Services(services::Event),
    /// Of jobs and of who is given them.
    Jobs(jobs::Event),
    /// Of the source snapshots that builds are made from.
    Sources(sources::Event),
}

macro_rules! from_subject {
    ($($subject:ident => $variant:ident),*) => {$(
        impl From<$subject::Event> for Event {
            fn from(event: $subject::Event) -> Self {
                Self::$variant(event)
            }
        }
    )*};
}
from_subject!(appliances => Appliances, enrolment => Enrolment, nodes => Nodes, services => Services, jobs => Jobs, sources => Sources);
