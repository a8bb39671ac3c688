//! Keeps an engine running: starts one, looks after its store once a second, and when its disk fails starts the next as
//! soon as the store can be opened. Meanwhile reads go on and callers are told why not.

use super::engine::Engine;
use super::handle::{Handle, Job, Shared, SubmitError};
use super::home::Place;
use super::writer::{Stopped, Writer};
use crate::{limits, tasks};
use futures_util::FutureExt;
use state::State;
use state::store::{Head, Opened, RowKey, StoreError};
use state::view::records::Epoch;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

/// Opens the store of a place, or makes it, and starts the writer under an epoch, on a thread of its own. What is wrong
/// with the store is an error here; what goes wrong with its disk later is mended in the background.
pub async fn start(place: Arc<dyn Place>, epoch: Epoch) -> Result<Handle, StoreError> {
    let (published, seen) = watch::channel(Arc::<State>::default());
    let (to, jobs) = mpsc::channel(limits::QUEUE);
    let shared = Arc::new(Shared::default());
    let supervisor = Supervisor { place, epoch, published, shared: Arc::clone(&shared), jobs };
    let (started, ready) = oneshot::channel();
    let thread = tasks::thread("store", move || async move {
        let first = match open(&supervisor.place).await {
            Ok(opened) => Engine::start(opened, supervisor.published.clone()).await,
            Err(error) => Err(error),
        };
        match first {
            Ok(engine) => {
                supervisor.shared.set_store(engine.log.store());
                // If whoever wanted it has gone, so has the queue, and the writer finds that out.
                let _ = started.send(Ok(()));
                supervisor.run(engine).await;
            }
            // As above.
            Err(error) => drop(started.send(Err(error))),
        }
    });
    thread.map_err(|source| StoreError::Disk { doing: "starting the engine's thread", source })?;
    let died = |_| StoreError::Disk { doing: "starting the engine", source: io::Error::other("its thread ended") };
    ready.await.map_err(died)??;
    Ok(Handle { jobs: to, published: seen, shared })
}

async fn open(place: &Arc<dyn Place>) -> Result<Opened, StoreError> {
    let place = Arc::clone(place);
    tasks::blocking(move || place.open()).await
}

struct Supervisor {
    place: Arc<dyn Place>,
    epoch: Epoch,
    published: watch::Sender<Arc<State>>,
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<Job>,
}

impl Supervisor {
    async fn run(mut self, mut engine: Engine) {
        loop {
            // One at a time: what waits for the writer is looked at again by it, and found again in a minute.
            let (expired, mut to_erase) = mpsc::channel(1);
            let stopped = {
                let commits = &self.shared.commits;
                let Engine { raft, log, machine } = &engine;
                let writer = Writer { raft, log, machine, epoch: self.epoch, commits };
                // A panic is a bug in some rule or answer; it ends the engine, which loses nothing, and not the appliance.
                let working = AssertUnwindSafe(writer.run(&mut self.jobs, &mut to_erase)).catch_unwind();
                tokio::select! {
                    stopped = working => stopped.unwrap_or(Stopped::EngineDied),
                    stopped = care(&engine, &self.place, &expired) => stopped,
                }
            };
            let (_, head) = engine.machine.now();
            if stopped == Stopped::Unneeded {
                engine.stop().await;
                keep_head(&self.place, head).await;
                return;
            }
            // Also now: where the head file was lost meanwhile, the store would not be opened again.
            keep_head(&self.place, head).await;
            let told = told(engine.log.fault());
            let Some(fault) = self.refusing(told, engine.stop()).await else { return };
            match self.next(fault).await {
                Some(next) => engine = next,
                None => return,
            }
        }
    }

    /// The next engine, or none if nobody needs one any more. Callers are refused until it runs.
    async fn next(&mut self, fault: Option<StoreError>) -> Option<Engine> {
        let mut fault = fault.unwrap_or_else(|| StoreError::Damaged("the engine stopped without saying why".into()));
        tracing::error!(%fault, "the store failed; changes are refused until it works again, reads go on");
        loop {
            let told = told(Some(&fault));
            let attempt = attempt(Arc::clone(&self.place), self.published.clone(), fault.is_full());
            match self.refusing(told.clone(), attempt).await? {
                Ok(Some(engine)) => {
                    self.shared.set_store(engine.log.store());
                    tracing::warn!("the store works again");
                    return Some(engine);
                }
                Ok(None) => {}
                Err(error) => {
                    if error.to_string() != fault.to_string() {
                        tracing::error!(%error, "the store cannot be opened yet");
                    }
                    fault = error;
                }
            }
            self.refusing(told, sleep(limits::STORE_RETRY)).await?;
        }
    }

    /// Waits for something and refuses whoever calls meanwhile. None if nobody can call any more.
    async fn refusing<T>(&mut self, told: SubmitError, until: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(until);
        loop {
            tokio::select! {
                done = &mut until => return Some(done),
                job = self.jobs.recv() => job?.answer.fail(told.clone()),
            }
        }
    }
}

/// What callers are told while there is no engine.
fn told(fault: Option<&StoreError>) -> SubmitError {
    if fault.is_some_and(StoreError::is_full) { SubmitError::DiskFull } else { SubmitError::Restarting }
}

/// One attempt at a new engine. None if the disk was full and still is.
async fn attempt(
    place: Arc<dyn Place>,
    published: watch::Sender<Arc<State>>,
    full: bool,
) -> Result<Option<Engine>, StoreError> {
    if full {
        let place = Arc::clone(&place);
        let room = tasks::blocking(move || {
            place.free_reserve();
            place.has_room()
        });
        if !room.await {
            return Ok(None);
        }
    }
    Engine::start(open(&place).await?, published).await.map(Some)
}

/// Looks after a running engine's store. Ends only when the engine is dead.
async fn care(engine: &Engine, place: &Arc<dyn Place>, to_erase: &mpsc::Sender<Vec<RowKey>>) -> Stopped {
    let mut known = Head::default();
    let mut state_size = 0;
    let mut looks = 0_u32;
    loop {
        sleep(limits::STORE_CARE).await;
        looks = looks.wrapping_add(1);
        if engine.log.fault().is_some() {
            return Stopped::EngineDied;
        }
        let (_, head) = engine.machine.now();
        if head != known {
            keep_head(place, head).await;
            known = head;
        }
        let mended = async {
            state_size = engine.keep_checkpoint(state_size).await?.unwrap_or(state_size);
            if looks.is_multiple_of(limits::RARE_CARE) {
                for keys in engine.expired().await?.chunks(limits::EXPIRED_AT_ONCE) {
                    // A writer that has ended erases nothing, and its supervisor knows.
                    let _ = to_erase.send(keys.to_vec()).await;
                }
                let place = Arc::clone(place);
                tasks::blocking(move || place.refill_reserve()).await;
            }
            Ok::<(), StoreError>(())
        };
        if let Err(error) = mended.await {
            tracing::error!(%error, "the store failed while it was looked after");
            return Stopped::EngineDied;
        }
        if let Err(error) = engine.make_room().await {
            tracing::warn!(%error, "the store's file was not grown ahead");
        }
    }
}

/// Notes the last durable batch beside the store. Only a convenience of detection: failing to is no fault of the store.
async fn keep_head(place: &Arc<dyn Place>, head: Head) {
    let place = Arc::clone(place);
    if let Err(error) = tasks::blocking(move || place.keep_head(&head)).await {
        tracing::warn!(%error, "the head file was not written");
    }
}
