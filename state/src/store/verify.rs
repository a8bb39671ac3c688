//! Whether everything in a store is what was written: the chain from its first batch, the checkpoints against a replay,
//! the rows of side tables against the entries that brought them.

use super::error::Doing;
use super::side::RowKey;
use super::{Body, Checkpoint, Head, SIDE, Store, StoreError, state_hash};
use crate::{Hash, State};
use redb::{ReadableDatabase, ReadableTable};
use serde::Serialize;
use std::collections::BTreeSet;

/// What was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Batches of the chain.
    pub batches: u64,
    /// Changes in them.
    pub changes: u64,
    /// Checkpoints whose state was found again by replaying.
    pub checkpoints: u64,
    /// Rows of side tables.
    pub rows: u64,
    /// The end of the chain.
    pub head: Head,
    /// The hash of the state that replaying gives.
    pub state: Hash,
}

impl Store {
    /// Verifies everything, or names the first batch, checkpoint or row that is wrong. Reads the whole store.
    pub fn verify(&self) -> Result<Verified, StoreError> {
        let mut checkpoints = self.checkpoints()?;
        let purged = self.purged()?;
        let base = match purged {
            None => None,
            Some(upto) => {
                let oldest = checkpoints.first().cloned();
                let oldest = oldest.filter(|checkpoint| checkpoint.applied.index >= upto.index).ok_or_else(|| {
                    StoreError::damaged(format!("the journal begins after entry {} and no checkpoint does", upto.index))
                })?;
                Some(oldest)
            }
        };
        let (mut state, mut head) =
            base.map_or_else(|| (State::default(), Head::default()), |base| (base.state, base.head));
        let (from, first) = (head, purged.map_or(0, |upto| upto.index + 1));
        let mut found = 0;
        let mut brought = BTreeSet::new();
        self.each(first.., |stored| {
            brought.extend(stored.brought.into_iter().map(|row| row.key));
            if let Body::Batch(sealed) = &stored.body
                && sealed.batch > from.batch
            {
                let (batch, next) = head.follow(sealed)?;
                batch.apply(&mut state);
                head = next;
            }
            while checkpoints.first().is_some_and(|checkpoint| checkpoint.applied.index <= stored.id.index) {
                let checkpoint = checkpoints.remove(0);
                if checkpoint.head != head || checkpoint.state != state {
                    let index = checkpoint.applied.index;
                    return Err(StoreError::damaged(format!(
                        "the checkpoint at entry {index} is not what replaying gives"
                    )));
                }
                found += 1;
            }
            Ok(true)
        })?;
        if let Some(checkpoint) = checkpoints.first() {
            let index = checkpoint.applied.index;
            return Err(StoreError::damaged(format!("a checkpoint stands at entry {index}, after the journal's end")));
        }
        let rows = self.count_rows(purged.is_none().then_some(&brought))?;
        Ok(Verified {
            batches: head.batch - from.batch,
            changes: head.change.0 - from.change.0,
            checkpoints: found,
            rows,
            head,
            state: state_hash(&state),
        })
    }

    /// Counts the rows, each of which must be among `known` if that is complete.
    fn count_rows(&self, known: Option<&BTreeSet<RowKey>>) -> Result<u64, StoreError> {
        let doing = "reading the rows";
        let table = self.db.begin_read().doing(doing)?.open_table(SIDE).doing(doing)?;
        let mut count = 0;
        for row in table.iter().doing(doing)? {
            let (key, value) = row.doing(doing)?;
            let key = RowKey::from_stored(key.value()).ok_or_else(|| StoreError::damaged("a row's key is not one"))?;
            if known.is_some_and(|known| !known.contains(&key)) {
                let (table, key) = (&key.table, hex::encode(&key.key));
                return Err(StoreError::damaged(format!("row {key} of table {table} came with no entry")));
            }
            super::side::decode(key, value.value())?;
            count += 1;
        }
        Ok(count)
    }

    /// The end of the chain, each link after the checkpoint checked, `known` found on the way.
    pub(super) fn walk(&self, checkpoint: Option<&Checkpoint>, known: Option<Head>) -> Result<Head, StoreError> {
        let mut head = checkpoint.map_or_else(Head::default, |checkpoint| checkpoint.head);
        let start = checkpoint.map_or(0, |checkpoint| checkpoint.applied.index + 1);
        let (mut last, mut foreign) = (start, known.is_some_and(|known| known.batch == head.batch && known != head));
        if let Some(checkpoint) = checkpoint
            && self.last()?.is_none_or(|last| last.index < checkpoint.applied.index)
        {
            return Err(StoreError::damaged("the journal ends before its checkpoint"));
        }
        self.each(start.., |stored| {
            if stored.id.index != last && last != 0 {
                return Err(StoreError::damaged(format!("entry {last} is missing")));
            }
            last = stored.id.index + 1;
            if let Body::Batch(sealed) = &stored.body {
                head = head.follow(sealed)?.1;
                foreign |= known.is_some_and(|known| known.batch == head.batch && known.hash != head.hash);
            }
            Ok(true)
        })?;
        match known {
            Some(known) if known.batch > head.batch => {
                Err(StoreError::Behind { store: head.batch, known: known.batch })
            }
            Some(known) if foreign => Err(StoreError::Foreign { batch: known.batch }),
            Some(_) | None => Ok(head),
        }
    }
}
