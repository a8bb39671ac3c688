//! Everything that is true, as one immutable value: persistent maps, so that a copy to decide on costs nothing.

use crate::model::{Millis, NodeId, RequestId, Revision};
use crate::subject::{appliances, enrolment, jobs, nodes, services, sources};
use crate::view::records::Gone;
use crate::view::told::{self, Told};
use crate::{Actor, Event};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

/// The state after a change. Empty before the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The number of the last change applied.
    pub revision: Revision,
    /// When it was decided, or a change before it if that was later: a clock that is behind this is not to be believed.
    pub at: Millis,
    /// The fleet and its appliances.
    pub appliances: appliances::Appliances,
    /// Invitations, admission, bearer secrets and certificates.
    pub enrolment: enrolment::Enrolment,
    /// The nodes and their addresses.
    pub nodes: nodes::Nodes,
    /// What they publish.
    pub services: services::Services,
    /// Work that happens once. Absent from states kept before there was any.
    #[serde(default)]
    pub jobs: jobs::Jobs,
    /// The source snapshots that are held. Absent while there are none.
    #[serde(default, skip_serializing_if = "sources::Sources::is_empty")]
    pub sources: sources::Sources,
    /// What nodes have been told: revisions of records and scopes, and tombstones.
    pub told: Told,
}

/// Nodes whose record may read differently after an event, and why those went that did.
#[derive(Default)]
pub(crate) struct Touched {
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) gone: BTreeMap<NodeId, Gone>,
}

impl Touched {
    pub(crate) fn insert(&mut self, node: NodeId) {
        self.nodes.insert(node);
    }

    pub(crate) fn extend<'a>(&mut self, nodes: impl IntoIterator<Item = &'a NodeId>) {
        self.nodes.extend(nodes);
    }
}

impl State {
    /// Makes a change true. It cannot refuse, reads no clock and has no effect elsewhere.
    pub fn apply(&mut self, change: &Change, at: Millis) {
        debug_assert_eq!(change.change.0, self.revision.0 + 1, "changes are gap-free");
        self.revision = change.change;
        self.at = self.at.max(at);
        let mut touched = Touched::default();
        for event in &change.events {
            match event {
                Event::Appliances(event) => appliances::apply(self, event, &mut touched),
                Event::Enrolment(event) => enrolment::apply(self, event, &mut touched),
                Event::Nodes(event) => nodes::apply(self, event, &mut touched),
                Event::Services(event) => services::apply(self, event, &mut touched),
                Event::Jobs(event) => jobs::apply(self, event),
                Event::Sources(event) => sources::apply(self, event),
            }
        }
        told::retell(self, touched);
    }
}
