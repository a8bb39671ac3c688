//! The reconciler against real kernels: namespaces, TUN interfaces, nftables and userspace WireGuard devices.

use super::lab::*;
use super::*;
use crate::node::plan::{Firewall, Opening, What};
use state::view::records::Protocol;

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
            "interface: set its MTU to 1420",
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
    assert!(route.contains("dev hf0 src 10.90.0.1") && route.contains("src fd90::1"), "{route}");

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
    assert!(!node.dir.path().join("ledger.json").exists());
}
