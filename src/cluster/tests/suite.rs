//! The storage test suite of the consensus engine.

use super::EPOCH;
use crate::cluster::log::Log;
use crate::cluster::machine::Machine;
use crate::cluster::raft::{Entry, Proposal, Types, log_id};
use crate::cluster::{Home, Place};
use openraft::storage::RaftStateMachine;
use openraft::testing::{StoreBuilder, Suite};
use openraft::{EntryPayload, StorageError};
use state::model::{Millis, RequestId, Revision};
use state::store::{Batch, EntryId};
use state::{Actor, Change, Hash};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::watch;
use uuid::Uuid;

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

#[tokio::test]
async fn a_batch_decided_on_another_head_does_nothing() {
    let (_dir, _, mut machine) = Builder.build().await.unwrap();
    let batch = |prev| {
        let change = Change {
            change: Revision(1),
            actor: Actor::Appliance,
            request: RequestId(Uuid::nil()),
            kind: "test".into(),
            v: 1,
            events: vec![],
        };
        Batch { format: 1, epoch: EPOCH, batch: 1, prev, time: Millis(7), changes: vec![change] }
    };
    let entry = |index, prev: [u8; 32]| {
        let batch = Some(batch(Hash::from_bytes(prev)).seal());
        let proposal = Proposal { batch, rows: Arc::default(), outcome: None };
        Entry { log_id: log_id(&EntryId { term: 1, leader: 1, index }), payload: EntryPayload::Normal(proposal) }
    };
    let applied = machine.apply([entry(1, [9; 32]), entry(2, [0; 32]), entry(3, [0; 32])]).await.unwrap();
    assert_eq!(applied.iter().map(|applied| applied.taken).collect::<Vec<_>>(), [false, true, false]);
    let (state, head) = machine.now();
    assert_eq!((state.revision, state.at, head.batch), (Revision(1), Millis(7), 1));
}
