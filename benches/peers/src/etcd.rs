//! Durable puts of 256 bytes to an etcd over gRPC.

use crate::{Outcome, print, quantile};
use std::time::{Duration, Instant};

/// `clients` tasks over at most 8 connections, each waiting for its own put.
pub async fn put(url: &str, length: Duration, clients: usize) -> Outcome {
    let mut connections = Vec::new();
    for _ in 0..clients.min(8) {
        connections.push(etcd_client::Client::connect([url], None).await?);
    }
    let start = Instant::now();
    let mut tasks = Vec::new();
    for client in 0..clients {
        let mut store = connections[client % connections.len()].kv_client();
        tasks.push(tokio::spawn(async move {
            let mut taken = Vec::new();
            while start.elapsed() < length {
                let begun = Instant::now();
                store.put(format!("k/{client:04}/{:08}", taken.len()), vec![7; 256], None).await?;
                taken.push(begun.elapsed());
            }
            Ok::<_, etcd_client::Error>(taken)
        }));
    }
    let mut taken = Vec::new();
    for task in tasks {
        taken.extend(task.await??);
    }
    print(&format!("etcd_w{clients}"), taken.len() as f64 / start.elapsed().as_secs_f64(), "/s");
    print(&format!("etcd_w{clients}_p50_ms"), quantile(&mut taken, 0.5), "ms");
    Ok(())
}
