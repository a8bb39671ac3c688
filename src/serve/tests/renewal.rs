//! A node's own care for its certificate, against the real listeners: whatever is lost on the way, and wherever it is
//! killed, it gets back to the gateway without anybody's help.

use super::rig::*;
use crate::files;
use crate::keys::{self, CertificateAuthority, ClientIdentity, ClientKey};
use crate::node::certificate::{self, Ask};
use crate::node::client::{Appliances, CallError, Client, Sequence, Signer};
use crate::node::gateway::{Gateway, Gateways};
use crate::wire::jobs::{Presence, Renewal, Renewed, Seen};
use crate::wire::peers::{CertificateBody, Envelope};
use crate::wire::problem::Problem;
use crate::{clock, tasks};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use state::model::{Endpoint, Fingerprint, Name, NodeId, Revision};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

const SOON: Duration = Duration::from_secs(20);

fn presence() -> Presence {
    let registered = Fingerprint::from_bytes([0; 32]);
    Presence {
        instance: uuid::Uuid::from_u128(1),
        roster_revision: Revision(1),
        held_revision: Revision(2),
        registered,
    }
}

fn at(address: SocketAddr) -> Endpoint {
    format!("localhost:{}", address.port()).parse().unwrap()
}

/// A way to a listener that can lose answers: the connection is cut once the appliance has committed what was asked.
struct Wire {
    address: SocketAddr,
    loss: Arc<Loss>,
}

struct Loss {
    /// The next answer after a change above this revision is lost.
    above: AtomicU64,
    lost: AtomicUsize,
}

impl Wire {
    async fn to(rig: &Rig, target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let loss = Arc::new(Loss { above: AtomicU64::new(u64::MAX), lost: AtomicUsize::new(0) });
        let (kept, appliance) = (loss.clone(), rig.appliance.clone());
        tasks::spawn("wire", async move {
            while let Ok((near, _)) = listener.accept().await {
                let (loss, appliance) = (kept.clone(), appliance.clone());
                tasks::spawn("wire connection", async move {
                    let Ok(far) = TcpStream::connect(target).await else { return };
                    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
                        (near.into_split(), far.into_split());
                    let there = tokio::io::copy(&mut near_in, &mut far_out);
                    let back = async {
                        let mut bytes = vec![0; 16 * 1024];
                        while let Ok(count @ 1..) = far_in.read(&mut bytes).await {
                            let above = loss.above.load(Ordering::SeqCst);
                            if appliance.handle.state().revision.0 > above {
                                loss.above.store(u64::MAX, Ordering::SeqCst);
                                loss.lost.fetch_add(1, Ordering::SeqCst);
                                return;
                            }
                            if near_out.write_all(&bytes[..count]).await.is_err() {
                                return;
                            }
                        }
                    };
                    tokio::select! {
                        _ = there => {}
                        () = back => {}
                    }
                });
            }
        });
        Self { address, loss }
    }

    /// The answer to the next change is lost.
    fn lose(&self, rig: &Rig) {
        self.loss.above.store(rig.revision().0, Ordering::SeqCst);
    }

    fn lost(&self) -> usize {
        self.loss.lost.load(Ordering::SeqCst)
    }
}

