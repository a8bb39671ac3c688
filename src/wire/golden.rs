//! The bytes of what crosses the network and of what a node keeps, pinned: two versions must understand each other, and
//! a file must be read by the version after the one that wrote it.

use crate::wire::dataplane::{Proxy, Resolver, Told, Tunnel, TunnelPeer};
use crate::wire::enrol::{EnrolRequest, Enrolled};
use crate::wire::jobs::{Completion, Extended, Held, LeaseRequest, Leased, LeasedJob, LogLines, Recorded};
use crate::wire::jobs::{Renewal, Renewed};
use crate::wire::operator::Publish;
use crate::wire::peers::{CertificateBody, ServiceClaim};
use crate::wire::peers::{ClaimVerdict, Envelope, Judged, Knock, LeaveBody, PeerList, RegisterAnswer, RegisterBody};
use crate::wire::problem::{Clock, Problem};
use crate::wire::roster::{Roster, RosterAppliance};
use crate::wire::signed::Signed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::model::*;
use state::subject::jobs::Binding;
use state::view::records::{Epoch, Mesh, Protocol};
use uuid::Uuid;

const ID: &str = "00000000-0000-0000-0000-000000000007";

/// Writes the value as `text`, in which `#N` stands for 32 bytes of N in hexadecimal digits and `@` for [`ID`], and reads
/// it back as the same.
fn pinned<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, text: &str) {
    let mut expected = text.replace('@', ID);
    for n in 1..=6 {
        expected = expected.replace(&format!("#{n}"), &format!("{n:02x}").repeat(32));
    }
    assert_eq!(state::to_text(value), expected);
    assert_eq!(serde_json::from_str::<T>(&expected).unwrap(), *value);
}

