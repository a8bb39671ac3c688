//! P-256 keys and the certificates on them: the TLS leaf that is pinned, the CA of one appliance, a node's certificate.
//!
//! Nothing here is verified by name or date: a leaf is known by its pin, a node's certificate by its fingerprint.

use super::KeyError;
use crate::files;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use state::model::{Fingerprint, Millis, NodeId};
use std::path::Path;
use zeroize::{Zeroize, Zeroizing};

/// A certificate file is far smaller than this, in bytes.
const CERTIFICATE_FILE: u64 = 64 * 1024;

/// A private P-256 key. Wiped when dropped.
pub struct P256Key(KeyPair);

impl Drop for P256Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl P256Key {
    /// The key of a PEM file, made first where there is none.
    pub fn make(path: &Path) -> Result<Self, KeyError> {
        match Self::read(path) {
            Err(KeyError::File(error)) if files::is_absent(&error) => {}
            other => return other,
        }
        files::create_once(path, Self::generate().pem().as_bytes())?;
        Self::read(path)
    }

    /// A fresh key, in memory alone.
    pub fn generate() -> Self {
        Self(KeyPair::generate().expect("the ring provider makes P-256 keys"))
    }

    /// As its file has it.
    pub(super) fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.serialize_pem())
    }

    /// Whether a certificate, in PEM, is this key's.
    pub(super) fn is_key_of(&self, certificate: &str) -> bool {
        CertificateDer::from_pem_slice(certificate.as_bytes()).is_ok_and(|der| is_for(&der, self))
    }

    /// The key of a PEM file.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let pem = files::read_secret(path)?;
        let key = std::str::from_utf8(&pem).ok().and_then(|pem| KeyPair::from_pem(pem).ok());
        key.filter(|key| key.algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256)
            .map(Self)
            .ok_or_else(|| KeyError::Malformed { path: path.to_owned(), problem: "is not the PEM of a P-256 key" })
    }

    /// The key as TLS takes it.
    pub fn der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.0.serialize_der()))
    }

    /// The DER of a certificate request (PKCS #10) for this key, which proves that the sender has it.
    pub fn request(&self) -> Vec<u8> {
        let request = CertificateParams::default().serialize_request(&self.0);
        request.expect("an empty request can be signed").der().to_vec()
    }
}

/// A leaf certificate with its key, as a TLS listener or client presents it.
pub struct TlsIdentity {
    /// The certificate in use.
    pub certificate: CertificateDer<'static>,
    /// Its key.
    pub key: P256Key,
}

impl TlsIdentity {
    /// The certificate and key of two PEM files.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, KeyError> {
        let identity = Self { certificate: read_certificate(certificate)?, key: P256Key::read(key)? };
        let problem = "is not the certificate of the key beside it";
        if !is_for(&identity.certificate, &identity.key) {
            return Err(KeyError::Malformed { path: certificate.to_owned(), problem });
        }
        Ok(identity)
    }

    /// A self-signed leaf in two PEM files, made first where there is none.
    pub fn make(certificate: &Path, key: &Path) -> Result<Self, KeyError> {
        let made = P256Key::make(key)?;
        if absent(certificate)? {
            let mut params = named("holdfast appliance");
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            create_self_signed(certificate, &params, &made)?;
        }
        Self::read(certificate, key)
    }
}

/// The pin of a certificate: SHA-256 of its DER.
pub fn pin(certificate: &CertificateDer<'_>) -> Fingerprint {
    Fingerprint::from_bytes(Sha256::digest(certificate).into())
}

/// The CA of one appliance: it signs the certificates of the nodes that enrol there.
pub struct CertificateAuthority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, P256Key>,
}

/// A node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// PEM.
    pub pem: String,
    /// SHA-256 of its DER: what the record keeps and the gateway looks up.
    pub fingerprint: Fingerprint,
    /// From when it holds, to the second.
    pub not_before: Millis,
    /// Until when it holds, to the second.
    pub not_after: Millis,
}

