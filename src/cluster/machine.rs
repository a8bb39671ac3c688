//! The state in memory: applies committed batches in their order and publishes what comes out. It touches no disk.

use super::log::failed;
use super::raft::{Applied, Entry, Outcome, Proposal, Types, entry_id, log_id};
use crate::limits;
use openraft::storage::{RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{
    BasicNode, EntryPayload, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder, StorageError, StoredMembership,
};
use serde::{Deserialize, Serialize};
use state::State;
use state::store::{Checkpoint, Head, Store, StoreError};
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

type Members = StoredMembership<u64, BasicNode>;

/// The state machine. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    inner: Arc<Mutex<Inner>>,
    published: watch::Sender<Arc<State>>,
    store: Arc<Store>,
}

#[derive(Debug)]
struct Inner {
    state: Arc<State>,
    head: Head,
    applied: Option<LogId<u64>>,
    members: Members,
    snapshot: Option<(SnapshotMeta<u64, BasicNode>, Vec<u8>)>,
    /// The last change of the newest checkpoint, and the bytes of batches since.
    kept: u64,
    bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct Content {
    head: Head,
    state: State,
}

impl Machine {
    /// A machine that goes on from a checkpoint, or from nothing.
    pub(super) fn new(
        store: Arc<Store>,
        checkpoint: Option<Checkpoint>,
        published: watch::Sender<Arc<State>>,
    ) -> Result<Self, StoreError> {
        let mut inner = Inner {
            state: Arc::default(),
            head: Head::default(),
            applied: None,
            members: Members::default(),
            snapshot: None,
            kept: 0,
            bytes: 0,
        };
        if let Some(checkpoint) = checkpoint {
            inner.members = serde_json::from_slice(&checkpoint.membership)
                .map_err(|error| StoreError::Damaged(format!("the checkpoint's membership: {error}")))?;
            inner.applied = Some(log_id(&checkpoint.applied));
            inner.head = checkpoint.head;
            inner.kept = checkpoint.head.change.0;
            inner.state = Arc::new(checkpoint.state);
        }
        Ok(Self { inner: Arc::new(Mutex::new(inner)), published, store })
    }

    /// The state and the end of the chain applied.
    pub(super) fn now(&self) -> (Arc<State>, Head) {
        let inner = self.lock();
        (Arc::clone(&inner.state), inner.head)
    }

    /// A checkpoint, if the journal since the last one has grown enough for a state of this size.
    pub(super) fn checkpoint_due(&self, state_size: usize) -> Option<Checkpoint> {
        let mut inner = self.lock();
        let changes = inner.head.change.0 - inner.kept;
        if changes < limits::CHECKPOINT || inner.bytes < limits::CHECKPOINT_STATES.saturating_mul(state_size) {
            return None;
        }
        inner.kept = inner.head.change.0;
        inner.bytes = 0;
        inner.checkpoint()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the state to everybody, unless a later one has been shown already (by an engine before this one).
    fn publish(&self, state: &Arc<State>) {
        self.published.send_if_modified(|shown| {
            let newer = state.revision > shown.revision;
            if newer {
                *shown = Arc::clone(state);
            }
            newer
        });
    }
}

impl Inner {
    fn checkpoint(&self) -> Option<Checkpoint> {
        Some(Checkpoint {
            applied: entry_id(self.applied.as_ref()?),
            head: self.head,
            membership: state::to_bytes(&self.members),
            state: State::clone(&self.state),
        })
    }

    fn apply(&mut self, proposal: Proposal) -> Result<Applied, StoreError> {
        let Some(sealed) = proposal.batch else {
            return Ok(Applied { taken: true });
        };
        let Outcome { head, state, .. } = match proposal.outcome.filter(|outcome| outcome.base == self.head) {
            Some(outcome) => outcome,
            None => {
                let batch = sealed.open()?;
                if batch.prev != self.head.hash {
                    return Ok(Applied { taken: false });
                }
                let (batch, head) = self.head.follow(&sealed)?;
                let mut state = State::clone(&self.state);
                batch.apply(&mut state);
                Outcome { base: self.head, head, state: Arc::new(state) }
            }
        };
        self.bytes += sealed.bytes.len();
        self.head = head;
        self.state = state;
        Ok(Applied { taken: true })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, Members), StorageError<u64>> {
        let inner = self.lock();
        Ok((inner.applied, inner.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut inner = self.lock();
        let mut answers = Vec::new();
        for entry in entries {
            let applied = match entry.payload {
                EntryPayload::Blank => Applied { taken: true },
                EntryPayload::Membership(members) => {
                    inner.members = Members::new(Some(entry.log_id), members);
                    Applied { taken: true }
                }
                EntryPayload::Normal(proposal) => {
                    inner.apply(proposal).map_err(|error| failed(ErrorVerb::Read, &error))?
                }
            };
            inner.applied = Some(entry.log_id);
            answers.push(applied);
        }
        self.publish(&inner.state);
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<u64>> {
        let bytes = snapshot.into_inner();
        let content: Content = serde_json::from_slice(&bytes)
            .map_err(|error| failed(ErrorVerb::Read, &StoreError::Damaged(format!("a snapshot: {error}"))))?;
        let checkpoint = {
            let mut inner = self.lock();
            inner.state = Arc::new(content.state);
            inner.head = content.head;
            inner.applied = meta.last_log_id;
            inner.members = meta.last_membership.clone();
            inner.snapshot = Some((meta.clone(), bytes));
            self.publish(&inner.state);
            inner.checkpoint()
        };
        if let Some(checkpoint) = checkpoint {
            let store = Arc::clone(&self.store);
            let kept = crate::tasks::blocking(move || store.keep_checkpoint(&checkpoint)).await;
            kept.map_err(|error| failed(ErrorVerb::Write, &error))?;
        }
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        let found = self.lock().snapshot.clone();
        Ok(found.map(|(meta, bytes)| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        let mut inner = self.lock();
        let bytes = state::to_bytes(&Content { head: inner.head, state: State::clone(&inner.state) });
        let meta = SnapshotMeta {
            last_log_id: inner.applied,
            last_membership: inner.members.clone(),
            snapshot_id: format!("batch-{}", inner.head.batch),
        };
        inner.snapshot = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}
