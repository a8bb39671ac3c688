//! What the appliance's listeners hold: the last published state, and the way to the writer.

use super::receipts::ReceiptKey;
use crate::limits;
use state::model::{OrgName, RequestId, Revision};
use state::store::{Batch, RowKey, SideRow, Store, StoreError, Verified};
use state::{Actor, Change, Command, Refusal, Role, State};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// A command that may be made only when the writer decides, from the state of that moment: what soft state says then goes
/// into it, in the order of the journal. Making it must be quick.
pub struct Wish(Box<dyn FnOnce(&State) -> Command + Send>);

impl Wish {
    /// A command made at its decision.
    pub fn at_decision(make: impl FnOnce(&State) -> Command + Send + 'static) -> Self {
        Self(Box::new(make))
    }

    pub(super) fn make(self, state: &State) -> Command {
        (self.0)(state)
    }
}

impl<C: Into<Command>> From<C> for Wish {
    fn from(command: C) -> Self {
        let command = command.into();
        Self::at_decision(|_| command)
    }
}

/// A wish with who has it. Time and randomness are the writer's.
pub struct Call {
    /// What is asked for.
    pub wish: Wish,
    /// Who asks.
    pub actor: Actor,
    /// The org that the actor is bound to.
    pub org: Option<OrgName>,
    /// With what right.
    pub role: Role,
    /// The call that this belongs to.
    pub request: RequestId,
    /// The receipt that would answer it: then nothing is decided.
    pub receipt: Option<ReceiptKey>,
}

/// What came of a command that was not refused.
#[derive(Debug)]
pub struct Decided<'a> {
    /// The state after it.
    pub state: &'a State,
    /// The change, or none if all was so already.
    pub change: Option<&'a Change>,
}

/// The answer to a call, and what is kept of it.
#[derive(Debug)]
pub struct Finished<T> {
    /// For the caller, given out when the change is durable.
    pub answer: T,
    /// Rows of side tables, durable with the change, or before the answer if there is none.
    pub rows: Vec<SideRow>,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Decided now.
    Fresh(T),
    /// Decided earlier: the receipt's bytes.
    Receipt(Vec<u8>),
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The command was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It may have happened or not. The same call with the same idempotency key tells.
    #[error("the outcome is unknown; ask again with the same idempotency key")]
    OutcomeUnknown,
    /// The disk is full. Nothing happened.
    #[error("the appliance's disk is full; make room there")]
    DiskFull,
    /// The store is being opened again. Nothing happened.
    #[error("the store is being opened again; try again in a few seconds")]
    Restarting,
    /// Too many calls wait already. Nothing happened.
    #[error("too many calls wait; try again in a second")]
    Busy,
}

/// How a job ends, told to its caller.
pub(super) enum Verdict<'a> {
    /// Decided; the answer is released later.
    Decided(&'a Decided<'a>),
    /// Answered by a receipt; released later.
    Receipt(Vec<u8>),
    /// Refused; released later.
    Refused(Refusal),
}

/// Gives the answer out, or an error in its place.
pub(super) type Release = Box<dyn FnOnce(Result<(), SubmitError>) + Send>;

/// A call on its way through the writer.
pub(super) struct Job {
    pub(super) call: Call,
    pub(super) answer: Box<dyn Answer>,
}

/// The caller's side of a job.
pub(super) trait Answer: Send {
    /// Takes the verdict; gives the rows to keep, and how to release the answer.
    fn decide(self: Box<Self>, verdict: Verdict<'_>) -> (Vec<SideRow>, Release);
    /// Ends the job undecided.
    fn fail(self: Box<Self>, error: SubmitError);
}

struct Waiting<T, F> {
    finish: F,
    to: oneshot::Sender<Result<Outcome<T>, SubmitError>>,
}

impl<T, F> Answer for Waiting<T, F>
where
    T: Send + 'static,
    F: FnOnce(&Decided<'_>) -> Finished<T> + Send + 'static,
{
    fn decide(self: Box<Self>, verdict: Verdict<'_>) -> (Vec<SideRow>, Release) {
        let Self { finish, to } = *self;
        let (rows, result) = match verdict {
            Verdict::Decided(decided) => {
                let finished = finish(decided);
                (finished.rows, Ok(Outcome::Fresh(finished.answer)))
            }
            Verdict::Receipt(bytes) => (Vec::new(), Ok(Outcome::Receipt(bytes))),
            Verdict::Refused(refusal) => (Vec::new(), Err(SubmitError::Refused(refusal))),
        };
        // A caller that has gone away needs no answer.
        (rows, Box::new(move |durable| drop(to.send(durable.and(result)))))
    }

    fn fail(self: Box<Self>, error: SubmitError) {
        // As above.
        let _ = self.to.send(Err(error));
    }
}

/// What the handles and the supervisor share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    store: Mutex<Weak<Store>>,
    /// Entries committed since the start.
    pub(super) commits: AtomicU64,
}

impl Shared {
    pub(super) fn set_store(&self, store: &Arc<Store>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(store);
    }

