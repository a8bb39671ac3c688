//! An appliance in a temporary directory, and machines that ask it.

use crate::cluster::{Home, Place};
use crate::config::{Settings, resolve};
use crate::listen::stop::Stopper;
use crate::listen::{self, stop};
use crate::serve::appliance::Appliance;
use crate::serve::sources::Sources;
use crate::serve::{accept, found, gate, gateway, mesh, operator, tls};
use crate::wire::enrol::{EnrolRequest, Enrolled};
use crate::wire::operator::Minted;
use crate::wire::peers::*;
use crate::wire::problem::Problem;
use crate::wire::token::Token;
use crate::{clock, entropy, keys, limits, tasks};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde::Serialize;
use sha2::{Digest, Sha256};
use state::Change;
use state::model::{Fingerprint, Millis, Name, Revision};
use state::store::{Batch, Body, Entry, EntryId, Rows};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

pub(super) struct Rig {
    pub(super) appliance: Arc<Appliance>,
    pub(super) address: SocketAddr,
    pub(super) gateway: SocketAddr,
    socket: PathBuf,
    stopper: Stopper,
    lock: crate::files::Lock,
    dir: tempfile::TempDir,
}

/// A status and a body.
pub(super) type Said = (u16, String);

impl Rig {
    pub(super) async fn new() -> Self {
        Self::with_certificate_life(limits::CERTIFICATE_LIFE).await
    }

    /// One whose nodes' certificates last so long.
    pub(super) async fn with_certificate_life(life: std::time::Duration) -> Self {
        Self::open(tempfile::tempdir().unwrap(), life, sources_of).await
    }

    /// One whose sources are delivered in another way.
    pub(super) async fn with_sources(sources: impl FnOnce(&Path) -> Sources) -> Self {
        Self::open(tempfile::tempdir().unwrap(), limits::CERTIFICATE_LIFE, sources).await
    }

