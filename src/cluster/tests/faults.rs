//! The disk is full, or a flush fails, at every operation: nothing acknowledged is lost, nothing happens twice, and
//! service is back within five seconds of the fault's end, without a restart.

use super::medium::{Disk, Fault};
use super::*;
use crate::cluster::{Home, Place, start};
use state::store::{RowKey, SideRow, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const BACK: Duration = Duration::from_secs(5);

/// Submits under one idempotency key until there is an answer, as any caller of ours does.
async fn insist(handle: &Handle, n: u64) -> u64 {
    let mut key = receipt_key(0);
    key.caller = format!("caller {n}");
    let answered = timeout(BACK, async {
        loop {
            match submit_once(handle, add(n), key.clone()).await {
                Ok(Outcome::Fresh(change)) => return change,
                Ok(Outcome::Receipt(bytes)) => return u64::from_be_bytes(bytes.try_into().unwrap()),
                Err(SubmitError::Refused(refusal)) => panic!("decided twice: {refusal:?}"),
                Err(_) => sleep(Duration::from_millis(2)).await,
            }
        }
    });
    answered.await.expect("service is back in time")
}

/// Fails the disk once at each of the first `points` operations after a commit.
async fn fail_at_every_point(fault: Fault, points: u64) {
    let disk = Disk::default();
    let handle = start(Arc::new(disk.clone()), EPOCH).await.unwrap();
    submit(&handle, found()).await.unwrap();
    let mut n = 0;
    for after in 0..points {
        disk.arm(fault, after, false);
        let before = disk.failed();
        while disk.failed() == before {
            n += 1;
            assert_eq!(insist(&handle, n).await, n + 1);
        }
        n += 1;
        assert_eq!(insist(&handle, n).await, n + 1, "after {after} operations");
    }
    assert_eq!(disk.failed(), points);
    let verified = handle.verify().await.unwrap().unwrap();
    assert_eq!(verified.changes, n + 1);
    assert_eq!(verified.state, state::store::state_hash(&handle.state()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_room_at_any_write() {
    fail_at_every_point(Fault::Full, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_fails_at_any_point() {
    fail_at_every_point(Fault::Flush, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_fails_while_deciding_never_parts_a_change_from_its_rows() {
    let disk = Disk::default();
    let handle = start(Arc::new(disk.clone()), EPOCH).await.unwrap();
    submit(&handle, found()).await.unwrap();
    submit_once(&handle, add(1), receipt_key(1)).await.unwrap();
    for round in 1..=3 {
        // 12 MiB push the receipts out of memory, so that looking for those of one caller has to read.
        for blob in 0..48 {
            keep_blob(&handle, 100 * round + blob).await.unwrap();
        }
        let key = RowKey { table: "results".into(), key: vec![round as u8] };
        let result = SideRow { key: key.clone(), value: vec![1], expires: None };
        let rows = vec![receipt_key(2).keep(vec![7], Millis(u64::MAX)), result];
        let before = disk.failed();
        disk.arm(Fault::Read, 0, true);
        let answered = handle.submit(call(add(10 + round)), move |_| Finished { answer: (), rows }).await;
        disk.heal();
        assert!(disk.failed() > before, "nothing was read");
        insist(&handle, 20 + round).await;
        let happened = handle.state().nodes.by_name.contains_key(&Name::new(&format!("n{}", 10 + round)).unwrap());
        let kept = handle.rows(key).await.unwrap().unwrap().len();
        assert_eq!(kept, usize::from(happened), "{answered:?}");
        assert_eq!(answered.err(), Some(SubmitError::Restarting), "nothing happened, and that is said");
        assert!(!happened);
    }
    handle.verify().await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_disk_is_away_reads_go_on_and_callers_are_told_why() {
    for (fault, told) in [(Fault::Full, SubmitError::DiskFull), (Fault::Flush, SubmitError::Restarting)] {
        let disk = Disk::default();
        let handle = start(Arc::new(disk.clone()), EPOCH).await.unwrap();
        submit(&handle, found()).await.unwrap();
        assert_eq!(submit(&handle, add(1)).await.unwrap(), 2);
        disk.arm(fault, 3, true);
        let unknown = timeout(BACK, async {
            let mut n = 2;
            loop {
                match submit(&handle, add(n)).await {
                    Ok(_) => n += 1,
                    Err(error) => return (n, error),
                }
            }
        });
        let (n, error) = unknown.await.unwrap();
        assert_eq!(error, SubmitError::OutcomeUnknown);
        let seen = handle.state();
        let later = timeout(BACK, async {
            loop {
                match submit(&handle, add(n + 1)).await {
                    Err(SubmitError::OutcomeUnknown) => {}
                    other => return other,
                }
            }
        });
        assert_eq!(later.await.unwrap().unwrap_err(), told);
        sleep(Duration::from_millis(600)).await;
        assert_eq!(submit(&handle, add(n + 1)).await.unwrap_err(), told);
        assert_eq!(handle.state(), seen, "reads go on");
        assert!(!handle.takes_changes());
        disk.heal();
        insist(&handle, n + 1).await;
        assert!(handle.takes_changes());
        assert!(handle.state().revision > seen.revision);
        handle.verify().await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_panics_takes_nobody_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let handle = start(Arc::new(Home { dir: dir.path().to_owned(), floor: 0 }), EPOCH).await.unwrap();
    submit(&handle, found()).await.unwrap();
    let panicked = handle.submit::<()>(call(add(1)), |_| panic!("a bug, for the test")).await;
    assert_eq!(panicked.unwrap_err(), SubmitError::OutcomeUnknown);
    assert_eq!(insist(&handle, 1).await, 2, "what panicked was not decided");
}

/// A file system of 64 MiB that goes away with its guard.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mounted() -> Self {
        let dir = tempfile::Builder::new().prefix("holdfast-small-").tempdir().unwrap().keep();
        run("mount", &["-t", "tmpfs", "-o", "size=64m,mode=0700", "holdfast-small"], &dir);
        Self(dir)
    }

    /// Takes all the room there is.
    fn fill(&self) -> PathBuf {
        use std::io::Write;
        let path = self.0.join("filler");
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["-l"], &self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn run(program: &str, args: &[&str], path: &Path) {
    #[expect(clippy::disallowed_methods, reason = "the test makes a file system of its own")]
    let status = std::process::Command::new(program).args(args).arg(path).status().unwrap();
    assert!(status.success(), "{program} {}", path.display());
}

async fn keep_blob(handle: &Handle, n: u64) -> Result<(), SubmitError> {
    let key = RowKey { table: "blobs".into(), key: n.to_be_bytes().to_vec() };
    let row = SideRow { key, value: vec![n as u8; 256 << 10], expires: None };
    handle.submit(call(add(n)), move |_| Finished { answer: (), rows: vec![row] }).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_disk_that_is_full_and_then_is_not() {
    let disk = SmallDisk::mounted();
    let home = Home { dir: disk.0.clone(), floor: 1 << 20 };
    let handle = start(Arc::new(home), EPOCH).await.unwrap();
    submit(&handle, found()).await.unwrap();
    assert_eq!(std::fs::metadata(disk.0.join("reserve")).unwrap().len(), crate::limits::RESERVE);
    let filler = disk.fill();
    let (mut acknowledged, mut n, mut refused) = (0, 0, 0);
    let full = timeout(Duration::from_secs(20), async {
        // Once the reserve has been freed and used up as well, every call is refused.
        while refused < 20 {
            n += 1;
            match keep_blob(&handle, n).await {
                Ok(()) => (acknowledged, refused) = (acknowledged + 1, 0),
                Err(SubmitError::OutcomeUnknown | SubmitError::Restarting) => refused = 0,
                Err(error) => {
                    assert_eq!(error, SubmitError::DiskFull);
                    refused += 1;
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    full.await.unwrap();
    assert!(!disk.0.join("reserve").exists());
    assert!(acknowledged > 20, "the reserve gave room for only {acknowledged}");
    std::fs::remove_file(filler).unwrap();
    n += 1;
    insist(&handle, n).await;
    let verified = handle.verify().await.unwrap().unwrap();
    assert!(verified.rows >= acknowledged, "{} of {acknowledged} rows are left", verified.rows);
    drop(handle);
}

#[test]
fn a_first_start_on_a_full_disk_leaves_no_store() {
    let disk = SmallDisk::mounted();
    let filler = disk.fill();
    let home = Home { dir: disk.0.clone(), floor: 1 << 20 };
    assert!(home.open().unwrap_err().is_full());
    assert!(!disk.0.join("store.redb").exists());
    std::fs::remove_file(filler).unwrap();
    home.open().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_write_of_the_first_start_leaves_nothing_that_stands_in_the_way() {
    let disk = Disk::default();
    disk.remember();
    Store::create(Box::new(disk.clone()), 0).unwrap();
    let moments = disk.remembered();
    assert!(moments.len() > 10, "only {} writes", moments.len());
    for (n, part) in moments.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        crate::files::replace(&dir.path().join("store.redb.new"), &part).unwrap();
        let home = Home { dir: dir.path().to_owned(), floor: 0 };
        assert_eq!(home.open().unwrap().head.batch, 0, "killed at write {n}");
        assert!(!dir.path().join("store.redb.new").exists());
        let handle = start(Arc::new(home), EPOCH).await.unwrap();
        assert_eq!(submit(&handle, found()).await.unwrap(), 1, "killed at write {n}");
    }
}
