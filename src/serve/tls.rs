//! TLS of the appliance's listeners: version 1.3 only, HTTP/1.1 only, no resumption.
//!
//! A resumed session would outlive the check of a certificate, and HTTP/2 multiplexes more than any client of ours
//! needs. Who may connect is not decided here: the mesh listener knows its callers by bearer and signature.

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// The configuration of a listener that proves itself by `leaf` and asks its callers for no certificate.
pub fn server_config(
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
