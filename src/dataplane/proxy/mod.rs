//! Published services: listeners on the mesh address that carry streams to targets on the machine.
//!
//! Arriving over the mesh is no identity: what a target is told is the peer's address and nothing else.

mod headers;
mod http;
mod tcp;
#[cfg(test)]
mod tests;

use super::sockets::{self, Task};
use crate::wire::dataplane::Proxy;
use crate::{limits, tasks};
use arc_swap::ArcSwap;
use state::view::records::Protocol;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// The proxies that run, by the address they listen on.
#[derive(Default)]
pub(super) struct Proxies {
    running: BTreeMap<SocketAddr, Running>,
}

struct Running {
    /// What every new stream, and every request of an open one, goes by.
    now: Arc<ArcSwap<Proxy>>,
    /// Dropped when the service is withdrawn: the streams end then.
    _withdrawn: watch::Sender<()>,
    _accept: Task,
}

impl Proxies {
    /// Makes what runs match what is wanted: what is unchanged is not touched, a new target or verdict counts for what
    /// comes next, and only a withdrawn service's streams are ended. Gives what could not be done.
    pub(super) fn settle(&mut self, wanted: &[Proxy]) -> Vec<String> {
        let carried = |p: &&Proxy| p.protocol != Protocol::Udp;
        let by_address: BTreeMap<SocketAddr, &Proxy> = wanted.iter().filter(carried).map(|p| (p.listen, p)).collect();
        self.running.retain(|listen, _| by_address.contains_key(listen));
        let mut problems: Vec<String> = wanted
            .iter()
            .filter(|p| !carried(p))
            .map(|p| {
                format!("{}: UDP is not carried to a target; let the service listen on the mesh address", p.listen)
            })
            .collect();
        for (listen, proxy) in by_address {
            match self.running.get(&listen) {
                Some(running) if **running.now.load() == *proxy => {}
                Some(running) => running.now.store(Arc::new(proxy.clone())),
                None => match Running::start(proxy) {
                    Ok(running) => {
                        self.running.insert(listen, running);
                    }
                    Err(error) => problems.push(format!("cannot listen on {listen} for {}: {error}", proxy.target)),
                },
            }
        }
        problems
    }

    /// Where proxies listen.
    pub(super) fn listening(&self) -> Vec<SocketAddr> {
        self.running.keys().copied().collect()
    }
}

impl Running {
    fn start(proxy: &Proxy) -> io::Result<Self> {
        let listener = sockets::tcp(proxy.listen)?;
        let now = Arc::new(ArcSwap::from_pointee(proxy.clone()));
        let (withdrawn, watched) = watch::channel(());
        let accept = Task::spawn("proxy-accept", accept(listener, now.clone(), watched));
        Ok(Self { now, _withdrawn: withdrawn, _accept: accept })
    }
}

async fn accept(listener: TcpListener, now: Arc<ArcSwap<Proxy>>, withdrawn: watch::Receiver<()>) {
    let slots = Arc::new(Semaphore::new(limits::PROXY_STREAMS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of descriptors, mostly: wait for some to come back.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (now, mut withdrawn) = (now.clone(), withdrawn.clone());
        tasks::spawn("proxy-stream", async move {
            tokio::select! {
                () = carry(stream, peer, now, withdrawn.clone()) => {}
                _ = withdrawn.changed() => {}
            }
            drop(slot);
        });
    }
}

async fn carry(stream: TcpStream, peer: SocketAddr, now: Arc<ArcSwap<Proxy>>, withdrawn: watch::Receiver<()>) {
    let proxy = now.load_full();
    match proxy.protocol {
        Protocol::Http => http::serve(stream, peer, now, withdrawn).await,
        Protocol::Tcp | Protocol::Udp if !proxy.serving => {}
        Protocol::Tcp | Protocol::Udp => {
            // Whoever is connected sees the stream end; there is nobody else to tell.
            if let Ok(target) = dial(proxy.target).await {
                let _ = tcp::join(&stream, &target).await;
            }
        }
    }
}

/// Connects to a target.
async fn dial(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(limits::PROXY_DIAL, TcpStream::connect(target)).await??;
    sockets::tune(&stream)?;
    Ok(stream)
}
