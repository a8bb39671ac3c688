//! Side tables: what is big, secret or short-lived, beside the journal and outside its hashes, so that it can really go.
//! A row is made durable in the same transaction as the entry that brings it.

use super::error::Doing;
use super::{SIDE, Store, StoreError};
use crate::model::Millis;
use redb::{ReadableDatabase, ReadableTable};
use serde::{Deserialize, Serialize};

/// Which row of which table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RowKey {
    /// The table, at most 255 bytes, e.g. `receipts`.
    pub table: String,
    /// The row.
    pub key: Vec<u8>,
}

/// A row to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideRow {
    /// Where.
    pub key: RowKey,
    /// What.
    pub value: Vec<u8>,
    /// From when on it may be deleted.
    pub expires: Option<Millis>,
}

/// What happens to side tables with an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Rows to keep, in place of what was there.
    pub put: Vec<SideRow>,
    /// Rows to delete, before the others are put.
    pub erase: Vec<RowKey>,
}

impl Rows {
    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.erase.is_empty()
    }
}

impl RowKey {
    pub(super) fn stored(&self) -> Vec<u8> {
        let table = self.table.as_bytes();
        let length = u8::try_from(table.len()).expect("a table's name is at most 255 bytes");
        [&[length], table, &self.key].concat()
    }

    pub(super) fn from_stored(bytes: &[u8]) -> Option<Self> {
        let (&length, rest) = bytes.split_first()?;
        let (table, key) = rest.split_at_checked(usize::from(length))?;
        Some(Self { table: std::str::from_utf8(table).ok()?.to_owned(), key: key.to_vec() })
    }
}

pub(super) fn encode(row: &SideRow) -> Vec<u8> {
    [&row.expires.map_or(0, |at| at.0).to_be_bytes(), row.value.as_slice()].concat()
}

pub(super) fn decode(key: RowKey, bytes: &[u8]) -> Result<SideRow, StoreError> {
    let (expires, value) = bytes
        .split_first_chunk::<8>()
        .ok_or_else(|| StoreError::damaged(format!("a row of table {} is cut short", key.table)))?;
    let expires = Some(Millis(u64::from_be_bytes(*expires))).filter(|at| at.0 != 0);
    Ok(SideRow { key, value: value.to_vec(), expires })
}

impl Store {
    /// A row, if it is there.
    pub fn row(&self, key: &RowKey) -> Result<Option<SideRow>, StoreError> {
        let doing = "reading a row";
        let table = self.db.begin_read().doing(doing)?.open_table(SIDE).doing(doing)?;
        let found = table.get(key.stored().as_slice()).doing(doing)?;
        found.map(|bytes| decode(key.clone(), bytes.value())).transpose()
    }

    /// The rows of a table whose keys begin with `prefix.key`, in the order of their keys.
    pub fn rows(&self, prefix: &RowKey) -> Result<Vec<SideRow>, StoreError> {
        let doing = "reading rows";
        let table = self.db.begin_read().doing(doing)?.open_table(SIDE).doing(doing)?;
        let start = prefix.stored();
        let mut rows = Vec::new();
        for row in table.range(start.as_slice()..).doing(doing)? {
            let (key, value) = row.doing(doing)?;
            if !key.value().starts_with(&start) {
                break;
            }
            let key = RowKey::from_stored(key.value())
                .ok_or_else(|| StoreError::damaged("a row's key is not in the form of a key"))?;
            rows.push(decode(key, value.value())?);
        }
        Ok(rows)
    }

    /// Up to `limit` rows that had expired by `now`. They are deleted by an entry, so that they go on every appliance.
    pub fn expired(&self, now: Millis, limit: usize) -> Result<Vec<RowKey>, StoreError> {
        let doing = "looking for expired rows";
        let mut expired = Vec::new();
        for row in self.db.begin_read().doing(doing)?.open_table(SIDE).doing(doing)?.iter().doing(doing)? {
            let (key, value) = row.doing(doing)?;
            let end = value.value().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if end != 0 && end <= now.0 {
                expired.extend(RowKey::from_stored(key.value()));
            }
            if expired.len() == limit {
                break;
            }
        }
        Ok(expired)
    }
}
