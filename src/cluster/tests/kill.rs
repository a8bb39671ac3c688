//! A process that is killed at any moment, from its first start on, with its store on a real disk.

use super::*;
use crate::cluster::{Home, Place, start};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "HOLDFAST_TEST_KILLED_IN";

/// Not a test: the process that is killed. It prints the number of each change that was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let handle = start(Arc::new(Home { dir: dir.into(), floor: 0 }), EPOCH).await.unwrap();
    if handle.state().revision.0 == 0 {
        submit(&handle, found()).await.unwrap();
    }
    loop {
        let n = handle.state().revision.0;
        let change = submit(&handle, add(n)).await.unwrap();
        writeln!(std::io::stdout(), "acknowledged {change}").unwrap();
    }
}

/// A process at work, and what it says.
fn at_work(dir: &Path) -> (Child, impl Iterator<Item = u64> + use<>) {
    #[expect(clippy::disallowed_methods, reason = "only a process can be killed")]
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cluster::tests::kill::victim", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse().ok()))
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn found_again(dir: &Path) -> u64 {
    let opened = Home { dir: dir.to_owned(), floor: 0 }.open().unwrap();
    let verified = opened.store.verify().unwrap();
    assert_eq!(verified.head, opened.head);
    verified.changes
}

#[test]
fn a_killed_process_loses_nothing_and_starts_again() {
    for round in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        // Somewhere in its first start, or soon after it.
        let (child, answers) = at_work(dir.path());
        std::thread::sleep(Duration::from_millis(2 * round));
        kill(child);
        let acknowledged = answers.last().unwrap_or(0);
        let before = found_again(dir.path());
        assert!(before >= acknowledged, "{before} of {acknowledged} changes are left");
        // At work.
        let (child, mut answers) = at_work(dir.path());
        let first = answers.by_ref().nth(round as usize % 7).unwrap();
        kill(child);
        let acknowledged = answers.last().unwrap_or(first);
        let found = found_again(dir.path());
        assert!(first > before && found >= acknowledged, "{found} of {acknowledged} changes are left");
    }
}
