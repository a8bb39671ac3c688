//! Network namespaces of a test's own, with real WireGuard devices in them. Everything is gone when the test ends,
//! also by a panic.

use super::*;
use crate::dataplane;
use crate::node::plan::Firewall;
use crate::wire::dataplane::{Told, Tunnel, TunnelPeer};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

/// A network namespace, deleted when dropped.
pub(super) struct Netns(String);

impl Netns {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hfk{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        sh(&format!("ip netns add {name}"));
        let netns = Self(name);
        netns.sh("ip link set lo up");
        netns
    }

    /// Joins two of them by a cable with an address at each end.
    pub(super) fn cable(&self, other: &Self, name: &str, own: &str, theirs: &str) {
        sh(&format!("ip link add {name} netns {} type veth peer name {name} netns {}", self.0, other.0));
        for (netns, address) in [(self, own), (other, theirs)] {
            netns.sh(&format!("ip addr add {address} dev {name} && ip link set {name} up"));
        }
    }

    /// Runs a shell command inside and gives its output.
    pub(super) fn sh(&self, command: &str) -> String {
        sh(&format!("ip netns exec {} sh -ec '{command}'", self.0))
    }

    /// Starts one that goes on.
    pub(super) fn start(&self, command: &[&str]) -> Child {
        let mut process = Command::new("ip");
        process.args(["netns", "exec", &self.0]).args(command).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a future on a thread of this namespace, with a runtime of its own.
    pub(super) fn run<T: Send>(&self, future: impl AsyncFnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.file());
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(future())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn file(&self) -> std::fs::File {
        std::fs::File::open(format!("/run/netns/{}", self.0)).unwrap()
    }
}

fn enter(namespace: &std::fs::File) {
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(namespace), kind).unwrap();
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The node's data plane, running in its namespace. Dropping it is a kill: the interface stays.
pub(super) struct DataPlane {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A node: its namespace, state directory and key.
pub(super) struct Node {
    pub(super) netns: Netns,
    pub(super) dir: PathBuf,
    _temporary: tempfile::TempDir,
    pub(super) key: PrivateKey,
    number: u8,
}

impl Node {
    /// Number `n` has the mesh address 10.90.0.n.
    pub(super) fn new(number: u8) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("state");
        crate::files::private_dir(&dir).unwrap();
        let file = dir.join("wireguard.key");
        crate::files::create_once(&file, hex::encode([number; 32]).as_bytes()).unwrap();
        Self { netns: Netns::new(), key: PrivateKey::read(&file).unwrap(), dir, _temporary: temporary, number }
    }

    pub(super) fn desired(&self) -> Desired {
        Desired {
            ifname: "hf0".into(),
            mtu: 1420,
            address: [10, 90, 0, self.number].into(),
            address6: Some(format!("fd90::{}", self.number).parse().unwrap()),
            prefix: "10.90.0.0/16".parse().unwrap(),
            prefix6: Some("fd90::/64".parse().unwrap()),
            listen_port: 51820,
            private_key_file: self.dir.join("wireguard.key"),
            peers: Vec::new(),
            forward: false,
            firewall: Firewall::default(),
        }
    }

    /// This node as another's peer.
    pub(super) fn peer(&self, endpoint: Option<&str>) -> TunnelPeer {
        TunnelPeer {
            public_key: self.key.public(),
            allowed: vec![
                format!("10.90.0.{}/32", self.number).parse().unwrap(),
                format!("fd90::{}/128", self.number).parse().unwrap(),
            ],
            endpoint: endpoint.map(|text| text.parse().unwrap()),
            keepalive: 0,
        }
    }

    pub(super) async fn reconciler(&self) -> Reconciler {
        let id = NodeId(uuid::Uuid::from_u128(u128::from(self.number)));
        Reconciler::new(&self.dir, id).await.unwrap()
    }

    /// Converges with a reconciler of its own, as a new start of the agent would.
    pub(super) fn converge(&self, desired: &Desired) -> Evidence {
        self.netns.run(async || self.reconciler().await.converge(desired).await.unwrap())
    }

    /// Starts the data plane and tells it of the tunnel, without peers.
    pub(super) fn data_plane(&self) -> DataPlane {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let dir = self.dir.clone();
        let namespace = self.netns.file();
        let thread = std::thread::spawn(move || {
            enter(&namespace);
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    ended = dataplane::run(&dir) => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let tunnel = Tunnel {
            ifname: "hf0".into(),
            mtu: 1420,
            listen_port: 51820,
            private_key_file: self.dir.join("wireguard.key"),
            peers: Vec::new(),
        };
        let told = Told { format: 1, tunnel: Some(tunnel), ..Told::default() };
        eventually("the data plane", || {
            let status = self.netns.run(async || dataplane::client::tell(&self.dir, told.clone()).await);
            status.is_ok_and(|status| status.tunnel.is_some())
        });
        DataPlane { stop: Some(stop), thread: Some(thread) }
    }

    /// The kernel's objects as its own tools list them, without what changes by itself.
    pub(super) fn state(&self) -> String {
        let mut told = String::new();
        for command in [
            "ip -j -d link show hf0",
            "ip -j address show dev hf0",
            "ip -j route show",
            "ip -j -6 route show dev hf0",
            "nft -j list table inet holdfast_mesh || true",
            "iptables -S",
            "cat /proc/sys/net/ipv4/conf/hf0/forwarding",
        ] {
            let output = self.netns.sh(command);
            told += &match serde_json::from_str(&output) {
                Ok(mut value) => {
                    still(&mut value);
                    format!("{value:#}\n")
                }
                Err(_) => output,
            };
        }
        told
    }
}

/// Takes out handles, counters and indexes, and link-local addresses, which the kernel makes at random.
fn still(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Array(values) => {
            values.retain(|value| value["scope"] != "link" || value["family"] != "inet6");
            values.retain(|value| !value["dst"].as_str().is_some_and(|dst| dst.starts_with("fe80")));
            values.iter_mut().for_each(still);
        }
        Value::Object(fields) => {
            for field in ["handle", "packets", "bytes", "ifindex", "stats", "stats64"] {
                fields.remove(field);
            }
            fields.values_mut().for_each(still);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Polls until it holds, at most ten seconds.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = crate::clock::boot() + std::time::Duration::from_secs(10);
    while !holds() {
        assert!(crate::clock::boot() < deadline, "not within 10 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
