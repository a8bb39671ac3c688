//! The authority asked directly, below any transport: the order of the checks, who may do what, and what is told.

use super::*;
use crate::authority::refusal::Refused;
use crate::authority::request::{Now, Request};
use crate::authority::signature::{Caller, Enveloped, Examined};
use crate::keys::ApplianceKeys;
use crate::wire::peers::{
    CertificateBody, Envelope, Knock, LeaveBody, PeerList, RegisterBody, ServiceClaim, signed_lines,
};
use crate::wire::problem::Clock;
use crate::wire::signed::Kind;
use base64::Engine;
use ed25519_dalek::{Signer, SigningKey as Ed25519};
use sha2::{Digest, Sha256};
use state::model::{
    ApplianceId, Endpoint, Fingerprint, FleetId, Millis, Name, NodeId, RequestId, Revision, SealingKey, SigningKey,
    WireguardKey,
};
use state::subject::appliances::{self, Appliance, Fleet, RosterText};
use state::subject::enrolment::{self, AddNode, Join};
use state::subject::nodes::{self, RevokeTarget};
use state::view::records::{Epoch, Gone, Head, NodeRecord, Protocol, Tombstone};
use state::{Actor, Change, Command, Context, Role, State};
use std::net::IpAddr;
use uuid::Uuid;

const FLEET: FleetId = FleetId(Uuid::from_u128(1));
const APPLIANCE: ApplianceId = ApplianceId(Uuid::from_u128(2));
const NOW: Now = Now { wall: Millis(1_700_000_000_000), boot: Duration::from_secs(1000) };

struct Fixture {
    state: State,
    authority: Authority,
    key: SigningKey,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn digest(bytes: &[u8]) -> Fingerprint {
    Fingerprint::from_bytes(Sha256::digest(bytes).into())
}

fn public(n: u8) -> SigningKey {
    SigningKey::from_bytes(Ed25519::from_bytes(&[n; 32]).verifying_key().to_bytes())
}

fn node_id(n: u8) -> NodeId {
    NodeId(Uuid::from_u128(100 + u128::from(n)))
}

fn source(n: u8) -> IpAddr {
    IpAddr::from([203, 0, 113, n])
}

fn context() -> Context {
    Context {
        actor: Actor::Appliance,
        org: None,
        role: Role::Admin,
        now: NOW.wall,
        clock_trusted: true,
        entropy: [0; 32],
        request: RequestId(Uuid::from_u128(0)),
    }
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = ApplianceKeys::make(&dir.path().join("appliance")).unwrap();
        let key = keys.signing_key();
        let records = records::Records::new(keys.signing.clone(), APPLIANCE);
        let authority = Authority::new(records, keys.ca, limits::CERTIFICATE_LIFE, Duration::ZERO);
        let mut fixture = Self { state: State::default(), authority, key };
        fixture.make(appliances::Command::Found {
            fleet: Fleet {
                id: FLEET,
                name: name("lab"),
                root_key: public(250),
                mesh_prefix: "10.90.0.0/24".parse().unwrap(),
                mesh_prefix6: None,
                suffix: name("internal"),
            },
            appliance: Appliance { id: APPLIANCE, signing_key: key, addresses: Vec::new() },
            roster: RosterText { revision: Revision(1), document: "{}".into(), signature: String::new() },
        });
        fixture.make(enrolment::Command::IssueAdmissionToken { token: digest(&[77; 32]) });
        fixture
    }

    fn make(&mut self, command: impl Into<Command>) {
        let command = command.into();
        let kind = command.kind().to_owned();
        let events = state::decide(&self.state, command, &context()).unwrap();
        let change = Change {
            change: Revision(self.state.revision.0 + 1),
            actor: Actor::Appliance,
            request: RequestId(Uuid::from_u128(0)),
            kind,
            v: 1,
            events,
        };
        self.state.apply(&change, NOW.wall);
    }

