//! Deciding, answering, remembering.

use super::*;
use crate::cluster::engine::Engine;
use crate::cluster::writer::Writer;
use crate::cluster::{Home, Place, start};
use crate::tasks;
use state::Change;
use state::model::{JobId, SealingKey, WireguardKey};
use state::store::{Batch, Body, Entry, EntryId, RowKey, Rows, SideRow, StoreError};
use state::subject::jobs;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

async fn at(dir: &Path) -> Handle {
    start(Arc::new(Home::new(dir)), EPOCH).await.unwrap()
}

/// Stops an engine and waits until its store is free.
async fn stop(handle: Handle, dir: &Path) {
    drop(handle);
    for _ in 0..500 {
        match Home::new(dir).inspect() {
            Ok(_) => return,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    }
    panic!("the engine did not let go of its store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    assert_eq!(submit(&handle, found()).await.unwrap(), 1);
    for n in 1..=40 {
        assert_eq!(submit(&handle, add(n)).await.unwrap(), n + 1);
    }
    let again = submit(&handle, add(7)).await.unwrap_err();
    assert!(matches!(again, SubmitError::Refused(_)), "{again:?}");
    let before = handle.state();
    assert_eq!(before.revision, Revision(41));
    let verified = handle.verify().await.unwrap().unwrap();
    assert_eq!((verified.changes, verified.state), (41, state::store::state_hash(&before)));
    let shown: Vec<u64> = (handle.journal(Revision(30), 5).await.unwrap().unwrap().iter())
        .flat_map(|batch| batch.changes.iter().map(|change| change.change.0))
        .collect();
    assert_eq!(shown, [30, 31, 32, 33, 34]);
    stop(handle, dir.path()).await;

    let handle = at(dir.path()).await;
    assert_eq!(*handle.state(), *before);
    assert_eq!(submit(&handle, add(41)).await.unwrap(), 42);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_one_key_are_decided_once() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    for round in 0..10 {
        let key = ReceiptKey { caller: format!("caller {round}"), ..receipt_key(1) };
        let calls = (0..32).map(|n| submit_once(&handle, add(1000 + 32 * round + n), key.clone()));
        let mut answers = futures_util::future::join_all(calls).await;
        answers.sort_by_key(|answer| matches!(answer, Ok(Outcome::Receipt(_))));
        let change = round + 2;
        assert_eq!(answers[0], Ok(Outcome::Fresh(change)));
        assert!(answers[1..].iter().all(|answer| *answer == Ok(Outcome::Receipt(change.to_be_bytes().to_vec()))));
    }
    assert_eq!(handle.state().revision, Revision(11));
    // Of one caller and route four receipts are kept; the ones before are forgotten.
    for n in (1..=6).rev() {
        submit_once(&handle, add(u64::from(n)), receipt_key(n)).await.unwrap();
    }
    let mut known = Vec::new();
    for n in 1..=6 {
        known.push(handle.receipt(&receipt_key(n)).await.is_some());
    }
    assert_eq!(known.iter().filter(|known| **known).count(), 4);
    assert_eq!(handle.verify().await.unwrap().unwrap().rows, 10 + 4);
    stop(handle, dir.path()).await;
    let handle = at(dir.path()).await;
    assert_eq!(handle.receipt(&receipt_key(1)).await.unwrap(), 17_u64.to_be_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_batches() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    let calls: Vec<_> = (1..=300)
        .map(|n| {
            let handle = handle.clone();
            tasks::spawn("caller", async move { submit(&handle, add(n)).await.unwrap() })
        })
        .collect();
    let mut numbers = Vec::new();
    for call in calls {
        numbers.push(call.await.unwrap().unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=301).collect::<Vec<_>>());
    let verified = handle.verify().await.unwrap().unwrap();
    assert_eq!(verified.changes, 301);
    assert!(verified.batches < 200, "{} batches", verified.batches);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_file_that_leads_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    stop(handle, dir.path()).await;
    let old = std::fs::read(dir.path().join("store.redb")).unwrap();

    let handle = at(dir.path()).await;
    for n in 1..=3 {
        submit(&handle, add(n)).await.unwrap();
    }
    stop(handle, dir.path()).await;
    std::fs::copy(dir.path().join("store.redb"), dir.path().join("kept")).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the test plays a disk that was rolled back")]
    std::fs::write(dir.path().join("store.redb"), &old).unwrap();
    let refused = start(Arc::new(Home::new(dir.path())), EPOCH).await.unwrap_err();
    assert!(matches!(refused, StoreError::Behind { store: 1, known: 4 }), "{refused}");
    assert_eq!(std::fs::read(dir.path().join("store.redb")).unwrap(), old);

    std::fs::remove_file(dir.path().join("store.redb")).unwrap();
    let refused = Home::new(dir.path()).open().unwrap_err();
    assert!(matches!(refused, StoreError::Behind { store: 0, known: 4 }), "{refused}");
    std::fs::rename(dir.path().join("kept"), dir.path().join("store.redb")).unwrap();
    at(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_its_head_file_is_refused_until_a_person_accepts_it() {
    let dir = tempfile::tempdir().unwrap();
    let (head, store) = (dir.path().join("head"), dir.path().join("store.redb"));
    // A kill before the first look after the store: it has its head file already.
    drop(Home::new(dir.path()).open().unwrap());
    assert!(head.exists());
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    submit(&handle, add(1)).await.unwrap();
    let before = handle.state();
    stop(handle, dir.path()).await;
    let held = Home::new(dir.path()).accept().unwrap_err();
    assert!(held.to_string().contains("the head file is there, and names batch 2"), "{held}");

    std::fs::remove_file(&head).unwrap();
    let bytes = std::fs::read(&store).unwrap();
    let refused = start(Arc::new(Home::new(dir.path())), EPOCH).await.unwrap_err();
    assert!(matches!(refused, StoreError::Headless { batch: 2 }), "{refused}");
    assert!(refused.to_string().contains("journal accept"), "{refused}");
    assert!(std::fs::read(&store).unwrap() == bytes && !head.exists(), "the refusal changed something");

    assert_eq!(Home::new(dir.path()).accept().unwrap().head.batch, 2);
    assert_eq!(*at(dir.path()).await.state(), *before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_journal_gets_a_checkpoint_from_which_it_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    submit(&handle, add(1)).await.unwrap();
    let renew = |n: u64| {
        let mut token = [7; 32];
        token[..8].copy_from_slice(&n.to_be_bytes());
        let (name, token) = (Name::new("n1").unwrap(), Fingerprint::from_bytes(token));
        Command::from(enrolment::Command::IssueToken { name, token, expires: Millis(u64::MAX) })
    };
    let calls: Vec<_> = (0..=crate::limits::CHECKPOINT)
        .map(|n| {
            let handle = handle.clone();
            tasks::spawn("caller", async move { submit(&handle, renew(n)).await.unwrap() })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let mut verified = handle.verify().await.unwrap().unwrap();
    for _ in 0..500 {
        if verified.checkpoints > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        verified = handle.verify().await.unwrap().unwrap();
    }
    assert_eq!(verified.checkpoints, 1);
    submit(&handle, add(2)).await.unwrap();
    let before = handle.state();
    stop(handle, dir.path()).await;
    let opened = Home::new(dir.path()).open().unwrap();
    assert!(opened.checkpoint.is_some_and(|checkpoint| checkpoint.head.change.0 > 1000));
    drop(opened.store);
    assert_eq!(*at(dir.path()).await.state(), *before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_rows_go_by_an_entry_of_the_log_and_those_put_anew_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (published, seen) = watch::channel(Arc::default());
    let engine = Engine::start(Home::new(dir.path()).open().unwrap(), published).await.unwrap();
    let (to, mut jobs) = mpsc::channel(8);
    let handle = Handle { jobs: to, published: seen, shared: Arc::default() };
    let (expired, mut to_erase) = mpsc::channel(1);
    let commits = std::sync::atomic::AtomicU64::new(0);
    let Engine { raft, log, machine } = &engine;
    let writer = Writer { raft, log, machine, epoch: EPOCH, commits: &commits };
    let key = |n: u8| RowKey { table: "receipts".into(), key: vec![n; 48] };
    let row = |n, expires| SideRow { key: key(n), value: vec![n], expires };
    let script = async {
        submit(&handle, found()).await.unwrap();
        let rows = vec![row(1, Some(Millis(1))), row(2, None), row(3, Some(Millis(u64::MAX)))];
        handle.submit(call(add(1)), |_| Finished { answer: (), rows }).await.unwrap();
        let found = engine.expired().await.unwrap();
        assert_eq!(found, [key(1)]);
        // Number 3 had expired when it was looked for, and was put anew since.
        expired.send([found, vec![key(3)]].concat()).await.unwrap();
        let store = engine.log.store();
        while store.row(&key(1)).unwrap().is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!([2, 3].iter().all(|n| store.row(&key(*n)).unwrap().is_some()));
        let last = store.entries(..).unwrap().pop().unwrap();
        assert_eq!((last.body, last.rows), (Body::Rows, Rows { put: vec![], erase: vec![key(1)] }));
        store.verify().unwrap();
    };
    let limit = std::time::Duration::from_secs(20);
    tokio::select! {
        stopped = writer.run(&mut jobs, &mut to_erase) => panic!("{stopped:?}"),
        done = tokio::time::timeout(limit, script) => done.unwrap(),
    }
    drop(handle);
    assert!(engine.stop().await.is_none());
}

/// A node with this token, which ends then and with which it tries to join.
async fn join(handle: &Handle, expires: Millis) -> Result<u64, SubmitError> {
    let token = Fingerprint::from_bytes([5; 32]);
    let added = add(1);
    let Command::Enrolment(enrolment::Command::AddNode(mut node)) = added else { panic!("it adds a node") };
    (node.token, node.expires) = (token, expires);
    submit(handle, enrolment::Command::AddNode(node).into()).await.unwrap();
    let join = enrolment::Join {
        token: Some(token),
        signing_key: SigningKey::from_bytes([1; 32]),
        wireguard_key: WireguardKey::from_bytes([1; 32]),
        sealing_key: SealingKey::from_bytes([1; 32]),
        listen_port: 51820,
        local_endpoints: vec![],
        agent_version: "0.1.0".into(),
        mesh_token: Fingerprint::from_bytes([2; 32]),
        certificate: CERTIFICATE,
        window: (Millis(0), Millis(u64::MAX)),
        seq: 0,
    };
    submit(handle, enrolment::Command::Join(Box::new(join)).into()).await
}

const CERTIFICATE: Fingerprint = Fingerprint::from_bytes([3; 32]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_goes_with_the_job_that_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    join(&handle, Millis(u64::MAX)).await.unwrap();
    let job = |n: usize| JobId(Uuid::from_u128(n as u128));
    let (spec, node) = (jobs::Spec::NetworkCheck {}, NodeId(Uuid::from_u128(1)));
    let wanted = |n| jobs::Wanted { id: job(n), node, spec: spec.clone(), attempts: 1 };
    let queued = (0..=jobs::FINISHED_PER_NODE).map(wanted).collect();
    submit(&handle, jobs::Command::Submit { jobs: queued }.into()).await.unwrap();
    let token = Fingerprint::from_bytes([7; 32]);
    let lease =
        jobs::Lease { certificate: CERTIFICATE, lane: Some(jobs::Lane::Network), token, capabilities: [].into() };
    submit(&handle, jobs::Command::Lease(Box::new(lease)).into()).await.unwrap();
    let complete = jobs::Complete {
        certificate: CERTIFICATE,
        job: job(0),
        token,
        attempt: 1,
        outcome: jobs::Outcome::Succeeded,
        result: token,
        stuck: None,
        live: true,
    };
    let rows = vec![SideRow { key: jobs::result_row(job(0), Some(1)), value: vec![1], expires: None }];
    let complete = jobs::Command::Complete(Box::new(complete));
    handle.submit(call(complete.into()), |_| Finished { answer: (), rows }).await.unwrap();
    let kept = async || handle.rows(jobs::result_row(job(0), None)).await.unwrap().unwrap().len();
    for n in 1..jobs::FINISHED_PER_NODE {
        submit(&handle, jobs::Command::Cancel { job: job(n) }.into()).await.unwrap();
    }
    assert_eq!((handle.state().jobs.finished.len(), kept().await), (jobs::FINISHED_PER_NODE, 1));
    submit(&handle, jobs::Command::Cancel { job: job(jobs::FINISHED_PER_NODE) }.into()).await.unwrap();
    assert_eq!((handle.state().jobs.get(&job(0)), kept().await), (None, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_expires_while_the_clock_is_behind_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    let refused = join(&handle, Millis(1)).await.unwrap_err();
    assert!(matches!(refused, SubmitError::Refused(_)), "{refused:?}");

    let dir = tempfile::tempdir().unwrap();
    let handle = at(dir.path()).await;
    submit(&handle, found()).await.unwrap();
    stop(handle, dir.path()).await;
    // The appliance that wrote this batch lived an hour from now.
    let opened = Home::new(dir.path()).open().unwrap();
    let founded = opened.store.batches(Revision(1), 1).unwrap().remove(0);
    let later = Batch {
        batch: opened.head.batch + 1,
        prev: opened.head.hash,
        time: crate::clock::wall().plus(3_600_000),
        changes: vec![Change {
            change: Revision(2),
            kind: "test".into(),
            events: vec![],
            ..founded.changes[0].clone()
        }],
        ..founded
    };
    let last = opened.store.last().unwrap().unwrap();
    let id = EntryId { index: last.index + 1, ..last };
    opened.store.append(&[Entry { id, body: Body::Batch(later.seal()), rows: Rows::default() }]).unwrap();
    drop(opened);
    let handle = at(dir.path()).await;
    join(&handle, Millis(1)).await.unwrap();
}
