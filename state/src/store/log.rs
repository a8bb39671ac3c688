//! The log: entries appended, read, cut off at either end, and found by the changes in them.

use super::entry::{self, Stored};
use super::error::Doing;
use super::side;
use super::{Batch, Body, ENTRIES, Entry, EntryId, META, PURGED, RowKey, Rows, SIDE, Sealed, Store, StoreError};
use crate::model::Revision;
use crate::to_bytes;
use redb::{ReadableDatabase, ReadableTable};
use std::ops::RangeBounds;

impl Store {
    /// Appends entries with their rows: one transaction, durable on return.
    pub fn append(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let doing = "appending to the journal";
        let write = self.db.begin_write().doing(doing)?;
        {
            let mut table = write.open_table(ENTRIES).doing(doing)?;
            for entry in entries {
                table.insert(entry.id.index, entry::encode(entry).as_slice()).doing(doing)?;
            }
        }
        if entries.iter().any(|entry| !entry.rows.is_empty()) {
            let mut table = write.open_table(SIDE).doing(doing)?;
            for rows in entries.iter().map(|entry| &entry.rows) {
                for key in &rows.erase {
                    table.remove(key.stored().as_slice()).doing(doing)?;
                }
                for row in &rows.put {
                    table.insert(row.key.stored().as_slice(), side::encode(row).as_slice()).doing(doing)?;
                }
            }
        }
        write.commit().doing(doing)
    }

    /// The entries of a range, with those of their rows that are still there.
    pub fn entries(&self, range: impl RangeBounds<u64>) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        self.each(range, |stored| {
            let mut put = Vec::with_capacity(stored.brought.len());
            for brought in stored.brought {
                put.extend(self.row(&brought.key)?);
            }
            entries.push(Entry { id: stored.id, body: stored.body, rows: Rows { put, erase: stored.erased } });
            Ok(true)
        })?;
        Ok(entries)
    }

    /// Walks entries until `visit` says false.
    pub(super) fn each(
        &self,
        range: impl RangeBounds<u64>,
        mut visit: impl FnMut(Stored) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let doing = "reading the journal";
        let table = self.db.begin_read().doing(doing)?.open_table(ENTRIES).doing(doing)?;
        for row in table.range(range).doing(doing)? {
            let (index, bytes) = row.doing(doing)?;
            if !visit(entry::decode(index.value(), bytes.value())?)? {
                break;
            }
        }
        Ok(())
    }

    /// The last entry, or where the log was purged up to if nothing is left.
    pub fn last(&self) -> Result<Option<EntryId>, StoreError> {
        let doing = "reading the journal's end";
        let table = self.db.begin_read().doing(doing)?.open_table(ENTRIES).doing(doing)?;
        match table.last().doing(doing)? {
            Some((index, bytes)) => Ok(Some(entry::decode(index.value(), bytes.value())?.id)),
            None => self.purged(),
        }
    }

    /// Up to where the log was purged.
    pub fn purged(&self) -> Result<Option<EntryId>, StoreError> {
        let bytes = self.meta(PURGED)?;
        let parsed = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        parsed.map_err(|error| StoreError::damaged(format!("where the journal was purged: {error}")))
    }

    /// Deletes the entries from `index` on, with the rows that they brought. Rows that they deleted do not come back: they
    /// had expired, or there was one too many of them.
    pub fn truncate(&self, index: u64) -> Result<(), StoreError> {
        let doing = "cutting the journal's end";
        let mut brought: Vec<RowKey> = Vec::new();
        self.each(index.., |stored| {
            brought.extend(stored.brought.into_iter().map(|row| row.key));
            Ok(true)
        })?;
        let write = self.db.begin_write().doing(doing)?;
        write.open_table(ENTRIES).doing(doing)?.retain_in(index.., |_, _| false).doing(doing)?;
        {
            let mut table = write.open_table(SIDE).doing(doing)?;
            for key in &brought {
                table.remove(key.stored().as_slice()).doing(doing)?;
            }
        }
        write.commit().doing(doing)
    }

    /// Deletes the entries up to and with `upto`. Their rows stay.
    pub fn purge(&self, upto: EntryId) -> Result<(), StoreError> {
        let doing = "cutting the journal's beginning";
        let write = self.db.begin_write().doing(doing)?;
        write.open_table(ENTRIES).doing(doing)?.retain_in(..=upto.index, |_, _| false).doing(doing)?;
        write.open_table(META).doing(doing)?.insert(PURGED, to_bytes(&upto).as_slice()).doing(doing)?;
        write.commit().doing(doing)
    }

    /// The batches that hold changes from `from` on, in their order, until `limit` changes are there or the end.
    pub fn batches(&self, from: Revision, limit: usize) -> Result<Vec<Batch>, StoreError> {
        let start = self.entry_of(from)?;
        let (mut batches, mut changes) = (Vec::new(), 0);
        self.each(start.., |stored| {
            if let Body::Batch(sealed) = stored.body
                && sealed.last >= from
            {
                let batch = sealed.open()?;
                changes += batch.changes.iter().filter(|change| change.change >= from).count();
                batches.push(batch);
            }
            Ok(changes < limit)
        })?;
        Ok(batches)
    }

    /// An entry at or before the one whose batch holds `change`, found by halving.
    fn entry_of(&self, change: Revision) -> Result<u64, StoreError> {
        let mut low = self.purged()?.map_or(0, |id| id.index + 1);
        let mut high = self.last()?.map_or(low, |id| id.index + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.batch_from(middle, high)? {
                Some((index, sealed)) if sealed.first <= change => low = index.max(middle),
                Some(_) | None => high = middle,
            }
        }
        Ok(low)
    }

    fn batch_from(&self, start: u64, end: u64) -> Result<Option<(u64, Sealed)>, StoreError> {
        let mut found = None;
        self.each(start..end, |stored| {
            if let Body::Batch(sealed) = stored.body {
                found = Some((stored.id.index, sealed));
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }
}