    /// Node `n`: key `n`, bearer secret `n`.
    fn join(&mut self, n: u8, called: &str) {
        self.make(enrolment::Command::AddNode(Box::new(AddNode {
            id: node_id(n),
            name: name(called),
            org: None,
            site: None,
            hub: false,
            appliance: None,
            endpoints: Vec::new(),
            token: digest(&[n, 1]),
            expires: NOW.wall.plus(1000),
            replace: false,
        })));
        self.make(enrolment::Command::Join(Box::new(Join {
            token: Some(digest(&[n, 1])),
            signing_key: public(n),
            wireguard_key: WireguardKey::from_bytes([n; 32]),
            sealing_key: SealingKey::from_bytes([n; 32]),
            listen_port: 51820,
            local_endpoints: Vec::new(),
            agent_version: "holdfast 0.1.0".into(),
            mesh_token: digest(&[n; 32]),
            certificate: digest(&[n, 2]),
            window: (Millis(0), Millis(u64::MAX)),
            seq: 0,
        })));
    }

    fn register(&self, sent: &Sent) -> Result<Examined<RegisterBody>, Refused> {
        self.authority.examine(&self.state, &sent.request(), NOW)
    }
}

fn body(n: u8, seq: u64) -> RegisterBody {
    RegisterBody {
        envelope: Envelope { seq, audience: FLEET, epoch: None },
        instance: Uuid::from_u128(1),
        wireguard_key: WireguardKey::from_bytes([n; 32]),
        sealing_key: SealingKey::from_bytes([n; 32]),
        listen_port: 51820,
        endpoints: Vec::new(),
        local_endpoints: Vec::new(),
        services: Vec::new(),
        agent_version: "holdfast 0.1.0".into(),
        roster_revision: Revision(1),
        held_revision: Revision(0),
        knock: None,
    }
}

/// A request as its sender made it.
struct Sent {
    method: &'static str,
    path: String,
    authorization: String,
    key: String,
    timestamp: String,
    signature: String,
    nonce: Option<String>,
    body: Vec<u8>,
    source: IpAddr,
}

impl Sent {
    fn new(method: &'static str, path: &str, signer: u8, bearer: u8, at: Millis, body: Vec<u8>) -> Self {
        let timestamp = at.0.to_string();
        let lines = signed_lines(method, path, &timestamp, &body);
        let signature = hex::encode(Ed25519::from_bytes(&[signer; 32]).sign(lines.as_bytes()).to_bytes());
        let authorization = format!("Bearer {}", hex::encode([bearer; 32]));
        let key = public(signer).to_string();
        let path = path.to_owned();
        Self { method, path, authorization, key, timestamp, signature, nonce: None, body, source: source(1) }
    }

    fn register(n: u8, body: &RegisterBody) -> Self {
        Self::new("POST", "/v1/peers/register", n, n, NOW.wall, serde_json::to_vec(body).unwrap())
    }

    fn request(&self) -> Request<'_> {
        Request {
            method: self.method,
            path_and_query: &self.path,
            authorization: Some(&self.authorization),
            key: Some(&self.key),
            timestamp: Some(&self.timestamp),
            signature: Some(&self.signature),
            nonce: self.nonce.as_deref(),
            body: Some(&self.body),
            source: self.source,
            proven: false,
        }
    }
}

fn code<T>(result: Result<T, Refused>) -> (u16, String) {
    let refused = result.err().unwrap();
    (refused.status, refused.code)
}

/// Every combination of faults is answered by the first of them in the one order, and one class of answers is the same
/// to the byte whatever else is wrong.
#[test]
fn the_order_of_the_checks_is_total() {
    in_order::<RegisterBody>("POST", "/v1/peers/register", |envelope| {
        serde_json::to_vec(&RegisterBody { envelope, ..body(3, 0) })
    });
    in_order::<LeaveBody>("DELETE", &format!("/v1/peers/{}", node_id(3)), |envelope| {
        serde_json::to_vec(&LeaveBody { envelope, node: node_id(3) })
    });
    in_order::<CertificateBody>("POST", "/v1/peers/certificate", |envelope| {
        serde_json::to_vec(&CertificateBody { envelope, certificate_request: "AAAA".into() })
    });
}

