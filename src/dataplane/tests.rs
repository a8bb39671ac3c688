//! The data plane as a process, in network namespaces of its own: two tunnels, a kill, a withdrawal.
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "tests start real programs and state figures")]

use super::*;
use crate::wire::dataplane::{Proxy, Resolver, Status, Told, Tunnel, TunnelPeer, WIREGUARD_SOCKET};
use state::model::{Name, NodeId, WireguardKey};
use state::view::records::{Mesh, Protocol};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STATE: &str = "HOLDFAST_TEST_DATAPLANE";

/// Not a test by itself: the process that the others start.
#[test]
fn process() {
    if let Some(dir) = std::env::var_os(STATE) {
        main(&PathBuf::from(dir)).unwrap();
    }
}

fn run(command: &str) -> String {
    let out = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn runs(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).output().unwrap().status.success()
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done().await {
        assert!(Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A namespace with a data plane in it; both go away with it.
struct Node {
    ns: String,
    dir: tempfile::TempDir,
    child: Child,
    secret: x25519_dalek::StaticSecret,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("ip").args(["netns", "del", &self.ns]).status();
    }
}

impl Node {
    fn new(label: &str) -> Self {
        let ns = format!("hfdp{}-{label}", std::process::id());
        run(&format!("ip netns add {ns} && ip -n {ns} link set lo up"));
        let dir = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .tempdir()
            .unwrap();
        let secret = x25519_dalek::StaticSecret::from(crate::entropy::bytes::<32>());
        files::replace(&dir.path().join("wireguard.key"), hex::encode(secret.as_bytes()).as_bytes()).unwrap();
        let child = Self::start(&ns, &dir);
        Self { ns, dir, child, secret }
    }

    fn start(ns: &str, dir: &tempfile::TempDir) -> Child {
        let exe = std::env::current_exe().unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns]).arg(exe).args(["--exact", "dataplane::tests::process"]);
        command.env(STATE, dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::start(&self.ns, &self.dir);
    }

    async fn answers(&self) -> Status {
        until("the data plane", async || matches!(client::status(self.dir.path()).await, Ok(Some(_)))).await;
        client::status(self.dir.path()).await.unwrap().unwrap()
    }

    fn key(&self) -> WireguardKey {
        WireguardKey::from_bytes(x25519_dalek::PublicKey::from(&self.secret).to_bytes())
    }

    fn tunnel_to(&self, other: &Self, address: Ipv4Addr, endpoint: Option<SocketAddr>) -> Told {
        let peer = TunnelPeer { public_key: other.key(), allowed: vec![host(address)], endpoint, keepalive: 0 };
        let tunnel = Tunnel {
            ifname: "hf0".into(),
            mtu: 1420,
            listen_port: 51820,
            private_key_file: self.dir.path().join("wireguard.key"),
            peers: vec![peer],
        };
        Told { format: 1, tunnel: Some(tunnel), ..Told::default() }
    }

    /// Asks the WireGuard device.
    async fn configure(&self, request: &str) -> String {
        let mut socket = tokio::net::UnixStream::connect(self.dir.path().join(WIREGUARD_SOCKET)).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let mut byte = [0];
        while !answer.ends_with("\n\n") && socket.read(&mut byte).await.unwrap() > 0 {
            answer.push(char::from(byte[0]));
        }
        answer
    }

    fn memory(&self) -> String {
        run(&format!("grep -E 'VmRSS|RssAnon' /proc/{}/status | tr -d '\\n'", self.child.id()))
    }
}

fn host(address: Ipv4Addr) -> ipnet::IpNet {
    ipnet::Ipv4Net::new(address, 32).unwrap().into()
}

/// Two namespaces on one wire, 192.0.2.1 and .2, with a tunnel between 10.90.0.1 and .2. Only the first knows where the
/// other is.
async fn pair(label: &str) -> (Node, Node) {
    let (a, b) = (Node::new(&format!("{label}a")), Node::new(&format!("{label}b")));
    run(&format!("ip link add eth0 netns {} type veth peer name eth0 netns {}", a.ns, b.ns));
    let ip = [Ipv4Addr::new(10, 90, 0, 1), Ipv4Addr::new(10, 90, 0, 2)];
    a.answers().await;
    b.answers().await;
    let mut alone = a.tunnel_to(&b, ip[1], None);
    alone.tunnel.as_mut().unwrap().peers.clear();
    client::tell(a.dir.path(), alone).await.unwrap();
    let peer = format!("public_key={}\nendpoint=192.0.2.2:51820\nallowed_ip={}/32", b.key(), ip[1]);
    assert_eq!(a.configure(&format!("set=1\n{peer}\n\n")).await, "errno=0\n\n");
    client::tell(b.dir.path(), b.tunnel_to(&a, ip[0], None)).await.unwrap();
    for (node, i) in [(&a, 1), (&b, 2)] {
        let ns = &node.ns;
        run(&format!("ip -n {ns} addr add 192.0.2.{i}/24 dev eth0 && ip -n {ns} link set eth0 up"));
        run(&format!("ip -n {ns} addr add 10.90.0.{i}/16 dev hf0 && ip -n {ns} link set hf0 up alias ours"));
    }
    until("the tunnel", async || runs(&format!("ip netns exec {} ping -c1 -W1 10.90.0.2", a.ns))).await;
    (a, b)
}

fn lost(ping: Child) -> u32 {
    let out = String::from_utf8(ping.wait_with_output().unwrap().stdout).unwrap();
    let (sent, rest) = out.split_once(" packets transmitted, ").unwrap();
    let sent: u32 = sent.rsplit('\n').next().unwrap().parse().unwrap();
    sent - rest.split(' ').next().unwrap().parse::<u32>().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_data_plane_comes_up_alone_and_a_stopped_one_leaves_nothing() {
    let (a, mut b) = pair("k").await;
    let heard = b.dir.path().join(HEARD);
    until("where a was heard", async || {
        files::read(&heard, 4096).is_ok_and(|bytes| bytes.windows(9).any(|w| w == b"192.0.2.1"))
    })
    .await;
    for signal in ["-9", "-TERM"] {
        let ping = Command::new("ip")
            .args(["netns", "exec", &a.ns, "ping", "-q", "-i", "0.02", "-c", "200", "10.90.0.2"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        run(&format!("kill {signal} {}", b.child.id()));
        b.child.wait().unwrap();
        b.restart();
        let status = b.answers().await;
        assert_eq!((status.tunnel.as_deref(), status.problems), (Some("hf0"), vec![]));
        let lost = lost(ping);
        println!("pings lost over kill {signal} and restart, of 200 at 20 ms: {lost}; {}", b.memory());
        assert!(lost <= 50, "{lost} pings lost");
    }
    let link = run(&format!("ip -n {} -d link show hf0", b.ns));
    assert!(link.contains("persist on") && link.contains("alias ours"), "{link}");
    assert!(client::stop(b.dir.path()).await.unwrap());
    assert!(b.child.wait().unwrap().success());
    assert!(!runs(&format!("ip -n {} link show hf0", b.ns)));
    let left: Vec<_> = std::fs::read_dir(b.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let stays = ["wireguard.key", "dataplane.lock", HEARD];
    assert!(left.iter().all(|name| stays.iter().any(|stays| name == stays)), "{left:?}");
    assert_eq!(client::status(b.dir.path()).await.unwrap(), None);

    // A goes on with a session that B has no more; only B's call tells it, and B was told no endpoint of A.
    b.restart();
    b.answers().await;
    client::tell(b.dir.path(), b.tunnel_to(&a, Ipv4Addr::new(10, 90, 0, 1), None)).await.unwrap();
    run(&format!("ip -n {} addr add 10.90.0.2/16 dev hf0 && ip -n {} link set hf0 up", b.ns, b.ns));
    let answered = (0..5).any(|_| runs(&format!("ip netns exec {} ping -c1 -W1 10.90.0.2", a.ns)));
    assert!(answered, "A waits until its own session runs out");
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_are_programmed_on_the_socket_and_a_deleted_interface_comes_back() {
    let (a, b) = pair("u").await;
    let ask = async |request: &str| a.configure(request).await;
    let got = ask("get=1\n\n").await;
    assert!(got.contains(&format!("public_key={}", b.key())) && got.ends_with("errno=0\n\n"), "{got}");
    let other = "ab".repeat(32);
    let set = format!("set=1\npublic_key={other}\nallowed_ip=10.90.0.9/32\n\n");
    assert_eq!(ask(&set).await, "errno=0\n\n");
    assert!(ask("get=1\n\n").await.contains(&other));
    assert_eq!(ask("nonsense\n\n").await, "errno=22\n\n");
    assert!(runs(&format!("ip netns exec {} ping -c1 -W1 10.90.0.2", a.ns)), "the other peer is undisturbed");

    let handshake = |got: String| {
        let line = got.lines().find_map(|line| line.strip_prefix("last_handshake_time_sec=")).unwrap();
        line.parse::<u64>().unwrap()
    };
    let before = handshake(ask("get=1\n\n").await);
    let moved = format!(
        "set=1\npublic_key={}\nreplace_allowed_ips=true\nallowed_ip=10.90.0.2/32\nallowed_ip=10.90.0.8/32\n\n",
        b.key()
    );
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(ask(&moved).await, "errno=0\n\n");
    assert!(runs(&format!("ip netns exec {} ping -c1 -W1 10.90.0.2", a.ns)));
    let got = ask("get=1\n\n").await;
    assert!(got.contains("allowed_ip=10.90.0.8/32"), "{got}");
    assert!(handshake(got).abs_diff(before) <= 1, "a changed peer keeps its session");
    let removed = format!("set=1\npublic_key={}\nremove=true\n\n", b.key());
    assert_eq!(ask(&removed).await, "errno=0\n\n");
    assert!(!ask("get=1\n\n").await.contains(&b.key().to_string()));
    let alive = format!(
        "set=1\npublic_key={}\nendpoint=192.0.2.2:51820\npersistent_keepalive_interval=25\nallowed_ip=10.90.0.2/32\n\n",
        b.key()
    );
    assert_eq!(ask(&alive).await, "errno=0\n\n");
    until("a handshake without traffic", async || ask("get=1\n\n").await.contains("last_handshake_time_sec=1")).await;

    let mut told = a.tunnel_to(&b, Ipv4Addr::new(10, 90, 0, 2), Some("192.0.2.2:51820".parse().unwrap()));
    client::tell(a.dir.path(), told.clone()).await.unwrap();
    assert!(ask("get=1\n\n").await.contains(&other), "peers of a running device are not touched by what is told");
    run(&format!("ip -n {} link del hf0", a.ns));
    until("the interface again", async || runs(&format!("ip -n {} link show hf0", a.ns))).await;
    let ns = &a.ns;
    run(&format!("ip -n {ns} addr add 10.90.0.1/16 dev hf0 && ip -n {ns} link set hf0 up"));
    until("the tunnel again", async || runs(&format!("ip netns exec {ns} ping -c1 -W1 10.90.0.2"))).await;

    told.tunnel.as_mut().unwrap().listen_port = 51999;
    let status = client::tell(a.dir.path(), told).await.unwrap();
    assert_eq!((status.tunnel.as_deref(), status.problems), (Some("hf0"), vec![]));
    assert!(run(&format!("ip netns exec {ns} ss -Hlun")).contains(":51999"));
    assert!(runs(&format!("ip netns exec {ns} ping -c1 -W2 10.90.0.2")), "the interface kept its address");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_again_is_not_touched_and_names_and_proxies_answer_before_the_address_is_there() {
    let mut node = Node::new("r");
    node.answers().await;
    let mesh = Mesh {
        prefix: "10.90.0.0/16".parse().unwrap(),
        prefix6: None,
        suffix: Name::new("internal").unwrap(),
        appliances: vec!["198.51.100.2".parse().unwrap()],
    };
    let listen: SocketAddr = "10.90.0.7:8000".parse().unwrap();
    let mut told = Told {
        format: 1,
        tunnel: None,
        resolver: Some(Resolver {
            listen: vec!["10.90.0.7:53".parse().unwrap(), "127.0.0.90:53".parse().unwrap()],
            optional: vec![],
            mesh,
            own: NodeId(uuid::Uuid::nil()),
            revision: 5,
            as_of: crate::clock::wall(),
            records: vec![],
        }),
        proxies: vec![Proxy {
            listen,
            target: "127.0.0.1:3000".parse().unwrap(),
            protocol: Protocol::Tcp,
            serving: true,
        }],
    };
    let status = client::tell(node.dir.path(), told.clone()).await.unwrap();
    assert_eq!((status.problems, status.resolver.len(), status.proxies), (vec![], 2, vec![listen]));
    let ns = node.ns.clone();
    run(&format!("ip -n {ns} addr add 10.90.0.7/32 dev lo"));
    let dig = |at: &str| run(&format!("ip netns exec {ns} dig +short @{at} appliance.internal"));
    assert_eq!((dig("10.90.0.7"), dig("127.0.0.90")), ("198.51.100.2\n".into(), "198.51.100.2\n".into()));

    // A stream through the proxy to an echo, open while the same and then more is told.
    let script = "import socket;s=socket.socket();s.setsockopt(1,2,1);s.bind(('127.0.0.1',3000));s.listen();c=s.accept()[0]\nwhile 1:\n  d=c.recv(9)\n  if not d: break\n  c.sendall(d)";
    let mut echo = Command::new("ip").args(["netns", "exec", &ns, "python3", "-c", script]).spawn().unwrap();
    until("the echo", async || run(&format!("ip netns exec {ns} ss -Hltn")).contains("127.0.0.1:3000")).await;
    let client_script = "import socket,sys\ns=socket.create_connection(('10.90.0.7',8000),5)\nfor l in sys.stdin:\n  s.sendall(l.encode());print(s.recv(9).decode().strip(),flush=True)";
    let mut stream = Command::new("ip")
        .args(["netns", "exec", &ns, "python3", "-c", client_script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut write, mut read) = (stream.stdin.take().unwrap(), std::io::BufReader::new(stream.stdout.take().unwrap()));
    let mut say = |text: &str| {
        use std::io::{BufRead, Write};
        writeln!(write, "{text}").unwrap();
        let mut line = String::new();
        read.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(say("one"), "one\n");
    let kept = node.dir.path().join(TOLD);
    let modified = || std::fs::metadata(&kept).unwrap().modified().unwrap();
    let before = modified();
    client::tell(node.dir.path(), told.clone()).await.unwrap();
    told.resolver.as_mut().unwrap().as_of = crate::clock::wall();
    client::tell(node.dir.path(), told.clone()).await.unwrap();
    assert_eq!(modified(), before, "nothing is written for a confirmation");
    assert_eq!(say("two"), "two\n");
    told.proxies[0].serving = false;
    client::tell(node.dir.path(), told.clone()).await.unwrap();
    assert!(modified() > before);
    assert_eq!(say("three"), "three\n", "a contest ends no stream that is open");
    let refused = "import socket;s=socket.create_connection(('10.90.0.7',8000),5);assert s.recv(1)==b''";
    assert!(runs(&format!("ip netns exec {ns} python3 -c \"{refused}\"")), "a contested service closes what comes");
    told.proxies.clear();
    client::tell(node.dir.path(), told.clone()).await.unwrap();
    until("the end of the withdrawn service's stream", async || say("four") != "four\n").await;
    let _ = (stream.kill(), stream.wait(), echo.kill(), echo.wait());

    told.format = 2;
    let refused = client::tell(node.dir.path(), told).await.unwrap_err();
    assert!(refused.to_string().contains("format 2"), "{refused}");
    println!("idle with names and no tunnel: {}", node.memory());
    node.kill();
    node.restart();
    assert_eq!(node.answers().await.resolver.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_told_of_us_later_is_reached_soon_after() {
    let (a, b) = pair("l").await;
    let gone = |node: &Node| format!("set=1\npublic_key={}\nremove=true\n\n", node.key());
    for (node, other) in [(&a, &b), (&b, &a)] {
        assert_eq!(node.configure(&gone(other)).await, "errno=0\n\n");
    }
    let to_b = format!(
        "set=1\npublic_key={}\nendpoint=192.0.2.2:51820\npersistent_keepalive_interval=25\nallowed_ip=10.90.0.2/32\n\n",
        b.key()
    );
    assert_eq!(a.configure(&to_b).await, "errno=0\n\n");
    tokio::time::sleep(Duration::from_millis(700)).await;
    let start = Instant::now();
    assert_eq!(
        b.configure(&format!("set=1\npublic_key={}\nallowed_ip=10.90.0.1/32\n\n", a.key())).await,
        "errno=0\n\n"
    );
    until("a handshake", async || b.configure("get=1\n\n").await.contains("endpoint=192.0.2.1:51820")).await;
    println!("reached {:?} after being told of it", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(runs(&format!("ip netns exec {} ping -c1 -W1 10.90.0.1", b.ns)), "from the end that had no endpoint");
}