    fn store(&self) -> Result<Arc<Store>, SubmitError> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        store.ok_or(SubmitError::Restarting)
    }
}

/// The appliance's hold on its state. Clones are cheap and equal; when the last is dropped the engine stops.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) jobs: mpsc::Sender<Job>,
    pub(super) published: watch::Receiver<Arc<State>>,
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("request", &self.call.request).finish_non_exhaustive()
    }
}

impl Handle {
    /// The last published state.
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.published.borrow())
    }

    /// Tells of every newly published state; of several in a row, the last.
    pub fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.published.clone()
    }

    /// Entries committed since the start.
    pub fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    /// Calls that wait for the writer.
    pub fn waiting(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// Whether there is a store to commit to: none while the disk is full or does not keep what is written.
    pub fn takes_changes(&self) -> bool {
        self.shared.store().is_ok()
    }

    /// Bytes of the store, if there is one to commit to. May wait while its file is being made longer.
    pub fn store_size(&self) -> Option<u64> {
        Some(self.shared.store().ok()?.size())
    }

    /// Has a command decided. `finish` makes the answer from the state right after it, on the writer's time: it must be
    /// quick. The answer, also a refusal or that nothing changed, is given when what it rests on is durable.
    pub async fn submit<T: Send + 'static>(
        &self,
        call: Call,
        finish: impl FnOnce(&Decided<'_>) -> Finished<T> + Send + 'static,
    ) -> Result<Outcome<T>, SubmitError> {
        let place = match timeout(limits::QUEUE_ENTRY, self.jobs.reserve()).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(SubmitError::Restarting),
            Err(_) => return Err(SubmitError::Busy),
        };
        let (to, answer) = oneshot::channel();
        place.send(Job { call, answer: Box::new(Waiting { finish, to }) });
        match timeout(limits::WRITER, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(SubmitError::OutcomeUnknown),
        }
    }

    /// The receipt for a call, if there is one. It may have expired.
    pub async fn receipt(&self, key: &ReceiptKey) -> Option<Vec<u8>> {
        let row = key.row();
        let found = self.read(move |store| store.row(&row)).await;
        found.ok().and_then(Result::ok).flatten().map(|row| row.value)
    }

    /// The rows of a side table whose keys begin with `prefix.key`, in the order of their keys.
    pub async fn rows(&self, prefix: RowKey) -> Result<Result<Vec<SideRow>, StoreError>, SubmitError> {
        self.read(move |store| store.rows(&prefix)).await
    }

    /// The batches that hold the changes from `from` on, until there are `limit` changes or the journal ends.
    pub async fn journal(&self, from: Revision, limit: usize) -> Result<Result<Vec<Batch>, StoreError>, SubmitError> {
        self.read(move |store| store.batches(from, limit)).await
    }

    /// Verifies the whole store as the engine reads it: pages that it has in memory are not read from the disk again.
    pub async fn verify(&self) -> Result<Result<Verified, StoreError>, SubmitError> {
        self.read(Store::verify).await
    }

    /// Lets go of the store and waits until the engine has, a few seconds at most. Other clones must be gone by then, or
    /// the engine goes on for them.
    pub async fn close(self) {
        let Self { jobs, published, shared } = self;
        drop((jobs, published));
        for _ in 0..limits::CLOSE_POLLS {
            if shared.store().is_err() {
                return;
            }
            tokio::time::sleep(limits::CLOSE_POLL).await;
        }
    }

    async fn read<T: Send + 'static>(&self, work: impl FnOnce(&Store) -> T + Send + 'static) -> Result<T, SubmitError> {
        let store = self.shared.store()?;
        Ok(crate::tasks::blocking(move || work(&store)).await)
    }
}
