//! A disk in memory that fails when told to, and a place that is on it.

use crate::cluster::Place;
use state::store::{Head, Medium, Opened, Store, StoreError};
use std::io;
use std::sync::{Arc, Mutex};

/// How the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Writes find no room (`ENOSPC`).
    Full,
    /// A flush fails (`EIO`), and what was written since the one before is gone.
    Flush,
    /// A read fails (`EIO`).
    Read,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    live: Vec<u8>,
    durable: Vec<u8>,
    armed: Option<Armed>,
    failed: u64,
    /// What was on the disk after each operation, if somebody wants to know.
    moments: Option<Vec<Vec<u8>>>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Operations that still succeed.
    after: u64,
    /// Whether every later one fails as well.
    lasting: bool,
}

impl Disk {
    pub(super) fn arm(&self, fault: Fault, after: u64, lasting: bool) {
        self.0.lock().unwrap().armed = Some(Armed { fault, after, lasting });
    }

    pub(super) fn heal(&self) {
        self.0.lock().unwrap().armed = None;
    }

    /// Remembers from now on what is on the disk after each operation.
    pub(super) fn remember(&self) {
        self.0.lock().unwrap().moments = Some(Vec::new());
    }

    pub(super) fn remembered(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap().moments.take().unwrap_or_default()
    }

    /// How often it has failed.
    pub(super) fn failed(&self) -> u64 {
        self.0.lock().unwrap().failed
    }
}

impl Inner {
    fn keep_moment(&mut self) {
        if let Some(moments) = &mut self.moments {
            moments.push(self.live.clone());
        }
    }

    fn step(&mut self, fault: Fault) -> Result<(), io::Error> {
        let Some(armed) = self.armed.as_mut().filter(|armed| armed.fault == fault) else { return Ok(()) };
        if armed.after > 0 {
            armed.after -= 1;
            return Ok(());
        }
        if !armed.lasting {
            self.armed = None;
        }
        self.failed += 1;
        match fault {
            Fault::Full => Err(io::ErrorKind::StorageFull.into()),
            Fault::Read => Err(io::Error::other("the read failed")),
            Fault::Flush => {
                self.live = self.durable.clone();
                Err(io::Error::other("the flush failed"))
            }
        }
    }
}

impl Medium for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.lock().unwrap().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let mut inner = self.0.lock().unwrap();
        inner.step(Fault::Read)?;
        let data = inner.live.get(offset as usize..offset as usize + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        let mut inner = self.0.lock().unwrap();
        inner.step(Fault::Full)?;
        inner.live.resize(length as usize, 0);
        inner.keep_moment();
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut inner = self.0.lock().unwrap();
        inner.step(Fault::Flush)?;
        inner.durable = inner.live.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut inner = self.0.lock().unwrap();
        inner.step(Fault::Full)?;
        let end = offset as usize + data.len();
        if inner.live.len() < end {
            inner.live.resize(end, 0);
        }
        inner.live[offset as usize..end].copy_from_slice(data);
        inner.keep_moment();
        Ok(())
    }
}

impl Place for Disk {
    fn open(&self) -> Result<Opened, StoreError> {
        if self.0.lock().unwrap().durable.is_empty() {
            self.0.lock().unwrap().live.clear();
            Store::create(Box::new(self.clone()), 0)?;
        }
        Store::open(Box::new(self.clone()), 0, None)
    }

    fn keep_head(&self, _head: &Head) -> Result<(), StoreError> {
        Ok(())
    }

    fn free_reserve(&self) {}

    fn refill_reserve(&self) {}

    fn has_room(&self) -> bool {
        true
    }
}
