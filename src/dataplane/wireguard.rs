//! The WireGuard device's control socket: the userspace protocol of wireguard.com/xplatform.
//!
//! gotatun reads the protocol and answers what only asks. Its own handling of a change to a peer takes the peer out and
//! puts it in again, which ends its session, so peers are changed in place here.

use super::sockets::Task;
use super::tunnel::Device;
use crate::{limits, tasks};
use futures_util::future::join_all;
use gotatun::device::configure::{DeviceWrite, PeerStats};
use gotatun::device::uapi::UapiClient;
use gotatun::device::uapi::command::{Request, Set, SetPeer, SetUnset};
use gotatun::device::{DeviceTransports, Peer};
use gotatun::x25519::PublicKey;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::RwLock;

/// A peer's public key.
pub(super) type Key = [u8; 32];

/// The kernel's EINVAL, as the protocol gives errors.
const REFUSED: &str = "errno=22\n";
/// How long a handshake is waited for before its peer is left to its own timers.
const GREETING: Duration = Duration::from_millis(200);

/// Serves the device's clients for as long as the task is held. Clients do not keep the device alive.
pub(super) fn serve(listener: UnixListener, client: UapiClient, device: &Arc<RwLock<Device>>) -> Task {
    let device = Arc::downgrade(device);
    Task::spawn("wireguard-control", async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (client, device) = (client.clone(), device.clone());
                    tasks::spawn("wireguard-client", async move {
                        // The client went away; it sees that itself.
                        let _ = converse(stream, &client, &device).await;
                    });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// Requests of one client, each ended by an empty line.
async fn converse(stream: UnixStream, client: &UapiClient, device: &Weak<RwLock<Device>>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read.take(limits::TOLD)).lines();
    let mut request = String::new();
    while let Some(line) = lines.next_line().await? {
        if !line.is_empty() {
            request.push_str(&line);
            request.push('\n');
            continue;
        }
        if request.is_empty() {
            continue;
        }
        let answer = match request.parse::<Request>() {
            Ok(Request::Set(set)) => change(set, client, device).await,
            Ok(asked @ Request::Get(_)) => client.send(asked).await.map(|answer| answer.to_string()).ok(),
            Err(_) => None,
        };
        write.write_all(answer.as_deref().unwrap_or(REFUSED).as_bytes()).await?;
        write.write_all(b"\n").await?;
        request.clear();
    }
    Ok(())
}

/// Changes the device, then its peers. What a peer sends and keeps alive begins at once, as it does in the kernel.
async fn change(mut set: Set, client: &UapiClient, device: &Weak<RwLock<Device>>) -> Option<String> {
    let peers = std::mem::take(&mut set.peers);
    let answer = client.send(set).await.ok()?.to_string();
    let device = device.upgrade()?;
    let alive = |p: &&SetPeer| !p.remove && p.peer.persistent_keepalive_interval.is_some_and(|seconds| seconds > 0);
    let greeted: Vec<PublicKey> = peers.iter().filter(alive).map(key).collect();
    let changed = device.read().await;
    let put_in = changed.write(async |writing| {
        let mut new = BTreeSet::new();
        for peer in peers {
            new.extend(put(writing, peer).await);
        }
        new
    });
    let new = put_in.await.ok()?;
    drop(changed);
    if !greeted.is_empty() || !new.is_empty() {
        tasks::spawn("greeting", async move {
            greet(&*device.read().await, &greeted).await;
            insist(Arc::downgrade(&device), new).await;
        });
    }
    Some(answer)
}

fn key(set: &SetPeer) -> PublicKey {
    PublicKey::from(set.peer.public_key.0)
}

/// Makes one change to a peer. Gives its key if it was not there before.
async fn put<T: DeviceTransports>(device: &mut DeviceWrite<'_, T>, set: SetPeer) -> Option<Key> {
    let key = key(&set);
    if set.remove {
        device.remove_peer(&key).await;
        return None;
    }
    let SetPeer { peer: told, update_only, replace_allowed_ips, .. } = set;
    let preshared = told.preshared_key.map(|secret| match secret {
        SetUnset::Set(secret) => Some(secret.0),
        SetUnset::Unset => None,
    });
    let keepalive = told.persistent_keepalive_interval.map(|seconds| Some(seconds).filter(|seconds| *seconds > 0));
    let known = device
        .modify_peer(&key, |peer| {
            if replace_allowed_ips {
                peer.clear_allowed_ips();
            }
            peer.add_allowed_ips(told.allowed_ip.iter().copied());
            if told.endpoint.is_some() {
                peer.set_endpoint(told.endpoint);
            }
            if let Some(keepalive) = keepalive {
                peer.set_keepalive(keepalive);
            }
            if let Some(secret) = preshared {
                peer.set_preshared_key(secret);
            }
        })
        .await;
    if known || update_only {
        return None;
    }
    let mut peer = Peer::new(key).with_allowed_ips(told.allowed_ip);
    peer.endpoint = told.endpoint;
    peer.keepalive = keepalive.flatten();
    peer.preshared_key = preshared.flatten();
    device.add_peer(peer);
    Some(key.to_bytes())
}

/// Begins a handshake with each of these peers that has no session.
pub(super) async fn greet(device: &Device, peers: &[PublicKey]) {
    let shakes = join_all(peers.iter().map(|peer| device.force_handshake(peer)));
    // Those that do not answer now are tried again by their own timers.
    let _ = tokio::time::timeout(GREETING, shakes).await;
}

/// Tries new peers again each second for a while if they were called and have not answered: they may be told of this
/// node a moment later than this node of them, and WireGuard by itself tries again only after 5 s (REKEY_TIMEOUT). A
/// peer without a session has nothing to lose by being put in anew, which is the only way to call it again sooner.
pub(super) async fn insist(device: Weak<RwLock<Device>>, new: BTreeSet<Key>) {
    for _ in 0..limits::CALLS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Some(device) = device.upgrade() else { return };
        let device = device.read().await;
        let called = device.write(async |writing| {
            let mut called = Vec::new();
            for PeerStats { peer, stats, .. } in writing.peers().await {
                let silent = stats.last_handshake.is_none() && stats.tx_bytes > 0;
                if silent && peer.endpoint.is_some() && new.contains(peer.public_key.as_bytes()) {
                    called.push(peer.public_key);
                    writing.remove_peer(&peer.public_key).await;
                    writing.add_peer(peer);
                }
            }
            called
        });
        let Ok(called) = called.await else { return };
        greet(&device, &called).await;
    }
}
