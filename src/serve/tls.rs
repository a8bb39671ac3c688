//! TLS of the appliance's listeners: version 1.3 only, HTTP/1.1 only, no resumption.
//!
//! A resumed session would outlive the check of a certificate, and HTTP/2 multiplexes more than any client of ours
//! needs. Who may connect is not decided here: the mesh listener knows its callers by bearer and signature, the gateway
//! by a certificate that its own verifier judges.

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use std::sync::Arc;

/// The configuration of a listener that proves itself by `leaf` and asks its callers for no certificate.
pub fn server_config(
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    finished(builder()?.with_no_client_auth().with_single_cert(vec![leaf], key)?)
}

/// The configuration of a listener whose callers must have a certificate that `verifier` accepts.
pub fn mutual_config(
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    finished(builder()?.with_client_cert_verifier(verifier).with_single_cert(vec![leaf], key)?)
}

/// The cryptography of every listener.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, rustls::Error> {
    ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])
}

fn finished(mut config: ServerConfig) -> Result<Arc<ServerConfig>, rustls::Error> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
