//! The resolver: UDP and TCP sockets that answer from [`Names`]. The node's data plane and an appliance serve the same.
//!
//! Nothing is forwarded: a question that is not about our zones is refused.

mod answer;
mod names;
#[cfg(test)]
mod tests;

use super::sockets;
use crate::{limits, tasks};
use answer::Transport;
pub use names::Names;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// One address that is answered on, over UDP and TCP. Dropped, it closes.
pub struct Listener {
    address: SocketAddr,
    _tasks: [sockets::Task; 2],
}

impl Listener {
    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Answers on `listen` from now on, whether or not the machine has that address yet.
pub fn serve(listen: SocketAddr, names: Arc<Names>) -> io::Result<Listener> {
    let tcp = sockets::tcp(listen)?;
    let address = tcp.local_addr()?;
    let udp = sockets::udp(address)?;
    let tasks = [
        sockets::Task::spawn("resolver-udp", answer_udp(udp, names.clone())),
        sockets::Task::spawn("resolver-tcp", accept(tcp, names)),
    ];
    Ok(Listener { address, _tasks: tasks })
}

async fn answer_udp(socket: UdpSocket, names: Arc<Names>) {
    let mut buffer = [0; 4096];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(answer) = names.answer(&buffer[..length], from.ip(), Transport::Udp) {
                    // A client that went away, or an address that is not there yet, is that client's loss alone.
                    let _ = socket.send_to(&answer, from).await;
                }
            }
            // Errors of earlier sends are reported here; the pause keeps a broken socket from spinning.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn accept(listener: TcpListener, names: Arc<Names>) {
    let slots = Arc::new(Semaphore::new(limits::DNS_STREAMS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let names = names.clone();
                tasks::spawn("resolver-stream", async move {
                    // The stream ends by an error when the client goes away or is too slow.
                    let _ = converse(stream, from, &names).await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Questions and answers one after the other, each with its length before it (RFC 7766).
async fn converse(mut stream: TcpStream, from: SocketAddr, names: &Names) -> io::Result<()> {
    loop {
        let question = timeout(limits::DNS_STREAM_IDLE, async {
            let length = stream.read_u16().await?;
            let mut question = vec![0; usize::from(length)];
            stream.read_exact(&mut question).await?;
            io::Result::Ok(question)
        })
        .await??;
        let Some(answer) = names.answer(&question, from.ip(), Transport::Tcp) else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        timeout(limits::DNS_STREAM_IDLE, stream.write_all(&framed)).await??;
    }
}
