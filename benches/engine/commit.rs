//! Durable commands. Every one is real and changes the state (a node's new token, about 300 bytes in the journal).

use crate::fleet::{change, founded, name, token};
use anyhow::{Result, bail};
use state::Command;
use state::model::Millis;
use state::subject::enrolment;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) async fn measure(dir: &Path, length: Duration, writers: usize) -> Result<(f64, Vec<Duration>)> {
    let handle = founded(dir, writers).await?;
    let before = handle.state().revision.0;
    let begun = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|n| {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut waits = Vec::new();
                for round in 0_u64.. {
                    let asked = Instant::now();
                    change(&handle, renew(n, round)).await?;
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
    let (changes, expected) = (handle.verify().await??.changes, before + waits.len() as u64);
    if changes != expected {
        bail!("the journal has {changes} changes, {expected} were acknowledged");
    }
    Ok((rate, waits))
}

fn renew(n: usize, round: u64) -> Command {
    let command = enrolment::Command::IssueToken {
        name: name(format!("n{n}")),
        token: token(n, round),
        expires: Millis(u64::MAX),
    };
    command.into()
}