impl CertificateAuthority {
    /// The CA of two PEM files.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, KeyError> {
        let TlsIdentity { certificate: der, key } = TlsIdentity::read(certificate, key)?;
        let issuer = Issuer::from_ca_cert_der(&der, key)
            .map_err(|_| KeyError::Malformed { path: certificate.to_owned(), problem: "is not a CA's certificate" })?;
        Ok(Self { certificate: der, issuer })
    }

    /// A self-signed CA in two PEM files, made first where there is none.
    pub fn make(certificate: &Path, key: &Path) -> Result<Self, KeyError> {
        let made = P256Key::make(key)?;
        if absent(certificate)? {
            // A name of its own, so that a verifier that knows the CAs of several appliances finds the right one.
            let digest = hex::encode(Sha256::digest(made.0.public_key_raw()));
            let mut params = named(&format!("holdfast agent CA {}", &digest[..16]));
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            create_self_signed(certificate, &params, &made)?;
        }
        Self::read(certificate, key)
    }

    /// Its certificate, as the roster names it.
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A client certificate for the key of a request (DER, PKCS #10). Nothing else of the request is taken over.
    pub fn issue(
        &self,
        request: &[u8],
        node: NodeId,
        not_before: Millis,
        not_after: Millis,
    ) -> Result<IssuedCertificate, KeyError> {
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(|_| KeyError::Request("it is malformed or its signature is wrong"))?;
        if rcgen::PublicKeyData::algorithm(&request.public_key) != &rcgen::PKCS_ECDSA_P256_SHA256 {
            return Err(KeyError::Request("its key is not a P-256 key"));
        }
        let second = |at: Millis| {
            let seconds = i64::try_from(at.0 / 1000).ok();
            let date = seconds.and_then(|s| time::OffsetDateTime::from_unix_timestamp(s).ok());
            date.ok_or(KeyError::Request("its dates are out of range"))
        };
        let mut params = named(&node.to_string());
        params.not_before = second(not_before)?;
        params.not_after = second(not_after)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(|_| KeyError::Request("it cannot be signed for"))?;
        Ok(IssuedCertificate {
            pem: certificate.pem(),
            fingerprint: pin(certificate.der()),
            not_before: Millis(not_before.0 / 1000 * 1000),
            not_after: Millis(not_after.0 / 1000 * 1000),
        })
    }
}

impl rcgen::PublicKeyData for P256Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl rcgen::SigningKey for P256Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// The first certificate of a PEM file; text around it and how its lines are wrapped do not matter.
pub(super) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, KeyError> {
    let pem = files::read(path, CERTIFICATE_FILE)?;
    let malformed = |problem| KeyError::Malformed { path: path.to_owned(), problem };
    let der = CertificateDer::from_pem_slice(&pem).map_err(|_| malformed("holds no certificate in PEM"))?;
    rustls::server::ParsedCertificate::try_from(&der).map_err(|_| malformed("holds a malformed certificate"))?;
    Ok(der)
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn create_self_signed(path: &Path, params: &CertificateParams, key: &P256Key) -> Result<(), KeyError> {
    let made = params.self_signed(key).expect("fixed parameters can be signed by our own key");
    files::create_once(path, made.pem().as_bytes())?;
    Ok(())
}

pub(super) fn absent(path: &Path) -> Result<bool, KeyError> {
    match files::read(path, CERTIFICATE_FILE) {
        Ok(_) => Ok(false),
        Err(error) if files::is_absent(&error) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn is_for(certificate: &CertificateDer<'_>, key: &P256Key) -> bool {
    let provider = rustls::crypto::ring::default_provider();
    let Ok(signer) = provider.key_provider.load_private_key(key.der()) else { return false };
    let certified = rustls::sign::CertifiedKey::new(vec![certificate.clone().into_owned()], signer);
    certified.keys_match().is_ok()
}
