//! Jobs on real nodes: given out over mutual TLS, done in processes of their own, fenced by leases, answered for.

use crate::tools::{fleet, pings};
use anyhow::{Context, Result};
use holdfast::lab::{Fleet, Process, until};
use holdfast::wire::operator::{JobDetail, JobView, Jobs};
use rustix::process::{Pid, Signal, test_kill_process};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
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

/// The process that does a job on a host, once it runs, and its cgroup where there is one.
fn work(fleet: &Fleet, host: &str) -> Result<(Pid, Option<PathBuf>)> {
    let folder = fleet.state(host).join("work");
    let mut found = None;
    until(SOON, &format!("work runs on {host}"), || {
        let records = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut documents = records.filter_map(|record| std::fs::read(record.path()).ok());
        found = documents.find_map(|document| {
            let record: serde_json::Value = serde_json::from_slice(&document).ok()?;
            let pid = Pid::from_raw(i32::try_from(record["leader"]["pid"].as_i64()?).ok()?)?;
            Some((pid, record["cgroup"].as_str().map(PathBuf::from)))
        });
        found.is_some()
    })?;
    found.context("a record names its process")
}

fn worker(fleet: &Fleet, host: &str) -> Result<Pid> {
    Ok(work(fleet, host)?.0)
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
    fleet.stop("a")?;
    let mut first_agent = agent(&fleet, "a")?;
    let _silent = silent(&fleet, "a")?;
    let blocked = queue(&fleet, &["service.check", "--on", "a", "--postgres", PORT, "--timeout", "10m"])?;
    let first = worker(&fleet, "a")?;
    for kind in ["network.check", "network.ensure", "network.check"] {
        let done = fleet.operator(&["job", "run", kind, "--on", "a", "--watch"])?;
        assert_eq!(done.code, 0, "{kind}: {done:?}");
    }
    assert!(lives(first) && is(&fleet, &blocked[0], "leased"), "the workload is still blocked");

    // What a killed agent leaves is ended by the next one before it is ready for more.
    let daemon = daemon_of(&fleet, "a")?;
    first_agent.signal(Signal::KILL);
    first_agent.wait(SOON)?;
    assert!(lives(first) && lives(daemon), "a killed agent cannot end its work");
    let second_agent = agent(&fleet, "a")?;
    until(SOON, "the orphans' end", || !lives(first) && !lives(daemon))?;

    // The lease runs out, and the next attempt begins.
    until(Duration::from_secs(90), "the second attempt", || {
        show(&fleet, &blocked[0]).is_ok_and(|shown| shown.job.attempt == 2 && shown.job.state == "leased")
    })?;
    let second = worker(&fleet, "a")?;
    let daemon = daemon_of(&fleet, "a")?;

    // SIGINT ends the agent at once, with its work, which is handed back.
    ends_in_time(second_agent, Signal::INT)?;
    assert!(!lives(second) && !lives(daemon), "the work ended with its agent");
    let shown = show(&fleet, &blocked[0])?;
    assert_eq!((&*shown.job.state, shown.results.last().map(|r| r.attempt)), ("queued", Some(2)), "{shown:?}");
    let third_agent = agent(&fleet, "a")?;
    until(SOON, "the third attempt begins without waiting for a lease's end", || {
        show(&fleet, &blocked[0]).is_ok_and(|shown| shown.job.attempt == 3 && shown.job.state == "leased")
    })?;
    let third = worker(&fleet, "a")?;

    // Nobody is there to take it back: the agent ends as fast.
    fleet.stop("box")?;
    ends_in_time(third_agent, Signal::TERM)?;
    assert!(!lives(third));
    Ok(())
}

fn ends_in_time(mut agent: Process, signal: Signal) -> Result<()> {
    agent.signal(signal);
    assert_eq!(agent.wait(Duration::from_secs(5))?, 0);
    Ok(())
}

/// Starts the agent of a host where it finds cgroups: `ip netns exec` covers them.
fn agent(fleet: &Fleet, host: &str) -> Result<Process> {
    let ready = fleet.state(host).join("ready");
    if ready.exists() {
        std::fs::remove_file(&ready)?;
    }
    let mut command = fleet.lab.command(host, "sh");
    command.args(["-c", "mount -t cgroup2 none /sys/fs/cgroup; exec \"$0\" agent run --state \"$1\""]);
    command.arg(env!("CARGO_BIN_EXE_holdfast")).arg(fleet.state(host));
    let pid = fleet.lab.start(&format!("{host}.log"), &mut command)?;
    until(SOON, "the agent is ready", || ready.exists())?;
    fleet.lab.take(pid).context("the agent was just started")
}

/// A process as the work on a host could have left one: forked twice, in a session of its own, without any environment.
/// Only its cgroup tells whose it is; where there is none it is the work itself.
fn daemon_of(fleet: &Fleet, host: &str) -> Result<Pid> {
    let (leader, cgroup) = work(fleet, host)?;
    let Some(cgroup) = cgroup else { return Ok(leader) };
    // As the work itself sees the file system.
    let cgroup = format!("/proc/{leader}/root{}/cgroup.procs", cgroup.display());
    let file = fleet.lab.folder().join(format!("daemon-{leader}")).display().to_string();
    let script = "echo $$ > \"$0\"; env -i setsid sh -c 'sleep 600 & echo $!' > \"$1\" 2>/dev/null";
    fleet.lab.run(host, &["sh", "-c", script, &cgroup, &file])?.ok()?;
    let pid = std::fs::read_to_string(file)?;
    Pid::from_raw(pid.trim().parse()?).context("a process id")
}

