//! The least that an HTTPS server of our libraries does: `GET /` answers `ok`.

use crate::Outcome;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;

/// A TLS 1.3 configuration with a self-signed certificate, and that certificate.
pub fn configuration() -> Outcome<(Arc<rustls::ServerConfig>, rustls::pki_types::CertificateDer<'static>)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let configuration = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    Ok((Arc::new(configuration), certificate))
}

/// Serves until it is ended from outside.
pub async fn serve(address: &str) -> Outcome {
    let acceptor = tokio_rustls::TlsAcceptor::from(configuration()?.0);
    let listener = tokio::net::TcpListener::bind(address).await?;
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "ok" }));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (acceptor, app) = (acceptor.clone(), app.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = TowerToHyperService::new(app);
            // A client that goes away ends its own connection and nothing else.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
