//! What names answer.

use super::*;
use crate::model::{ApplianceId, Millis, NodeId, SealingKey, SigningKey, WireguardKey};
use proptest::prelude::*;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn mesh(prefix: &str, prefix6: Option<&str>) -> Mesh {
    Mesh {
        prefix: prefix.parse().unwrap(),
        prefix6: prefix6.map(|p| p.parse().unwrap()),
        suffix: name("internal"),
        appliances: vec!["198.51.100.2".parse().unwrap()],
    }
}

fn node(label: &str, address: Ipv4Addr) -> NodeRecord {
    NodeRecord {
        format: 1,
        id: NodeId(uuid::Uuid::from_u128(u128::from(u32::from(address)))),
        revision: Revision(1),
        name: name(label),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        address,
        address6: None,
        signing_key: SigningKey::from_bytes([1; 32]),
        wireguard_key: WireguardKey::from_bytes([2; 32]),
        sealing_key: SealingKey::from_bytes([3; 32]),
        listen_port: 51820,
        endpoints: vec![],
        local_endpoints: vec![],
        liveness: Liveness::Here,
        services: vec![],
    }
}

fn service(space: &str, label: &str, protocol: Protocol, verdict: Verdict) -> ServiceRecord {
    ServiceRecord { space: name(space), name: name(label), protocol, port: 80, verdict }
}

fn ask<'a>(zone: &'a Zone, question: &str, kind: Kind) -> Option<Outcome<'a>> {
    let labels: Vec<&[u8]> = question.split('.').map(str::as_bytes).collect();
    zone.ask(&labels, kind).map(|reply| reply.outcome)
}

fn v4(text: &str) -> Data<'static> {
    Data::Address(IpAddr::V4(text.parse().unwrap()))
}

fn fleet() -> Zone {
    let mut web = node("web-1", Ipv4Addr::new(10, 90, 0, 1));
    web.services = vec![
        service("shop", "web", Protocol::Http, Verdict::Routed),
        service("shop", "log", Protocol::Udp, Verdict::Routed),
        service("shop", "db", Protocol::Tcp, Verdict::Contested { with: vec![name("db-1")] }),
    ];
    web.address6 = Some("fd00:90::1".parse().unwrap());
    let mut db = node("db-1", Ipv4Addr::new(10, 90, 3, 4));
    db.liveness = Liveness::OutOfTouch { since: Millis(5) };
    db.services = vec![
        service("shop", "db", Protocol::Tcp, Verdict::Contested { with: vec![name("web-1")] }),
        service("back", "queue", Protocol::Tcp, Verdict::Routed),
    ];
    Zone::new(&[web, db], &mesh("10.90.0.0/16", Some("fd00:90::/32")), Revision(0x1_0000_0007))
}

#[test]
fn nodes_services_and_their_ports() {
    let zone = fleet();
    let answer = |data| Some(Outcome::Answer(vec![data]));
    assert_eq!(ask(&zone, "web-1.internal", Kind::A), answer(v4("10.90.0.1")));
    let v6 = Data::Address("fd00:90::1".parse().unwrap());
    assert_eq!(ask(&zone, "web-1.internal", Kind::Aaaa), answer(v6));
    assert_eq!(ask(&zone, "db-1.internal", Kind::A), answer(v4("10.90.3.4")), "out of touch, but it has a name");
    assert_eq!(ask(&zone, "db-1.internal", Kind::Aaaa), Some(Outcome::NoData));
    assert_eq!(ask(&zone, "web.shop.internal", Kind::A), answer(v4("10.90.0.1")));
    let srv = Data::Srv { port: 80, node: &name("web-1") };
    assert_eq!(ask(&zone, "_web._tcp.shop.internal", Kind::Srv), answer(srv));
    assert_eq!(ask(&zone, "_log._udp.shop.internal", Kind::Srv), answer(srv));
    assert_eq!(ask(&zone, "_web._tcp.shop.internal", Kind::A), Some(Outcome::NoData));
    assert_eq!(ask(&zone, "_web._udp.shop.internal", Kind::Srv), Some(Outcome::NxDomain));
    assert_eq!(ask(&zone, "queue.back.internal", Kind::A), Some(Outcome::NxDomain), "its publisher is out of touch");
    assert_eq!(ask(&zone, "_queue._tcp.back.internal", Kind::Srv), Some(Outcome::NxDomain));
}

