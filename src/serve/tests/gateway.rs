//! The gateway: who gets in by which certificate, and until when.

use super::rig::*;
use crate::wire::jobs::{Presence, Renewal, Renewed, Seen};
use crate::wire::peers::RegisterBody;
use crate::{clock, keys, limits, tasks};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use state::model::{Fingerprint, Millis, NodeId, Revision};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use uuid::Uuid;

const PRESENCE: &str = "/v1/agent/presence";
const RENEW: &str = "/v1/agent/certificate/renew";

fn presence_of(registered: Fingerprint) -> Presence {
    Presence { instance: Uuid::from_u128(1), roster_revision: Revision(1), held_revision: Revision(2), registered }
}

fn presence() -> Vec<u8> {
    state::to_bytes(&presence_of(Fingerprint::from_bytes([0; 32])))
}

fn renewal(request: &[u8]) -> Vec<u8> {
    state::to_bytes(&Renewal { certificate_request: STANDARD.encode(request) })
}

async fn handshake(rig: &Rig, config: rustls::ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(rig.gateway).await?;
    let name = ServerName::try_from("appliance.test").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

/// How a handshake ends whose client certificate is not good.
async fn refusal(rig: &Rig, config: rustls::ClientConfig) -> String {
    let mut stream = match handshake(rig, config).await {
        Ok(stream) => stream,
        Err(error) => return error.to_string(),
    };
    // The server's refusal comes after the client has finished its side.
    let _ = stream
        .write_all(b"POST /v1/agent/presence HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        Ok(_) => String::from_utf8(answer).unwrap(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_heartbeat_is_known_by_its_last_register() {
    let rig = Rig::new().await;
    let mut node = rig.joined("web-1").await;
    let http = rig.gateway_client(&node);
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let seen = async |presence: &Presence| {
        let (status, said) = rig.ask(&http, PRESENCE, state::to_bytes(presence)).await;
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<Seen>(&said).unwrap()
    };
    let body: RegisterBody = node.register_body(fleet);
    let known = presence_of(body.content());
    assert!(seen(&known).await.register, "it has never registered here");
    let (status, said) = node.send("POST", "/v1/peers/register", state::to_bytes(&body), None).await;
    assert_eq!(status, 200, "{said}");
    let before = rig.revision();
    let told = seen(&known).await;
    assert!(!told.register);
    assert_eq!((told.fleet, told.revision), (fleet, rig.revision()));
    assert!(seen(&presence_of(Fingerprint::from_bytes([1; 32]))).await.register);
    assert!(seen(&Presence { instance: Uuid::from_u128(2), ..known.clone() }).await.register);
    assert!(seen(&Presence { roster_revision: Revision(0), ..known.clone() }).await.register);
    assert_eq!(rig.revision(), before, "a heartbeat writes nothing");
    let id = rig.appliance.handle.state().nodes.by_name[&state::model::Name::new("web-1").unwrap()];
    assert!(rig.appliance.authority.soft().presence.is_live(id, clock::boot()));
    let text = String::from_utf8(state::to_bytes(&known)).unwrap();
    for bad in ["", "{}", &text.replacen('{', "{\"x\":1,", 1), &(text.clone() + "{}")] {
        assert_eq!(code(&rig.ask(&http, PRESENCE, bad.as_bytes().to_vec()).await), (400, "invalid".into()), "{bad}");
    }
    let large = vec![b' '; crate::limits::GATEWAY_BODY + 1];
    assert_eq!(code(&rig.ask(&http, PRESENCE, large).await), (413, "too_large".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_renewed_and_the_former_one_ends_with_the_first_use_of_the_next() {
    let rig = Rig::new().await;
    let node = rig.joined("web-1").await;
    let http = rig.gateway_client(&node);
    let fresh = rig.machine();
    let first = rig.ask(&http, RENEW, renewal(fresh.csr())).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let revision = rig.revision();
    assert_eq!(rig.ask(&http, RENEW, renewal(fresh.csr())).await, first, "a lost answer is given again, to the byte");
    assert_eq!(rig.revision(), revision);
    let renewed: Renewed = serde_json::from_str(&first.1).unwrap();
    let next =
        Machine { certificate: vec![CertificateDer::from_pem_slice(renewed.certificate.as_bytes()).unwrap()], ..fresh };
    assert_eq!(rig.ask(&http, PRESENCE, presence()).await.0, 200, "good until the next one has been used");
    let successor = rig.gateway_client(&next);
    assert_eq!(rig.ask(&successor, PRESENCE, presence()).await.0, 200);
    let retired = rig.ask(&http, PRESENCE, presence()).await;
    assert_eq!(code(&retired), (401, "certificate_refused".into()));
    let (status, _) = rig.operator("POST", "/v1/admission/revoke", &serde_json::json!({"who": "web-1"}), None).await;
    assert_eq!(status, 200);
    assert_eq!(rig.ask(&successor, PRESENCE, presence()).await, retired, "at once, on a held connection");
    assert_eq!(rig.ask(&rig.gateway_client(&next), PRESENCE, presence()).await, retired, "and on a new one");
    assert_eq!(rig.ask(&successor, RENEW, renewal(next.csr())).await, retired);
    let now = clock::wall();
    let ca = rig.ca();
    let unknown = ca.issue(next.csr(), NodeId(Uuid::from_u128(5)), past(1000), now.plus(60_000)).unwrap();
    let unknown =
        Machine { certificate: vec![CertificateDer::from_pem_slice(unknown.pem.as_bytes()).unwrap()], ..next };
    assert_eq!(rig.ask(&rig.gateway_client(&unknown), PRESENCE, presence()).await, retired, "never recorded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_no_authority_of_the_roster_ends_in_the_handshake() {
    let rig = Rig::new().await;
    let node = rig.joined("web-1").await;
    let other_dir = tempfile::tempdir().unwrap();
    let elsewhere = keys::ApplianceKeys::make(&other_dir.path().join("elsewhere")).unwrap();
    let id = rig.appliance.handle.state().nodes.by_name[&state::model::Name::new("web-1").unwrap()];
    let now = clock::wall();
    let issued = |ca: &keys::CertificateAuthority, from: Millis, to: Millis| {
        let issued = ca.issue(node.csr(), id, from, to).unwrap();
        vec![CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap()]
    };
    let pin = rig.appliance.pin;
    let with = |chain| mutual_config(pin, chain, node.key.clone_key());
    let strangers = [
        with(issued(&elsewhere.ca, past(1000), now.plus(60_000))),
        mutual_config(pin, vec![elsewhere.tls.certificate.clone()], elsewhere.tls.key.der()),
        with(issued(&rig.ca(), past(60_000), past(10_000))),
        with(issued(&rig.ca(), now.plus(600_000), now.plus(700_000))),
        with([node.certificate.clone(), vec![elsewhere.ca.certificate().clone()]].concat()),
        with([node.certificate.clone(), vec![rig.ca().certificate().clone(); 40]].concat()),
    ];
    for (n, config) in strangers.into_iter().enumerate() {
        assert_eq!(refusal(&rig, config).await, "received fatal alert: AccessDenied", "{n}");
    }
    assert_eq!(refusal(&rig, client_config(pin)).await, "received fatal alert: CertificateRequired");
    // Somebody else's key under the node's certificate.
    let impostor = rig.machine();
    let provider = rustls::crypto::ring::default_provider();
    let key = provider.key_provider.load_private_key(impostor.key.clone_key()).unwrap();
    let stolen = Arc::new(rustls::sign::CertifiedKey::new(node.certificate.clone(), key));
    let mut config = client_config(pin);
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(stolen));
    assert_eq!(refusal(&rig, config).await, "received fatal alert: DecryptError");
    let mut other_protocol = rig.mutual(&node);
    other_protocol.alpn_protocols = vec![b"h2".to_vec()];
    assert_eq!(refusal(&rig, other_protocol).await, "received fatal alert: NoApplicationProtocol");
    assert_eq!(rig.ask(&rig.gateway_client(&node), PRESENCE, presence()).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_resumed() {
    let rig = Rig::new().await;
    let node = rig.joined("web-1").await;
    // One configuration, so one store of sessions, as a client that would resume has it.
    let config = rig.mutual(&node);
    for _ in 0..3 {
        let mut stream = handshake(&rig, config.clone()).await.unwrap();
        let body = String::from_utf8(presence()).unwrap();
        let head = format!(
            "POST {PRESENCE} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Full));
        assert_eq!(stream.get_ref().1.tls13_tickets_received(), 0);
    }
    let (status, _) = rig.operator("POST", "/v1/admission/revoke", &serde_json::json!({"who": "web-1"}), None).await;
    assert_eq!(status, 200);
    let said = refusal(&rig, config).await;
    assert!(said.starts_with("HTTP/1.1 401") && said.contains("certificate_refused"), "{said}");
}

/// Sends an unchanged heartbeat on a kept connection. What comes back, to the byte, but for the time of day.
async fn raw(stream: &mut TlsStream<TcpStream>) -> String {
    let body = String::from_utf8(presence()).unwrap();
    let head = format!("POST {PRESENCE} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "the connection is kept");
        let text = String::from_utf8(answer.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        if length.and_then(|length| length.parse().ok()) == Some(body.len()) {
            let date = head.split("date: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
            assert_eq!(date.len(), "Mon, 30 Nov 2026 03:13:11 GMT".len());
            return text.replace(date, "DATE");
        }
    }
}

/// Unknown, retired, revoked, and past the end of its life, on connections that were good when they began: nobody can
/// tell which it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_certificate_that_opens_nothing_is_refused_with_the_same_bytes() {
    let rig = Rig::with_certificate_life(Duration::from_secs(4)).await;
    let mut kept = std::collections::BTreeMap::new();
    let mut begin = clock::boot();
    for name in ["retired", "revoked", "removed", "expired"] {
        let node = rig.joined(name).await;
        let mut stream = handshake(&rig, rig.mutual(&node)).await.unwrap();
        assert!(raw(&mut stream).await.starts_with("HTTP/1.1 200 OK\r\n"), "{name}");
        kept.insert(name, (node, stream));
        begin = clock::boot();
    }
    let (node, _) = &kept["retired"];
    let fresh = rig.machine();
    let (status, said) = rig.ask(&rig.gateway_client(node), RENEW, renewal(fresh.csr())).await;
    assert_eq!(status, 200, "{said}");
    let renewed: Renewed = serde_json::from_str(&said).unwrap();
    let certificate = vec![CertificateDer::from_pem_slice(renewed.certificate.as_bytes()).unwrap()];
    let next = rig.gateway_client(&Machine { certificate, ..fresh });
    assert_eq!(rig.ask(&next, PRESENCE, presence()).await.0, 200);
    for (method, path, body) in [
        ("POST", "/v1/admission/revoke", serde_json::json!({"who": "revoked"})),
        ("DELETE", "/v1/nodes/removed?force=true", serde_json::json!({})),
    ] {
        let (status, said) = rig.operator(method, path, &body, None).await;
        assert_eq!(status, 200, "{said}");
    }
    let stranger = rig.machine();
    let (id, now) = (NodeId(Uuid::from_u128(5)), clock::wall());
    let unknown = rig.ca().issue(stranger.csr(), id, past(1000), now.plus(60_000)).unwrap();
    let certificate = vec![CertificateDer::from_pem_slice(unknown.pem.as_bytes()).unwrap()];
    let unknown = Machine { certificate, ..stranger };
    let stream = handshake(&rig, rig.mutual(&unknown)).await.unwrap();
    kept.insert("unknown", (unknown, stream));
    tokio::time::sleep((Duration::from_secs(4) + begin).saturating_sub(clock::boot())).await;
    for (name, (_, stream)) in &mut kept {
        for again in 0..2 {
            let said = raw(stream).await;
            let head = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/problem+json\r\n\
                        cache-control: no-store\r\ncontent-length: 267\r\ndate: DATE\r\n\r\n";
            assert_eq!(said, head.to_owned() + REFUSED, "{name}, request {again}");
        }
    }
    // A new connection: those whose window is over end in the handshake, and all of those alike.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for name in ["retired", "revoked", "removed", "expired"] {
        assert_eq!(refusal(&rig, rig.mutual(&kept[name].0)).await, "received fatal alert: AccessDenied", "{name}");
    }
}

const REFUSED: &str = concat!(
    r#"{"type":"about:holdfast/certificate_refused","title":"the certificate was refused","#,
    r#""detail":"it is not the certificate of an active node","#,
    r#""todo":"ask for a new one with the signing key, on the mesh listener, which says more","#,
    r#""status":401,"code":"certificate_refused"}"#
);

/// While the clock is behind the latest time it has ever shown, no window is judged: not in the handshake, not at a
/// request, and not after a change that was made with that clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_behind_ends_no_certificate() {
    const AHEAD: u64 = 30 * 24 * 3_600_000;
    let rig = Rig::behind_by(AHEAD).await;
    let node = rig.joined("web-1").await;
    let id = rig.appliance.handle.state().nodes.by_name[&state::model::Name::new("web-1").unwrap()];
    let held = rig.appliance.handle.state().enrolment.certificates.iter().map(|(_, held)| held.clone()).next().unwrap();
    assert!(held.not_before > clock::wall(), "issued by the latest time ever seen");
    assert_eq!(rig.ask(&rig.gateway_client(&node), PRESENCE, presence()).await.0, 200);
    for n in 0..2 {
        let fresh = rig.machine();
        let (status, said) = rig.ask(&rig.gateway_client(&node), RENEW, renewal(fresh.csr())).await;
        assert_eq!(status, 200, "{n}: {said}");
    }
    // Over by this clock and by any: the look-up refuses it, not the handshake.
    let now = clock::wall();
    for (from, to) in [(past(60_000), past(10_000)), (now.plus(60_000), now.plus(70_000))] {
        let issued = rig.ca().issue(node.csr(), id, from, to).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(issued.pem.as_bytes()).unwrap()];
        let config = mutual_config(rig.appliance.pin, chain, node.key.clone_key());
        assert!(refusal(&rig, config).await.starts_with("HTTP/1.1 401"));
    }
}

/// What is being done to a gateway, as it counts itself.
#[derive(Default)]
struct Attack {
    over: AtomicBool,
    /// Handshakes that are half open now.
    half_open: AtomicUsize,
    /// Handshakes that the gateway ended.
    cut: AtomicUsize,
    /// Bytes of handshakes that came one by one.
    dribbled: AtomicUsize,
    /// Chains that were thrown and refused.
    bombs: AtomicUsize,
    /// Requests whose answers nobody reads.
    unread: AtomicUsize,
}

impl Attack {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn seen(&self) -> [usize; 4] {
        [&self.cut, &self.dribbled, &self.bombs, &self.unread].map(|count| count.load(Ordering::Relaxed))
    }
}

/// The head of a client hello of 508 bytes.
const HELLO: [u8; 11] = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];

async fn from(gateway: SocketAddr, source: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(source.parse().unwrap())?;
    socket.connect(gateway).await
}

/// Keeps one handshake half open, over and over, and dribbles if it is to; each lasts no longer than its deadline.
async fn half_open(attack: &Attack, gateway: SocketAddr, source: &str, dribbles: bool) {
    while attack.goes_on() {
        // A place may be given to somebody else, or refused.
        let Ok(mut stream) = from(gateway, source).await else { continue };
        if stream.write_all(&HELLO).await.is_err() {
            continue;
        }
        attack.half_open.fetch_add(1, Ordering::Relaxed);
        let begin = clock::boot();
        let (mut byte, pause) = ([0], Duration::from_millis(if dribbles { 100 } else { 1_000 }));
        while attack.goes_on() {
            match tokio::time::timeout(pause, stream.read(&mut byte)).await {
                Ok(_) => {
                    attack.cut.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(_) if dribbles => {
                    attack.dribbled.fetch_add(usize::from(stream.write_all(&[0]).await.is_ok()), Ordering::Relaxed);
                }
                Err(_) => {}
            }
            assert!(clock::boot() - begin < limits::HANDSHAKE * 3, "a handshake lasts");
        }
        attack.half_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks and asks on one connection, and never reads a byte of what it is told.
async fn reads_nothing(attack: &Attack, rig: &Rig, node: &Machine) {
    let body = String::from_utf8(presence()).unwrap();
    let request = format!("POST {PRESENCE} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    while attack.goes_on() {
        let mut stream = handshake(rig, rig.mutual(node)).await.unwrap();
        while attack.goes_on() {
            let wrote = tokio::time::timeout(Duration::from_millis(200), stream.write_all(request.as_bytes())).await;
            match wrote {
                Ok(Ok(())) => drop(attack.unread.fetch_add(1, Ordering::Relaxed)),
                // Cut off.
                Ok(Err(_)) => break,
                // Its answers fill every buffer, so nothing more is taken.
                Err(_) => {}
            }
        }
    }
}

/// Strangers that begin handshakes and stop, or go on a byte at a time, strangers with long chains of certificates, and
/// a node that reads no answers: all at once, while another node keeps its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_handshakes_chain_bombs_and_slow_readers_cost_no_lease() {
    const HALF_OPEN: usize = 500;
    let rig = Arc::new(Rig::new().await);
    let (node, slow) = (rig.joined("web-1").await, rig.joined("web-2").await);
    let http = rig.gateway_client(&node);
    rig.queue("web-1").await;
    let lease = rig.lease(&http).await;
    let heartbeat = format!("/v1/agent/jobs/{}/heartbeat", lease.job.id);
    let held = serde_json::json!({ "lease_token": lease.lease_token }).to_string().into_bytes();
    let attack = Arc::new(Attack::default());
    let mut attackers = Vec::new();
    for n in 0..HALF_OPEN {
        let (attack, gateway) = (attack.clone(), rig.gateway);
        attackers.push(tasks::spawn("half open", async move {
            let source = if n % 2 == 0 { "127.0.0.2:0" } else { "127.0.0.3:0" };
            half_open(&attack, gateway, source, n % 5 == 0).await;
        }));
    }
    let ca = rig.ca();
    let chain = [node.certificate.clone(), vec![ca.certificate().clone(); 150]].concat();
    for _ in 0..2 {
        let (attack, rig) = (attack.clone(), rig.clone());
        let bomb = mutual_config(rig.appliance.pin, chain.clone(), node.key.clone_key());
        attackers.push(tasks::spawn("bombs", async move {
            while attack.goes_on() {
                let said = refusal(&rig, bomb.clone()).await;
                assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
                attack.bombs.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }));
    }
    attackers.push(tasks::spawn("slow reader", {
        let (attack, rig) = (attack.clone(), rig.clone());
        async move { reads_nothing(&attack, &rig, &slow).await }
    }));
    let deadline = clock::boot() + Duration::from_secs(60);
    while attack.half_open.load(Ordering::Relaxed) < HALF_OPEN || attack.seen().contains(&0) {
        assert!(
            clock::boot() < deadline,
            "{} half open, {:?}",
            attack.half_open.load(Ordering::Relaxed),
            attack.seen()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (before, begin) = (attack.seen(), clock::boot());
    let (mut fewest, mut last) = (HALF_OPEN, begin);
    // Longer than a handshake may last: those of the beginning were cut off meanwhile, and others came.
    while clock::boot() - begin < limits::HANDSHAKE + Duration::from_secs(1) {
        let said = rig.ask(&http, &heartbeat, held.clone()).await;
        assert_eq!(said.0, 200, "{}", said.1);
        let now = clock::boot();
        assert!(now - last < limits::LEASE, "the lease ran out");
        last = now;
        fewest = fewest.min(attack.half_open.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let after = attack.seen();
    attack.over.store(true, Ordering::Relaxed);
    assert!(fewest > HALF_OPEN / 2, "only {fewest} handshakes were half open at one time");
    // The slow reader's requests alone stand still, once its answers fill every buffer.
    let abated = before.iter().zip(after).take(3).any(|(before, after)| *before == after);
    assert!(!abated, "it abated: {before:?}, {after:?}");
    for attacker in attackers {
        attacker.await.unwrap().unwrap();
    }
}
