//! WireGuard in this process, for kernels without it: gotatun on a persistent TUN interface.
//!
//! The interface outlives the process with its addresses, routes and alias, so that a restart loses what is in flight
//! and nothing else. Those are set by the agent's reconciler, and so are peers, over the control socket (the userspace
//! protocol of wireguard.com/xplatform); here the device is only begun with the peers last told.

use super::sockets::Task;
use crate::wire::dataplane::{Tunnel, TunnelPeer};
use crate::{files, limits, tasks};
use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use futures_util::future::{FutureExt, join_all};
use gotatun::device::uapi::command::Request;
use gotatun::device::uapi::{UapiClient, UapiServer};
use gotatun::device::{self, Peer};
use gotatun::tun::tun_async_device::TunDevice;
use gotatun::udp::socket::UdpSocketFactory;
use gotatun::x25519::{PublicKey, StaticSecret};
use rustix::net::{AddressFamily, SocketType};
use state::model::WireguardKey;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tun::AbstractDevice;

type Device = device::Device<(UdpSocketFactory, TunDevice, TunDevice)>;

/// How long a restart waits for its peers' answers before it goes on with the rest.
const GREETING: Duration = Duration::from_millis(200);

/// Where peers with a live session were last heard. Kept over a restart: behind a NAT they cannot be found otherwise,
/// and would notice the loss only at their next rekey.
pub(super) type Heard = BTreeMap<WireguardKey, SocketAddr>;

/// A device that runs.
pub(super) struct Running {
    told: Tunnel,
    device: Device,
    index: Option<u32>,
    _control: Task,
}

impl Running {
    /// Attaches to the interface, making it if it is not there, and begins with the peers told, each where it was last
    /// `heard`.
    pub(super) async fn up(told: &Tunnel, socket: PathBuf, heard: &Heard) -> Result<Self> {
        let key = private_key(&told.private_key_file)?;
        let tun = open(told).with_context(|| format!("interface {}", told.ifname))?;
        let (client, server) = UapiServer::new();
        let control = super::control::bind(&socket)?;
        let device = device::build()
            .with_default_udp()
            .with_ip(tun)
            .with_uapi(server)
            .with_private_key(key)
            .with_listen_port(if told.peers.is_empty() { 0 } else { told.listen_port })
            .with_peers(told.peers.iter().map(|peer| begin(peer, heard)))
            .build()
            .await
            .with_context(|| format!("WireGuard on UDP port {}", told.listen_port))?;
        if told.peers.is_empty() {
            // A device begun without peers opens nothing, not even when they come later: only a changed port does.
            let opened = device.set_listen_port(told.listen_port).await;
            opened.with_context(|| format!("WireGuard on UDP port {}", told.listen_port))?;
        }
        // Peers with a session do not know that it is gone: a new handshake tells them before they send into nothing.
        let lost = told.peers.iter().filter(|peer| heard.contains_key(&peer.public_key));
        let keys: Vec<PublicKey> = lost.map(|peer| PublicKey::from(*peer.public_key.as_bytes())).collect();
        let shakes = join_all(keys.iter().map(|key| device.force_handshake(key)));
        // Those that do not answer now are tried again by their own timers.
        let _ = tokio::time::timeout(GREETING, shakes).await;
        let control = Task::spawn("wireguard-control", async move {
            loop {
                match control.accept().await {
                    Ok((stream, _)) => {
                        let client = client.clone();
                        tasks::spawn("wireguard-client", async move {
                            // The client went away; it sees that itself.
                            let _ = converse(stream, &client).await;
                        });
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
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
    pub(super) fn dead(&mut self) -> bool {
        index(&self.told.ifname) != self.index || self.device.wait().now_or_never().is_some()
    }

    /// Where peers with a session were last heard.
    pub(super) async fn heard(&self) -> Heard {
        let live = |age: Option<Duration>| age.is_some_and(|age| age < limits::SESSION);
        let peers = self.device.peers().await.into_iter().filter(|p| live(p.stats.last_handshake));
        peers.filter_map(|p| Some((WireguardKey::from_bytes(p.peer.public_key.to_bytes()), p.peer.endpoint?))).collect()
    }

    /// Ends the device. The interface stays.
    pub(super) async fn down(self) {
        self.device.stop().await;
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

/// Requests of one client, each ended by an empty line.
async fn converse(stream: UnixStream, device: &UapiClient) -> std::io::Result<()> {
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
            Ok(parsed) => device.send(parsed).await.map(|response| response.to_string()),
            Err(error) => Err(error),
        };
        // EINVAL, as the kernel would say.
        let answer = answer.unwrap_or_else(|_| "errno=22\n".into());
        write.write_all(answer.as_bytes()).await?;
        write.write_all(b"\n").await?;
        request.clear();
    }
    Ok(())
}