    /// The same appliance after its process has ended and started again: at other ports, with nothing in its memory.
    pub(super) async fn started_again(self) -> Self {
        let Self { appliance, stopper, lock, socket, dir, .. } = self;
        stopper.stop();
        let deadline = clock::boot() + std::time::Duration::from_secs(20);
        while Arc::strong_count(&appliance) > 1 {
            assert!(clock::boot() < deadline, "something of the appliance goes on");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let Some(Appliance { handle, .. }) = Arc::into_inner(appliance) else { panic!("it is held once") };
        handle.close().await;
        drop(lock);
        std::fs::remove_file(socket).unwrap();
        Self::open(dir, limits::CERTIFICATE_LIFE, sources_of).await
    }

    /// One whose journal ends so long from now: its clock is behind.
    pub(super) async fn behind_by(ms: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("appliance");
        let found::Opened { handle, lock, .. } = Self::found(&state).await;
        handle.close().await;
        drop(lock);
        let opened = loop {
            match Home::new(&state).open() {
                Ok(opened) => break opened,
                // Its thread is about to let go.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        };
        let last = opened.store.batches(Revision(1), 1).unwrap().remove(0);
        let later = Batch {
            batch: opened.head.batch + 1,
            prev: opened.head.hash,
            time: clock::wall().plus(ms),
            changes: vec![Change {
                change: Revision(opened.head.change.0 + 1),
                kind: "test".into(),
                events: vec![],
                ..last.changes[0].clone()
            }],
            ..last
        };
        let entry = opened.store.last().unwrap().unwrap();
        let id = EntryId { index: entry.index + 1, ..entry };
        opened.store.append(&[Entry { id, body: Body::Batch(later.seal()), rows: Rows::default() }]).unwrap();
        drop(opened);
        Self::open(dir, limits::CERTIFICATE_LIFE, sources_of).await
    }

    async fn found(state: &Path) -> found::Opened {
        let advertise = Some(vec!["198.51.100.2".parse().unwrap()]);
        let fleet = Some(Name::new("lab").unwrap());
        let config = resolve(Settings { advertise, fleet, ..Settings::default() }, None).unwrap();
        let deadline = clock::boot() + std::time::Duration::from_secs(20);
        loop {
            match found::open(state, &config, &state.join("recovery.txt")).await {
                Ok(opened) => return opened,
                // The engine of a former start lets go of its file a moment after its last user has.
                Err(error) => assert!(format!("{error:#}").contains("open already"), "{error:#}"),
            }
            assert!(clock::boot() < deadline, "a former start still holds the store");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn open(dir: tempfile::TempDir, life: std::time::Duration, sources: impl FnOnce(&Path) -> Sources) -> Self {
        // Another test may have installed it, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let state = dir.path().join("appliance");
        let opened = Self::found(&state).await;
        let listener = accept::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let gateway_listener = accept::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let gateway = gateway_listener.local_addr().unwrap();
        let (leaf, key) = (opened.keys.tls.certificate.clone(), opened.keys.tls.key.der());
        let acceptor = tls::server_config(leaf.clone(), key.clone_key()).unwrap();
        let pin = opened.keys.pin();
        let records = crate::authority::records::Records::new(opened.keys.signing.clone(), opened.id);
        let authority = crate::authority::Authority::new(records, opened.keys.ca, life, clock::boot());
        let appliance = Arc::new(Appliance {
            handle: opened.handle,
            authority,
            sources: sources(&state),
            id: opened.id,
            pin,
            advertised: opened.advertised,
            since: clock::wall(),
            observed: Default::default(),
        });
        let (stopper, stop) = stop::pair();
        let router = mesh::router(appliance.clone(), stop.clone());
        tasks::spawn(
            "mesh listener",
            accept::serve_tls(
                listener,
                acceptor.into(),
                router,
                Arc::new(gate::Gate::default()),
                accept::stranger,
                stop.clone(),
            ),
        );
        let mutual = gateway::tls_config(appliance.clone(), leaf, key).unwrap();
        tasks::spawn(
            "gateway listener",
            accept::serve_tls(
                gateway_listener,
                mutual.into(),
                gateway::router(appliance.clone()),
                Arc::new(gate::Gate::default()),
                gateway::Client::of,
                stop.clone(),
            ),
        );
        tasks::spawn("leases", crate::serve::leases::run(appliance.clone(), stop.clone()));
        let socket = state.join("operator.sock");
        let local = tokio::net::UnixListener::bind(&socket).unwrap();
        tasks::spawn("operator", listen::serve_local(local, operator::router(appliance.clone()), stop.clone()));
        Self { appliance, address, gateway, socket, stopper, lock: opened.lock, dir }
    }

    /// A client of the operator socket, with its own connections.
    pub(super) fn operator_client(&self) -> reqwest::Client {
        reqwest::Client::builder().unix_socket(self.socket.clone()).build().unwrap()
    }

    /// What an operator is told.
    pub(super) async fn operator<T: Serialize>(&self, method: &str, path: &str, body: &T, key: Option<&str>) -> Said {
        let mut request = self.operator_client().request(method.parse().unwrap(), format!("http://appliance{path}"));
        if method != "GET" {
            request = request.body(serde_json::to_vec(body).unwrap());
        }
        if let Some(key) = key {
            request = request.header(HEADER_IDEMPOTENCY, key);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Hands bytes to the operator socket.
    pub(super) async fn upload(&self, path: &str, bytes: Vec<u8>) -> Said {
        let http = reqwest::Client::builder().unix_socket(self.socket.clone()).build().unwrap();
        let response = http.post(format!("http://appliance{path}")).body(bytes).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// The appliance's state directory.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("appliance")
    }

    /// A fresh token for a node of that name.
    pub(super) async fn token(&self, name: &str) -> Token {
        let body = serde_json::json!({ "name": name });
        let (status, said) = self.operator("POST", "/v1/nodes", &body, None).await;
        assert_eq!(status, 200, "{said}");
        let minted: Minted = serde_json::from_str(&said).unwrap();
        Token::decode(&minted.token, clock::wall()).ok().unwrap()
    }

    pub(super) fn client(&self) -> reqwest::Client {
        reqwest::Client::builder()
            .tls_backend_preconfigured(client_config(self.appliance.pin))
            .http1_only()
            .no_proxy()
            .resolve("appliance.test", self.address)
            .build()
            .unwrap()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("https://appliance.test:{}{path}", self.address.port())
    }

    /// A machine with keys of its own.
    pub(super) fn machine(&self) -> Machine {
        let dir = self.dir.path().join(hex::encode(entropy::bytes::<8>()));
        let keys = keys::NodeKeys::make(&dir).unwrap();
        let request = keys::ClientKey::make(&dir).unwrap().request();
        let key = std::fs::read(dir.join("client.key")).unwrap();
        Machine {
            dir,
            keys,
            request,
            key: PrivateKeyDer::from_pem_slice(&key).unwrap(),
            certificate: Vec::new(),
            http: self.client(),
            url: self.url(""),
            bearer: String::new(),
            seq: 0,
        }
    }

    /// A machine that has joined.
    pub(super) async fn joined(&self, name: &str) -> Machine {
        let token = self.token(name).await;
        let mut machine = self.machine();
        let (status, said) = machine.enrol(&token).await;
        assert_eq!(status, 200, "{said}");
        let enrolled = serde_json::from_str::<Enrolled>(&said).unwrap();
        machine.bearer = enrolled.mesh_token;
        machine.certificate = vec![CertificateDer::from_pem_slice(enrolled.client_certificate.as_bytes()).unwrap()];
        machine
    }

    pub(super) fn revision(&self) -> Revision {
        self.appliance.handle.state().revision
    }
}

fn sources_of(state: &Path) -> Sources {
    Sources::open(state, limits::SOURCE_SLOTS).unwrap()
}

pub(super) struct Machine {
    /// Its state directory: keys alone.
    pub(super) dir: PathBuf,
    pub(super) keys: keys::NodeKeys,
    pub(super) request: Vec<u8>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) certificate: Vec<CertificateDer<'static>>,
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) bearer: String,
    pub(super) seq: u64,
}

impl Machine {
    pub(super) fn enrolment(&self, token: &Token) -> Vec<u8> {
        let public = self.keys.public();
        state::to_bytes(&EnrolRequest {
            audience: token.fleet,
            secret: token.secret.expose_hex().to_string(),
            signing_key: public.signing_key,
            wireguard_key: public.wireguard_key,
            sealing_key: public.sealing_key,
            certificate_request: STANDARD.encode(&self.request),
            listen_port: 51820,
            local_endpoints: Vec::new(),
            agent_version: "holdfast 0.1.0".into(),
        })
    }

    /// Its certificate request.
    pub(super) fn csr(&self) -> &[u8] {
        &self.request
    }

    pub(super) async fn enrol(&self, token: &Token) -> Said {
        self.send("POST", "/v1/enroll", self.enrolment(token), None).await
    }

    pub(super) fn register_body(&mut self, fleet: state::model::FleetId) -> RegisterBody {
        let public = self.keys.public();
        self.seq += 1;
        RegisterBody {
            envelope: Envelope { seq: self.seq, audience: fleet, epoch: None },
            instance: Uuid::from_u128(1),
            wireguard_key: public.wireguard_key,
            sealing_key: public.sealing_key,
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

    pub(super) async fn send(&self, method: &str, path: &str, body: Vec<u8>, key: Option<&str>) -> Said {
        let response = self.begin(method, path, body, key).await;
        (response.status().as_u16(), response.text().await.unwrap())
    }

    pub(super) async fn begin(&self, method: &str, path: &str, body: Vec<u8>, key: Option<&str>) -> reqwest::Response {
        let timestamp = clock::wall().0.to_string();
        let lines = signed_lines(method, path, &timestamp, &body);
        let signature = hex::encode(self.keys.signing.sign(lines.as_bytes()).to_bytes());
        let mut request = self
            .http
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {}", self.bearer))
            .header(HEADER_KEY, self.keys.public().signing_key.to_string())
            .header(HEADER_TIMESTAMP, timestamp)
            .header(HEADER_SIGNATURE, signature)
            .body(body);
        if let Some(key) = key {
            request = request.header(HEADER_IDEMPOTENCY, key);
        }
        request.send().await.unwrap()
    }
}

pub(super) fn code(said: &Said) -> (u16, String) {
    (said.0, serde_json::from_str::<Problem>(&said.1).unwrap_or_else(|_| panic!("no problem: {}", said.1)).code)
}

/// A key as a client makes one.
pub(super) fn idempotency() -> String {
    hex::encode(entropy::bytes::<16>())
}

/// The next line of a stream that is not a keep-alive.
pub(super) async fn line(stream: &mut reqwest::Response) -> Option<PeerList> {
    let next = async {
        loop {
            let chunk = stream.chunk().await.unwrap()?;
            if chunk.as_ref() != b"\n" {
                return Some(serde_json::from_slice(&chunk).unwrap());
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), next).await.unwrap()
}

pub(super) fn past(ms: u64) -> Millis {
    Millis(clock::wall().0 - ms)
}

impl Rig {
    /// How a machine's TLS is set up for the gateway.
    pub(super) fn mutual(&self, machine: &Machine) -> ClientConfig {
        mutual_config(self.appliance.pin, machine.certificate.clone(), machine.key.clone_key())
    }

    /// A client of the gateway, with its own connections.
    pub(super) fn gateway_client(&self, machine: &Machine) -> reqwest::Client {
        reqwest::Client::builder()
            .tls_backend_preconfigured(self.mutual(machine))
            .http1_only()
            .no_proxy()
            .resolve("appliance.test", self.gateway)
            .build()
            .unwrap()
    }

    pub(super) fn gateway_url(&self, path: &str) -> String {
        format!("https://appliance.test:{}{path}", self.gateway.port())
    }

    /// What the gateway says.
    pub(super) async fn ask(&self, http: &reqwest::Client, path: &str, body: Vec<u8>) -> Said {
        self.ask_with(http, path, body, None).await
    }

    /// What the gateway says to a call with an `Idempotency-Key`.
    pub(super) async fn ask_with(&self, http: &reqwest::Client, path: &str, body: Vec<u8>, key: Option<&str>) -> Said {
        let mut request = http.post(self.gateway_url(path)).body(body);
        if let Some(key) = key {
            request = request.header(HEADER_IDEMPOTENCY, key);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// The appliance's CA.
    pub(super) fn ca(&self) -> keys::CertificateAuthority {
        let dir = self.state_dir();
        keys::CertificateAuthority::read(&dir.join("ca.crt"), &dir.join("ca.key")).unwrap()
    }
}

pub(super) fn mutual_config(
    pin: Fingerprint,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(pin)))
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

pub(super) fn client_config(pin: Fingerprint) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(pin)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

#[derive(Debug)]
struct Pinned(Fingerprint);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if Sha256::digest(leaf)[..] == self.0.as_bytes()[..] {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General("another pin".into()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
