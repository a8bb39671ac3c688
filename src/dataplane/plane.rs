//! All that the data plane holds, and how it becomes what it is told.

use super::resolver::{self, Names};
use super::tunnel::{self, Heard};
use super::{HEARD, TOLD, proxy};
use crate::wire::dataplane::{Order, Reply, Status, Told, WIREGUARD_SOCKET};
use crate::{clock, files, limits, tasks};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use state::Hash;
use state::model::{Millis, Revision};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The data plane of one state directory.
pub(super) struct Plane {
    dir: PathBuf,
    since: Millis,
    /// What is to be, without records (they are indexed in `names`) and without the time of confirmation.
    told: Told,
    /// The hash of the told document without its time of confirmation.
    hash: Option<Hash>,
    /// The time of confirmation in the document on disk.
    kept: Millis,
    names: Option<Arc<Names>>,
    listeners: Vec<resolver::Listener>,
    tunnel: Option<tunnel::Running>,
    proxies: proxy::Proxies,
    heard: Kept,
    /// When it was last looked where peers were heard, time since boot.
    looked: Duration,
    problems: Vec<String>,
}

/// Where peers were heard, as it is kept on disk.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    at: Millis,
    peers: Heard,
}

impl Plane {
    /// What was told last, not yet made so. A document that cannot be used is left alone: the agent tells anew.
    pub(super) fn remembered(dir: &Path) -> Result<Self> {
        let mut plane = Self {
            dir: dir.to_owned(),
            since: clock::wall(),
            told: Told { format: 1, ..Told::default() },
            hash: None,
            kept: Millis(0),
            names: None,
            listeners: Vec::new(),
            tunnel: None,
            proxies: proxy::Proxies::default(),
            heard: Kept::default(),
            looked: Duration::ZERO,
            problems: Vec::new(),
        };
        match read::<Told>(&dir.join(TOLD)).and_then(|told| told.map(check).transpose()) {
            Ok(None) => {}
            Ok(Some(told)) => {
                plane.kept = told.resolver.as_ref().map_or(Millis(0), |r| r.as_of);
                plane.adopt(told)?;
            }
            Err(error) => tracing::warn!("what was told last cannot be used, waiting for the agent: {error:#}"),
        }
        if let Ok(Some(heard)) = read::<Kept>(&dir.join(HEARD))
            && Duration::from_millis(clock::wall().since(heard.at)) < limits::SESSION + limits::HEARD_KEPT
        {
            plane.heard = heard;
        }
        Ok(plane)
    }

    /// Does what is ordered.
    pub(super) async fn obey(&mut self, order: Order) -> Reply {
        let done = match order {
            Order::Tell(told) => self.tell(*told).await,
            Order::Status => Ok(()),
            Order::Stop => self.stop().await,
        };
        match done {
            Ok(()) => Reply::Ok(self.status()),
            Err(error) => Reply::Error(format!("{error:#}")),
        }
    }

    async fn tell(&mut self, told: Told) -> Result<()> {
        let told = check(told)?;
        let as_of = told.resolver.as_ref().map_or(Millis(0), |r| r.as_of);
        let bytes = serde_json::to_vec(&told)?;
        let before = self.hash;
        self.adopt(told)?;
        if self.hash != before || Duration::from_millis(as_of.since(self.kept)) >= limits::CONFIRMED_KEPT {
            let path = self.dir.join(TOLD);
            tasks::blocking(move || files::replace(&path, &bytes)).await?;
            self.kept = as_of;
        }
        self.look().await;
        Ok(())
    }

    /// Takes a document over as what is to be. A later confirmation of the same document touches nothing else.
    fn adopt(&mut self, mut told: Told) -> Result<()> {
        let as_of = told.resolver.as_mut().map(|r| std::mem::take(&mut r.as_of)).unwrap_or_default();
        let hash = Some(state::hash_of(b"holdfast/told/v1", &[&serde_json::to_vec(&told)?]));
        if let Some(resolver) = &mut told.resolver {
            let (records, revision) = (std::mem::take(&mut resolver.records), Revision(resolver.revision));
            match &self.names {
                None => {
                    self.names = Some(Arc::new(Names::new(&records, &resolver.mesh, revision, as_of, Vec::new())));
                }
                Some(names) => {
                    if self.hash != hash {
                        names.publish(&records, &resolver.mesh, revision, Vec::new());
                    }
                    names.confirmed(as_of);
                }
            }
        } else {
            self.names = None;
        }
        (self.told, self.hash) = (told, hash);
        Ok(())
    }

