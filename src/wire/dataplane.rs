//! What the agent tells the data plane over its socket, and what the data plane keeps of it beside the socket.
//!
//! One JSON document a line in each direction: an [`Order`], then its [`Reply`].

use serde::{Deserialize, Serialize};
use state::model::{Millis, NodeId, WireguardKey};
use state::view::records::{Mesh, NodeRecord, Protocol};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// The control socket of the userspace WireGuard device, in the state directory.
pub const WIREGUARD_SOCKET: &str = "wireguard.sock";

/// A request of the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Be this from now on; what is unchanged is not touched.
    Tell(Box<Told>),
    /// Say what you are.
    Status,
    /// Take everything down and end: `agent down`, leaving, revocation.
    Stop,
}

/// The answer to an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done, and this is the present state.
    Ok(Status),
    /// Not done, and why.
    Error(String),
}

/// All that the data plane is to be. Kept in `dataplane.json` (0600), so that it also comes up alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Format of this document: 1.
    pub format: u16,
    /// The userspace tunnel; none where the kernel has WireGuard.
    pub tunnel: Option<Tunnel>,
    /// The resolver; none until the node has an address.
    pub resolver: Option<Resolver>,
    /// Published services with a target of their own.
    pub proxies: Vec<Proxy>,
}

/// A userspace WireGuard device on a persistent TUN interface, with its control socket at [`WIREGUARD_SOCKET`]. The peers here are what the device begins with after a restart; while it runs they are changed there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tunnel {
    /// Interface name, at most 15 characters.
    pub ifname: String,
    /// Bytes of an inner packet.
    pub mtu: u32,
    /// UDP port.
    pub listen_port: u16,
    /// The file with the private key, hexadecimal digits.
    pub private_key_file: PathBuf,
    /// Peers to begin with.
    pub peers: Vec<TunnelPeer>,
}

/// One peer of a WireGuard device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelPeer {
    /// Its key.
    pub public_key: WireguardKey,
    /// What may come from it and goes to it; disjoint over all peers.
    pub allowed: Vec<ipnet::IpNet>,
    /// Where to send until something was heard from elsewhere.
    pub endpoint: Option<SocketAddr>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: u16,
}

/// The resolver's sockets and what it answers from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolver {
    /// UDP and TCP sockets: the mesh address and 127.0.0.90, port 53.
    pub listen: Vec<SocketAddr>,
    /// Addresses that may be missing without the whole failing, e.g. 127.0.0.90 where it is taken.
    pub optional: Vec<IpAddr>,
    /// The fleet's facts.
    pub mesh: Mesh,
    /// The node's own id.
    pub own: NodeId,
    /// The highest revision among the heads: the SOA serial.
    pub revision: u64,
    /// When the list was last confirmed by an appliance. Telling a later time alone costs nothing and disturbs nothing;
    /// three minutes after it, answers say that they are old.
    pub as_of: Millis,
    /// All records held, verified.
    pub records: Vec<NodeRecord>,
}

/// A published service that is carried to a target on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxy {
    /// Mesh address and published port.
    pub listen: SocketAddr,
    /// Where the service really listens, e.g. `127.0.0.1:3000`.
    pub target: SocketAddr,
    /// `http` rewrites forwarding headers; `tcp` is spliced.
    pub protocol: Protocol,
    /// False while the name is contested: 503 for HTTP, closed for TCP. Streams that are open go on until the proxy is
    /// no longer told.
    pub serving: bool,
}

/// What the data plane is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `holdfast --version` of the running process.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started.
    pub since: Millis,
    /// The interface of the userspace tunnel, when it runs.
    pub tunnel: Option<String>,
    /// Where the resolver listens.
    pub resolver: Vec<SocketAddr>,
    /// Where proxies listen.
    pub proxies: Vec<SocketAddr>,
    /// What could not be done, in words; the rest goes on.
    pub problems: Vec<String>,
}
