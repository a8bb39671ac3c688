//! What an appliance holds: the fleet's root key, its own signing key, its TLS leaf and the CA of its nodes.

use super::certificate::{CertificateAuthority, TlsIdentity, pin, read_certificate};
use super::{KeyError, Role, claim, expect, make_ed25519, read_ed25519};
use ed25519_dalek::SigningKey as Ed25519;
use state::model::{Fingerprint, SigningKey};
use std::path::Path;

const TLS: [&str; 2] = ["tls.crt", "tls.key"];
const CA: [&str; 2] = ["ca.crt", "ca.key"];

/// The private keys of an appliance.
pub struct ApplianceKeys {
    /// Signs rosters, and nothing else.
    pub root: Ed25519,
    /// Signs records, heads and tombstones.
    pub signing: Ed25519,
    /// What its TLS listeners present.
    pub tls: TlsIdentity,
    /// Signs its nodes' client certificates.
    pub ca: CertificateAuthority,
}

impl ApplianceKeys {
    /// Makes the directory and the keys that are missing, then reads them all.
    pub fn make(dir: &Path) -> Result<Self, KeyError> {
        claim(dir, Role::Appliance)?;
        make_ed25519(&dir.join("root.key"))?;
        make_ed25519(&dir.join("signing.key"))?;
        TlsIdentity::make(&dir.join(TLS[0]), &dir.join(TLS[1]))?;
        CertificateAuthority::make(&dir.join(CA[0]), &dir.join(CA[1]))?;
        Self::read(dir)
    }

    /// Reads the keys; none is ever made here, so a missing one is an error that names it.
    pub fn read(dir: &Path) -> Result<Self, KeyError> {
        expect(dir, Role::Appliance)?;
        Ok(Self {
            root: read_ed25519(&dir.join("root.key"))?,
            signing: read_ed25519(&dir.join("signing.key"))?,
            tls: TlsIdentity::read(&dir.join(TLS[0]), &dir.join(TLS[1]))?,
            ca: CertificateAuthority::read(&dir.join(CA[0]), &dir.join(CA[1]))?,
        })
    }

    /// The public half of the root key.
    pub fn root_key(&self) -> SigningKey {
        SigningKey::from_bytes(self.root.verifying_key().to_bytes())
    }

    /// The public half of the signing key.
    pub fn signing_key(&self) -> SigningKey {
        SigningKey::from_bytes(self.signing.verifying_key().to_bytes())
    }

    /// The pin of the leaf in use.
    pub fn pin(&self) -> Fingerprint {
        pin(&self.tls.certificate)
    }
}

/// The pin of the certificate in an appliance's directory, computed from the file itself.
pub fn fingerprint(dir: &Path) -> Result<Fingerprint, KeyError> {
    expect(dir, Role::Appliance)?;
    Ok(pin(&read_certificate(&dir.join(TLS[0]))?))
}
