//! A batch of changes: what is decided together, made durable together, and linked by its hash to the batch before.
//!
//! The bytes are made once, by [`Batch::seal`], and are then stored, hashed and replicated as they are.

use super::StoreError;
use crate::model::{Millis, Revision};
use crate::view::records::Epoch;
use crate::{Change, Hash, State, hash_of, to_bytes};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The format of batches that this version writes, and the newest it reads.
pub const BATCH_FORMAT: u16 = 1;

/// Changes decided one after another on the same head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Format of this document: 1.
    pub format: u16,
    /// Under which epoch it was decided.
    pub epoch: Epoch,
    /// Its number, gap-free from 1.
    pub batch: u64,
    /// The hash of the batch before; zeros before the first.
    pub prev: Hash,
    /// The wall clock of the decision: every change in it has this time.
    pub time: Millis,
    /// At least one.
    pub changes: Vec<Change>,
}

/// The canonical bytes of a batch, with what finding it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The batch's number.
    pub batch: u64,
    /// Its first change.
    pub first: Revision,
    /// Its last change.
    pub last: Revision,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
}

/// The end of a chain of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The number of the last batch; 0 before the first.
    pub batch: u64,
    /// Its hash; zeros before the first.
    pub hash: Hash,
    /// The last change in it.
    pub change: Revision,
    /// The latest time of any batch so far. A wall clock behind it is not to be trusted.
    pub latest: Millis,
}

impl Default for Head {
    fn default() -> Self {
        Self { batch: 0, hash: Hash::from_bytes([0; 32]), change: Revision(0), latest: Millis(0) }
    }
}

impl Batch {
    /// Its canonical bytes.
    pub fn seal(&self) -> Sealed {
        let first = self.changes.first().map_or(Revision(0), |change| change.change);
        let last = self.changes.last().map_or(Revision(0), |change| change.change);
        Sealed { batch: self.batch, first, last, bytes: to_bytes(self).into() }
    }

    /// Makes all its changes true.
    pub fn apply(&self, state: &mut State) {
        for change in &self.changes {
            state.apply(change, self.time);
        }
    }
}

impl Sealed {
    /// Reads the batch. A format, kind of change or field that this version does not know stops here, by name.
    pub fn open(&self) -> Result<Batch, StoreError> {
        let unreadable = |problem: String| StoreError::Unreadable { batch: self.batch, problem };
        let batch: Batch = serde_json::from_slice(&self.bytes).map_err(|error| unreadable(error.to_string()))?;
        if batch.format != BATCH_FORMAT {
            return Err(unreadable(format!("it has format {}, this reads {BATCH_FORMAT}", batch.format)));
        }
        if let Some(change) = batch.changes.iter().find(|change| change.v != 1) {
            return Err(unreadable(format!("change {} is `{}` version {}", change.change, change.kind, change.v)));
        }
        Ok(batch)
    }

    /// The link to it.
    pub fn hash(&self) -> Hash {
        hash_of(b"holdfast/batch/v1", &[&self.bytes])
    }
}

impl Head {
    /// The head after a batch, if the batch was decided on this one.
    pub fn follow(&self, sealed: &Sealed) -> Result<(Batch, Self), StoreError> {
        let batch = sealed.open()?;
        let at = |what: &str| Err(StoreError::Damaged(format!("batch {}: {what}", sealed.batch)));
        if batch.batch != self.batch + 1 || sealed.batch != batch.batch {
            return at(&format!("follows batch {}", self.batch));
        }
        if batch.prev != self.hash {
            return at("does not link to the batch before it");
        }
        let mut last = self.change;
        for change in &batch.changes {
            if change.change.0 != last.0 + 1 {
                return at(&format!("change {} follows change {last}", change.change));
            }
            last = change.change;
        }
        if last == self.change || sealed.first.0 != self.change.0 + 1 || sealed.last != last {
            return at("its changes are not those that its entry names");
        }
        let latest = self.latest.max(batch.time);
        Ok((batch, Self { batch: sealed.batch, hash: sealed.hash(), change: last, latest }))
    }
}

/// What two stores, or a store and its restored copy, compare: the hash over the canonical state.
pub fn state_hash(state: &State) -> Hash {
    hash_of(b"holdfast/state/v1", &[&to_bytes(state)])
}
