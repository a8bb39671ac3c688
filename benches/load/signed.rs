//! Over the mesh listener: what an idle fleet costs, how fast a change reaches everybody, and how many signed heartbeats
//! a second of processor time answers.

use crate::fleet::{Appliance, Node};
use anyhow::{Context, Result};
use holdfast::node::held::Extent;
use holdfast::wire::peers::ServiceClaim;
use state::model::{Name, Revision};
use state::view::records::Protocol;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Every node holds its stream and beats every five seconds; nothing changes.
pub(crate) async fn idle(appliance: &Appliance, fleet: Vec<Node>, length: Duration) -> Result<()> {
    let count = fleet.len();
    for (n, node) in fleet.into_iter().enumerate() {
        tokio::spawn(async move {
            tokio::time::sleep(holdfast::limits::HEARTBEAT * u32::try_from(n).unwrap_or(0) / 100).await;
            let mut watch = node.client.watch(node.held.revision()).await?;
            let beats = async {
                loop {
                    node.client.register(node.body.clone()).await?;
                    tokio::time::sleep(holdfast::limits::HEARTBEAT).await;
                }
            };
            let changes = async {
                while watch.next().await?.is_some() {}
                Ok(())
            };
            tokio::select! { end = beats => end, end = changes => end }
                .map_err(|e: holdfast::node::client::CallError| anyhow::anyhow!(e))
        });
    }
    // The first beats set what joining left out, and settle.
    tokio::time::sleep(holdfast::limits::HEARTBEAT * 3).await;
    let held = appliance.revision()?;
    let (begun, before) = (Instant::now(), appliance.cpu_seconds()?);
    tokio::time::sleep(length).await;
    let share = (appliance.cpu_seconds()? - before) / begun.elapsed().as_secs_f64();
    println!("idle{count}_journal_entries {} in {} s", appliance.revision()? - held, length.as_secs());
    println!("idle{count}_core_percent {:.3} %", share * 100.0);
    Ok(())
}

/// One node publishes something else again and again; timed until every other node has received and verified it.
pub(crate) async fn fanout(mut fleet: Vec<Node>, events: u64) -> Result<()> {
    let mut publisher = fleet.pop().context("at least two nodes")?;
    let count = fleet.len();
    let start = publisher.client.list().await?;
    publisher.held.accept(&publisher.trust, &start, Extent::Full);
    let (arrived, mut arrivals) = mpsc::unbounded_channel::<(Revision, Instant)>();
    for mut node in fleet {
        let list = node.client.list().await?;
        node.held.accept(&node.trust, &list, Extent::Full);
        let mut watch = node.client.watch(node.held.revision()).await?;
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Ok(Some(list)) = watch.next().await {
                let accepted = node.held.accept(&node.trust, &list, Extent::Delta);
                if accepted.alarms.is_empty() && arrived.send((node.held.revision(), Instant::now())).is_err() {
                    return;
                }
            }
        });
    }
    let mut taken = Vec::new();
    for event in 0..events {
        tokio::time::sleep(Duration::from_millis(50)).await;
        while arrivals.try_recv().is_ok() {}
        publisher.body.services = vec![ServiceClaim {
            space: Name::new("bench")?,
            name: Name::new("event")?,
            protocol: Protocol::Tcp,
            port: u16::try_from(1000 + event)?,
        }];
        let begun = Instant::now();
        let revision = publisher.client.register(publisher.body.clone()).await?.revision;
        let mut last = begun;
        let mut have = 0;
        while have < count {
            let next =
                tokio::time::timeout(Duration::from_secs(5), arrivals.recv()).await.context("a stream fell silent")?;
            let (held, at) = next.context("every stream has ended")?;
            if held >= revision {
                have += 1;
                last = last.max(at);
            }
        }
        taken.push((last - begun).as_secs_f64() * 1e3);
    }
    taken.sort_by(f64::total_cmp);
    let at = |q: f64| taken[((taken.len() - 1) as f64 * q) as usize];
    println!("fanout{count}_p50_ms {:.3} ms", at(0.5));
    println!("fanout{count}_p99_ms {:.3} ms", at(0.99));
    Ok(())
}

/// Every node sends signed, unchanged heartbeats as fast as they are answered.
pub(crate) async fn heartbeat(appliance: &Appliance, fleet: Vec<Node>, length: Duration) -> Result<()> {
    let before = appliance.cpu_seconds()?;
    let begun = Instant::now();
    let tasks: Vec<_> = fleet
        .into_iter()
        .map(|node| {
            tokio::spawn(async move {
                let mut count = 0u64;
                while begun.elapsed() < length {
                    node.client.register(node.body.clone()).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    let used = appliance.cpu_seconds()? - before;
    println!("hb_signed_per_s {:.1} /s", count as f64 / begun.elapsed().as_secs_f64());
    println!("hb_signed_per_cpu_s {:.1} /cpu_s", count as f64 / used);
    Ok(())
}
