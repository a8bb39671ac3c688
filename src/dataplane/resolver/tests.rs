//! The resolver on a loopback port, asked by `dig` and by hand.
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "tests start dig and state figures")]

use super::*;
use crate::clock;
use crate::node::testing::{Fleet, name};
use state::model::{Millis, Revision};
use state::view::records::{Liveness, Mesh, NodeRecord, Protocol, ServiceRecord, Verdict};
use std::net::IpAddr;
use std::process::Command;
use std::time::Instant;

fn mesh() -> Mesh {
    Mesh {
        prefix: "10.90.0.0/16".parse().unwrap(),
        prefix6: None,
        suffix: name("internal"),
        appliances: vec!["198.51.100.2".parse().unwrap()],
    }
}

fn service(label: &str, protocol: Protocol, verdict: Verdict) -> ServiceRecord {
    ServiceRecord { space: name("shop"), name: name(label), protocol, port: 8080, verdict }
}

fn records() -> Vec<NodeRecord> {
    let mut fleet = Fleet::new();
    fleet.set(1, |web| {
        web.name = name("web-1");
        web.address = "10.90.0.1".parse().unwrap();
        web.services = vec![
            service("web", Protocol::Http, Verdict::Routed),
            service("db", Protocol::Tcp, Verdict::Contested { with: vec![name("db-1")] }),
        ];
    });
    fleet.set(2, |gone| {
        gone.name = name("gone");
        gone.address = "10.90.0.2".parse().unwrap();
        gone.liveness = Liveness::OutOfTouch { since: Millis(1) };
        gone.services = vec![service("queue", Protocol::Tcp, Verdict::Routed)];
    });
    fleet.records.into_values().collect()
}

fn names(records: &[NodeRecord], as_of: Millis) -> Arc<Names> {
    Arc::new(Names::new(records, &mesh(), Revision(42), as_of, vec![]))
}

fn served(names: &Arc<Names>) -> Listener {
    serve("127.0.0.1:0".parse().unwrap(), names.clone()).unwrap()
}

