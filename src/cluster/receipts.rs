//! Receipts: the final answer to a call, kept so that its repetition gets the same bytes and decides nothing.

use crate::limits::RECEIPTS_PER_CALLER;
use state::model::Millis;
use state::store::{RowKey, Rows, SideRow, Store, StoreError};
use state::{Hash, hash_of};
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = "receipts";
/// Bytes of the hash over caller and route that begin a receipt's key.
const GROUP: usize = 16;

/// Which call a receipt answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptKey {
    /// Who calls, as proven: e.g. the node's id, or the key of a stranger.
    pub caller: String,
    /// What is called, e.g. `POST /v1/enroll`.
    pub route: String,
    /// The hash of the caller's idempotency key. The key itself is not kept.
    pub key: Hash,
}

impl ReceiptKey {
    /// The row that holds the receipt.
    pub fn row(&self) -> RowKey {
        let mut key = self.group().key;
        key.extend(self.key.as_bytes());
        RowKey { table: TABLE.into(), key }
    }

    /// The receipt as a row: `answer` until `expires`.
    pub fn keep(&self, answer: Vec<u8>, expires: Millis) -> SideRow {
        SideRow { key: self.row(), value: answer, expires: Some(expires) }
    }

    fn group(&self) -> RowKey {
        let group = hash_of(b"holdfast/receipt/v1", &[self.caller.as_bytes(), self.route.as_bytes()]);
        RowKey { table: TABLE.into(), key: group.as_bytes()[..GROUP].to_vec() }
    }
}

/// The rows of a batch while it is being decided, seen together with those in the store.
#[derive(Debug, Default)]
pub(super) struct Pending {
    put: BTreeMap<RowKey, SideRow>,
    erase: BTreeSet<RowKey>,
}

impl Pending {
    /// The receipt for a key that has not expired.
    pub(super) fn find(
        &self,
        store: &Store,
        key: &ReceiptKey,
        expired: impl Fn(Millis) -> bool,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let row = key.row();
        let found = match self.put.get(&row) {
            Some(row) => Some(row.clone()),
            None if self.erase.contains(&row) => None,
            None => store.row(&row)?,
        };
        Ok(found.filter(|row| !row.expires.is_some_and(&expired)).map(|row| row.value))
    }

    /// Adds a row. Of the receipts of its caller and route, those that have expired go, and the oldest beyond the limit.
    pub(super) fn put(
        &mut self,
        store: &Store,
        row: SideRow,
        expired: impl Fn(Millis) -> bool,
    ) -> Result<(), StoreError> {
        let newest = row.key.clone();
        self.put.insert(row.key.clone(), row);
        if newest.table != TABLE {
            return Ok(());
        }
        let mut group = newest.clone();
        group.key.truncate(GROUP);
        let kept = store.rows(&group)?.into_iter().map(|row| (row.key, row.expires));
        let fresh = self.put.range(group.clone()..).take_while(|(key, _)| key.key.starts_with(&group.key));
        let fresh = fresh.map(|(key, row)| (key.clone(), row.expires));
        let others: BTreeMap<RowKey, Option<Millis>> =
            kept.filter(|(key, _)| !self.erase.contains(key)).chain(fresh).filter(|(key, _)| *key != newest).collect();
        let mut by_age: Vec<(Option<Millis>, RowKey)> = others.into_iter().map(|(key, end)| (end, key)).collect();
        by_age.sort();
        let surplus = (by_age.len() + 1).saturating_sub(RECEIPTS_PER_CALLER);
        for (n, (end, key)) in by_age.into_iter().enumerate() {
            if n < surplus || end.is_some_and(&expired) {
                self.erase(key);
            }
        }
        Ok(())
    }

    /// Deletes a row.
    pub(super) fn erase(&mut self, key: RowKey) {
        self.put.remove(&key);
        self.erase.insert(key);
    }

    /// What is to be made durable.
    pub(super) fn into_rows(self) -> Rows {
        let erase = self.erase.into_iter().filter(|key| !self.put.contains_key(key)).collect();
        Rows { put: self.put.into_values().collect(), erase }
    }
}