#[test]
fn a_contested_service_is_answered_for_nobody_and_names_both() {
    let zone = fleet();
    let both = [name("db-1"), name("web-1")];
    for question in ["db.shop.internal", "_db._tcp.shop.internal"] {
        assert_eq!(ask(&zone, question, Kind::A), Some(Outcome::Contested(&both)));
    }
}

#[test]
fn a_claim_that_one_side_still_calls_routed_is_contested_whichever_record_comes_first() {
    let mut records = [node("a", Ipv4Addr::new(10, 0, 0, 1)), node("b", Ipv4Addr::new(10, 0, 0, 2))];
    records[0].services = vec![service("s", "x", Protocol::Tcp, Verdict::Routed)];
    records[1].services = vec![service("s", "x", Protocol::Tcp, Verdict::Contested { with: vec![name("a")] })];
    for _ in 0..2 {
        let zone = Zone::new(&records, &mesh("10.0.0.0/8", None), Revision(1));
        assert_eq!(ask(&zone, "x.s.internal", Kind::A), Some(Outcome::Contested(&[name("a"), name("b")])));
        records.reverse();
    }
}

#[test]
fn what_is_not_there_is_told_from_what_has_nothing_of_the_kind() {
    let zone = fleet();
    for inner in ["shop.internal", "_tcp.shop.internal", "_udp.shop.internal", "back.internal", "internal"] {
        assert_eq!(ask(&zone, inner, Kind::A), Some(Outcome::NoData), "{inner}");
    }
    for none in
        ["nope.internal", "a.web-1.internal", "_udp.back.internal", "web\0.internal", "x y.internal", ".internal"]
    {
        assert_eq!(ask(&zone, none, Kind::A), Some(Outcome::NxDomain), "{none}");
    }
    for foreign in
        ["example.org", "internal.example", "arpa", "in-addr.arpa", "10.in-addr.arpa", "1.0.91.10.in-addr.arpa"]
    {
        assert_eq!(ask(&zone, foreign, Kind::A), None, "{foreign}");
    }
    assert_eq!(zone.ask(&[], Kind::Ns), None);
}

#[test]
fn zones_have_soa_and_ns_at_their_apex_alone() {
    let zone = fleet();
    assert_eq!(zone.serial(), 7);
    for apex in ["internal", "90.10.in-addr.arpa", "0.9.0.0.0.0.d.f.ip6.arpa"] {
        assert_eq!(ask(&zone, apex, Kind::Soa), Some(Outcome::Answer(vec![Data::Soa])), "{apex}");
        assert_eq!(ask(&zone, apex, Kind::Ns), Some(Outcome::Answer(vec![Data::Ns])), "{apex}");
        assert_eq!(ask(&zone, apex, Kind::Ptr), Some(Outcome::NoData), "{apex}");
    }
    assert_eq!(ask(&zone, "web-1.internal", Kind::Soa), Some(Outcome::NoData));
}

#[test]
fn addresses_lead_back_to_nodes() {
    let zone = fleet();
    let web = Some(Outcome::Answer(vec![Data::Node(zone.hosts.first().map(|h| &h.name).unwrap())]));
    assert_eq!(ask(&zone, "1.0.90.10.in-addr.arpa", Kind::Ptr), web);
    let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.9.0.0.0.0.d.f.ip6.arpa";
    assert_eq!(ask(&zone, v6, Kind::Ptr), web);
    assert_eq!(ask(&zone, "1.0.90.10.in-addr.arpa", Kind::A), Some(Outcome::NoData));
    assert_eq!(ask(&zone, "3.90.10.in-addr.arpa", Kind::Ptr), Some(Outcome::NoData), "10.90.3.4 is beneath");
    for none in ["2.0.90.10", "1.90.10", "01.0.90.10", "256.0.90.10", "x.1.0.90.10", "a.90.10"] {
        assert_eq!(ask(&zone, &format!("{none}.in-addr.arpa"), Kind::Ptr), Some(Outcome::NxDomain), "{none}");
    }
    assert_eq!(zone.ask(&[b"1", b"0", b"90", b"10", b"in-addr", b"arpa"], Kind::Ptr).unwrap().apex, 4);
}

#[test]
fn a_prefix_off_the_label_is_several_zones() {
    assert_eq!(reverse_zones(&mesh("10.90.0.0/16", None)), ["90.10.in-addr.arpa"]);
    let zones = reverse_zones(&mesh("10.64.0.0/14", Some("fd00::/9")));
    assert_eq!(zones[..4], ["64", "65", "66", "67"].map(|n| format!("{n}.10.in-addr.arpa")));
    assert_eq!(zones[4..], ["0", "1", "2", "3", "4", "5", "6", "7"].map(|n| format!("{n}.d.f.ip6.arpa")));
    assert_eq!(reverse_zones(&mesh("10.0.0.8/29", None)).len(), 8);
}

