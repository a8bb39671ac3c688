//! Over the gateway, by client certificates on kept connections: heartbeats, whole cycles of jobs, and heartbeats while
//! strangers storm the listener.

use crate::fleet::{Appliance, Node};
use crate::kept::{Kept, tls};
use anyhow::{Context, Result, bail};
use holdfast::wire::jobs::{Leased, Presence};
use state::model::{Endpoint, Fingerprint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Jobs that wait, all nodes together.
const DEPTH: usize = 10_000;
/// Strangers that begin a handshake and never go on.
const HALF_OPEN: usize = 500;

type Connection = Kept<TlsStream<TcpStream>>;

/// Where the first appliance that a node trusts serves its gateway and its mesh listener, and its pin.
fn appliance_of(node: &Node) -> Result<(Endpoint, Endpoint, Fingerprint)> {
    let appliance = node.trust.roster().appliances.first().context("no appliance")?;
    let gateway = appliance.gateway.first().context("no gateway")?.clone();
    let mesh = appliance.mesh.first().context("no mesh endpoint")?.clone();
    Ok((gateway, mesh, *appliance.pins.first().context("no pin")?))
}

async fn connect(node: &Node) -> Result<Connection> {
    let (gateway, _, pin) = appliance_of(node)?;
    Kept::over_tls(&gateway, tls(pin, Some(&node.dir))?).await
}

fn presence_of(node: &Node) -> Vec<u8> {
    state::to_bytes(&Presence {
        instance: node.body.instance,
        roster_revision: node.body.roster_revision,
        held_revision: node.body.held_revision,
        registered: node.body.content(),
    })
}

/// Heartbeats per second of the appliance's processor time, beside the cheapest request that it answers over TLS.
pub(crate) async fn presence(appliance: &Appliance, fleet: Vec<Node>, length: Duration) -> Result<()> {
    let mut health = Vec::new();
    let mut beats = Vec::new();
    for node in fleet {
        let (_, mesh, pin) = appliance_of(&node)?;
        health.push((Kept::over_tls(&mesh, tls(pin, None)?).await?, Vec::new()));
        node.client.register(node.body.clone()).await?;
        beats.push((connect(&node).await?, presence_of(&node)));
    }
    let bare = per_cpu_second(appliance, health, length, "GET", "/health").await?;
    let beat = per_cpu_second(appliance, beats, length, "POST", "/v1/agent/presence").await?;
    println!("tls_get_per_cpu_s {bare:.0} /cpu_s");
    println!("hb_mtls_per_cpu_s {beat:.0} /cpu_s");
    Ok(())
}

async fn per_cpu_second(
    appliance: &Appliance,
    connections: Vec<(Connection, Vec<u8>)>,
    length: Duration,
    method: &'static str,
    path: &'static str,
) -> Result<f64> {
    let (begun, before) = (Instant::now(), appliance.cpu_seconds()?);
    let tasks: Vec<_> = connections
        .into_iter()
        .map(|(mut connection, body)| {
            tokio::spawn(async move {
                let mut count = 0u64;
                while begun.elapsed() < length {
                    let (status, said) = connection.ask(method, path, "", &body).await?;
                    if status != 200 {
                        bail!("{path}: {status} {}", String::from_utf8_lossy(said));
                    }
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
    Ok(count as f64 / (appliance.cpu_seconds()? - before))
}

/// Whole cycles: every node leases a job, extends its lease once and completes it with a result, again and again, while
/// an operator queues as many as were completed.
pub(crate) async fn lease(appliance: &Appliance, fleet: Vec<Node>, length: Duration) -> Result<()> {
    let count = fleet.len();
    let names: Vec<String> = fleet.iter().map(|node| node.name.clone()).collect();
    let mut operator = Kept::over_socket(&appliance.socket).await?;
    queue(&mut operator, &names, DEPTH).await?;
    let completed = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut workers = Vec::new();
    for node in &fleet {
        let (mut connection, completed) = (connect(node).await?, completed.clone());
        workers.push(tokio::spawn(async move {
            let mut waits = Vec::new();
            while begun.elapsed() < length {
                let asked = Instant::now();
                cycle(&mut connection).await?;
                waits.push(asked.elapsed());
                completed.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(waits)
        }));
    }
    let mut queued = 0;
    while begun.elapsed() < length {
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Whole rounds, so that no node runs dry.
        let due = (completed.load(Ordering::Relaxed) - queued) / count as u64 * count as u64;
        queue(&mut operator, &names, due as usize).await?;
        queued += due;
    }
    let mut waits = Vec::new();
    for worker in workers {
        waits.extend(worker.await??);
    }
    println!("lease_api_w{count} {:.0} /s", waits.len() as f64 / begun.elapsed().as_secs_f64());
    print_quantiles(&format!("lease_api_w{count}"), &mut waits);
    Ok(())
}

/// Queues jobs, spread over the nodes: a request names each node once.
async fn queue(operator: &mut Kept<tokio::net::UnixStream>, names: &[String], amount: usize) -> Result<()> {
    let spec = serde_json::json!({
        "kind": "service.check", "probe": { "tcp": "198.51.100.7:5432" }, "timeout_s": 10,
    });
    let mut left = amount;
    while left > 0 {
        let some = &names[..left.min(names.len())];
        let body = state::to_bytes(&serde_json::json!({ "spec": spec, "on": { "nodes": some } }));
        match operator.post("/v1/jobs", &body).await? {
            (200, _) => left -= some.len(),
            (status, said) => bail!("jobs were not queued: {status} {}", String::from_utf8_lossy(said)),
        }
    }
    Ok(())
}

async fn cycle(connection: &mut Connection) -> Result<()> {
    let asked = br#"{"lane":"workload","capabilities":{}}"#;
    let leased: Leased = loop {
        let header = format!("idempotency-key: {}\r\n", hex::encode(holdfast::entropy::bytes::<16>()));
        match connection.ask("POST", "/v1/agent/lease", &header, asked).await? {
            (200, said) => break serde_json::from_slice(said)?,
            // A node that was faster than the others waits for the next round of jobs.
            (204, _) => tokio::time::sleep(Duration::from_millis(1)).await,
            (status, said) => bail!("no job was leased: {status} {}", String::from_utf8_lossy(said)),
        }
    };
    let (job, token, attempt) = (leased.job.id, leased.lease_token, leased.attempt);
    let held = format!(r#"{{"lease_token":"{token}"}}"#);
    let (status, said) = connection.post(&format!("/v1/agent/jobs/{job}/heartbeat"), held.as_bytes()).await?;
    if status != 200 {
        bail!("not extended: {status} {}", String::from_utf8_lossy(said));
    }
    let done = format!(
        r#"{{"lease_token":"{token}","attempt":{attempt},"outcome":"succeeded","result":{{"reached":"198.51.100.7:5432"}}}}"#
    );
    let (status, said) = connection.post(&format!("/v1/agent/jobs/{job}/complete"), done.as_bytes()).await?;
    if status != 200 {
        bail!("not completed: {status} {}", String::from_utf8_lossy(said));
    }
    Ok(())
}

/// Heartbeats of nodes, twenty a second each, first alone and then while 500 strangers hold half-open handshakes, begin
/// others anew whenever one is ended, and four more send client certificates of many links.
pub(crate) async fn siege(fleet: Vec<Node>, length: Duration) -> Result<()> {
    let (gateway, _, pin) = appliance_of(fleet.first().context("at least one node")?)?;
    let mut connections = Vec::new();
    for node in &fleet {
        node.client.register(node.body.clone()).await?;
        connections.push((connect(node).await?, presence_of(node)));
    }
    let (connections, mut alone) = beats(connections, length).await?;
    print_quantiles("hb_alone", &mut alone);

    let handshakes = Arc::new(AtomicU64::new(0));
    let bombs = Arc::new(AtomicU64::new(0));
    let mut strangers = tokio::task::JoinSet::new();
    for _ in 0..HALF_OPEN {
        let (gateway, handshakes) = (gateway.to_string(), handshakes.clone());
        strangers.spawn(async move {
            loop {
                let Ok(mut stream) = TcpStream::connect(&gateway).await else { continue };
                // The first bytes of a TLS record that says that more will come.
                let begun = stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await;
                handshakes.fetch_add(u64::from(begun.is_ok()), Ordering::Relaxed);
                // Until the appliance has had enough of it.
                let _ = tokio::io::AsyncReadExt::read_u8(&mut stream).await;
            }
        });
    }
    let bomb = bomb(pin)?;
    for _ in 0..4 {
        let (gateway, bomb, bombs) = (gateway.clone(), bomb.clone(), bombs.clone());
        strangers.spawn(async move {
            loop {
                if let Ok(mut connection) = Kept::over_tls(&gateway, bomb.clone()).await {
                    // With TLS 1.3 the refusal comes after the client's last message.
                    let _ = connection.get("/").await;
                }
                bombs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, mut besieged) = beats(connections, length).await?;
    strangers.shutdown().await;
    print_quantiles("hb_siege", &mut besieged);
    println!("siege_half_open {} begun", handshakes.load(Ordering::Relaxed));
    println!("siege_chain_bombs {} sent", bombs.load(Ordering::Relaxed));
    Ok(())
}

/// A client whose certificate comes with a chain of nearly a thousand others: about 240 KiB.
fn bomb(pin: Fingerprint) -> Result<Arc<rustls::ClientConfig>> {
    let made = rcgen::generate_simple_self_signed(vec!["stranger".into()])?;
    let chain = vec![made.cert.der().clone(); 900];
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let key = key.map_err(|error| anyhow::anyhow!(error))?;
    let mut config = rustls::ClientConfig::clone(&*tls(pin, None)?);
    let signer = rustls::crypto::ring::sign::any_supported_type(&key)?;
    config.client_auth_cert_resolver = Arc::new(Always(Arc::new(rustls::sign::CertifiedKey::new(chain, signer))));
    Ok(Arc::new(config))
}

/// Sends one certificate whatever is asked for.
#[derive(Debug)]
struct Always(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Always {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

async fn beats(
    connections: Vec<(Connection, Vec<u8>)>,
    length: Duration,
) -> Result<(Vec<(Connection, Vec<u8>)>, Vec<Duration>)> {
    let begun = Instant::now();
    let tasks: Vec<_> = connections
        .into_iter()
        .map(|(mut connection, body)| {
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while begun.elapsed() < length {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    let asked = Instant::now();
                    let (status, _) = connection.post("/v1/agent/presence", &body).await?;
                    if status != 200 {
                        bail!("a heartbeat was answered with {status}");
                    }
                    waits.push(asked.elapsed());
                }
                Ok((connection, body, waits))
            })
        })
        .collect();
    let (mut connections, mut all) = (Vec::new(), Vec::new());
    for task in tasks {
        let (connection, body, waits) = task.await??;
        connections.push((connection, body));
        all.extend(waits);
    }
    Ok((connections, all))
}

fn print_quantiles(name: &str, waits: &mut [Duration]) {
    waits.sort_unstable();
    let at = |q: f64| waits[((waits.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
    println!("{name}_p50_ms {:.3} ms", at(0.5));
    println!("{name}_p99_ms {:.3} ms", at(0.99));
}