fn in_order<B: Enveloped + std::fmt::Debug>(
    method: &'static str,
    path: &str,
    said: impl Fn(Envelope) -> serde_json::Result<Vec<u8>>,
) {
    const ORDER: [(u16, &str); 9] = [
        (413, "too_large"),
        (429, "too_many_requests"),
        (401, "bearer"),
        (401, "signature"),
        (401, "clock_skew"),
        (400, "invalid"),
        (403, "not_admitted"),
        (409, "wrong_audience"),
        (409, "replayed"),
    ];
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let spent = source(200);
    for _ in 0..limits::ENROL_BUCKET.0 {
        fixture.authority.soft().failures.attempt(spent, NOW.boot);
    }
    fixture.register(&Sent::register(3, &body(3, 1000))).unwrap();
    let mut classes: std::collections::BTreeMap<usize, String> = std::collections::BTreeMap::new();
    for faults in 0..1u32 << ORDER.len() {
        let has = |n: usize| faults & (1 << n) != 0;
        let seq = if has(8) { 5 } else { 1001 + u64::from(faults) };
        let audience = if has(7) { FleetId(Uuid::from_u128(9)) } else { FLEET };
        let mut bytes = said(Envelope { seq, audience, epoch: None }).unwrap();
        if has(5) {
            bytes.pop();
            bytes.extend_from_slice(b",\"x\":1}");
        }
        let at = if has(4) { NOW.wall.plus(600_000) } else { NOW.wall };
        let signer = if has(6) { 9 } else { 3 };
        let mut sent = Sent::new(method, path, signer, if has(2) { 66 } else { 3 }, at, bytes);
        if has(3) {
            sent.signature.replace_range(0..2, if sent.signature.starts_with("00") { "01" } else { "00" });
        }
        let [high, low] = u16::try_from(faults).unwrap().to_be_bytes();
        sent.source = if has(1) { spent } else { IpAddr::from([10, 0, high, low]) };
        let request = Request { body: (!has(0)).then_some(sent.body.as_slice()), ..sent.request() };
        let answer = fixture.authority.examine::<B>(&fixture.state, &request, NOW);
        let Some(first) = (0..ORDER.len()).find(|n| has(*n)) else {
            assert_eq!(answer.unwrap().caller, Caller::Node(node_id(3)));
            continue;
        };
        let refused = answer.err().unwrap();
        assert_eq!((refused.status, refused.code.as_str()), ORDER[first], "faults {faults:09b}");
        let mut told = *refused;
        told.clock = None;
        let told = serde_json::to_string(&told).unwrap();
        if first != 5 && first != 6 {
            assert_eq!(classes.entry(first).or_insert_with(|| told.clone()), &told, "faults {faults:09b}");
        }
    }
}

#[test]
fn absent_and_malformed_headers_are_bad_signatures() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let sent = Sent::register(3, &body(3, 1));
    let other = Sent::register(3, &body(3, 2));
    let good = sent.request();
    for bad in [
        Request { key: None, ..good },
        Request { timestamp: None, ..good },
        Request { signature: None, ..good },
        Request { key: Some("zz"), ..good },
        Request { timestamp: Some("+1700000000000"), ..good },
        Request { timestamp: Some("1700000000000 "), ..good },
        Request { signature: Some(&other.signature), ..good },
        Request { path_and_query: "/v1/peers/register?x=1", ..good },
        Request { method: "PUT", ..good },
        Request { body: Some(&other.body), ..good },
    ] {
        let answer = fixture.authority.examine::<RegisterBody>(&fixture.state, &bad, NOW);
        assert_eq!(code(answer), (401, "signature".into()));
    }
    fixture.register(&sent).unwrap();
}