#[test]
fn appliances_are_their_nodes_or_else_the_literals() {
    let mut records = [node("ap", Ipv4Addr::new(10, 0, 0, 1))];
    let literal = Zone::new(&records, &mesh("10.0.0.0/8", None), Revision(1));
    assert_eq!(ask(&literal, "appliance.internal", Kind::A), Some(Outcome::Answer(vec![v4("198.51.100.2")])));
    records[0].appliance = Some(ApplianceId(uuid::Uuid::nil()));
    let meshed = Zone::new(&records, &mesh("10.0.0.0/8", None), Revision(1));
    assert_eq!(ask(&meshed, "appliance.internal", Kind::A), Some(Outcome::Answer(vec![v4("10.0.0.1")])));
    assert_eq!(ask(&meshed, "appliance.internal", Kind::Aaaa), Some(Outcome::NoData));
}

#[test]
fn ten_thousand_nodes_are_indexed() {
    let address = |i: u32| Ipv4Addr::from(0x0a00_0001 + i);
    let records: Vec<_> = (0..10_000)
        .map(|i| {
            let mut record = node(&format!("n{i}"), address(i));
            record.services = vec![service("shop", &format!("s{i}"), Protocol::Tcp, Verdict::Routed)];
            record
        })
        .collect();
    let zone = Zone::new(&records, &mesh("10.0.0.0/8", None), Revision(1));
    let last = Data::Address(IpAddr::V4(address(9_999)));
    assert_eq!(ask(&zone, "s9999.shop.internal", Kind::A), Some(Outcome::Answer(vec![last])));
}

fn label() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
}

proptest! {
    #[test]
    fn every_record_answers(
        base in any::<u32>(), length in 8u8..=29, hosts in proptest::collection::btree_map(label(), any::<u32>(), 1..12),
        space in label(), publishes in any::<bool>(),
    ) {
        let prefix = ipnet::Ipv4Net::new(base.into(), length).unwrap().trunc();
        let mut used = std::collections::BTreeSet::new();
        let mut records = vec![];
        for (label, host) in hosts.iter().filter(|(label, _)| **label != space && *label != "appliance") {
            let address = Ipv4Addr::from(u32::from(prefix.network()) | (host & u32::from(prefix.hostmask())));
            if !used.insert(address) {
                continue;
            }
            let mut record = node(label, address);
            if publishes {
                record.services = vec![service(&space, label, Protocol::Tcp, Verdict::Routed)];
            }
            records.push(record);
        }
        let mesh = mesh(&prefix.to_string(), None);
        let zone = Zone::new(&records, &mesh, Revision(9));
        let zones = reverse_zones(&mesh);
        for record in &records {
            let address = Some(Outcome::Answer(vec![Data::Address(record.address.into())]));
            prop_assert_eq!(ask(&zone, &format!("{}.internal", record.name), Kind::A), address.clone());
            let [a, b, c, d] = record.address.octets();
            let back = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
            prop_assert_eq!(ask(&zone, &back, Kind::Ptr), Some(Outcome::Answer(vec![Data::Node(&record.name)])));
            prop_assert_eq!(zones.iter().filter(|z| back.ends_with(&format!(".{z}")) || back == **z).count(), 1);
            if publishes {
                prop_assert_eq!(ask(&zone, &format!("{}.{space}.internal", record.name), Kind::A), address);
                let srv = ask(&zone, &format!("_{}._tcp.{space}.internal", record.name), Kind::Srv);
                prop_assert_eq!(srv, Some(Outcome::Answer(vec![Data::Srv { port: 80, node: &record.name }])));
            }
        }
    }

    #[test]
    fn no_question_does_harm(labels in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..8), 0..40)) {
        let zone = fleet();
        for tail in [&[b"internal".as_slice()][..], &[b"in-addr", b"arpa"], &[b"10", b"in-addr", b"arpa"], &[b"ip6", b"arpa"], &[]] {
            let asked: Vec<&[u8]> = labels.iter().map(Vec::as_slice).chain(tail.iter().copied()).collect();
            let _ = zone.ask(&asked, Kind::Ptr);
        }
    }
}
