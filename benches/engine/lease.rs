//! Whole cycles of a job: it is leased, its lease extended, its completion recorded with a result, and another one queued
//! in its place, so that 10,000 wait all the time. Each worker is a node with its share of them. What the gateway keeps in
//! memory is kept here too; there are no receipts, since nothing gets lost.

use crate::fleet::{certificate, change, founded, node, submit};
use anyhow::{Context, Result, bail};
use holdfast::authority::leases::Leases;
use holdfast::clock;
use holdfast::cluster::{Handle, Wish};
use state::Command;
use state::model::{Fingerprint, JobId, Millis, NodeId};
use state::store::{RowKey, SideRow};
use state::subject::jobs::{self, Outcome, Phase, Probe, Spec, Wanted};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Jobs that wait.
const DEPTH: usize = 10_000;

pub(crate) async fn measure(dir: &Path, length: Duration, workers: usize) -> Result<(f64, Vec<Duration>)> {
    let handle = founded(dir, workers).await?;
    let waiting: Vec<Wanted> = (0..DEPTH).map(|n| wanted(node(n % workers))).collect();
    for jobs in waiting.chunks(1_000) {
        change(&handle, jobs::Command::Submit { jobs: jobs.to_vec() }.into()).await?;
    }
    let leases = Arc::new(Mutex::new(Leases::default()));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..workers)
        .map(|n| {
            let (handle, leases) = (handle.clone(), leases.clone());
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while begun.elapsed() < length {
                    let asked = Instant::now();
                    cycle(&handle, &leases, n).await?;
                    waits.push(asked.elapsed());
                }
                anyhow::Ok(waits)
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await??);
    }
    let rate = waits.len() as f64 / begun.elapsed().as_secs_f64();
    let state = handle.state();
    let queued: usize = state.jobs.boards.values().map(|board| board.queued.len()).sum();
    if queued != DEPTH {
        bail!("{queued} jobs wait at the end");
    }
    handle.verify().await??;
    Ok((rate, waits))
}

fn wanted(node: NodeId) -> Wanted {
    let spec = Spec::ServiceCheck { probe: Probe::Tcp("198.51.100.7:5432".into()), timeout_s: 10 };
    Wanted { id: JobId(Uuid::from_u128(chance())), node, spec, attempts: jobs::ATTEMPTS }
}

fn chance() -> u128 {
    u128::from_ne_bytes(holdfast::entropy::bytes())
}

async fn cycle(handle: &Handle, leases: &Arc<Mutex<Leases>>, n: usize) -> Result<()> {
    let token = Fingerprint::from_bytes(holdfast::entropy::bytes());
    let certificate = certificate(n);
    let lease = jobs::Lease { certificate, lane: Some(jobs::Lane::Workload), token, capabilities: Default::default() };
    let granting = leases.clone();
    let leased = submit(handle, jobs::Command::Lease(Box::new(lease)), vec![], move |state| {
        let mut held = state.jobs.boards[&node(n)].leased.iter().map(|id| &state.jobs.all[id]);
        let job = held.find(|job| matches!(&job.phase, Phase::Leased { token: held, .. } if *held == token))?;
        granting.lock().ok()?.grant(job.id, job.attempt, clock::boot());
        Some((job.id, job.attempt))
    });
    let (id, attempt) = leased.await?.flatten().context("no job was leased")?;

    let state = handle.state();
    jobs::held(&state, &certificate, id, &token, clock::wall(), true)?;
    leases.lock().expect("nothing panics").extend(id, attempt, clock::boot()).context("not extended")?;

    let result = br#"{"ok":true}"#.to_vec();
    let judging = leases.clone();
    let complete = Wish::at_decision(move |_| {
        let live = judging.lock().is_ok_and(|leases| leases.live(id, attempt, clock::boot()));
        let (outcome, result) = (Outcome::Succeeded, Fingerprint::from_bytes([1; 32]));
        let complete = jobs::Complete { certificate, job: id, token, attempt, outcome, result, stuck: None, live };
        Command::from(jobs::Command::Complete(Box::new(complete)))
    });
    let key = [id.0.as_bytes().as_slice(), &attempt.to_be_bytes()].concat();
    let row = SideRow { key: RowKey { table: "results".into(), key }, value: result, expires: Some(Millis(u64::MAX)) };
    let next = jobs::Command::Submit { jobs: vec![wanted(node(n))] };
    let (completed, queued) = tokio::join!(submit(handle, complete, vec![row], |_| ()), change(handle, next.into()));
    completed?.context("the completion changed nothing")?;
    queued
}
