//! Client certificates on real nodes: renewed again and again, come by anew after a long sleep or a damaged file, and
//! good for nothing from the moment of a revocation.

use crate::tools::fleet;
use anyhow::{Context, Result};
use holdfast::keys::{CertificateAuthority, P256Key, TlsIdentity, pin};
use holdfast::lab::{Fleet, until};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use state::model::{Fingerprint, Millis, NodeId};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// The shortest life of a certificate that can be configured.
const LIFE: [&str; 2] = ["--certificate-life", "10s"];

/// An appliance whose nodes' certificates last ten seconds, and a node.
fn hurried() -> Result<Fleet> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.stop("box")?;
    fleet.serve_with(&LIFE)?;
    fleet.lab.host("a", 10)?;
    fleet.enrol("a", &[])?;
    Ok(fleet)
}

/// The pin of the certificate that a node has on disk, if there is one.
fn held(fleet: &Fleet, node: &str) -> Option<Fingerprint> {
    let pem = std::fs::read(fleet.state(node).join("client.crt")).ok()?;
    Some(pin(&CertificateDer::from_pem_slice(&pem).ok()?))
}

/// A job is given out over the gateway alone.
fn works(fleet: &Fleet, node: &str) -> Result<()> {
    let done = fleet.operator(&["job", "run", "network.check", "--on", node, "--watch"])?;
    assert_eq!(done.code, 0, "{done:?}");
    Ok(())
}

#[test]
fn a_certificate_is_renewed_through_kills_of_both_ends_and_after_a_sleep_longer_than_its_life() -> Result<()> {
    let fleet = hurried()?;
    works(&fleet, "a")?;
    for round in 0..4 {
        let former = held(&fleet, "a");
        until(SOON, "the next certificate", || held(&fleet, "a").is_some_and(|next| Some(next) != former))?;
        match round {
            1 => {
                fleet.murder("box")?;
                fleet.serve_with(&LIFE)?;
            }
            2 => {
                fleet.murder("a")?;
                fleet.agent("a")?;
            }
            _ => {}
        }
    }
    works(&fleet, "a")?;
    // It sleeps through the life of its certificate, and nobody is there when it wakes.
    fleet.stop("a")?;
    let slept = held(&fleet, "a");
    std::thread::sleep(Duration::from_secs(12));
    fleet.agent("a")?;
    until(SOON, "another certificate", || held(&fleet, "a").is_some_and(|next| Some(next) != slept))?;
    works(&fleet, "a")?;
    Ok(())
}

#[test]
fn a_node_gets_over_the_loss_of_its_certificate_files() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    fleet.enrol("a", &[])?;
    let (crt, key) = (fleet.state("a").join("client.crt"), fleet.state("a").join("client.key"));
    let torn = || std::fs::File::options().write(true).open(&crt)?.set_len(100);
    let harms: [(&str, &dyn Fn() -> std::io::Result<()>); 3] = [
        ("no certificate", &|| std::fs::remove_file(&crt)),
        ("no key", &|| std::fs::remove_file(&key)),
        ("a torn certificate", &torn),
    ];
    for (what, harm) in harms {
        let former = held(&fleet, "a");
        fleet.stop("a")?;
        harm()?;
        fleet.agent("a")?;
        until(SOON, what, || held(&fleet, "a").is_some_and(|next| Some(next) != former))?;
        works(&fleet, "a")?;
    }
    Ok(())
}

#[test]
fn a_kept_connection_is_refused_from_the_moment_of_a_revocation_as_any_other_is() -> Result<()> {
    let fleet = hurried()?;
    let dir = fleet.state("a");
    let identity = || TlsIdentity::read(&dir.join("client.crt"), &dir.join("client.key"));
    // Read while the agent stands still: it replaces both files every few seconds.
    fleet.stop("a")?;
    let first = identity()?;
    let mut retired = connect(&fleet, &first)?;
    assert!(beat(&mut retired)?.starts_with("HTTP/1.1 200 OK\r\n"));
    fleet.agent("a")?;
    until(SOON, "the next certificate", || {
        // An idle connection would be closed.
        beat(&mut retired).is_ok() && held(&fleet, "a").is_some_and(|next| next != pin(&first.certificate))
    })?;
    works(&fleet, "a")?;
    let refused = beat(&mut retired)?;
    assert!(refused.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{refused}");
    fleet.stop("a")?;
    let mut revoked = connect(&fleet, &identity()?)?;
    assert!(beat(&mut revoked)?.starts_with("HTTP/1.1 200 OK\r\n"));
    let ca = fleet.state("box");
    let ca = CertificateAuthority::read(&ca.join("ca.crt"), &ca.join("ca.key"))?;
    let stranger = |ca: &CertificateAuthority| -> Result<TlsIdentity> {
        let (key, now) = (P256Key::generate(), holdfast::clock::wall());
        let issued = ca.issue(&key.request(), NodeId(uuid::Uuid::nil()), Millis(now.0 - 1000), now.plus(600_000))?;
        Ok(TlsIdentity { certificate: CertificateDer::from_pem_slice(issued.pem.as_bytes())?, key })
    };
    let mut unknown = connect(&fleet, &stranger(&ca)?)?;
    fleet.operator(&["node", "revoke", "a", "--yes"])?.ok()?;
    for (which, stream) in [("revoked", &mut revoked), ("retired", &mut retired), ("unknown", &mut unknown)] {
        assert_eq!(beat(stream)?, refused, "{which}");
        assert_eq!(beat(stream)?, refused, "{which}, once more");
    }
    // New connections: what the handshake refuses, it refuses with one alert.
    std::thread::sleep(Duration::from_secs(12));
    let elsewhere = tempfile::tempdir()?;
    let elsewhere = holdfast::keys::ApplianceKeys::make(&elsewhere.path().join("elsewhere"))?;
    for identity in [first, identity()?, stranger(&elsewhere.ca)?] {
        let ended = connect(&fleet, &identity).and_then(|mut stream| beat(&mut stream)).unwrap_err();
        assert!(format!("{ended:#}").contains("AccessDenied"), "{ended:#}");
    }
    Ok(())
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A connection to the gateway from the host of node `a`.
fn connect(fleet: &Fleet, identity: &TlsIdentity) -> Result<Stream> {
    let socket = fleet.lab.inside("a", || TcpStream::connect("198.51.100.2:4301"))??;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.der())?;
    Ok(StreamOwned::new(ClientConnection::new(Arc::new(config), ServerName::try_from("box")?)?, socket))
}

/// An unchanged heartbeat on a kept connection; the answer to the byte, but for the time of day.
fn beat(stream: &mut Stream) -> Result<String> {
    let body = format!(
        "{{\"instance\":\"{}\",\"roster_revision\":1,\"held_revision\":1,\"registered\":\"{}\"}}",
        uuid::Uuid::nil(),
        "00".repeat(32)
    );
    let head = format!("POST /v1/agent/presence HTTP/1.1\r\nhost: box\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes())?;
    let mut answer = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part)?;
        anyhow::ensure!(count > 0, "the connection ended");
        answer.extend_from_slice(&part[..count]);
        let text = std::str::from_utf8(&answer)?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let value = |name: &str| head.split(name).nth(1).and_then(|rest| rest.split("\r\n").next());
        let length: usize = value("content-length: ").context("a length")?.parse()?;
        if body.len() >= length {
            return Ok(text.replace(value("date: ").context("a date")?, "DATE"));
        }
    }
}

/// The server's certificate does not matter here.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
