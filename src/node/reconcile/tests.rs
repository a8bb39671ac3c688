//! The reconciler against real kernels: namespaces, TUN interfaces, nftables and userspace WireGuard devices.

use super::lab::*;
use super::*;
use crate::node::kernel::events::Watch;
use crate::node::plan::{Firewall, Opening, What};
use crate::wire::dataplane::TunnelPeer;
use state::view::records::Protocol;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

#[test]
fn a_second_apply_sends_nothing_and_withdrawing_leaves_nothing() {
    let node = Node::new(1);
    let clean = node.netns.sh("ip -br link; ip -br addr; nft list ruleset; ip route; ip -6 route");
    let data_plane = node.data_plane();
    let other = Node::new(2);
    let mut desired = node.desired();
    desired.peers = vec![other.peer(Some("192.0.2.2:51820"))];
    desired.firewall.openings = vec![Opening { protocol: Protocol::Udp, port: 53, from: vec![] }];
    let first = node.converge(&desired);
    assert_eq!(first.open, Vec::<String>::new());
    let told: Vec<String> = first.sent.iter().map(ToString::to_string).collect();
    let peer =
        format!("peer {}: allow 10.90.0.2/32 fd90::2/128 at 192.0.2.2:51820 without keepalive", other.key.public());
    assert_eq!(
        told,
        [
            "firewall: put the table holdfast_mesh in place",
            "interface: mark it as this node's",
            "address: add 10.90.0.1/32",
            "address: add fd90::1/128",
            &peer,
            "interface: set it up",
            "route: add 10.90.0.0/16",
            "route: add fd90::/64",
        ]
    );
    assert_eq!(node.converge(&desired).sent, []);
    node.netns.run(async || node.reconciler().await.check_foreign(&desired).await.unwrap());
    let route = node.netns.sh("ip route get 10.90.0.2; ip -6 route get fd90::2");
    assert!(route.contains("dev hf0 src 10.90.0.1") && route.contains("dev hf0 proto 117 src fd90::1"), "{route}");

    // One element is changed by one element.
    desired.firewall.openings.push(Opening {
        protocol: Protocol::Tcp,
        port: 80,
        from: vec!["10.90.0.2".parse().unwrap()],
    });
    let second = node.converge(&desired);
    assert_eq!(second.sent.len(), 1);
    assert_eq!(second.sent[0].to_string(), "firewall: open tcp/80 from 10.90.0.2");
    assert_eq!(second.open, Vec::<String>::new());

    drop(data_plane);
    node.netns.run(async || node.reconciler().await.withdraw().await.unwrap());
    assert_eq!(node.netns.sh("ip -br link; ip -br addr; nft list ruleset; ip route; ip -6 route"), clean);
    assert!(!node.dir.join("ledger.json").exists());
}

#[test]
fn what_belongs_to_somebody_else_is_refused_by_name_and_untouched() {
    let interface = What::Interface("hf0".into());
    let cases = [
        ("ip link add hf0 type bridge", interface.clone(), "a bridge"),
        ("ip tuntap add hf0 mode tun", interface.clone(), "a tun"),
        (
            "ip tuntap add hf0 mode tun; ip link set hf0 alias holdfast:mesh:somebody",
            interface,
            "a tun marked `holdfast:mesh:somebody`",
        ),
        ("nft add table inet holdfast_mesh", What::Table, "unmarked"),
        (
            "nft add table inet holdfast_mesh; nft add chain inet holdfast_mesh x; nft add rule inet holdfast_mesh x accept",
            What::Table,
            "unmarked",
        ),
        (
            "nft add table inet holdfast_mesh; nft add chain inet holdfast_mesh node_another",
            What::Table,
            "marked `node_another`",
        ),
        ("ip addr add 10.90.0.1/24 dev lo", What::Address("10.90.0.1".parse().unwrap()), "lo"),
        ("ip route add 10.90.0.0/16 dev lo", What::Prefix("10.90.0.0/16".parse().unwrap()), "lo"),
    ];
    for (command, what, who) in cases {
        let node = Node::new(1);
        node.netns.sh(command);
        let look = || node.netns.sh("ip -d link; ip addr; ip route; ip -6 route; nft list ruleset");
        let before = look();
        let desired = node.desired();
        let refused = node.netns.run(async || node.reconciler().await.check_foreign(&desired).await.unwrap_err());
        let ReconcileError::Foreign(found) = refused else { panic!("{command}: {refused}") };
        assert_eq!((&found.what, found.who.as_str()), (&what, who), "{command}");
        assert_eq!(look(), before, "{command}");
        // Found later it is drift: told, and left alone.
        let evidence = node.converge(&desired);
        assert_eq!(evidence.foreign, [found], "{command}");
        if matches!(what, What::Interface(_) | What::Table) {
            assert_eq!(evidence.sent, [], "{command}");
            assert_eq!(look(), before, "{command}");
        }
        node.netns.run(async || node.reconciler().await.withdraw().await.unwrap());
        assert_eq!(look(), before, "{command}");
    }
}

