//! One engine: a store, the consensus engine on it, and the state that comes out. It works until its disk fails once.

use super::log::Log;
use super::machine::Machine;
use super::network::Alone;
use super::raft::Types;
use crate::{clock, limits, tasks};
use openraft::{BasicNode, Config, Raft, RaftMetrics, SnapshotPolicy};
use state::State;
use state::store::{Opened, RowKey, Store, StoreError};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tokio::sync::watch;

/// The only member of a cluster of one.
const ME: u64 = 1;

/// A running engine.
pub(super) struct Engine {
    pub(super) raft: Raft<Types>,
    pub(super) log: Log,
    pub(super) machine: Machine,
}

impl Engine {
    /// Starts on an open store; returns when everything in its journal is applied and it can commit.
    pub(super) async fn start(opened: Opened, published: watch::Sender<Arc<State>>) -> Result<Self, StoreError> {
        let disk = |doing| move |error: String| StoreError::Disk { doing, source: io::Error::other(error) };
        let store = Arc::new(opened.store);
        let machine = Machine::new(Arc::clone(&store), opened.checkpoint, published)?;
        let log = Log::new(Arc::clone(&store));
        let last = tasks::blocking(move || store.last()).await?;
        let raft = Raft::new(ME, Arc::new(config()), Alone, log.clone(), machine.clone()).await;
        let raft = raft.map_err(|error| disk("starting the engine")(error.to_string()))?;
        let engine = Self { raft, log, machine };
        match engine.lead(last.map_or(0, |id| id.index), last.is_none()).await {
            Ok(()) => Ok(engine),
            Err(error) => Err(engine.stop().await.unwrap_or(disk("starting the engine")(error))),
        }
    }

    async fn lead(&self, last: u64, first_start: bool) -> Result<(), String> {
        if first_start {
            let members = BTreeMap::from([(ME, BasicNode::default())]);
            self.raft.initialize(members).await.map_err(|error| error.to_string())?;
        }
        let wait = self.raft.wait(Some(limits::ENGINE_START));
        let ready = |metrics: &RaftMetrics<u64, BasicNode>| {
            let applied = metrics.last_applied.map_or(0, |id| id.index);
            metrics.state.is_leader() && applied >= last && Some(applied) == metrics.last_log_index
        };
        let led = wait.metrics(ready, "lead, and apply the whole journal").await;
        led.map(drop).map_err(|error| error.to_string())
    }

    /// Whether the end of the chain needs a checkpoint, taken if so. Gives the size of the state then.
    pub(super) async fn keep_checkpoint(&self, state_size: usize) -> Result<Option<usize>, StoreError> {
        match self.machine.checkpoint_due(state_size) {
            None => Ok(None),
            Some(checkpoint) => self.on_store(move |store| store.keep_checkpoint(&checkpoint)).await.map(Some),
        }
    }

    /// Fills the file ahead if that is due.
    pub(super) async fn make_room(&self) -> Result<(), StoreError> {
        if self.log.store().wants_room() { self.on_store(Store::make_room).await } else { Ok(()) }
    }

    /// Rows that have expired, none while the clock is not to be believed.
    pub(super) async fn expired(&self) -> Result<Vec<RowKey>, StoreError> {
        let now = clock::wall();
        if now < self.machine.now().1.latest {
            return Ok(Vec::new());
        }
        self.on_store(move |store| store.expired(now, limits::EXPIRED)).await
    }

    async fn on_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(self.log.store());
        tasks::blocking(move || work(&store)).await
    }

    /// Ends the engine and waits until nothing of it holds the store. Gives what had ended it before, if anything had.
    pub(super) async fn stop(self) -> Option<StoreError> {
        let Self { raft, log, machine } = self;
        // It is over either way; what ended it is in the log's fault.
        let _ = raft.shutdown().await;
        let fault = log.fault().map(|fault| StoreError::Disk {
            doing: "keeping the journal",
            source: io::Error::new(
                if fault.is_full() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other },
                fault.to_string(),
            ),
        });
        let store = Arc::downgrade(log.store());
        drop((raft, log, machine));
        while store.strong_count() > 0 {
            tokio::time::sleep(limits::STORE_RETRY / 25).await;
        }
        fault
    }
}

/// Alone, it leads within milliseconds whatever the timeouts; they are those for a cluster later.
fn config() -> Config {
    Config {
        cluster_name: "holdfast".into(),
        heartbeat_interval: 250,
        election_timeout_min: 800,
        election_timeout_max: 1600,
        snapshot_policy: SnapshotPolicy::Never,
        ..Config::default()
    }
}
