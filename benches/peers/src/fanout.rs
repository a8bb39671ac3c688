//! The floor of telling everybody: one durable write, then 200 bytes to each of N held TLS streams.
//!
//! Readers and server share this process, its runtime and the machine's cores, as they do in the bench of the product.

use crate::{Outcome, print, quantile};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc};

/// Times each event until the last of the streams has it.
pub async fn run(dir: &str, streams: usize, events: usize) -> Outcome {
    let (server, certificate) = crate::tls::configuration()?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let client = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (publish, _) = broadcast::channel::<Arc<[u8]>>(64);
    tokio::spawn(accept(listener, tokio_rustls::TlsAcceptor::from(server), publish.clone()));

    let (arrived, mut arrivals) = mpsc::channel::<()>(streams + 1);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    for _ in 0..streams {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut stream = connector.connect("localhost".try_into()?, stream).await?;
        let mut event = [0; 200];
        stream.read_exact(&mut event[..1]).await?;
        let arrived = arrived.clone();
        tokio::spawn(async move { while stream.read_exact(&mut event).await.is_ok() && arrived.send(()).await.is_ok() {} });
    }

    let path = format!("{dir}/fanout.dat");
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    file.write_all_at(&vec![0; 1 << 20], 0)?;
    file.sync_all()?;
    let mut taken = Vec::new();
    for event in 0..events as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        file.write_all_at(&[1; 4096], event % 200 * 4096)?;
        file.sync_data()?;
        publish.send(Arc::from(vec![b'e'; 200]))?;
        for _ in 0..streams {
            arrivals.recv().await;
        }
        taken.push(begun.elapsed());
    }
    std::fs::remove_file(path)?;
    print(&format!("fanout{streams}_floor_p50_ms"), quantile(&mut taken, 0.5), "ms");
    print(&format!("fanout{streams}_floor_p99_ms"), quantile(&mut taken, 0.99), "ms");
    Ok(())
}

async fn accept(
    listener: tokio::net::TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    publish: broadcast::Sender<Arc<[u8]>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, mut events) = (acceptor.clone(), publish.subscribe());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let mut alive = stream.write_all(b"+").await.is_ok() && stream.flush().await.is_ok();
            while alive && let Ok(event) = events.recv().await {
                alive = stream.write_all(&event).await.is_ok() && stream.flush().await.is_ok();
            }
        });
    }
}
