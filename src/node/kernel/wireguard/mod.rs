//! WireGuard devices: the kernel's own, or the userspace one that the data plane holds. Both are read whole and changed
//! one peer at a time; nothing here ever replaces all peers.

mod netlink;
mod uapi;

use super::KernelError;
use ipnet::IpNet;
use state::model::{Millis, WireguardKey};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Which of the two this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's.
    Kernel,
    /// A TUN interface and the protocol in the data plane.
    Userspace,
}

/// A private X25519 key. It has neither `Debug` nor `Serialize` and is wiped when dropped.
pub struct PrivateKey(Zeroizing<[u8; 32]>);

impl PrivateKey {
    /// Reads the file that holds it in hexadecimal digits.
    pub fn read(path: &Path) -> Result<Self, crate::files::FileError> {
        let text = crate::files::read_secret(path)?;
        let mut bytes = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim_ascii(), bytes.as_mut_slice()).map_err(|_| {
            let problem = "does not hold a private key of 64 hexadecimal digits".into();
            crate::files::FileError::Unsafe { path: path.to_owned(), problem }
        })?;
        Ok(Self(bytes))
    }

    /// Its public half.
    pub fn public(&self) -> WireguardKey {
        let secret = x25519_dalek::StaticSecret::from(*self.0);
        WireguardKey::from_bytes(x25519_dalek::PublicKey::from(&secret).to_bytes())
    }
}

/// A device as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The public half of its key, if it has one.
    pub key: Option<WireguardKey>,
    /// Its UDP port.
    pub listen_port: u16,
    /// All peers.
    pub peers: BTreeMap<WireguardKey, PeerSeen>,
}

/// A peer as the device has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSeen {
    /// What may come from it and goes to it.
    pub allowed: BTreeSet<IpNet>,
    /// Where it was last heard from, or where to send first.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: u16,
    /// When it last completed a handshake.
    pub handshake: Option<Millis>,
    /// Bytes received from it.
    pub received: u64,
    /// Bytes sent to it.
    pub sent: u64,
}

/// One change of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Take the private key of the key file.
    Key,
    /// Listen on this UDP port.
    Port(u16),
    /// Add a peer, or change what is given of one.
    Set(PeerChange),
    /// Forget a peer.
    Remove(WireguardKey),
}

/// What is to change of one peer; `None` leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Whose.
    pub key: WireguardKey,
    /// All its allowed addresses from now on.
    pub allowed: Option<BTreeSet<IpNet>>,
    /// Where to send.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: Option<u16>,
}

/// The way to a device.
#[derive(Clone, Debug)]
pub enum WireGuard {
    /// By generic netlink, named by its interface.
    Kernel(String),
    /// By the text protocol on its socket.
    Userspace(PathBuf),
}

impl WireGuard {
    /// The device, none if there is none or nothing answers.
    pub async fn observe(&self) -> Result<Option<Device>, KernelError> {
        match self {
            Self::Kernel(ifname) => netlink::observe(ifname).await,
            Self::Userspace(socket) => uapi::observe(socket).await,
        }
    }

    /// Makes one change.
    pub async fn apply(&self, step: &DeviceStep, key: &PrivateKey) -> Result<(), KernelError> {
        match self {
            Self::Kernel(ifname) => netlink::apply(ifname, step, key).await,
            Self::Userspace(socket) => uapi::apply(socket, step, key).await,
        }
    }
}

/// Whether the kernel has WireGuard. Asks for its netlink family, which loads the module where there is one; nothing is made.
pub async fn probe() -> Backend {
    if netlink::is_there().await { Backend::Kernel } else { Backend::Userspace }
}
