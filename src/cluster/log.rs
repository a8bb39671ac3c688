//! The log that the consensus engine writes, on the store. The engine has a thread to itself, so appending waits for the
//! disk right there: handing it to another thread and back would cost as much again as the flush. How far the log is
//! committed is not stored: that would cost a second flush, and it is found again by committing the tail.

use super::raft::{Entry, Types, from_store, log_id, to_store};
use crate::tasks;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote};
use state::store::{Store, StoreError};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Entries kept in memory: the engine reads back what it has just appended, to apply it.
const RECENT: usize = 16;

/// The log. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Log(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    recent: Mutex<VecDeque<Entry>>,
    fault: OnceLock<StoreError>,
}

impl Log {
    /// A log on a store.
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self(Arc::new(Inner { store, recent: Mutex::new(VecDeque::new()), fault: OnceLock::new() }))
    }

    /// What ended this log, if anything did.
    pub(super) fn fault(&self) -> Option<&StoreError> {
        self.0.fault.get()
    }

    /// Ends it: its store cannot be read.
    pub(super) fn end(&self, error: StoreError) {
        // Only the first fault says what happened; those after it follow from it.
        let _ = self.0.fault.set(error);
    }

    /// The store under it.
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Runs something on the store on a thread that may wait.
    async fn with<T: Send + 'static>(
        &self,
        verb: ErrorVerb,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StorageError<u64>> {
        let store = Arc::clone(&self.0.store);
        tasks::blocking(move || work(&store)).await.map_err(|error| self.ended(verb, error))
    }

    /// Notes what ended this log, and puts it as the engine is told.
    fn ended(&self, verb: ErrorVerb, error: StoreError) -> StorageError<u64> {
        let told = failed(verb, &error);
        self.end(error);
        told
    }

    fn recent(&self, start: u64, end: Option<u64>) -> Option<Vec<Entry>> {
        let recent = self.0.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent.front()?.log_id.index;
        let after = recent.back()?.log_id.index + 1;
        let end = end.unwrap_or(after);
        if start < first || start > after || end > after {
            return None;
        }
        let (from, to) = ((start - first) as usize, (end.max(start) - first) as usize);
        Some(recent.range(from..to).cloned().collect())
    }

    fn forget(&self) {
        self.0.recent.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A store's error in the form of the consensus engine.
pub(super) fn failed(verb: ErrorVerb, error: &StoreError) -> StorageError<u64> {
    StorageIOError::new(ErrorSubject::Store, verb, openraft::AnyError::error(error.to_string())).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError<u64>> {
        let start = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => Some(index + 1),
            Bound::Excluded(index) => Some(*index),
            Bound::Unbounded => None,
        };
        if end.is_some_and(|end| end <= start) {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.recent(start, end) {
            return Ok(entries);
        }
        self.with(ErrorVerb::Read, move |store| {
            let end = end.map_or(Bound::Unbounded, Bound::Excluded);
            store.entries((Bound::Included(start), end))?.into_iter().map(from_store).collect()
        })
        .await
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        self.with(ErrorVerb::Read, |store| {
            let last_purged_log_id = store.purged()?.as_ref().map(log_id);
            let last_log_id = store.last()?.as_ref().map(log_id);
            Ok(LogState { last_purged_log_id, last_log_id })
        })
        .await
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        let vote = state::to_bytes(vote);
        self.with(ErrorVerb::Write, move |store| store.set_vote(&vote)).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        self.with(ErrorVerb::Read, |store| {
            let vote = store.vote()?.map(|bytes| serde_json::from_slice(&bytes)).transpose();
            vote.map_err(|error| StoreError::Damaged(format!("the vote: {error}")))
        })
        .await
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut stored = Vec::new();
        {
            let mut recent = self.0.recent.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in entries {
                stored.push(to_store(&entry));
                if recent.back().is_some_and(|last| last.log_id.index + 1 != entry.log_id.index) {
                    recent.clear();
                }
                recent.push_back(entry);
                if recent.len() > RECENT {
                    recent.pop_front();
                }
            }
        }
        self.0.store.append(&stored).map_err(|error| self.ended(ErrorVerb::Write, error))?;
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.forget();
        self.with(ErrorVerb::Delete, move |store| store.truncate(from.index)).await
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.forget();
        self.with(ErrorVerb::Delete, move |store| store.purge(super::raft::entry_id(&upto))).await
    }
}
