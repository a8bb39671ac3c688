//! WireGuard in this process, for kernels without it: gotatun on a persistent TUN interface.
//!
//! The interface outlives the process with its addresses, routes and alias, so that a restart loses what is in flight
//! and nothing else. Those are set by the agent's reconciler, and so are peers, over the control socket; here the device is
//! only begun with the peers last told.

use super::sockets::Task;
use super::wireguard;
use crate::wire::dataplane::{Tunnel, TunnelPeer};
use crate::{files, limits, tasks};
use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use futures_util::future::FutureExt;
use gotatun::device::uapi::UapiServer;
use gotatun::device::{self, Peer};
use gotatun::tun::tun_async_device::TunDevice;
use gotatun::udp::socket::UdpSocketFactory;
use gotatun::x25519::{PublicKey, StaticSecret};
use rustix::net::{AddressFamily, SocketType};
use state::model::WireguardKey;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLock;
use tun::AbstractDevice;

/// A gotatun device on a TUN interface.
pub(super) type Device = device::Device<(UdpSocketFactory, TunDevice, TunDevice)>;

/// Where peers with a live session were last heard. Kept over a restart: behind a NAT they cannot be found otherwise,
/// and would notice the loss only at their next rekey.
pub(super) type Heard = BTreeMap<WireguardKey, SocketAddr>;

/// A device that runs.
pub(super) struct Running {
    told: Tunnel,
    device: Arc<RwLock<Device>>,
    index: Option<u32>,
    _control: Task,
}

impl Running {
    /// Attaches to the interface, making it if it is not there, and begins with the peers told, each where it was last
    /// `heard`.
    pub(super) async fn up(told: &Tunnel, socket: PathBuf, heard: &Heard) -> Result<Self> {
        let key = private_key(&told.private_key_file)?;
        let tun = attach(told).await.with_context(|| format!("interface {}", told.ifname))?;
        let (client, server) = UapiServer::new();
        let control = super::control::bind(&socket)?;
        let device = device::build()
            .with_default_udp()
            .with_ip(tun)
            .with_uapi(server)
            .with_private_key(key)
            .with_listen_port(told.listen_port)
            .with_peers(told.peers.iter().map(|peer| begin(peer, heard)))
            .build()
            .await
            .with_context(|| port(told))?;
        // Without a peer gotatun opens no port, not even for peers that come later; clearing nothing makes it.
        if told.peers.is_empty() {
            device.write(async |device| device.clear_peers()).await.with_context(|| port(told))?;
        }
        // Peers with a session do not know that it is gone: a handshake tells them before they send into nothing.
        let greeted = told.peers.iter().filter(|peer| peer.keepalive > 0 || heard.contains_key(&peer.public_key));
        let greeted: Vec<PublicKey> = greeted.map(|peer| PublicKey::from(*peer.public_key.as_bytes())).collect();
        wireguard::greet(&device, &greeted).await;
        let device = Arc::new(RwLock::new(device));
        let control = wireguard::serve(control, client, &device);
        let new = told.peers.iter().map(|peer| *peer.public_key.as_bytes()).collect();
        tasks::spawn("greeting", wireguard::insist(Arc::downgrade(&device), new));
        Ok(Self { told: told.clone(), device, index: index(&told.ifname), _control: control })
    }

    /// Whether this is the device wanted. Peers do not count: they are programmed over the control socket.
    pub(super) fn is(&self, wanted: &Tunnel) -> bool {
        let Tunnel { ifname, mtu: _, listen_port, private_key_file, peers: _ } = wanted;
        let told = &self.told;
        (ifname, listen_port, private_key_file) == (&told.ifname, &told.listen_port, &told.private_key_file)
    }

    /// The interface's name.
    pub(super) fn ifname(&self) -> &str {
        &self.told.ifname
    }

    /// Whether the device has died, or somebody deleted the interface under it, which it does not notice.
    pub(super) fn dead(&self) -> bool {
        index(&self.told.ifname) != self.index || self.failed()
    }

    /// Whether it says that it cannot go on. In the middle of a request it is asked again later.
    fn failed(&self) -> bool {
        self.device.try_write().is_ok_and(|mut device| device.wait().now_or_never().is_some())
    }

    /// Where peers with a session were last heard.
    pub(super) async fn heard(&self) -> Heard {
        let live = |age: Option<Duration>| age.is_some_and(|age| age < limits::SESSION);
        let peers = self.device.read().await.peers().await.into_iter().filter(|p| live(p.stats.last_handshake));
        peers.filter_map(|p| Some((WireguardKey::from_bytes(p.peer.public_key.to_bytes()), p.peer.endpoint?))).collect()
    }

    /// Ends the device. The interface stays.
    pub(super) async fn down(self) {
        self.device.read().await.suspend().await;
    }
}

/// Removes the interface of a device that was ended.
pub(super) async fn remove(ifname: &str) -> Result<()> {
    let (connection, handle, _) = rtnetlink::new_connection().context("opening netlink")?;
    let _connection = Task::spawn("netlink", connection);
    let found = handle.link().get().match_name(ifname.to_owned()).execute().try_next().await;
    let Ok(Some(link)) = found else { return Ok(()) };
    handle.link().del(link.header.index).execute().await.with_context(|| format!("removing {ifname}"))
}

fn port(told: &Tunnel) -> String {
    format!("WireGuard on UDP port {}", told.listen_port)
}

/// A device that was ended a moment ago may still hold the interface.
async fn attach(told: &Tunnel) -> Result<TunDevice> {
    for _ in 0..10 {
        if let Ok(tun) = open(told) {
            return Ok(tun);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    open(told)
}

/// Single queue: gotatun can attach to no other.
fn open(told: &Tunnel) -> Result<TunDevice> {
    let mut config = tun::Configuration::default();
    config.tun_name(&told.ifname);
    let mut tun =
        tun::create_as_async(&config).context("attaching (it may be another kind of interface, or in use)")?;
    tun.persist().context("making it persistent")?;
    tun.set_mtu(u16::try_from(told.mtu)?).context("setting its MTU")?;
    Ok(TunDevice::from_tun_device(tun)?)
}

/// The kernel's number of an interface; another one of the same name has another.
fn index(ifname: &str) -> Option<u32> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::name_to_index(socket, ifname).ok()
}

fn private_key(path: &Path) -> Result<StaticSecret> {
    let text = files::read_secret(path)?;
    let mut key = zeroize::Zeroizing::new([0; 32]);
    hex::decode_to_slice(text.trim_ascii(), key.as_mut_slice())
        .map_err(|_| anyhow!("{}: is not 64 hexadecimal digits", path.display()))?;
    Ok(StaticSecret::from(*key))
}

fn begin(told: &TunnelPeer, heard: &Heard) -> Peer {
    let allowed = told.allowed.iter().map(|net| net.to_string().parse().expect("a network reads as one"));
    let mut peer = Peer::new(PublicKey::from(*told.public_key.as_bytes())).with_allowed_ips(allowed);
    peer.endpoint = heard.get(&told.public_key).copied().or(told.endpoint);
    peer.keepalive = (told.keepalive > 0).then_some(told.keepalive);
    peer
}