#[test]
fn a_udp_port_of_another_process_is_refused_and_everything_else_goes_on() {
    let node = Node::new(1);
    let _data_plane = node.data_plane();
    let desired = Desired { listen_port: 51999, ..node.desired() };
    let held = node.netns.run(async || std::net::UdpSocket::bind("127.0.0.1:51999").unwrap());
    let evidence = node.converge(&desired);
    assert_eq!(evidence.foreign.len(), 1);
    let told = evidence.foreign[0].to_string();
    assert!(told.starts_with(&format!("the UDP port 51999 is held by process {} (", std::process::id())), "{told}");
    assert_eq!(evidence.open, Vec::<String>::new());
    assert!(evidence.sent.iter().any(|step| matches!(step, Step::AddRoute(_))));
    drop(held);
    assert_eq!(node.converge(&desired).sent, [Step::Device(wireguard::DeviceStep::Port(51999))]);
}

#[test]
fn what_something_else_changes_is_repaired() {
    let node = Node::new(1);
    let _data_plane = node.data_plane();
    let mut desired = node.desired();
    desired.peers = vec![Node::new(2).peer(None)];
    desired.firewall.openings = vec![Opening { protocol: Protocol::Tcp, port: 80, from: vec![] }];
    desired.forward = true;
    node.netns.sh("iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER");
    node.converge(&desired);
    let good = node.state();
    for damage in [
        "nft flush ruleset; iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER",
        "nft delete table inet holdfast_mesh",
        "nft flush chain inet holdfast_mesh from_mesh",
        "nft flush set inet holdfast_mesh open",
        "nft flush table inet holdfast_mesh",
        "nft insert rule inet holdfast_mesh from_mesh accept",
        "nft add element inet holdfast_mesh open { tcp . 22 }",
        r"nft add set inet holdfast_mesh other { type ipv4_addr\; }",
        "iptables -F DOCKER-USER",
        "ip addr flush dev hf0",
        "ip addr add 10.90.7.7/32 dev hf0",
        "ip route del 10.90.0.0/16",
        "ip link set hf0 down",
        "ip link set hf0 alias other",
        "ip link set hf0 mtu 1300",
        "echo 0 >/proc/sys/net/ipv4/conf/hf0/forwarding",
    ] {
        node.netns.sh(damage);
        assert_ne!(node.state(), good, "{damage}");
        let evidence = node.converge(&desired);
        assert_eq!(evidence.open, Vec::<String>::new(), "{damage}");
        assert_eq!(node.state(), good, "{damage}");
        assert_eq!(node.converge(&desired).sent, [], "{damage}");
    }
    let peer = desired.peers[0].public_key;
    node.netns.run(async || {
        let reconciler = node.reconciler().await;
        let device = reconciler.wireguard(&desired);
        device.apply(&wireguard::DeviceStep::Remove(peer), &node.key).await.unwrap();
        assert!(reconciler.peers_seen(&desired).await.unwrap().is_empty());
    });
    assert_eq!(node.converge(&desired).sent.len(), 1);
    node.netns.run(async || assert_eq!(node.reconciler().await.peers_seen(&desired).await.unwrap().len(), 1));
}

#[test]
fn a_lost_interface_is_waited_for_and_made_whole() {
    let node = Node::new(1);
    let data_plane = node.data_plane();
    let desired = node.desired();
    node.converge(&desired);
    let good = node.state();
    drop(data_plane);
    node.netns.sh("ip link del hf0");
    let evidence = node.converge(&desired);
    assert_eq!(evidence.open, ["the data plane has not made the interface hf0 yet"]);
    let _data_plane = node.data_plane();
    assert_eq!(node.converge(&desired).open, Vec::<String>::new());
    assert_eq!(node.state(), good);
}

