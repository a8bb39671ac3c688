//! Jobs on real nodes: given out over mutual TLS, done in processes of their own, fenced by leases, answered for.

use crate::tools::fleet;
use anyhow::{Context, Result};
use holdfast::lab::{Fleet, until};
use holdfast::wire::operator::{JobDetail, JobView, Jobs};
use rustix::process::{Pid, Signal, test_kill_process};
use std::net::TcpListener;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const PORT: &str = "127.0.0.1:7022";

/// An appliance and nodes of these names.
fn with(nodes: &[&str]) -> Result<Fleet> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    for (node, last) in nodes.iter().zip(10..) {
        fleet.lab.host(node, last)?;
        fleet.enrol(node, &[])?;
    }
    Ok(fleet)
}

/// Takes connections on a host, and never says a word.
fn silent(fleet: &Fleet, host: &str) -> Result<TcpListener> {
    Ok(fleet.lab.inside(host, || TcpListener::bind(PORT))??)
}

/// Queues what `job run` is given.
fn queue(fleet: &Fleet, line: &[&str]) -> Result<Vec<JobView>> {
    let shown = fleet.operator(&[&["job", "run"], line, &["-o", "json"]].concat())?.ok()?;
    let jobs: Jobs = serde_json::from_str(&shown).with_context(|| format!("reading {shown}"))?;
    Ok(jobs.jobs)
}

fn show(fleet: &Fleet, job: &JobView) -> Result<JobDetail> {
    let shown = fleet.operator(&["job", "show", &job.id.to_string(), "-o", "json"])?.ok()?;
    serde_json::from_str(&shown).with_context(|| format!("reading {shown}"))
}

fn is(fleet: &Fleet, job: &JobView, state: &str) -> bool {
    show(fleet, job).is_ok_and(|detail| detail.job.state == state)
}

/// The process that does a job on a host, once it runs.
fn worker(fleet: &Fleet, host: &str) -> Result<Pid> {
    let folder = fleet.state(host).join("work");
    let mut found = None;
    until(SOON, &format!("work runs on {host}"), || {
        let records = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut documents = records.filter_map(|record| std::fs::read(record.path()).ok());
        found = documents.find_map(|document| {
            let record: serde_json::Value = serde_json::from_slice(&document).ok()?;
            Pid::from_raw(i32::try_from(record["leader"]["pid"].as_i64()?).ok()?)
        });
        found.is_some()
    })?;
    found.context("a record names its process")
}

fn lives(pid: Pid) -> bool {
    let zombie = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    test_kill_process(pid).is_ok() && !zombie()
}

#[test]
fn a_check_on_all_nodes_says_what_each_found() -> Result<()> {
    let fleet = with(&["a", "b"])?;
    let _listening = silent(&fleet, "a")?;
    let line = ["job", "run", "service.check", "--on", "all", "--tcp", PORT, "--watch", "-o", "json"];
    let answer = fleet.operator(&line)?;
    assert_eq!(answer.code, 1, "one of them fails: {answer:?}");
    let jobs: Jobs = serde_json::from_str(&answer.out)?;
    let mut found: Vec<_> = jobs.jobs.iter().map(|job| (job.node.as_ref().unwrap().as_str(), &*job.state)).collect();
    found.sort();
    assert_eq!(found, [("a", "succeeded"), ("b", "failed")]);
    let of_b = jobs.jobs.iter().find(|job| job.state == "failed").context("b's job")?;
    let shown = fleet.operator(&["job", "show", &of_b.id.to_string()])?.ok()?;
    assert!(shown.contains("connecting to 127.0.0.1:7022"), "{shown}");
    Ok(())
}

#[test]
fn a_blocked_workload_delays_no_check_and_ends_with_its_agent() -> Result<()> {
    let fleet = with(&["a"])?;
    let _silent = silent(&fleet, "a")?;
    let blocked = queue(&fleet, &["service.check", "--on", "a", "--postgres", PORT, "--timeout", "10m"])?;
    let first = worker(&fleet, "a")?;
    for kind in ["network.check", "network.ensure", "network.check"] {
        let done = fleet.operator(&["job", "run", kind, "--on", "a", "--watch"])?;
        assert_eq!(done.code, 0, "{kind}: {done:?}");
    }
    assert!(lives(first) && is(&fleet, &blocked[0], "leased"), "the workload is still blocked");

    // What a killed agent leaves is ended by the next one before it is ready for more.
    fleet.murder("a")?;
    assert!(lives(first), "a killed agent cannot end its work");
    fleet.agent("a")?;
    until(SOON, "the orphan's end", || !lives(first))?;

    // The lease runs out, and the next attempt begins.
    until(Duration::from_secs(90), "the second attempt", || {
        show(&fleet, &blocked[0]).is_ok_and(|shown| shown.job.attempt == 2 && shown.job.state == "leased")
    })?;
    let second = worker(&fleet, "a")?;

    // SIGINT ends the agent at once, with its work.
    let mut agent = fleet.process("a")?;
    agent.signal(Signal::INT);
    assert_eq!(agent.wait(Duration::from_secs(5))?, 0);
    assert!(!lives(second), "the work ended with its agent");
    Ok(())
}

#[test]
fn a_cancelled_job_counts_as_such_once_its_work_has_stopped() -> Result<()> {
    let fleet = with(&["a"])?;
    let _silent = silent(&fleet, "a")?;
    let jobs = queue(&fleet, &["service.check", "--on", "a", "--postgres", PORT, "--timeout", "10m"])?;
    let work = worker(&fleet, "a")?;
    fleet.operator(&["job", "cancel", &jobs[0].id.to_string()])?.ok()?;
    let shown = show(&fleet, &jobs[0])?.job;
    assert!(shown.cancelling || shown.state == "cancelled", "{shown:?}");
    // Told at the next renewal, 15 s after the lease.
    until(Duration::from_secs(30), "the cancel counts", || is(&fleet, &jobs[0], "cancelled"))?;
    assert!(!lives(work));
    Ok(())
}

#[test]
fn a_drained_node_is_given_nothing_until_it_is_not() -> Result<()> {
    let fleet = with(&["a"])?;
    fleet.operator(&["node", "drain", "a", "--deadline", "10m"])?.ok()?;
    let jobs = queue(&fleet, &["network.check", "--on", "a"])?;
    let explained = fleet.operator(&["explain", &jobs[0].id.to_string()])?.ok()?;
    assert!(explained.contains("drain"), "{explained}");
    std::thread::sleep(Duration::from_secs(5));
    assert!(is(&fleet, &jobs[0], "queued"));
    fleet.operator(&["node", "undrain", "a"])?.ok()?;
    until(SOON, "the job is done", || is(&fleet, &jobs[0], "succeeded"))?;
    Ok(())
}
