//! The storage test suite of the consensus engine.

use crate::cluster::log::Log;
use crate::cluster::machine::Machine;
use crate::cluster::raft::Types;
use crate::cluster::{Home, Place};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::watch;

struct Builder;

impl StoreBuilder<Types, Log, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError<u64>> {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Home::new(dir.path()).open().unwrap().store);
        let machine = Machine::new(Arc::clone(&store), None, watch::channel(Arc::default()).0).unwrap();
        Ok((dir, Log::new(store), machine))
    }
}

#[test]
fn the_log_is_what_the_consensus_engine_needs() {
    Suite::test_all(Builder).unwrap();
}