#[test]
fn a_clock_that_is_off_gets_a_signed_clock_and_one_nonce() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let bytes = serde_json::to_vec(&body(3, 1)).unwrap();
    let mut sent = Sent::new("POST", "/v1/peers/register", 3, 3, Millis(5000), bytes);
    let refused = fixture.register(&sent).err().unwrap();
    assert_eq!(refused.code, "clock_skew");
    let clock: Clock = refused.clock.unwrap().open(&fixture.key, Kind::Clock).unwrap();
    assert_eq!((clock.now, clock.fleet, clock.skew_ms), (NOW.wall, FLEET, 5000 - 1_700_000_000_000));
    sent.nonce = Some(clock.nonce);
    fixture.register(&sent).unwrap();
    assert_eq!(code(fixture.register(&sent)), (401, "clock_skew".into()), "a nonce is good once");
}

#[test]
fn neither_another_bearer_nor_another_key_passes_for_a_node() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    fixture.join(4, "web-2");
    let bytes = |n, seq| serde_json::to_vec(&body(n, seq)).unwrap();
    let ask = |signer, bearer, bytes| {
        fixture.register(&Sent::new("POST", "/v1/peers/register", signer, bearer, NOW.wall, bytes))
    };
    assert_eq!(code(ask(3, 4, bytes(3, 1))), (403, "wrong_key".into()));
    assert_eq!(code(ask(3, 77, bytes(3, 1))), (403, "wrong_key".into()), "an admission token registers no node");
    assert_eq!(code(ask(9, 3, bytes(9, 1))), (403, "not_admitted".into()));
    let read = |signer, bearer| {
        let sent = Sent::new("GET", "/v1/peers", signer, bearer, NOW.wall, Vec::new());
        fixture.authority.examine_read(&fixture.state, &sent.request(), NOW)
    };
    assert_eq!(read(3, 3).unwrap(), node_id(3));
    assert_eq!(code(read(3, 77)), (403, "wrong_key".into()), "an admission token shows nothing");
    assert_eq!(code(read(9, 77)), (403, "not_admitted".into()));
    let leave = LeaveBody { envelope: body(3, 1).envelope, node: node_id(4) };
    let path = format!("/v1/peers/{}", node_id(4));
    let sent = Sent::new("DELETE", &path, 3, 3, NOW.wall, serde_json::to_vec(&leave).unwrap());
    let examined = fixture.authority.examine(&fixture.state, &sent.request(), NOW).unwrap();
    assert_eq!(code(fixture.authority.leave(&examined, node_id(4))), (403, "wrong_key".into()));
}

#[test]
fn who_knocks_is_pending_until_admitted() {
    let mut fixture = Fixture::new();
    let mut body = body(9, 1);
    body.knock = Some(Knock { name: name("web-9"), site: None, certificate_request: String::new() });
    let sent = Sent::new("POST", "/v1/peers/register", 9, 77, NOW.wall, serde_json::to_vec(&body).unwrap());
    assert_eq!(code(fixture.register(&sent)), (403, "not_admitted".into()));
    assert_eq!(fixture.authority.soft().pending.get(&public(9)).unwrap().name, name("web-9"));
    fixture.make(enrolment::Command::Admit {
        key: public(9),
        name: name("web-9"),
        org: None,
        site: None,
        id: node_id(9),
    });
    assert!(matches!(fixture.register(&sent).unwrap().caller, Caller::Admitted(_)));
}

#[test]
fn a_revoked_node_is_refused_with_its_signed_tombstone() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    fixture.make(nodes::Command::Revoke { target: RevokeTarget::Name(name("web-1")) });
    let refused = fixture.register(&Sent::register(3, &body(3, 1))).err().unwrap();
    assert_eq!((refused.status, refused.code.as_str()), (403, "not_admitted"));
    let tombstone: Tombstone = refused.tombstone.unwrap().open(&fixture.key, Kind::Tombstone).unwrap();
    assert_eq!((tombstone.id, tombstone.reason), (node_id(3), Gone::Revoked));
    let read = Sent::new("GET", "/v1/peers", 3, 3, NOW.wall, Vec::new());
    assert!(fixture.authority.examine_read(&fixture.state, &read.request(), NOW).err().unwrap().tombstone.is_some());
}

