//! Who gets through the gateway's handshake: whoever holds the key of a certificate that a CA of the roster has signed.
//!
//! That is not yet a right to anything: each request looks the certificate up. It is what strangers must get past, so it
//! costs them a handshake and us at most two signature checks: P-256 only, and no chain.

use crate::authority::gateway::authorities;
use crate::clock;
use crate::serve::appliance::Appliance;
use crate::serve::tls;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use state::model::Revision;
use std::sync::{Arc, Mutex, PoisonError};

/// Judges client certificates by the roster in force.
pub(super) struct Verifier {
    appliance: Arc<Appliance>,
    provider: Arc<CryptoProvider>,
    chains: Mutex<Chains>,
}

/// The verifier for the CAs of one roster.
#[derive(Clone, Default)]
struct Chains {
    roster: Revision,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Verifier {
    /// For the nodes of this appliance's fleet.
    pub(super) fn new(appliance: Arc<Appliance>) -> Self {
        let mut provider = CryptoProvider::clone(&tls::provider());
        let algorithms = &mut provider.signature_verification_algorithms;
        let p256 = algorithms.mapping.iter().position(|(scheme, _)| *scheme == SignatureScheme::ECDSA_NISTP256_SHA256);
        let p256 = p256.expect("the provider knows P-256");
        algorithms.mapping = &algorithms.mapping[p256..=p256];
        algorithms.all = algorithms.mapping[0].1;
        Self { appliance, provider: Arc::new(provider), chains: Mutex::default() }
    }

    fn chains(&self, state: &state::State) -> Option<Arc<dyn ClientCertVerifier>> {
        let revision = state.appliances.roster.as_ref()?.revision;
        let mut held = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        if held.verifier.is_none() || held.roster != revision {
            let mut roots = RootCertStore::empty();
            let (roster, named) = authorities(state);
            let (_, unusable) = roots.add_parsable_certificates(named.into_iter().map(CertificateDer::from));
            if unusable > 0 {
                tracing::error!(unusable, "the roster names certificate authorities that cannot be read");
            }
            let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), self.provider.clone()).build();
            *held = Chains { roster, verifier: built.ok() };
        }
        held.verifier.clone()
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

/// One answer to every certificate that is not good.
fn refused() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // The CAs sign leaves themselves and nothing else.
        if !intermediates.is_empty() {
            return Err(refused());
        }
        let state = self.appliance.handle.state();
        let verifier = self.chains(&state).ok_or_else(refused)?;
        let judged = match verifier.verify_client_cert(leaf, &[], now) {
            // A clock that is behind the latest time ever seen ends nothing and begins nothing.
            Err(Error::InvalidCertificate(error)) if clock::wall() < state.at => match bound(&error) {
                Some(at) => verifier.verify_client_cert(leaf, &[], at),
                None => Err(refused()),
            },
            judged => judged,
        };
        judged.map_err(|_| refused())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(refused())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A time within the window of a certificate that was refused for its window.
fn bound(error: &CertificateError) -> Option<UnixTime> {
    if let CertificateError::ExpiredContext { not_after, .. } = error {
        return Some(*not_after);
    }
    if let CertificateError::NotValidYetContext { not_before, .. } = error {
        return Some(*not_before);
    }
    None
}
