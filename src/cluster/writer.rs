//! The one writer: decides what has gathered in its queue as one batch, has it committed, and only then answers.

use super::handle::{Decided, Job, Release, SubmitError, Verdict};
use super::log::Log;
use super::machine::Machine;
use super::raft::{Outcome, Proposal, Types};
use super::receipts::Pending;
use crate::{clock, entropy, limits};
use openraft::Raft;
use state::model::{Millis, Revision};
use state::store::{BATCH_FORMAT, Batch, Head, RowKey, Rows, StoreError};
use state::view::records::Epoch;
use state::{Change, Context, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Why the writer stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Nobody can submit any more.
    Unneeded,
    /// The engine under it is dead.
    EngineDied,
}

/// What the writer works with: one engine's parts.
pub(super) struct Writer<'a> {
    pub(super) raft: &'a Raft<Types>,
    pub(super) log: &'a Log,
    pub(super) machine: &'a Machine,
    pub(super) epoch: Epoch,
    /// Counts what is committed.
    pub(super) commits: &'a AtomicU64,
}

/// A batch being decided.
struct Draft {
    head: Head,
    state: State,
    now: Millis,
    changes: Vec<Change>,
    rows: Pending,
    releases: Vec<Release>,
}

impl Writer<'_> {
    /// Works until the engine dies or the queue closes. Whoever was being served then gets `OutcomeUnknown`.
    /// Rows named in `expired` are deleted between two batches, unless they have been put anew.
    pub(super) async fn run(
        &self,
        jobs: &mut mpsc::Receiver<Job>,
        expired: &mut mpsc::Receiver<Vec<RowKey>>,
    ) -> Stopped {
        let mut gathered = Vec::with_capacity(limits::BATCH);
        loop {
            tokio::select! {
                received = jobs.recv_many(&mut gathered, limits::BATCH) => {
                    if received == 0 {
                        return Stopped::Unneeded;
                    }
                }
                Some(keys) = expired.recv() => {
                    match self.erase(keys).await {
                        Ok(()) => continue,
                        Err(stopped) => return stopped,
                    }
                }
            }
            let (state, head) = self.machine.now();
            let mut draft = Draft {
                head,
                state: State::clone(&state),
                now: clock::wall(),
                changes: Vec::new(),
                rows: Pending::default(),
                releases: Vec::with_capacity(gathered.len()),
            };
            let mut waiting = gathered.drain(..);
            if let Err(error) = waiting.by_ref().try_for_each(|job| self.decide(&mut draft, job)) {
                // What was decided may lack a row that it names, so none of it happens; nothing has been proposed yet.
                draft.releases.into_iter().for_each(|release| release(Err(SubmitError::Restarting)));
                waiting.for_each(|job| job.answer.fail(SubmitError::Restarting));
                self.log.end(error);
                return Stopped::EngineDied;
            }
            drop(waiting);
            if !self.commit(draft).await {
                return Stopped::EngineDied;
            }
        }
    }

    fn decide(&self, draft: &mut Draft, job: Job) -> Result<(), StoreError> {
        let Job { call, answer } = job;
        let context = Context {
            actor: call.actor,
            org: call.org,
            role: call.role,
            now: draft.now,
            clock_trusted: draft.now >= draft.head.latest,
            entropy: entropy::bytes(),
            request: call.request,
        };
        let store = self.log.store();
        let expired = |end| context.expired(end);
        if let Some(key) = &call.receipt {
            match draft.rows.find(store, key, expired) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    draft.releases.push(answer.decide(Verdict::Receipt(bytes)).1);
                    return Ok(());
                }
                Err(error) => {
                    answer.fail(SubmitError::Restarting);
                    return Err(error);
                }
            }
        }
        let command = call.wish.make(&draft.state);
        let kind = command.kind();
        let events = match state::decide(&draft.state, command, &context) {
            Ok(events) => events,
            Err(refusal) => {
                draft.releases.push(answer.decide(Verdict::Refused(refusal)).1);
                return Ok(());
            }
        };
        let forgotten = state::subject::jobs::forgotten_rows(&draft.state, &events);
        forgotten.into_iter().for_each(|row| draft.rows.erase(row));
        let change = (!events.is_empty()).then(|| Change {
            change: Revision(draft.state.revision.0 + 1),
            actor: context.actor.clone(),
            request: context.request,
            kind: kind.to_owned(),
            v: 1,
            events,
        });
        if let Some(change) = &change {
            draft.state.apply(change, draft.now);
        }
        let decided = Decided { state: &draft.state, change: change.as_ref() };
        let (rows, release) = answer.decide(Verdict::Decided(&decided));
        draft.releases.push(release);
        draft.changes.extend(change);
        rows.into_iter().try_for_each(|row| draft.rows.put(store, row, expired))
    }

    /// Deletes those of the rows that are still there and have expired.
    async fn erase(&self, keys: Vec<RowKey>) -> Result<(), Stopped> {
        let now = clock::wall();
        let gone = |key: &RowKey| {
            let row = self.log.store().row(key)?;
            Ok(row.and_then(|row| row.expires).is_some_and(|end| end <= now))
        };
        let mut erase = Vec::with_capacity(keys.len());
        for key in keys {
            match gone(&key) {
                Ok(true) => erase.push(key),
                Ok(false) => {}
                Err(error) => {
                    self.log.end(error);
                    return Err(Stopped::EngineDied);
                }
            }
        }
        if erase.is_empty() {
            return Ok(());
        }
        let rows = Arc::new(Rows { put: Vec::new(), erase });
        self.write(Proposal { batch: None, rows, outcome: None }).await.map_err(|_| Stopped::EngineDied)
    }

    /// Has a draft committed and answers its callers. False if the engine is dead.
    async fn commit(&self, draft: Draft) -> bool {
        let Draft { head, state, now, changes, rows, releases } = draft;
        let rows = rows.into_rows();
        let result = if changes.is_empty() && rows.is_empty() {
            Ok(())
        } else {
            self.propose(head, state, now, changes, rows).await
        };
        let alive = result != Err(SubmitError::OutcomeUnknown);
        for release in releases {
            release(result.clone());
        }
        alive
    }

    async fn propose(
        &self,
        base: Head,
        state: State,
        now: Millis,
        changes: Vec<Change>,
        rows: Rows,
    ) -> Result<(), SubmitError> {
        let mut proposal = Proposal { batch: None, rows: Arc::new(rows), outcome: None };
        if let Some(last) = changes.last() {
            let change = last.change;
            let batch = Batch {
                format: BATCH_FORMAT,
                epoch: self.epoch,
                batch: base.batch + 1,
                prev: base.hash,
                time: now,
                changes,
            };
            let sealed = batch.seal();
            let head = Head { batch: batch.batch, hash: sealed.hash(), change, latest: base.latest.max(now) };
            proposal.batch = Some(sealed);
            proposal.outcome = Some(Outcome { base, head, state: Arc::new(state) });
        }
        self.write(proposal).await
    }

    async fn write(&self, proposal: Proposal) -> Result<(), SubmitError> {
        match self.raft.client_write(proposal).await {
            Ok(written) if written.data.taken => {
                self.commits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) => Err(SubmitError::Restarting),
            Err(error) => {
                tracing::error!(%error, "a batch was not committed");
                Err(SubmitError::OutcomeUnknown)
            }
        }
    }
}
