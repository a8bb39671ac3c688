//! The accept loop: who may connect, for how long, and how it ends.
//!
//! A handshake runs in the connection's own task, so a slow one delays nobody.

use crate::limits;
use crate::listen::stop::Stop;
use crate::listen::{ACCEPT_PAUSE, serve_connection};
use crate::serve::gate::{Gate, Place};
use crate::tasks;
use axum::Router;
use state::{Code, Refusal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// How long connections may take to end their request after the stop.
const DRAIN: Duration = Duration::from_secs(2);

/// How long, and for how many bytes, a refused client is heard out.
const PARTING: (Duration, u64) = (Duration::from_secs(1), 64 * 1024);

/// Binds a TCP listener. The error names address and port.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
            SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(1024)
    };
    bound().map_err(|error: std::io::Error| cannot_listen(address, "TCP", &error))
}

/// The refusal of a start whose address and port cannot be had.
pub(super) fn cannot_listen(address: SocketAddr, protocol: &str, error: &std::io::Error) -> anyhow::Error {
    let code = if error.kind() == std::io::ErrorKind::AddrInUse { Code::Conflict } else { Code::Invalid };
    Refusal::new(
        code,
        "the appliance was not started",
        format!("cannot listen on {address} ({protocol} port {}): {error}", address.port()),
        format!("see who has it with `ss -lnp 'sport = {}'`, or give another address or port", address.port()),
    )
    .into()
}

/// Serves TLS connections until told to stop. Each request carries what `peer` makes of its connection and of the
/// connection's [`Place`] as an extension.
pub async fn serve_tls<P: Clone + Send + Sync + 'static>(
    listener: TcpListener,
    tls: TlsAcceptor,
    router: Router,
    gate: Arc<Gate>,
    peer: fn(&rustls::ServerConnection, Arc<Place>) -> P,
    mut stop: Stop,
) {
    let (running, mut ended) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.requested() => break,
        };
        let (socket, source) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = gate.admit(source.ip()) else { continue };
        let (tls, router, stop, running) = (tls.clone(), router.clone(), stop.clone(), running.clone());
        tasks::spawn("connection", async move {
            let _running = running;
            prepare(&socket);
            let served = async {
                match timeout(limits::HANDSHAKE, tls.accept(socket).into_fallible()).await {
                    Ok(Ok(stream)) => {
                        let peer = peer(stream.get_ref().1, place.clone());
                        serve_connection(stream, router, peer, stop).await;
                    }
                    Ok(Err((_, socket))) => part(socket).await,
                    Err(_) => {}
                }
            };
            tokio::select! {
                () = served => {}
                () = place.told_to_go() => {}
            }
        });
    }
    drop(listener);
    drop(running);
    // Whoever is still there after the drain ends with the process.
    let _ = timeout(DRAIN, ended.recv()).await;
}

/// Ends a connection whose handshake failed. Its other end may have sent a request already; closing over that would be a
/// reset, which can overtake the alert that says why.
async fn part(mut socket: TcpStream) {
    let parted = async {
        socket.shutdown().await?;
        tokio::io::copy(&mut socket.take(PARTING.1), &mut tokio::io::sink()).await
    };
    let _ = timeout(PARTING.0, parted).await;
}

/// The peer of a listener whose callers prove themselves by their requests.
pub fn stranger(_: &rustls::ServerConnection, place: Arc<Place>) -> Arc<Place> {
    place
}

/// Serves plain HTTP on a loopback listener until told to stop.
pub async fn serve_plain(listener: TcpListener, router: Router, mut stop: Stop) {
    let gate = Arc::new(Gate::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.requested() => break,
        };
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(place) = gate.admit(peer.ip()) else { continue };
        tasks::spawn("page connection", serve_connection(socket, router.clone(), place, stop.clone()));
    }
}

/// What the kernel watches for us: no delay for small answers, and an end for peers that take nothing any more.
fn prepare(socket: &TcpStream) {
    let options = socket2::SockRef::from(socket);
    if let Err(error) = options.set_tcp_nodelay(true).and_then(|()| options.set_tcp_user_timeout(Some(limits::STALL))) {
        tracing::debug!(%error, "cannot set socket options");
    }
}