    /// Makes everything as it is to be, where it is not: after an order, and every second, because addresses, ports and
    /// interfaces may come back by themselves.
    pub(super) async fn look(&mut self) {
        let mut problems: Vec<String> = self.settle_tunnel().await.into_iter().collect();
        problems.extend(self.settle_resolver());
        problems.extend(self.proxies.settle(&self.told.proxies));
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!("{problem}");
        }
        self.problems = problems;
        self.keep_heard().await;
    }

    async fn settle_tunnel(&mut self) -> Option<String> {
        let wanted = self.told.tunnel.as_ref();
        if let Some(running) = &self.tunnel {
            let dead = running.dead();
            if !dead && wanted.is_some_and(|wanted| running.is(wanted)) {
                return None;
            }
            if dead {
                tracing::warn!("interface {} is gone; making it again", running.ifname());
            }
            let renamed = wanted.is_none_or(|wanted| wanted.ifname != running.ifname());
            if let Err(error) = self.end_tunnel(renamed).await {
                return Some(format!("{error:#}"));
            }
        }
        let wanted = self.told.tunnel.as_ref()?;
        match tunnel::Running::up(wanted, self.dir.join(WIREGUARD_SOCKET), &self.heard.peers).await {
            Ok(running) => {
                tracing::info!("userspace WireGuard on {}, UDP port {}", running.ifname(), wanted.listen_port);
                self.tunnel = Some(running);
                None
            }
            Err(error) => Some(format!("{error:#}")),
        }
    }

    async fn end_tunnel(&mut self, remove: bool) -> Result<()> {
        let Some(running) = self.tunnel.take() else { return Ok(()) };
        let ifname = running.ifname().to_owned();
        running.down().await;
        if remove {
            tunnel::remove(&ifname).await?;
        }
        Ok(())
    }

    fn settle_resolver(&mut self) -> Vec<String> {
        let (Some(names), Some(wanted)) = (&self.names, &self.told.resolver) else {
            self.listeners.clear();
            return Vec::new();
        };
        self.listeners.retain(|listener| wanted.listen.contains(&listener.address()));
        let mut problems = Vec::new();
        for address in &wanted.listen {
            if self.listeners.iter().any(|listener| listener.address() == *address) {
                continue;
            }
            match resolver::serve(*address, names.clone()) {
                Ok(listener) => self.listeners.push(listener),
                Err(_) if wanted.optional.contains(&address.ip()) => {}
                Err(error) => problems.push(format!("names cannot be answered on {address}: {error}")),
            }
        }
        problems
    }

    async fn keep_heard(&mut self) {
        let Some(running) = &self.tunnel else { return };
        if clock::boot().saturating_sub(self.looked) < limits::HEARD_LOOK {
            return;
        }
        self.looked = clock::boot();
        let now = Kept { at: clock::wall(), peers: running.heard().await };
        let age = Duration::from_millis(now.at.since(self.heard.at));
        if now.peers == self.heard.peers && age < limits::HEARD_KEPT {
            return;
        }
        let (path, bytes) = (self.dir.join(HEARD), state::to_bytes(&now));
        self.heard = now;
        if let Err(error) = tasks::blocking(move || files::replace(&path, &bytes)).await {
            tracing::warn!("where peers were heard is not kept: {error}");
        }
    }

    async fn stop(&mut self) -> Result<()> {
        files::remove(&self.dir.join(TOLD))?;
        // Peers go on with their sessions: who starts again soon calls them where they were heard.
        self.looked = Duration::ZERO;
        self.keep_heard().await;
        (self.told, self.hash) = (Told { format: 1, ..Told::default() }, None);
        self.names = None;
        self.settle_resolver();
        self.proxies.settle(&[]);
        self.end_tunnel(true).await?;
        files::remove(&self.dir.join(WIREGUARD_SOCKET))?;
        tracing::info!("everything is taken down, as ordered");
        Ok(())
    }

    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            since: self.since,
            tunnel: self.tunnel.as_ref().map(|running| running.ifname().to_owned()),
            resolver: self.listeners.iter().map(resolver::Listener::address).collect(),
            proxies: self.proxies.listening(),
            problems: self.problems.clone(),
        }
    }
}

fn check(told: Told) -> Result<Told> {
    if told.format != 1 {
        bail!("what is told has format {}; this version knows 1", told.format);
    }
    Ok(told)
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>> {
    match files::read(path, limits::TOLD) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if files::is_absent(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use state::model::WireguardKey;

    #[test]
    fn where_peers_were_heard_keeps_its_bytes() {
        let peers = Heard::from([(WireguardKey::from_bytes([2; 32]), "192.0.2.1:51820".parse().unwrap())]);
        let text = format!("{{\"at\":1000,\"peers\":{{\"{}\":\"192.0.2.1:51820\"}}}}", "02".repeat(32));
        assert_eq!(state::to_text(&Kept { at: Millis(1000), peers: peers.clone() }), text);
        let read: Kept = serde_json::from_str(&text).unwrap();
        assert_eq!((read.at, read.peers), (Millis(1000), peers));
    }
}
