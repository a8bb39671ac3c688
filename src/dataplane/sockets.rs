//! Sockets on addresses that the machine may not have yet (the mesh address comes and goes with its interface), and
//! tasks that end when they are dropped.

use crate::tasks;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Connections waiting to be accepted, per listener.
const BACKLOG: i32 = 1024;

fn bound(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_freebind_v6(true)?;
        }
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A TCP listener.
pub(super) fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(address, Type::STREAM, Protocol::TCP)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A UDP socket.
pub(super) fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    UdpSocket::from_std(bound(address, Type::DGRAM, Protocol::UDP)?.into())
}

/// Lets small writes go at once, and lets a stream whose other end vanished end within two minutes.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(4))?;
    stream.set_nodelay(true)
}

/// A task that ends when it is dropped.
pub(super) struct Task(tokio::task::JoinHandle<Option<()>>);

impl Task {
    /// Starts it.
    pub(super) fn spawn(name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tasks::spawn(name, future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