#[test]
fn a_withdrawn_mesh_is_gone_and_comes_back_while_jobs_go_on() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    for (name, last) in [("a", 10), ("b", 11)] {
        fleet.lab.host(name, last)?;
        fleet.enrol(name, &["--endpoint", &format!("198.51.100.{last}:51820")])?;
    }
    let _silent = silent(&fleet, "a")?;
    let job = |kind: &str| fleet.operator(&["job", "run", kind, "--on", "a", "--watch"]);
    let interface = || fleet.lab.run("a", &["ip", "link", "show", "hf0"]).is_ok_and(|answer| answer.code == 0);
    let there = fleet.address("a")?;
    let reached = || pings(&fleet.lab, "b", there);
    until(SOON, "the mesh works", reached)?;

    job("network.withdraw")?.ok()?;
    assert!(!interface() && !reached(), "the mesh is gone on this node");
    let status = fleet.node("a", &["agent", "status"])?.ok()?;
    assert!(status.contains("network.ensure"), "it says so: {status}");
    // The lanes go over the underlay: one says what is wrong, the other works.
    let checked = job("network.check")?;
    assert_eq!(checked.code, 1, "{checked:?}");
    fleet.operator(&["job", "run", "service.check", "--on", "a", "--tcp", PORT, "--watch"])?.ok()?;
    // What is done for a withdrawn mesh stays undone by news of the fleet.
    fleet.lab.host("c", 30)?;
    fleet.enrol("c", &[])?;
    job("network.withdraw")?.ok()?;
    assert!(!interface());

    job("network.ensure")?.ok()?;
    job("network.check")?.ok()?;
    assert!(interface());
    until(SOON, "the mesh works again", reached)?;

    let shown = fleet.operator(&["node", "show", "a"])?.ok()?;
    assert!(shown.contains("job-network-ensure") && shown.contains("kernel-wireguard"), "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&fleet.operator(&["node", "show", "a", "-o", "json"])?.ok()?)?;
    assert_eq!(shown["capabilities"]["job-service-check"], "present", "{shown}");
    Ok(())
}

/// With a firewall tool that fails, and one that never comes back.
#[test]
fn a_node_whose_mesh_does_not_come_up_takes_jobs_and_is_repaired_by_one() -> Result<()> {
    let fleet = with(&["a"])?;
    fleet.node("a", &["agent", "down"])?.ok()?;
    fleet.process("a")?.wait(SOON)?;
    let tools = fleet.lab.folder().join("tools");
    std::fs::create_dir(&tools)?;
    let gate = |name: &str| tools.join(name);
    let script = "#!/bin/sh\ncd \"${0%/*}\"\n[ -e broken ] && { echo broken >&2; exit 1; }\n[ -e hangs ] && { echo $$ > hung; exec sleep 600; }\nPATH=$OTHERS exec nft \"$@\"\n";
    holdfast::files::replace(&gate("nft"), script.as_bytes())?;
    std::fs::set_permissions(gate("nft"), std::fs::Permissions::from_mode(0o755))?;
    holdfast::files::replace(&gate("broken"), b"")?;
    let others = std::env::var("PATH")?;
    let mut agent = fleet.holdfast("a", &["agent", "run", "--state"]);
    agent.arg(fleet.state("a")).env("PATH", format!("{}:{others}", tools.display())).env("OTHERS", others);
    let agent = fleet.lab.start("a.log", &mut agent)?;

    let asked = queue(&fleet, &["network.ensure", "--on", "a"])?;
    until(SOON, "an attempt at a node without a mesh", || {
        show(&fleet, &asked[0]).is_ok_and(|shown| !shown.results.is_empty())
    })?;
    let told = show(&fleet, &asked[0])?;
    assert!(format!("{told:?}").contains("broken") && !fleet.state("a").join("ready").exists(), "{told:?}");
    std::fs::remove_file(gate("broken"))?;
    until(SOON * 2, "the mesh is repaired", || is(&fleet, &asked[0], "succeeded"))?;
    fleet.operator(&["job", "run", "network.check", "--on", "a", "--watch"])?.ok()?;

    // A step that does not end holds up neither a check's end nor the agent's.
    holdfast::files::replace(&gate("hangs"), b"")?;
    let asked = queue(&fleet, &["network.check", "--on", "a"])?;
    until(SOON, "it hangs", || gate("hung").exists() && is(&fleet, &asked[0], "leased"))?;
    let hung: i32 = std::fs::read_to_string(gate("hung"))?.trim().parse()?;
    ends_in_time(fleet.lab.take(agent).context("the agent")?, Signal::TERM)?;
    assert!(!lives(Pid::from_raw(hung).context("a process id")?), "the tool ended with the agent");
    let told = show(&fleet, &asked[0])?;
    assert!(told.job.state == "queued" && format!("{told:?}").contains("the agent was stopped"), "{told:?}");
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
