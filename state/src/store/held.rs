//! Holds back every write while a store is opened and checked, so that a refused store is not changed by a byte: opening
//! repairs and commits, even for a reader.

use super::ahead::Ahead;
use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

/// A medium whose writes are kept in memory, in their order, until they are accepted.
#[derive(Clone, Debug)]
pub(super) struct Held(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    medium: Arc<Ahead>,
    /// None once accepted.
    held: RwLock<Option<Vec<Op>>>,
}

impl Held {
    pub(super) fn new(medium: Arc<Ahead>) -> Self {
        Self(Arc::new(Inner { medium, held: RwLock::new(Some(Vec::new())) }))
    }

    /// Carries out what was held back, in its order, and holds nothing back from now on.
    pub(super) fn accept(&self) -> Result<(), io::Error> {
        let mut held = self.0.held.write().unwrap_or_else(PoisonError::into_inner);
        for op in held.take().unwrap_or_default() {
            match op {
                Op::Write(offset, data) => self.0.medium.write(offset, &data)?,
                Op::Length(length) => self.0.medium.set_len(length)?,
                Op::Sync => self.0.medium.sync_data()?,
            }
        }
        Ok(())
    }

    /// Holds an operation back, or gives it back if nothing is held any more.
    fn hold(&self, op: impl FnOnce() -> Op) -> bool {
        if self.0.held.read().unwrap_or_else(PoisonError::into_inner).is_none() {
            return false;
        }
        match self.0.held.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(held) => {
                held.push(op());
                true
            }
            None => false,
        }
    }
}

impl StorageBackend for Held {
    fn len(&self) -> Result<u64, io::Error> {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        let last = held.iter().flatten().rev().find_map(|op| match op {
            Op::Length(length) => Some(*length),
            Op::Write(..) | Op::Sync => None,
        });
        last.map_or_else(|| self.0.medium.len(), Ok)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        let Some(ops) = held.as_ref().filter(|ops| !ops.is_empty()) else {
            return self.0.medium.read(offset, out);
        };
        let there = self.0.medium.len()?.saturating_sub(offset).min(out.len() as u64) as usize;
        self.0.medium.read(offset, &mut out[..there])?;
        out[there..].fill(0);
        for op in ops {
            match op {
                Op::Write(at, data) => overlay(offset, out, *at, data),
                Op::Length(length) => {
                    let kept = length.saturating_sub(offset).min(out.len() as u64) as usize;
                    out[kept..].fill(0);
                }
                Op::Sync => {}
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        if self.hold(|| Op::Length(length)) { Ok(()) } else { self.0.medium.set_len(length) }
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        if self.hold(|| Op::Sync) { Ok(()) } else { self.0.medium.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        if self.hold(|| Op::Write(offset, data.to_vec())) { Ok(()) } else { self.0.medium.write(offset, data) }
    }

    fn close(&self) -> Result<(), io::Error> {
        self.0.medium.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.medium.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.medium.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.medium.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.medium.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.medium.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.medium.query_lock_range(start, end)
    }
}

/// Copies what `data` at `at` has in common with `out` at `offset`.
fn overlay(offset: u64, out: &mut [u8], at: u64, data: &[u8]) {
    let start = offset.max(at);
    let end = (offset + out.len() as u64).min(at + data.len() as u64);
    if start < end {
        let length = (end - start) as usize;
        let (to, from) = ((start - offset) as usize, (start - at) as usize);
        out[to..to + length].copy_from_slice(&data[from..from + length]);
    }
}