#[test]
fn a_stop_between_any_two_changes_is_repaired_at_the_next_start() {
    let peers = [Node::new(2), Node::new(3)];
    let wanted = |node: &Node| {
        let mut desired = node.desired();
        desired.peers = peers.iter().map(|peer| peer.peer(Some("192.0.2.2:51820"))).collect();
        desired.forward = true;
        desired.firewall.openings = vec![Opening { protocol: Protocol::Udp, port: 53, from: vec![] }];
        desired
    };
    let earlier = |node: &Node| {
        let mut desired = node.desired();
        desired.peers = vec![TunnelPeer { keepalive: 25, ..peers[0].peer(None) }, Node::new(4).peer(None)];
        (desired.mtu, desired.address) = (1300, [10, 90, 0, 77].into());
        desired.firewall = Firewall { open: true, openings: vec![] };
        desired
    };
    let start = |from_earlier: bool| {
        let node = Node::new(1);
        node.netns.sh("iptables -P FORWARD DROP");
        let data_plane = node.data_plane();
        if from_earlier {
            node.converge(&earlier(&node));
        }
        (node, data_plane)
    };
    let (clean, _data_plane) = start(false);
    clean.converge(&wanted(&clean));
    let good = clean.state();
    for from_earlier in [false, true] {
        let mut stop = 0;
        loop {
            let (node, _data_plane) = start(from_earlier);
            let desired = wanted(&node);
            let steps = node.netns.run(async || {
                let mut reconciler = node.reconciler().await;
                let seen = reconciler.observe(&desired).await.unwrap();
                let todo = plan(&desired, &seen).steps;
                reconciler.intend(&desired, &seen, &todo).unwrap();
                let (made, failed) = reconciler.apply(&desired, &todo[..stop]).await.unwrap();
                assert_eq!((made.len(), failed), (stop, vec![]));
                todo.len()
            });
            let evidence = node.converge(&desired);
            assert_eq!(evidence.open, Vec::<String>::new());
            assert_eq!(node.state(), good, "stopped after {stop} of {steps}");
            node.netns.run(async || {
                let mut reconciler = node.reconciler().await;
                assert_eq!(reconciler.converge(&desired).await.unwrap().sent, []);
                reconciler.withdraw().await.unwrap();
            });
            assert!(!node.netns.sh("ip link; nft list tables; iptables -S").contains("hf0"));
            if stop == steps {
                break;
            }
            stop += 1;
        }
        assert!(stop >= 10, "{stop}");
    }
}

#[test]
fn peers_come_and_go_without_a_lost_packet() {
    let (a, b) = (Node::new(1), Node::new(2));
    a.netns.cable(&b.netns, "v0", "192.0.2.1/24", "192.0.2.2/24");
    let _devices = (a.data_plane(), b.data_plane());
    let mut on_a = a.desired();
    on_a.peers = vec![b.peer(Some("192.0.2.2:51820"))];
    let mut on_b = b.desired();
    on_b.peers = vec![a.peer(None)];
    a.converge(&on_a);
    b.converge(&on_b);
    eventually("the first ping", || a.netns.sh("ping -c1 -W1 10.90.0.2 || true").contains(" 0% packet loss"));

    let ping = a.netns.start(&["ping", "-q", "-i", "0.01", "-c", "400", "-W", "2", "10.90.0.2"]);
    a.netns.run(async || {
        let mut reconciler = a.reconciler().await;
        for n in 3..53 {
            let key = WireguardKey::from_bytes([n; 32]);
            let allowed = vec![format!("10.90.1.{n}/32").parse().unwrap()];
            on_a.peers.push(TunnelPeer { public_key: key, allowed, endpoint: None, keepalive: 0 });
            assert_eq!(reconciler.converge(&on_a).await.unwrap().sent.len(), 1);
        }
        for _ in 3..53 {
            on_a.peers.pop();
            assert_eq!(reconciler.converge(&on_a).await.unwrap().sent.len(), 1);
        }
    });
    let told = String::from_utf8(ping.wait_with_output().unwrap().stdout).unwrap();
    assert!(told.contains("400 received, 0% packet loss"), "{told}");

    // What the device learnt is read back and not overwritten.
    let seen = b.netns.run(async || b.reconciler().await.peers_seen(&on_b).await.unwrap());
    let peer = &seen[&a.key.public()];
    assert_eq!(peer.endpoint, Some("192.0.2.1:51820".parse().unwrap()));
    assert!(peer.handshake.is_some() && peer.received > 0 && peer.sent > 0);
    on_b.peers[0].endpoint = Some("192.0.2.99:1".parse().unwrap());
    assert_eq!(b.converge(&on_b).sent, []);
}

