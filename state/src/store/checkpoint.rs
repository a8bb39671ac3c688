//! Checkpoints: the whole state as one row, with its hash, so that a start does not replay the journal from its first
//! batch. The newest two are kept.

use super::batch::state_hash;
use super::error::Doing;
use super::{CHECKPOINTS, EntryId, Head, Store, StoreError};
use crate::{Hash, State, hash_of, to_bytes};
use redb::{ReadableDatabase, ReadableTable};
use serde::{Deserialize, Serialize};

/// How many checkpoints are kept: the older one is for a person who looks for the cause of a damage.
const KEPT: usize = 2;

/// The state after an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The last entry applied.
    pub applied: EntryId,
    /// The end of the chain up to there.
    pub head: Head,
    /// Who belonged to the cluster, in the form of whoever runs it.
    pub membership: Vec<u8>,
    /// The state.
    pub state: State,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u16,
    applied: EntryId,
    head: Head,
    state: Hash,
}

impl Store {
    /// Keeps a checkpoint. Gives the size of the state in bytes.
    pub fn keep_checkpoint(&self, checkpoint: &Checkpoint) -> Result<usize, StoreError> {
        let doing = "keeping a checkpoint";
        let state = to_bytes(&checkpoint.state);
        let bytes = encode(checkpoint, &state);
        let write = self.db.begin_write().doing(doing)?;
        {
            let mut table = write.open_table(CHECKPOINTS).doing(doing)?;
            table.insert(checkpoint.applied.index, bytes.as_slice()).doing(doing)?;
            while table.iter().doing(doing)?.count() > KEPT {
                table.pop_first().doing(doing)?;
            }
        }
        write.commit().doing(doing)?;
        Ok(state.len())
    }

    /// The newest checkpoint, its state hash recomputed.
    pub(super) fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, StoreError> {
        let doing = "reading the checkpoint";
        let table = self.db.begin_read().doing(doing)?.open_table(CHECKPOINTS).doing(doing)?;
        table.last().doing(doing)?.map(|(index, bytes)| decode(index.value(), bytes.value())).transpose()
    }

    /// All checkpoints kept, the oldest first.
    pub(super) fn checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        let doing = "reading the checkpoints";
        let table = self.db.begin_read().doing(doing)?.open_table(CHECKPOINTS).doing(doing)?;
        let mut all = Vec::new();
        for row in table.iter().doing(doing)? {
            let (index, bytes) = row.doing(doing)?;
            all.push(decode(index.value(), bytes.value())?);
        }
        Ok(all)
    }
}

/// Layout: header and membership, each after its length as `u32` big-endian, then the state's canonical bytes.
pub(super) fn encode(checkpoint: &Checkpoint, state: &[u8]) -> Vec<u8> {
    let header = to_bytes(&Header {
        format: 1,
        applied: checkpoint.applied,
        head: checkpoint.head,
        state: hash_of(b"holdfast/state/v1", &[state]),
    });
    let mut bytes = Vec::with_capacity(header.len() + checkpoint.membership.len() + state.len() + 8);
    for part in [&header, &checkpoint.membership] {
        bytes.extend(u32::try_from(part.len()).expect("a header is smaller than 4 GiB").to_be_bytes());
        bytes.extend(part);
    }
    bytes.extend(state);
    bytes
}

pub(super) fn decode(index: u64, bytes: &[u8]) -> Result<Checkpoint, StoreError> {
    let damaged = |what: String| StoreError::Damaged(format!("the checkpoint at entry {index}: {what}"));
    let cut = || damaged("it is cut short".into());
    let (header, rest) = sized(bytes).ok_or_else(cut)?;
    let (membership, state) = sized(rest).ok_or_else(cut)?;
    let header: Header = serde_json::from_slice(header).map_err(|error| damaged(error.to_string()))?;
    if header.format != 1 || header.applied.index != index {
        return Err(damaged("it names another format or entry".into()));
    }
    let state: State = serde_json::from_slice(state).map_err(|error| damaged(error.to_string()))?;
    let hash = state_hash(&state);
    if hash != header.state {
        return Err(damaged(format!("its state hashes to {hash}, not to {}", header.state)));
    }
    Ok(Checkpoint { applied: header.applied, head: header.head, membership: membership.to_vec(), state })
}

fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}
