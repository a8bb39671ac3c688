//! The types that the consensus engine is told of, and how its entries become the store's and back.
//!
//! A proposal is opaque to it: a batch's canonical bytes, and rows of side tables beside them. The derived serde forms
//! are asked for by its trait bounds; what is stored goes through the store's own framing.

use openraft::{BasicNode, CommittedLeaderId, EntryPayload, LogId, Membership};
use serde::{Deserialize, Serialize};
use state::State;
use state::store::{self, Body, EntryId, Head, Rows, Sealed, StoreError};
use std::io::Cursor;
use std::sync::Arc;

openraft::declare_raft_types!(
    /// What the consensus engine is told of.
    pub(super) Types:
        D = Proposal,
        R = Applied,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
);

/// What the writer proposes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Proposal {
    /// A batch, unless there are only rows.
    pub(super) batch: Option<Sealed>,
    /// Rows made durable with it.
    pub(super) rows: Arc<Rows>,
    /// What the writer has worked out already, so that the appliance that decided does not apply it twice.
    #[serde(skip)]
    pub(super) outcome: Option<Outcome>,
}

/// The state that a batch leads to.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// On which head the batch was decided.
    pub(super) base: Head,
    /// The head after it.
    pub(super) head: Head,
    /// The state after it.
    pub(super) state: Arc<State>,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Applied {
    /// False if it was decided on another head than the one it met: then nothing happened.
    pub(super) taken: bool,
}

pub(super) type Entry = openraft::Entry<Types>;

pub(super) const fn entry_id(id: &LogId<u64>) -> EntryId {
    EntryId { term: id.leader_id.term, leader: id.leader_id.node_id, index: id.index }
}

pub(super) fn log_id(id: &EntryId) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(id.term, id.leader), id.index)
}

/// An entry as it is stored.
pub(super) fn to_store(entry: &Entry) -> store::Entry {
    let id = entry_id(&entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => store::Entry { id, body: Body::Blank, rows: Rows::default() },
        EntryPayload::Membership(membership) => {
            store::Entry { id, body: Body::Membership(state::to_bytes(membership)), rows: Rows::default() }
        }
        EntryPayload::Normal(proposal) => {
            let body = proposal.batch.clone().map_or(Body::Rows, Body::Batch);
            store::Entry { id, body, rows: Rows::clone(&proposal.rows) }
        }
    }
}

/// An entry as it was stored.
pub(super) fn from_store(entry: store::Entry) -> Result<Entry, StoreError> {
    let normal = |batch| Proposal { batch, rows: Arc::new(entry.rows), outcome: None };
    let payload = match entry.body {
        Body::Blank => EntryPayload::Blank,
        Body::Membership(bytes) => {
            let membership: Membership<u64, BasicNode> = serde_json::from_slice(&bytes)
                .map_err(|error| StoreError::Damaged(format!("the membership in entry {}: {error}", entry.id.index)))?;
            EntryPayload::Membership(membership)
        }
        Body::Batch(sealed) => EntryPayload::Normal(normal(Some(sealed))),
        Body::Rows => EntryPayload::Normal(normal(None)),
    };
    Ok(Entry { log_id: log_id(&entry.id), payload })
}