fn id() -> Uuid {
    ID.parse().unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn endpoint(text: &str) -> Endpoint {
    Endpoint::new(text).unwrap()
}

fn epoch() -> Epoch {
    Epoch { number: 2, appliance: ApplianceId(id()) }
}

fn signed() -> Signed {
    Signed { document: "{}".into(), signature: "ab".into() }
}

fn enrolled() -> Enrolled {
    Enrolled {
        node: NodeId(id()),
        name: name("web"),
        address: [10, 90, 0, 2].into(),
        address6: None,
        mesh_token: "ff".into(),
        client_certificate: "PEM".into(),
        roster: signed(),
        peers: PeerList { heads: vec![signed()], records: vec![], tombstones: vec![] },
    }
}

const ENROLLED: &str = concat!(
    r#"{"node":"@","name":"web","address":"10.90.0.2","mesh_token":"ff","client_certificate":"PEM","#,
    r#""roster":{"document":"{}","signature":"ab"},"#,
    r#""peers":{"heads":[{"document":"{}","signature":"ab"}],"records":[],"tombstones":[]}}"#
);

#[test]
fn enrolling_keeps_its_bytes() {
    let request = EnrolRequest {
        audience: FleetId(id()),
        secret: "5e".into(),
        signing_key: SigningKey::from_bytes([1; 32]),
        wireguard_key: WireguardKey::from_bytes([2; 32]),
        sealing_key: SealingKey::from_bytes([3; 32]),
        certificate_request: "AAAA".into(),
        listen_port: 51820,
        local_endpoints: vec![endpoint("192.168.0.2:51820")],
        agent_version: "0.1.0".into(),
    };
    pinned(
        &request,
        concat!(
            r##"{"audience":"@","secret":"5e","signing_key":"#1","wireguard_key":"#2","sealing_key":"#3","##,
            r#""certificate_request":"AAAA","listen_port":51820,"local_endpoints":["192.168.0.2:51820"],"#,
            r#""agent_version":"0.1.0"}"#
        ),
    );
    pinned(&enrolled(), ENROLLED);
}

#[test]
fn registering_and_leaving_keep_their_bytes() {
    let envelope = Envelope { seq: 9, audience: FleetId(id()), epoch: Some(epoch()) };
    let body = RegisterBody {
        envelope: envelope.clone(),
        instance: id(),
        wireguard_key: WireguardKey::from_bytes([2; 32]),
        sealing_key: SealingKey::from_bytes([3; 32]),
        listen_port: 51820,
        endpoints: vec![],
        local_endpoints: vec![],
        services: vec![ServiceClaim { space: name("shop"), name: name("web"), protocol: Protocol::Http, port: 80 }],
        agent_version: "0.1.0".into(),
        roster_revision: Revision(1),
        held_revision: Revision(4),
        knock: Some(Knock { name: name("edge"), site: Some(name("two")), certificate_request: "AAAA".into() }),
    };
    pinned(
        &body,
        concat!(
            r#"{"envelope":{"seq":9,"audience":"@","epoch":{"number":2,"appliance":"@"}},"instance":"@","#,
            r##""wireguard_key":"#2","sealing_key":"#3","listen_port":51820,"endpoints":[],"local_endpoints":[],"##,
            r#""services":[{"space":"shop","name":"web","protocol":"http","port":80}],"agent_version":"0.1.0","#,
            r#""roster_revision":1,"held_revision":4,"#,
            r#""knock":{"name":"edge","site":"two","certificate_request":"AAAA"}}"#
        ),
    );
    let leave = LeaveBody { envelope: Envelope { epoch: None, ..envelope }, node: NodeId(id()) };
    pinned(&leave, r#"{"envelope":{"seq":9,"audience":"@"},"node":"@"}"#);
    let certificate = CertificateBody { envelope: leave.envelope, certificate_request: "AAAA".into() };
    pinned(&certificate, r#"{"envelope":{"seq":9,"audience":"@"},"certificate_request":"AAAA"}"#);
    pinned(&Renewal { certificate_request: "AAAA".into() }, r#"{"certificate_request":"AAAA"}"#);
    let renewed = Renewed { certificate: "PEM".into(), not_after: Millis(1000) };
    pinned(&renewed, r#"{"certificate":"PEM","not_after":1000}"#);
    let judged = |name: Name, verdict| Judged { space: Name::new("shop").unwrap(), name, verdict };
    let answer = RegisterAnswer {
        revision: Revision(5),
        epoch: epoch(),
        now: Millis(1000),
        services: vec![
            judged(name("web"), ClaimVerdict::Routed),
            judged(name("api"), ClaimVerdict::Contested { with: vec![name("n2")] }),
            judged(name("db"), ClaimVerdict::Refused { code: "held".into(), why: "taken".into() }),
        ],
        roster: Some(signed()),
        enrolled: Some(enrolled()),
        duplicate_identity: true,
    };
    let text = concat!(
        r#"{"revision":5,"epoch":{"number":2,"appliance":"@"},"now":1000,"services":["#,
        r#"{"space":"shop","name":"web","verdict":{"is":"routed"}},"#,
        r#"{"space":"shop","name":"api","verdict":{"is":"contested","with":["n2"]}},"#,
        r#"{"space":"shop","name":"db","verdict":{"is":"refused","code":"held","why":"taken"}}],"#,
        r#""roster":{"document":"{}","signature":"ab"},"enrolled":ENROLLED,"duplicate_identity":true}"#
    );
    pinned(&answer, &text.replace("ENROLLED", ENROLLED));
}

#[test]
fn rosters_and_problems_keep_their_bytes() {
    let roster = Roster {
        format: 1,
        fleet: FleetId(id()),
        fleet_name: name("lab"),
        revision: Revision(3),
        appliances: vec![RosterAppliance {
            id: ApplianceId(id()),
            signing_key: SigningKey::from_bytes([1; 32]),
            ca: "AAAA".into(),
            pins: vec![Fingerprint::from_bytes([4; 32])],
            mesh: vec![endpoint("198.51.100.2:4300")],
            gateway: vec![endpoint("198.51.100.2:4301")],
            may_lead: true,
        }],
    };
    pinned(
        &roster,
        concat!(
            r#"{"format":1,"fleet":"@","fleet_name":"lab","revision":3,"appliances":[{"id":"@","#,
            r##""signing_key":"#1","ca":"AAAA","pins":["#4"],"mesh":["198.51.100.2:4300"],"##,
            r#""gateway":["198.51.100.2:4301"],"may_lead":true}]}"#
        ),
    );
    let problem = Problem {
        r#type: "about:holdfast/replayed".into(),
        title: "a".into(),
        detail: "b".into(),
        todo: "c".into(),
        status: 409,
        code: "replayed".into(),
        clock: None,
        tombstone: Some(signed()),
        floor: Some(12),
        retry_after: None,
    };
    pinned(
        &problem,
        concat!(
            r#"{"type":"about:holdfast/replayed","title":"a","detail":"b","todo":"c","status":409,"code":"replayed","#,
            r#""tombstone":{"document":"{}","signature":"ab"},"floor":12}"#
        ),
    );
    let clock = Clock { fleet: FleetId(id()), now: Millis(1000), skew_ms: -5, nonce: "ab".into() };
    pinned(&clock, r#"{"fleet":"@","now":1000,"skew_ms":-5,"nonce":"ab"}"#);
}

#[test]
fn what_a_node_keeps_keeps_its_bytes() {
    let told = Told {
        format: 1,
        tunnel: Some(Tunnel {
            ifname: "hf0".into(),
            mtu: 1420,
            listen_port: 51820,
            private_key_file: "/s/wireguard.key".into(),
            peers: vec![TunnelPeer {
                public_key: WireguardKey::from_bytes([2; 32]),
                allowed: vec!["10.90.0.2/32".parse().unwrap()],
                endpoint: None,
                keepalive: 25,
            }],
        }),
        resolver: Some(Resolver {
            listen: vec!["10.90.0.1:53".parse().unwrap()],
            optional: vec!["127.0.0.90".parse().unwrap()],
            mesh: Mesh {
                prefix: "10.90.0.0/16".parse().unwrap(),
                prefix6: None,
                suffix: name("internal"),
                appliances: vec!["198.51.100.2".parse().unwrap()],
            },
            own: NodeId(id()),
            revision: 5,
            as_of: Millis(1000),
            records: vec![],
        }),
        proxies: vec![Proxy {
            listen: "10.90.0.1:80".parse().unwrap(),
            target: "127.0.0.1:3000".parse().unwrap(),
            protocol: Protocol::Tcp,
            serving: true,
        }],
    };
    pinned(
        &told,
        concat!(
            r#"{"format":1,"tunnel":{"ifname":"hf0","mtu":1420,"listen_port":51820,"#,
            r##""private_key_file":"/s/wireguard.key","peers":[{"public_key":"#2","allowed":["10.90.0.2/32"],"##,
            r#""endpoint":null,"keepalive":25}]},"resolver":{"listen":["10.90.0.1:53"],"optional":["127.0.0.90"],"#,
            r#""mesh":{"prefix":"10.90.0.0/16","suffix":"internal","appliances":["198.51.100.2"]},"own":"@","#,
            r#""revision":5,"as_of":1000,"records":[]},"proxies":[{"listen":"10.90.0.1:80","#,
            r#""target":"127.0.0.1:3000","protocol":"tcp","serving":true}]}"#
        ),
    );
    let claim = Publish {
        space: name("shop"),
        name: name("web"),
        protocol: Protocol::Http,
        port: 80,
        target: Some("127.0.0.1:3000".parse().unwrap()),
    };
    pinned(&vec![claim], r#"[{"space":"shop","name":"web","protocol":"http","port":80,"target":"127.0.0.1:3000"}]"#);
}

/// Reads a document, and writes it again as the same bytes.
fn kept<T: Serialize + DeserializeOwned>(text: &str) -> T {
    let text = text.replace('@', ID);
    let read: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(state::to_text(&read), text);
    read
}

#[test]
fn what_is_said_of_jobs_keeps_its_bytes() {
    let first: Leased = kept(concat!(
        r#"{"job":{"id":"@","kind":"service.check","lane":"workload","#,
        r#""spec":{"kind":"service.check","probe":{"tcp":"h:22"},"timeout_s":5}},"#,
        r#""lease_token":"aa","attempt":1,"expires_in_s":45}"#
    ));
    assert_eq!((first.job.binding, first.job.cancelled), (Binding::default(), false));
    let later: Leased = kept(concat!(
        r#"{"job":{"id":"@","kind":"network.check","lane":"network","spec":{"kind":"network.check"},"generation":7,"#,
        r#""credential_revision":2,"cancelled":true},"lease_token":"aa","attempt":1,"expires_in_s":45}"#
    ));
    assert_eq!((later.job.binding.generation.0, later.job.binding.credential_revision.0.get()), (7, 2));
    kept::<LeaseRequest>(r#"{"lane":"network","capabilities":{"build":"present"}}"#);
    kept::<Held>(r#"{"lease_token":"aa"}"#);
    kept::<Extended>(r#"{"expires_in_s":45}"#);
    kept::<LogLines>(r#"{"lease_token":"aa","lines":["x"]}"#);
    kept::<LogLines>(r#"{"lease_token":"aa","lines":["x"],"from":3}"#);
    kept::<Completion>(r#"{"lease_token":"aa","attempt":1,"outcome":"succeeded","result":{"n":1}}"#);
    kept::<Completion>(r#"{"lease_token":"aa","attempt":1,"outcome":"retryable","result":{},"stuck":"process 7"}"#);
    kept::<Recorded>(r#"{"id":"@","status":"queued","attempt":1,"revision":9}"#);
}

#[test]
fn a_credential_revision_is_never_guessed() {
    for revision in ["null", "0", "-1", "\"2\"", "1.5", "{}"] {
        let job = format!(
            r#"{{"id":"{ID}","kind":"network.check","lane":"network","spec":{{"kind":"network.check"}},"credential_revision":{revision}}}"#
        );
        assert!(serde_json::from_str::<LeasedJob>(&job).is_err(), "{revision}");
    }
}
