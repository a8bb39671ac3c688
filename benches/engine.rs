//! Durable commands at the engine: writers that each wait for their answer before they ask again. Every command is a
//! real one that changes the state (a node's new token, about 300 bytes in the journal). Prints lines `name value unit`.
//!
//! Usage: `engine DIR SECONDS WRITERS`. The store is made in a directory of its own in DIR, which must lie on the disk
//! that is to be measured, and is left there.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program, not the product")]

use anyhow::{Result, bail};
use holdfast::cluster::{Call, Finished, Handle, Home, start};
use state::model::{ApplianceId, Fingerprint, FleetId, Millis, Name, NodeId, RequestId, Revision, SigningKey};
use state::subject::{appliances, enrolment};
use state::view::records::Epoch;
use state::{Actor, Command, Role};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [dir, seconds, writers] = arguments.as_slice() else {
        bail!("usage: engine DIR SECONDS WRITERS");
    };
    let (seconds, writers): (f64, usize) = (seconds.parse()?, writers.parse()?);
    let dir = Path::new(dir).join(format!("engine-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let (rate, mut waits) = measure(&dir, Duration::from_secs_f64(seconds), writers).await?;
    waits.sort_unstable();
    let quantile = |q: f64| waits[((waits.len() - 1) as f64 * q) as usize].as_secs_f64() * 1000.0;
    println!("commit_w{writers} {rate:.0} /s");
    println!("commit_w{writers}_p50_ms {:.3} ms", quantile(0.5));
    println!("commit_w{writers}_p99_ms {:.3} ms", quantile(0.99));
    Ok(())
}

async fn measure(dir: &Path, length: Duration, writers: usize) -> Result<(f64, Vec<Duration>)> {
    let epoch = Epoch { number: 1, appliance: ApplianceId(Uuid::from_u128(1)) };
    let handle = start(Arc::new(Home::new(dir)), epoch).await?;
    submit(&handle, found(epoch.appliance)).await?;
    for n in 0..writers {
        submit(&handle, add(n)).await?;
    }
    let begun = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|n| {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut waits = Vec::new();
                for round in 0_u64.. {
                    let asked = Instant::now();
                    submit(&handle, renew(n, round)).await?;
                    waits.push(asked.elapsed());
                    if begun.elapsed() > length {
                        break;
                    }
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
    let verified = handle.verify().await??;
    if verified.changes != (waits.len() + writers + 1) as u64 {
        bail!("the journal has {} changes, {} were acknowledged", verified.changes, waits.len() + writers + 1);
    }
    Ok((rate, waits))
}

async fn submit(handle: &Handle, command: Command) -> Result<()> {
    let call = Call {
        wish: command.into(),
        actor: Actor::Appliance,
        org: None,
        role: Role::Admin,
        request: RequestId(Uuid::nil()),
        receipt: None,
    };
    let answered = handle.submit(call, |decided| Finished { answer: decided.change.is_some(), rows: vec![] }).await?;
    if answered != holdfast::cluster::Outcome::Fresh(true) {
        bail!("a command changed nothing");
    }
    Ok(())
}

fn found(id: ApplianceId) -> Command {
    let appliance = appliances::Appliance { id, signing_key: SigningKey::from_bytes([1; 32]), addresses: vec![] };
    let fleet = appliances::Fleet {
        id: FleetId(Uuid::from_u128(2)),
        name: name("bench".into()),
        root_key: SigningKey::from_bytes([2; 32]),
        mesh_prefix: "10.64.0.0/16".parse().expect("a prefix"),
        mesh_prefix6: None,
        suffix: name("internal".into()),
    };
    let roster = appliances::RosterText { revision: Revision(1), document: "{}".into(), signature: "00".into() };
    appliances::Command::Found { fleet, appliance, roster }.into()
}

fn add(n: usize) -> Command {
    enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: NodeId(Uuid::from_u128(n as u128)),
        name: name(format!("n{n}")),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        endpoints: vec![],
        token: token(n, u64::MAX),
        expires: Millis(u64::MAX),
        replace: false,
    }))
    .into()
}

fn renew(n: usize, round: u64) -> Command {
    let command = enrolment::Command::IssueToken {
        name: name(format!("n{n}")),
        token: token(n, round),
        expires: Millis(u64::MAX),
    };
    command.into()
}

fn token(n: usize, round: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    bytes[8..16].copy_from_slice(&round.to_be_bytes());
    Fingerprint::from_bytes(bytes)
}

fn name(text: String) -> Name {
    Name::new(&text).expect("a name")
}