async fn dig(at: &Listener, question: &str) -> String {
    let mut command = Command::new("dig");
    command.args(["@127.0.0.1", "-p", &at.address().port().to_string(), "+time=2", "+tries=1", "+nostats"]);
    command.args(question.split(' '));
    let out = tasks::blocking(move || command.output().unwrap()).await;
    String::from_utf8(out.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `dig`'s answer has all of these words in it, white space aside.
async fn has(at: &Listener, question: &str, words: &[&str]) {
    let got = dig(at, question).await;
    for words in words {
        assert!(got.contains(words), "`dig {question}` has no `{words}`: {got}");
    }
}

const SOA: &str = "internal. 5 IN SOA appliance.internal. hostmaster.internal. 42 60 30 3600 5";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found() {
    let at = served(&names(&records(), clock::wall()));
    has(&at, "web-1.internal", &["status: NOERROR", "flags: qr aa rd;", "web-1.internal. 10 IN A 10.90.0.1"]).await;
    has(&at, "web.shop.internal", &["web.shop.internal. 10 IN A 10.90.0.1"]).await;
    let srv = ["0 0 8080 web-1.internal.", "ADDITIONAL: 2", "web-1.internal. 10 IN A 10.90.0.1"];
    has(&at, "_web._tcp.shop.internal SRV", &srv).await;
    has(&at, "-x 10.90.0.1", &["1.0.90.10.in-addr.arpa. 10 IN PTR web-1.internal."]).await;
    has(&at, "internal SOA", &[SOA]).await;
    has(&at, "internal NS", &["internal. 10 IN NS appliance.internal."]).await;
    has(&at, "appliance.internal", &["appliance.internal. 10 IN A 198.51.100.2"]).await;
    has(&at, "gone.internal", &["10.90.0.2"]).await;
    has(&at, "wEb-1.iNtErNaL", &[";wEb-1.iNtErNaL. IN A", "wEb-1.iNtErNaL. 10 IN A 10.90.0.1"]).await;
    has(&at, "+tcp web-1.internal", &["10.90.0.1"]).await;
    has(&at, "web-1.internal ANY", &["10 IN HINFO \"RFC8482\" \"\""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_found_and_why() {
    let at = served(&names(&records(), clock::wall()));
    let nothing = |status| [status, "ANSWER: 0, AUTHORITY: 1", SOA];
    for question in ["web-1.internal AAAA", "shop.internal", "_tcp.shop.internal", "internal A", "internal MX"] {
        has(&at, question, &nothing("status: NOERROR")).await;
    }
    for question in [
        "nope.internal",
        "queue.shop.internal",
        "a.web-1.internal ANY",
        "\\000.internal",
        "_queue._tcp.shop.internal SRV",
    ] {
        has(&at, question, &nothing("status: NXDOMAIN")).await;
    }
    has(&at, "-x 10.90.7.7", &["NXDOMAIN", "90.10.in-addr.arpa. 5 IN SOA appliance.internal."]).await;
    has(&at, "0.90.10.in-addr.arpa PTR", &["NOERROR", "90.10.in-addr.arpa. 5 IN SOA"]).await;
    let contested = "EDE: 0 (Other): (contested: claimed by db-1, web-1";
    has(&at, "db.shop.internal", &["NXDOMAIN", contested]).await;
    assert!(!dig(&at, "+noedns db.shop.internal").await.contains("contested"), "only to who can hear it");
    for foreign in ["example.org", "-x 10.91.0.1", ". NS", "web-1.internal CH TXT"] {
        has(&at, foreign, &["status: REFUSED"]).await;
    }
    has(&at, "internal AXFR", &["Transfer failed"]).await;
    has(&at, "+edns=1 +noednsneg web-1.internal", &["BADVERS", "ANSWER: 0"]).await;
    has(&at, "+opcode=update web-1.internal", &["NOTIMP"]).await;
    has(&at, "+opcode=notify internal SOA", &["NOTIMP"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_list_says_so_and_a_new_one_is_served_at_once() {
    let names = names(&records(), Millis(1));
    let at = served(&names);
    has(&at, "web-1.internal", &["10.90.0.1", "EDE: 3 (Stale Answer)"]).await;
    names.confirmed(clock::wall());
    assert!(!dig(&at, "web-1.internal").await.contains("EDE"));
    names.publish(&[], &mesh(), Revision(43), vec![]);
    has(&at, "web-1.internal", &["NXDOMAIN", "hostmaster.internal. 43"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_for_udp_comes_over_tcp() {
    let mut crowd = Vec::new();
    for i in 0..100u8 {
        let mut record = records().remove(0);
        record.name = name(&format!("n{i}"));
        record.address = [10, 90, 1, i].into();
        record.services.truncate(1);
        crowd.push(record);
    }
    let at = served(&names(&crowd, clock::wall()));
    has(&at, "+ignore web.shop.internal", &["flags: qr aa tc rd;", "ANSWER: 0"]).await;
    has(&at, "web.shop.internal", &["ANSWER: 100"]).await;
    let cut = dig(&at, "+noedns +ignore _web._tcp.shop.internal SRV").await;
    assert!(cut.contains("tc") && cut.contains("ADDITIONAL: 0"), "{cut}");
}

/// A question by hand: id 7, one question for web-1.internal A.
fn question() -> Vec<u8> {
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(b"\x05web-1\x08internal\x00\x00\x01\x00\x01");
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_costs_its_sender_alone() {
    let at = served(&names(&records(), clock::wall()));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(at.address()).await.unwrap();
    let good = question();
    let mut corpus: Vec<Vec<u8>> = (0..good.len()).map(|cut| good[..cut].to_vec()).collect();
    for i in 0..good.len() {
        corpus.extend([0x00, 0x3f, 0x40, 0x80, 0xc0, 0xff].map(|byte| {
            let mut bad = good.clone();
            bad[i] = byte;
            bad
        }));
    }
    let header = |counts: [u8; 4]| vec![0, 9, 0, 0, 0, counts[0], 0, counts[1], 0, counts[2], 0, counts[3]];
    corpus.push([header([1, 0, 0, 0]), b"\xc0\x0c\x00\x01\x00\x01".to_vec()].concat());
    corpus.push([header([1, 0, 0, 0]), b"\xc0\x0e\xc0\x0c\x00\x01\x00\x01".to_vec()].concat());
    for opt in [
        &b"\x00\x00\x29\x00\x00\x00\x00\x00\x00\x00\x04\x00\x08\xff\xff"[..],
        b"\x00\x00\x29\xff\xff\xff\xff\xff\xff\x00\x00",
        b"\x00\x00\x29\x00\x00",
    ] {
        let mut two = good.clone();
        two[11] = 2;
        corpus.push([two.as_slice(), opt, opt].concat());
        two[11] = 1;
        corpus.push([two.as_slice(), opt].concat());
    }
    corpus.push([header([0, 0, 0, 255]), vec![0; 4000]].concat());
    corpus.push([header([255, 255, 255, 255]), b"\x01a\xc0\x0c".repeat(900)].concat());
    for _ in 0..200 {
        corpus.push(crate::entropy::bytes::<64>().to_vec());
    }
    let mut answer = [0; 4096];
    for bad in &corpus {
        socket.send(bad).await.unwrap();
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        stream.write_u16(u16::try_from(bad.len()).unwrap()).await.unwrap();
        stream.write_all(bad).await.unwrap();
    }
    let mut response = good.clone();
    response[2] |= 0x80;
    socket.send(&response).await.unwrap();
    // Datagrams may be dropped where they queue up: like any client, this one asks again, from a queue of its own.
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(at.address()).await.unwrap();
    let ask = async {
        loop {
            client.send(&good).await.unwrap();
            if let Ok(length) = timeout(Duration::from_millis(500), client.recv(&mut answer)).await {
                return length.unwrap();
            }
        }
    };
    let length = timeout(Duration::from_secs(10), ask).await.expect("a good question is answered");
    assert_ne!(answer[2] & 0x80, 0, "only responses are sent");
    assert_eq!(answer[length - 4..length], [10, 90, 0, 1]);
    println!("{} malformed messages over UDP and TCP each, then a good one answered", corpus.len());
}

#[tokio::test]
async fn strangers_are_refused_and_few_while_neighbours_are_neither() {
    let names = names(&records(), clock::wall());
    let code = |from: [u8; 4]| names.answer(&question(), IpAddr::from(from), Transport::Udp).map(|a| a[3] & 0x0f);
    assert_eq!(code([192, 0, 2, 1]), Some(5));
    let answered = (0..1000).filter(|_| code([192, 0, 2, 2]).is_some()).count();
    assert!((100..200).contains(&answered), "{answered}");
    for near in [[127, 0, 0, 1], [10, 90, 3, 3]] {
        assert!((0..1000).all(|_| code(near) == Some(0)));
    }
    let allowed = Names::new(&records(), &mesh(), Revision(1), clock::wall(), vec!["192.0.2.0/24".parse().unwrap()]);
    let answer = allowed.answer(&question(), "192.0.2.9".parse().unwrap(), Transport::Udp).unwrap();
    assert_eq!(answer[3] & 0x0f, 0);
}

#[tokio::test]
async fn a_repeated_question_is_answered_from_the_table_with_its_own_id() {
    let names = names(&records(), clock::wall());
    let ask = |id: u8| {
        let mut asked = question();
        asked[1] = id;
        names.answer(&asked, IpAddr::from([127, 0, 0, 1]), Transport::Udp).unwrap()
    };
    let (first, second) = (ask(1), ask(2));
    assert_eq!((first[1], second[1], &first[2..]), (1, 2, &second[2..]));
    let start = Instant::now();
    for id in 0..=255 {
        ask(id);
    }
    println!("256 repeated answers in {:?}", start.elapsed());
}
