//! One entry of the replicated log as stored: transport (term, leader), then the batch's bytes untouched, then which
//! rows of side tables came and went with it.
//!
//! Layout, integers big-endian: version `u8`, term `u64`, leader `u64`, kind `u8`; of a batch: number, first and
//! last change `u64` each; length `u32` and bytes of the body; count `u16` of rows, each table, key (length `u16` and
//! bytes) and expiry `u64` (0 = never). Version 1 ends there and deletes no row; version 2 goes on with a count `u16` of rows
//! that it deletes, each table and key. An entry that deletes none is written as version 1, which any reader knows. The
//! index is the key of the row that holds it.

use super::side::{RowKey, Rows, SideRow};
use super::{Sealed, StoreError};
use crate::model::{Millis, Revision};
use serde::{Deserialize, Serialize};

/// Puts rows and deletes none.
const PUTS: u8 = 1;
/// Deletes rows as well. The newest that this version reads.
const DELETES: u8 = 2;

/// Where an entry stands in the replicated log. Not part of any hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryId {
    /// The term of the leader that appended it.
    pub term: u64,
    /// That leader.
    pub leader: u64,
    /// Its place, gap-free.
    pub index: u64,
}

/// What an entry carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing: a new leader's first entry.
    Blank,
    /// Who belongs to the cluster, in the form of whoever runs it.
    Membership(Vec<u8>),
    /// A batch.
    Batch(Sealed),
    /// No batch, only rows of side tables.
    Rows,
}

/// An entry of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub id: EntryId,
    /// What it carries.
    pub body: Body,
    /// Rows of side tables that are made durable with it.
    pub rows: Rows,
}

/// A row that an entry brought, as the entry remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Brought {
    pub(super) key: RowKey,
    pub(super) expires: Option<Millis>,
}

/// An entry as read back: its rows are looked up apart.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) id: EntryId,
    pub(super) body: Body,
    pub(super) brought: Vec<Brought>,
    pub(super) erased: Vec<RowKey>,
}

pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let (kind, body): (u8, &[u8]) = match &entry.body {
        Body::Blank => (0, &[]),
        Body::Membership(bytes) => (1, bytes),
        Body::Batch(sealed) => (2, &sealed.bytes),
        Body::Rows => (3, &[]),
    };
    let mut out = Vec::with_capacity(64 + body.len());
    out.push(if entry.rows.erase.is_empty() { PUTS } else { DELETES });
    out.extend(entry.id.term.to_be_bytes());
    out.extend(entry.id.leader.to_be_bytes());
    out.push(kind);
    if let Body::Batch(sealed) = &entry.body {
        out.extend(sealed.batch.to_be_bytes());
        out.extend(sealed.first.0.to_be_bytes());
        out.extend(sealed.last.0.to_be_bytes());
    }
    out.extend(u32::try_from(body.len()).expect("a batch is smaller than 4 GiB").to_be_bytes());
    out.extend(body);
    out.extend(count(entry.rows.put.len()));
    for SideRow { key, expires, .. } in &entry.rows.put {
        encode_key(key, &mut out);
        out.extend(expires.map_or(0, |at| at.0).to_be_bytes());
    }
    if !entry.rows.erase.is_empty() {
        out.extend(count(entry.rows.erase.len()));
        entry.rows.erase.iter().for_each(|key| encode_key(key, &mut out));
    }
    out
}

fn count(rows: usize) -> [u8; 2] {
    u16::try_from(rows).expect("a batch brings and deletes fewer than 65,536 rows").to_be_bytes()
}

fn encode_key(key: &RowKey, out: &mut Vec<u8>) {
    for part in [key.table.as_bytes(), &key.key] {
        out.extend(u16::try_from(part.len()).expect("a key is shorter than 64 KiB").to_be_bytes());
        out.extend(part);
    }
}

pub(super) fn decode(index: u64, bytes: &[u8]) -> Result<Stored, StoreError> {
    if let Some(&version) = bytes.first().filter(|version| **version > DELETES) {
        let what = format!("entry {index}");
        return Err(StoreError::Newer { what, needs: version.into(), reads: DELETES.into() });
    }
    parse(index, bytes).ok_or_else(|| StoreError::damaged(format!("entry {index} is not in the form of an entry")))
}

fn parse(index: u64, bytes: &[u8]) -> Option<Stored> {
    let mut rest = Reader(bytes);
    let version = rest.take(1)?[0];
    if version != PUTS && version != DELETES {
        return None;
    }
    let id = EntryId { term: rest.u64()?, leader: rest.u64()?, index };
    let kind = rest.take(1)?[0];
    let body = match kind {
        0 => rest.sized().map(|_| Body::Blank)?,
        1 => Body::Membership(rest.sized()?.to_vec()),
        2 => {
            let (batch, first, last) = (rest.u64()?, Revision(rest.u64()?), Revision(rest.u64()?));
            Body::Batch(Sealed { batch, first, last, bytes: rest.sized()?.into() })
        }
        3 => rest.sized().map(|_| Body::Rows)?,
        _ => return None,
    };
    let count = rest.u16()?;
    let mut brought = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let key = rest.key()?;
        let expires = Some(Millis(rest.u64()?)).filter(|at| at.0 != 0);
        brought.push(Brought { key, expires });
    }
    let mut erased = Vec::new();
    if version == DELETES {
        for _ in 0..rest.u16()? {
            erased.push(rest.key()?);
        }
    }
    rest.0.is_empty().then_some(Stored { id, body, brought, erased })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let n = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        self.take(usize::try_from(n).ok()?)
    }

    fn key(&mut self) -> Option<RowKey> {
        let table = std::str::from_utf8(self.short()?).ok()?.to_owned();
        Some(RowKey { table, key: self.short()?.to_vec() })
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let n = self.u16()?;
        self.take(usize::from(n))
    }
}