/// A running agent's care for its certificate, with the wires to both listeners.
struct Agent {
    gateway: watch::Receiver<Option<Arc<Gateway>>>,
    known: watch::Sender<Gateways>,
    /// How often it asked by its signing key.
    asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Option<()>>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agent {
    /// As `agent run` has it: the certificate's own task, and signed requests on the mesh listener.
    fn start(rig: &Rig, machine: &Machine, gateway: SocketAddr, mesh: SocketAddr) -> Self {
        let (known, gateways) = watch::channel(Gateways { endpoints: vec![at(gateway)], ..gateways(rig) });
        let (holding, held) = watch::channel(None);
        let (asks, mut asking) = mpsc::channel::<Ask>(1);
        let appliances = Appliances { endpoints: vec![at(mesh)], pins: vec![rig.appliance.pin], keys: vec![] };
        let signing = ed25519_dalek::SigningKey::from_bytes(&machine.keys.signing.to_bytes());
        let bearer = Some(zeroize::Zeroizing::new(machine.bearer.clone()));
        let client =
            Client::new(appliances, Arc::new(Signer::new(signing, bearer, Sequence::open(&machine.dir).unwrap())));
        let state = rig.appliance.handle.state();
        let (audience, node) = (state.fleet().unwrap().id, state.nodes.by_key[&machine.keys.public().signing_key]);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        tasks::spawn("certificate requests", async move {
            while let Some(Ask { certificate_request, reply }) = asking.recv().await {
                count.fetch_add(1, Ordering::SeqCst);
                let envelope = Envelope { seq: 0, audience, epoch: None };
                let _ = reply.send(client.certificate(CertificateBody { envelope, certificate_request }).await);
            }
        });
        let task = tasks::spawn("certificate", certificate::keep(machine.dir.clone(), node, gateways, holding, asks));
        Self { gateway: held, known, asked, task }
    }

    async fn present(&self) -> Result<Seen, CallError> {
        let gateway = self.gateway.borrow().clone();
        gateway.ok_or_else(|| CallError::Unreachable("no certificate".into()))?.presence(&presence()).await
    }

    /// Beats until `done`. Whatever fails meanwhile must be good again soon.
    async fn beats_until(&self, what: &str, done: impl Fn() -> bool) {
        let mut good = clock::boot();
        let end = clock::boot() + SOON * 3;
        loop {
            let beat = self.present().await;
            if beat.is_ok() {
                good = clock::boot();
                if done() {
                    return;
                }
            }
            assert!(clock::boot() - good < SOON, "{what}: stranded: {beat:?}");
            assert!(clock::boot() < end, "{what}: {beat:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn gateways(rig: &Rig) -> Gateways {
    Gateways { endpoints: vec![at(rig.gateway)], pins: vec![rig.appliance.pin] }
}

fn id_of(rig: &Rig, name: &str) -> NodeId {
    rig.appliance.handle.state().nodes.by_name[&Name::new(name).unwrap()]
}

/// A node's certificates, the one in use first.
fn certificates(rig: &Rig, node: NodeId) -> Vec<Fingerprint> {
    rig.appliance.handle.state().nodes.all[&node].member.as_ref().unwrap().certificates.clone()
}

/// A machine that has joined, with its certificate on disk.
async fn joined(rig: &Rig, name: &str) -> (Machine, NodeId) {
    let machine = rig.joined(name).await;
    let pem = pem_of(&machine);
    files::replace(&machine.dir.join("client.crt"), pem.as_bytes()).unwrap();
    (machine, id_of(rig, name))
}

fn pem_of(machine: &Machine) -> String {
    let text = STANDARD.encode(&machine.certificate[0]);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

fn pin_of(dir: &Path) -> Fingerprint {
    keys::pin(&ClientIdentity::read(dir).unwrap().unwrap().tls.certificate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_renews_its_certificate_again_and_again_whatever_answer_is_lost() {
    let rig = Rig::with_certificate_life(Duration::from_secs(6)).await;
    let (machine, node) = joined(&rig, "web-1").await;
    let wire = Wire::to(&rig, rig.gateway).await;
    let agent = Agent::start(&rig, &machine, wire.address, rig.address);
    agent.beats_until("the first certificate", || true).await;
    for round in 1..=3 {
        let former = certificates(&rig, node)[0];
        // First the answer that has the next certificate is lost, then the one to its first use.
        wire.lose(&rig);
        let revision = rig.revision();
        agent.beats_until("the lost renewal", || wire.lost() == round * 2 - 1).await;
        assert_eq!(rig.revision().0, revision.0 + 1, "one change, and nobody has heard of it");
        assert_eq!(certificates(&rig, node).len(), 2);
        wire.lose(&rig);
        agent.beats_until("the lost first use", || wire.lost() == round * 2).await;
        agent.beats_until("the next certificate is the only one", || certificates(&rig, node).len() == 1).await;
        let next = certificates(&rig, node)[0];
        assert_ne!(next, former);
        assert_eq!(pin_of(&machine.dir), next);
        assert_eq!(rig.revision().0, revision.0 + 2, "the lost certificate was given again, not another one");
    }
    assert_eq!(agent.asked.load(Ordering::SeqCst), 0, "all of it by the certificate in use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_between_any_two_files_of_a_renewal_strands_nobody() {
    let rig = Rig::new().await;
    let (machine, node) = joined(&rig, "web-1").await;
    let dir = &machine.dir;
    for done in 0..=4 {
        let held = ClientIdentity::read(dir).unwrap().unwrap();
        let gateways = gateways(&rig);
        let aside = rig.machine();
        let request = STANDARD.encode(ClientKey::make(&aside.dir).unwrap().request());
        let renewed = Gateway::new(gateways, &held.tls).renew(&Renewal { certificate_request: request }).await.unwrap();
        let key = std::fs::read(aside.dir.join("client.key")).unwrap();
        let steps: [&dyn Fn(); 4] = [
            &|| files::replace(&dir.join("client.next.key"), &key).unwrap(),
            &|| files::replace(&dir.join("client.next.crt"), renewed.certificate.as_bytes()).unwrap(),
            &|| files::rename(&dir.join("client.next.key"), &dir.join("client.key")).unwrap(),
            &|| files::rename(&dir.join("client.next.crt"), &dir.join("client.crt")).unwrap(),
        ];
        steps[..done].iter().for_each(|step| step());
        // The agent that starts after the kill.
        let agent = Agent::start(&rig, &machine, rig.gateway, rig.address);
        agent.beats_until("after the kill", || true).await;
        let used = if done < 2 { keys::pin(&held.tls.certificate) } else { certificates(&rig, node)[0] };
        assert_eq!(pin_of(dir), used, "after {done} steps");
        assert_eq!(agent.asked.load(Ordering::SeqCst), 0, "after {done} steps");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_slept_through_its_certificates_life_comes_back_by_its_signing_key() {
    let rig = Rig::with_certificate_life(Duration::from_secs(4)).await;
    let (machine, node) = joined(&rig, "web-1").await;
    let slept = certificates(&rig, node)[0];
    let end = rig.appliance.handle.state().enrolment.certificates[&slept].not_after;
    // X.509 counts whole seconds.
    tokio::time::sleep(Duration::from_millis(end.since(clock::wall()) + 1_100)).await;
    let identity = ClientIdentity::read(&machine.dir).unwrap().unwrap();
    let error = Gateway::new(gateways(&rig), &identity.tls).presence(&presence()).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    let wire = Wire::to(&rig, rig.address).await;
    wire.lose(&rig);
    let revision = rig.revision();
    let agent = Agent::start(&rig, &machine, rig.gateway, wire.address);
    agent.beats_until("back at the gateway", || true).await;
    assert_eq!(wire.lost(), 1, "the answer was lost once");
    assert_eq!(rig.revision().0, revision.0 + 2, "and given again: one certificate, and its first use");
    assert_eq!(certificates(&rig, node), [pin_of(&machine.dir)], "the one that it slept through is retired");
    assert_eq!(agent.asked.load(Ordering::SeqCst), 2);
    // From then on it renews as ever.
    let first = certificates(&rig, node)[0];
    agent.beats_until("renewed", || certificates(&rig, node)[0] != first).await;
    assert_eq!(agent.asked.load(Ordering::SeqCst), 2);
}

/// The route itself: what it gives, to whom, and what it gives again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_by_signing_key_is_given_once_and_to_its_node_alone() {
    const PATH: &str = "/v1/peers/certificate";
    let rig = Rig::new().await;
    let (mut machine, node) = joined(&rig, "web-1").await;
    let (mut other, _) = joined(&rig, "web-2").await;
    let audience = rig.appliance.handle.state().fleet().unwrap().id;
    let fresh = rig.machine();
    let asked = |seq, csr: &[u8]| {
        let envelope = Envelope { seq, audience, epoch: None };
        state::to_bytes(&CertificateBody { envelope, certificate_request: STANDARD.encode(csr) })
    };
    let before = rig.revision();
    let first = machine.send("POST", PATH, asked(1, fresh.csr()), Some(&idempotency())).await;
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(rig.revision().0, before.0 + 1);
    for (seq, why) in
        [(1, "the same bytes"), (2, "the same certificate request"), (1, "the same bytes after later ones")]
    {
        assert_eq!(machine.send("POST", PATH, asked(seq, fresh.csr()), None).await, first, "{why}");
    }
    assert_eq!(rig.revision().0, before.0 + 1, "one certificate");
    let replayed = machine.send("POST", PATH, asked(1, rig.machine().csr()), None).await;
    assert_eq!(code(&replayed), (409, "replayed".into()));
    assert_eq!(code(&other.send("POST", PATH, asked(1, b"no request"), None).await), (400, "invalid".into()));
    let bearer = std::mem::replace(&mut other.bearer, machine.bearer.clone());
    assert_eq!(code(&other.send("POST", PATH, asked(2, fresh.csr()), None).await), (403, "wrong_key".into()));
    other.bearer = bearer;
    assert_eq!(rig.revision().0, before.0 + 1);
    // The former is good until the next has been used.
    let held = rig.gateway_client(&machine);
    let beat = state::to_bytes(&presence());
    assert_eq!(rig.ask(&held, "/v1/agent/presence", beat.clone()).await.0, 200);
    let renewed: Renewed = serde_json::from_str(&first.1).unwrap();
    let certificate = vec![CertificateDer::from_pem_slice(renewed.certificate.as_bytes()).unwrap()];
    let next = rig.gateway_client(&Machine { certificate, ..fresh });
    assert_eq!(rig.ask(&next, "/v1/agent/presence", beat.clone()).await.0, 200);
    assert_eq!(code(&rig.ask(&held, "/v1/agent/presence", beat).await), (401, "certificate_refused".into()));
    assert_eq!(certificates(&rig, node).len(), 1);
    let (status, _) = rig.operator("POST", "/v1/admission/revoke", &serde_json::json!({"who": "web-1"}), None).await;
    assert_eq!(status, 200);
    let register = state::to_bytes(&machine.register_body(audience));
    let refused = machine.send("POST", "/v1/peers/register", register, None).await;
    let problem: Problem = serde_json::from_str(&refused.1).unwrap();
    assert_eq!((problem.code.as_str(), problem.tombstone.is_some()), ("not_admitted", true));
    assert_eq!(machine.send("POST", PATH, asked(9, rig.machine().csr()), None).await, refused, "as whatever it asks");
}

/// What makes a certificate on disk good for nothing, and what a node does about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_wrong_with_its_certificate_a_node_gets_another_one() {
    let rig = Rig::new().await;
    let (machine, node) = joined(&rig, "web-1").await;
    let dir = &machine.dir;
    let (crt, key) = (dir.join("client.crt"), dir.join("client.key"));
    let other = tempfile::tempdir().unwrap();
    let elsewhere = keys::ApplianceKeys::make(&other.path().join("elsewhere")).unwrap().ca;
    let issued = |ca: &CertificateAuthority| {
        let request = ClientKey::make(dir).unwrap().request();
        let issued = ca.issue(&request, node, past(1000), clock::wall().plus(3_600_000)).unwrap();
        files::replace(&crt, issued.pem.as_bytes()).unwrap();
    };
    let (neighbour, _) = joined(&rig, "web-2").await;
    let harms: [(&str, &dyn Fn()); 8] = [
        ("no certificate", &|| files::remove(&crt).unwrap()),
        ("no key", &|| files::remove(&key).unwrap()),
        ("neither", &|| [&crt, &key].into_iter().for_each(|file| files::remove(file).unwrap())),
        ("a torn certificate", &|| files::replace(&crt, b"-----BEGIN CERTIFICATE-----\nMIIB").unwrap()),
        ("a key of zeros", &|| files::replace(&key, &[0; 200]).unwrap()),
        ("a CA that the roster does not name", &|| issued(&elsewhere)),
        ("one that was never recorded", &|| issued(&rig.ca())),
        ("another node's pair", &|| {
            for name in ["client.crt", "client.key"] {
                files::replace(&dir.join(name), &std::fs::read(neighbour.dir.join(name)).unwrap()).unwrap();
            }
        }),
    ];
    for (what, harm) in harms {
        harm();
        let agent = Agent::start(&rig, &machine, rig.gateway, rig.address);
        agent.beats_until(what, || true).await;
        assert_eq!(agent.asked.load(Ordering::SeqCst), 1, "{what}");
        assert_eq!(certificates(&rig, node), [pin_of(dir)], "{what}");
    }
    // Retired while the agent runs: somebody else's use of its signing key, say.
    let agent = Agent::start(&rig, &machine, rig.gateway, rig.address);
    agent.beats_until("before", || true).await;
    let held = certificates(&rig, node);
    let aside = rig.machine();
    let request = STANDARD.encode(ClientKey::make(&aside.dir).unwrap().request());
    let gateways = gateways(&rig);
    let identity = ClientIdentity::read(dir).unwrap().unwrap();
    let renewed =
        Gateway::new(gateways.clone(), &identity.tls).renew(&Renewal { certificate_request: request }).await.unwrap();
    files::replace(&aside.dir.join("client.crt"), renewed.certificate.as_bytes()).unwrap();
    let aside = ClientIdentity::read(&aside.dir).unwrap().unwrap();
    Gateway::new(gateways, &aside.tls).presence(&presence()).await.unwrap();
    assert_ne!(certificates(&rig, node), held);
    agent.beats_until("after", || certificates(&rig, node) == [pin_of(dir)]).await;
    assert_eq!(agent.asked.load(Ordering::SeqCst), 1);
}

/// An alert comes after the client has sent its last message, and with the end of the connection: a client that looks at
/// the end first has seen a bad line. It does not do so time after time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_the_handshake_is_not_taken_for_a_bad_line_for_long() {
    let rig = Rig::new().await;
    let (machine, node) = joined(&rig, "web-1").await;
    let other = tempfile::tempdir().unwrap();
    let elsewhere = keys::ApplianceKeys::make(&other.path().join("elsewhere")).unwrap().ca;
    let issued = elsewhere.issue(machine.csr(), node, past(1000), clock::wall().plus(60_000)).unwrap();
    files::replace(&machine.dir.join("client.crt"), issued.pem.as_bytes()).unwrap();
    let identity = ClientIdentity::read(&machine.dir).unwrap().unwrap();
    let gateways = gateways(&rig);
    for n in 0..50 {
        let gateway = Gateway::new(gateways.clone(), &identity.tls);
        let asking = async {
            for _ in 0..10 {
                gateway.presence(&presence()).await.unwrap_err();
            }
            // What was noticed is told by now.
            tokio::task::yield_now().await;
        };
        tokio::select! {
            biased;
            () = gateway.refused() => {}
            () = asking => panic!("{n}: not noticed in ten calls"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_node_asks_in_vain_and_a_roster_change_makes_the_client_anew() {
    let rig = Rig::new().await;
    let (machine, _) = joined(&rig, "web-1").await;
    let mut agent = Agent::start(&rig, &machine, rig.gateway, rig.address);
    agent.beats_until("before", || true).await;
    let first = agent.gateway.borrow_and_update().clone().unwrap();
    let moved = Wire::to(&rig, rig.gateway).await;
    agent.known.send_modify(|gateways| gateways.endpoints = vec![at(moved.address)]);
    tokio::time::timeout(SOON, agent.gateway.changed()).await.unwrap().unwrap();
    assert!(!Arc::ptr_eq(&first, agent.gateway.borrow_and_update().as_ref().unwrap()));
    agent.beats_until("at the new place", || true).await;
    let (status, _) = rig.operator("POST", "/v1/admission/revoke", &serde_json::json!({"who": "web-1"}), None).await;
    assert_eq!(status, 200);
    agent.present().await.unwrap_err();
    let until = clock::boot() + SOON;
    while agent.asked.load(Ordering::SeqCst) < 3 {
        assert!(clock::boot() < until, "it goes on asking");
        agent.present().await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(agent.gateway.borrow().is_none());
}
