//! Keeps the file longer than redb knows, filled with zeros: a commit into blocks that exist costs one flush of data,
//! one that grows the file costs the file system's journal as well, which halves the rate and makes the slow ones ten
//! times as slow. The file never shrinks; when the store is opened redb takes over the whole length.

use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Above this length the file grows by what is needed and no more. Below it, by as much again.
const GENEROUS: u64 = 1 << 30;
const ZEROS: &[u8] = &[0; 256 << 10];

/// A medium that is filled ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    medium: Box<dyn StorageBackend>,
    /// The file is never shorter than this.
    floor: u64,
    lengths: Mutex<Lengths>,
    wanted: AtomicBool,
}

#[derive(Debug)]
struct Lengths {
    /// What redb knows.
    shown: u64,
    /// What exists and is filled.
    filled: u64,
}

impl Ahead {
    pub(super) fn new(medium: Box<dyn StorageBackend>, floor: u64) -> Result<Self, io::Error> {
        let length = medium.len()?;
        let lengths = Mutex::new(Lengths { shown: length, filled: length });
        Ok(Self { medium, floor, lengths, wanted: AtomicBool::new(false) })
    }

    pub(super) fn is_empty(&self) -> Result<bool, io::Error> {
        Ok(self.medium.len()? == 0)
    }

    pub(super) fn size(&self) -> u64 {
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner).shown
    }

    pub(super) fn wants_room(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(super) fn make_room(&self) -> Result<(), io::Error> {
        self.wanted.store(false, Ordering::Relaxed);
        let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.target(lengths.shown);
        if target > lengths.filled {
            self.fill(&mut lengths, target)?;
            self.medium.sync_data()?;
        }
        Ok(())
    }

    fn target(&self, shown: u64) -> u64 {
        if shown < GENEROUS { (shown * 2).max(self.floor) } else { shown }
    }

    /// Makes the file `length` long and writes zeros into what is new. If that fails the file is as it was. The length is
    /// synced first: a write that the disk keeps without it would leave a length that is none of redb's.
    fn fill(&self, lengths: &mut Lengths, length: u64) -> Result<(), io::Error> {
        let longer = self.medium.set_len(length).and_then(|()| self.medium.sync_data());
        let filled = longer.and_then(|()| self.zero(lengths.filled, length));
        match filled {
            Ok(()) => {
                lengths.filled = length;
                Ok(())
            }
            Err(error) => {
                // The first error is the one that matters; a file left too long is taken over when it is opened.
                let _ = self.medium.set_len(lengths.filled);
                Err(error)
            }
        }
    }

    fn zero(&self, from: u64, to: u64) -> Result<(), io::Error> {
        let mut at = from;
        while at < to {
            let n = (to - at).min(ZEROS.len() as u64);
            self.medium.write(at, &ZEROS[..n as usize])?;
            at += n;
        }
        Ok(())
    }
}

impl StorageBackend for Ahead {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.size())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.medium.read(offset, out)
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
        if length > lengths.shown {
            // New positions must read as zeros, also those that were part of a longer file once.
            self.zero(lengths.shown, length.min(lengths.filled))?;
            if length > lengths.filled {
                let floor = self.floor.max(length);
                self.fill(&mut lengths, floor)?;
            }
            self.wanted.store(self.target(length) > lengths.filled, Ordering::Relaxed);
        }
        lengths.shown = length;
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.medium.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.medium.write(offset, data)
    }

    fn close(&self) -> Result<(), io::Error> {
        self.medium.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.medium.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.medium.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.medium.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.medium.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.medium.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.medium.query_lock_range(start, end)
    }
}