/// A clock that is behind issues no certificate that is over once it is set.
#[test]
fn a_certificate_begins_by_the_latest_time_ever_seen() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let request = base64::engine::general_purpose::STANDARD.encode(crate::keys::P256Key::generate().request());
    let body = CertificateBody { envelope: body(3, 1).envelope, certificate_request: request };
    let bytes = serde_json::to_vec(&body).unwrap();
    let sent = Sent::new("POST", "/v1/peers/certificate", 3, 3, NOW.wall, bytes);
    let window = |wall| {
        let examined: Examined<CertificateBody> =
            fixture.authority.examine(&fixture.state, &sent.request(), NOW).unwrap();
        let issuing = fixture.authority.certificate(&fixture.state, examined, Now { wall, ..NOW }).ok().unwrap();
        let Command::Enrolment(enrolment::Command::IssueCertificate { window, .. }) = issuing.command else { panic!() };
        assert_eq!(window.1, issuing.renewed.not_after);
        (window.0.0, window.1.0)
    };
    let (hour, week) = (3_600_000, 7 * 24 * 3_600_000);
    assert_eq!(window(NOW.wall), (NOW.wall.0 - hour, NOW.wall.0 + week));
    assert_eq!(window(Millis(5)), window(NOW.wall));
    assert_eq!(window(NOW.wall.plus(hour)), (NOW.wall.0, NOW.wall.0 + hour + week));
}

#[test]
fn a_lower_epoch_is_refused() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let mut body = body(3, 1);
    body.envelope.epoch = Some(Epoch { number: 0, appliance: APPLIANCE });
    assert_eq!(code(fixture.register(&Sent::register(3, &body))), (409, "epoch_behind".into()));
    body.envelope.epoch = Some(Epoch { number: 1, appliance: APPLIANCE });
    fixture.register(&Sent::register(3, &body)).unwrap();
}

#[test]
fn sequences_only_rise() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let ask = |seq, version: &str| {
        let body = RegisterBody { agent_version: version.into(), ..body(3, seq) };
        fixture.register(&Sent::register(3, &body))
    };
    assert!(!ask(5, "a").unwrap().again);
    assert!(ask(5, "a").unwrap().again);
    for (seq, version) in [(5, "b"), (4, "a")] {
        let refused = ask(seq, version).err().unwrap();
        assert_eq!((refused.code.as_str(), refused.floor), ("replayed", Some(5)));
    }
    assert!(!ask(6, "a").unwrap().again);
}

#[test]
fn an_unchanged_heartbeat_is_no_change_and_a_claim_is_judged() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let comes_to = |body: &RegisterBody| {
        let examined = fixture.register(&Sent::register(3, body)).unwrap();
        fixture.authority.register(&fixture.state, &examined, source(1), &context(), NOW).ok().unwrap()
    };
    assert!(matches!(comes_to(&body(3, 1)), register::Registering::Unchanged(_)));
    let mut claims = body(3, 2);
    let claim =
        |space: &str, port| ServiceClaim { space: name(space), name: name("web"), protocol: Protocol::Http, port };
    claims.services = vec![claim("shop", 80), claim("web-1", 80), claim("shop2", 0)];
    let register::Registering::Change(id, command) = comes_to(&claims) else { panic!("a change") };
    fixture.make(*command);
    let answer = fixture.authority.register_answer(&fixture.state, id, &claims, NOW).unwrap();
    let verdicts: Vec<String> =
        answer.services.iter().map(|judged| serde_json::to_value(&judged.verdict).unwrap()["is"].to_string()).collect();
    assert_eq!(verdicts, ["\"routed\"", "\"refused\"", "\"refused\""]);
    claims.envelope.seq = 3;
    let again = fixture.register(&Sent::register(3, &claims)).unwrap();
    let again = fixture.authority.register(&fixture.state, &again, source(1), &context(), NOW).ok().unwrap();
    assert!(matches!(again, register::Registering::Unchanged(_)), "a refused claim is not asked again and again");
}