#[test]
fn the_firewall_lets_in_what_was_opened_and_a_hub_forwards_past_a_dropping_policy() {
    let (a, hub, b) = (Node::new(1), Node::new(2), Node::new(3));
    a.netns.cable(&hub.netns, "v0", "192.0.2.1/30", "192.0.2.2/30");
    b.netns.cable(&hub.netns, "v1", "192.0.2.5/30", "192.0.2.6/30");
    let _devices = (a.data_plane(), hub.data_plane(), b.data_plane());
    let through = |node: &Node, far: &Node, at: &str| {
        let mut peer = hub.peer(Some(at));
        peer.allowed.extend(far.peer(None).allowed);
        Desired { peers: vec![peer], ..node.desired() }
    };
    let on_a = through(&a, &b, "192.0.2.2:51820");
    let mut on_b = through(&b, &a, "192.0.2.6:51820");
    let mut on_hub = Desired { peers: vec![a.peer(None), b.peer(None)], ..hub.desired() };
    on_b.peers[0].keepalive = 1;
    hub.netns.sh("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
    for (node, desired) in [(&a, &on_a), (&hub, &on_hub), (&b, &on_b)] {
        assert_eq!(node.converge(desired).open, Vec::<String>::new());
    }
    let ping = |to: &str| a.netns.sh(&format!("ping -c1 -W1 {to} || true")).contains(" 0% packet loss");
    eventually("the hub", || ping("10.90.0.2"));
    assert!(!ping("10.90.0.3"));
    on_hub.forward = true;
    assert_eq!(hub.converge(&on_hub).open, Vec::<String>::new());
    eventually("through the hub", || ping("10.90.0.3"));
    eventually("through the hub by IPv6", || ping("fd90::3"));
    let told = a.netns.sh("ping -c3 -i0.2 -W1 10.90.0.3; ping -c3 -i0.2 -W1 fd90::3");
    assert!(!told.contains("Redirect"), "{told}");

    let listener = b.netns.run(async || TcpListener::bind("[::]:80").unwrap());
    let connect = |from: &Node, to: &str| {
        let to = to.parse().unwrap();
        from.netns.run(async || TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok())
    };
    assert!(!connect(&a, "10.90.0.3:80"));
    let open = |on_b: &mut Desired, from: &[&str]| {
        let from = from.iter().map(|ip| ip.parse().unwrap()).collect();
        on_b.firewall.openings = vec![Opening { protocol: Protocol::Http, port: 80, from }];
        assert_eq!(b.converge(on_b).sent.len(), 1);
    };
    open(&mut on_b, &["10.90.0.2", "fd90::1"]);
    assert!(!connect(&a, "10.90.0.3:80") && connect(&a, "[fd90::3]:80") && connect(&hub, "10.90.0.3:80"));
    open(&mut on_b, &[]);
    assert!(connect(&a, "10.90.0.3:80"));
    on_b.firewall = Firewall::default();
    b.converge(&on_b);
    assert!(!connect(&a, "10.90.0.3:80"));
    on_b.firewall.open = true;
    b.converge(&on_b);
    assert!(connect(&a, "10.90.0.3:80"));
    drop(listener);

    on_hub.forward = false;
    assert_eq!(hub.converge(&on_hub).open, Vec::<String>::new());
    assert!(!ping("10.90.0.3"));
    assert!(!hub.netns.sh("iptables -S; ip6tables -S").contains("holdfast"));
    assert_eq!(hub.netns.sh("cat /proc/sys/net/ipv4/conf/hf0/forwarding"), "0\n");
}

#[test]
fn a_foreign_change_is_heard_at_once() {
    let node = Node::new(1);
    node.netns.sh("ip tuntap add hf0 mode tun; nft add table inet x");
    node.netns.run(async || {
        let mut watch = Watch::open().unwrap();
        for change in ["nft flush ruleset", "ip link set hf0 up", "ip addr add 10.1.0.1/32 dev hf0", "ip link del hf0"]
        {
            node.netns.sh(change);
            tokio::time::timeout(Duration::from_secs(2), watch.changed()).await.expect(change);
        }
        let quiet = tokio::time::timeout(Duration::from_millis(300), watch.changed()).await;
        assert!(quiet.is_err());
    });
}

#[test]
fn a_foreign_flush_is_repaired_within_two_seconds() {
    let node = Node::new(1);
    let _data_plane = node.data_plane();
    let desired = node.desired();
    node.converge(&desired);
    let good = node.state();
    let gap = node.netns.run(async || {
        let mut watch = Watch::open().unwrap();
        let mut reconciler = node.reconciler().await;
        node.netns.sh("nft flush ruleset");
        let start = crate::clock::boot();
        watch.changed().await;
        assert_eq!(reconciler.converge(&desired).await.unwrap().sent, [Step::ReplaceTable]);
        crate::clock::boot() - start
    });
    assert_eq!(node.state(), good);
    assert!(gap < Duration::from_secs(2), "{gap:?}");
}

#[test]
fn nothing_is_touched_for_a_state_that_is_unsound() {
    let node = Node::new(1);
    let mut desired = node.desired();
    desired.peers = vec![TunnelPeer { allowed: vec!["0.0.0.0/0".parse().unwrap()], ..Node::new(2).peer(None) }];
    let before = node.netns.sh("ip -d link; nft list ruleset");
    let refused = node.netns.run(async || node.reconciler().await.converge(&desired).await.unwrap_err());
    assert!(refused.to_string().contains("0.0.0.0/0 of the peer"), "{refused}");
    assert_eq!(node.netns.sh("ip -d link; nft list ruleset"), before);
}