#[test]
fn two_machines_with_one_identity_move_nothing() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let mut seq = 0;
    let mut start = |instance, port| {
        seq += 1;
        let body = RegisterBody { instance: Uuid::from_u128(instance), listen_port: port, ..body(3, seq) };
        let examined = fixture.register(&Sent::register(3, &body)).unwrap();
        let comes_to = fixture.authority.register(&fixture.state, &examined, source(1), &context(), NOW).ok().unwrap();
        let answer = fixture.authority.register_answer(&fixture.state, node_id(3), &body, NOW).unwrap();
        (matches!(comes_to, register::Registering::Change(..)), answer.duplicate_identity)
    };
    assert_eq!(start(1, 51820), (false, false));
    assert_eq!(start(2, 51821), (true, false), "a new start may change");
    assert_eq!(start(1, 51822), (false, true));
    assert_eq!(start(2, 51821), (false, true));
}

#[test]
fn the_silent_are_judged_after_thirty_seconds_of_listening() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    fixture.join(4, "web-2");
    let silent = |at: u64| {
        let soft = fixture.authority.soft();
        soft.presence.fallen_silent(&fixture.state, Duration::from_secs(at), NOW.wall)
    };
    assert!(silent(29).is_empty(), "nobody before this appliance has listened");
    fixture.authority.soft().presence.hear(node_id(3), source(1), Duration::from_secs(20), NOW.wall);
    let ids: Vec<NodeId> = silent(30).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [node_id(4)]);
    assert_eq!(silent(50).len(), 2);
}

#[test]
fn lists_are_signed_whole_and_told_once() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let list = |fixture: &Fixture, after| {
        let (scopes, newest) = records::Records::standing(&fixture.state, node_id(3)).unwrap();
        let bytes = fixture.authority.records.list(&fixture.state, &scopes, after);
        let list: PeerList = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            serde_json::to_vec(&list).unwrap(),
            bytes[..bytes.len() - 1],
            "the same bytes as if it were encoded whole"
        );
        (list, newest, bytes)
    };
    let (first, held, _) = list(&fixture, Revision(0));
    assert_eq!((first.heads.len(), first.records.len(), first.tombstones.len()), (1, 1, 0));
    fixture.join(4, "web-2");
    let (delta, _, bytes) = list(&fixture, held);
    assert_eq!((delta.heads.len(), delta.records.len()), (1, 1));
    let head: Head = delta.heads[0].open(&fixture.key, Kind::Head).unwrap();
    let record: NodeRecord = delta.records[0].open(&fixture.key, Kind::Peer).unwrap();
    assert_eq!((head.count, head.revision, record.id), (2, record.revision, node_id(4)));
    assert_eq!(list(&fixture, held).2.as_ptr(), bytes.as_ptr(), "shared by all who ask");
    let mut set = std::collections::BTreeMap::new();
    for record in first.records.iter().chain(&delta.records) {
        let read: NodeRecord = record.open(&fixture.key, Kind::Peer).unwrap();
        set.insert(read.id, (read.revision, state::view::records::record_hash(record.document.as_bytes())));
    }
    assert_eq!(head.digest, state::view::records::set_digest(&set));
    fixture.make(nodes::Command::Revoke { target: RevokeTarget::Name(name("web-2")) });
    let (delta, newest, _) = list(&fixture, head.revision);
    assert_eq!((delta.heads.len(), delta.records.len(), delta.tombstones.len()), (1, 0, 1));
    assert_eq!(list(&fixture, newest).0, PeerList::default());
}

#[test]
fn endpoints_must_have_their_source_address() {
    let mut fixture = Fixture::new();
    fixture.join(3, "web-1");
    let mut body = body(3, 1);
    body.endpoints = vec![Endpoint::new("203.0.113.1:51820").unwrap(), Endpoint::new("198.51.100.9:51820").unwrap()];
    let examined = fixture.register(&Sent::register(3, &body)).unwrap();
    let comes_to = fixture.authority.register(&fixture.state, &examined, source(1), &context(), NOW).ok().unwrap();
    let register::Registering::Change(_, command) = comes_to else { panic!("a change") };
    fixture.make(*command);
    let member = fixture.state.nodes.all[&node_id(3)].member.clone().unwrap();
    assert_eq!(member.endpoints, [Endpoint::new("203.0.113.1:51820").unwrap()]);
}
