//! Documents under a signature.
//!
//! A signing key signs only texts that begin with an HTTP method (requests, [`crate::wire::peers`]) or with
//! `holdfast/<kind>/v1` and a zero byte (documents, here), so no signature of one kind can pass for another.

use ed25519_dalek::{Signature, Signer, SigningKey as PrivateKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use state::model::SigningKey;

/// What a document is. Part of what is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A node's record, `state::view::records::NodeRecord`.
    Peer,
    /// A scope's head, `state::view::records::Head`.
    Head,
    /// `state::view::records::Tombstone`.
    Tombstone,
    /// [`crate::wire::roster::Roster`].
    Roster,
    /// An appliance's clock and a nonce, in the refusal of a request whose clock is off.
    Clock,
}

impl Kind {
    const fn domain(self) -> &'static [u8] {
        match self {
            Self::Peer => b"holdfast/peer/v1\0",
            Self::Head => b"holdfast/head/v1\0",
            Self::Tombstone => b"holdfast/tombstone/v1\0",
            Self::Roster => b"holdfast/roster/v1\0",
            Self::Clock => b"holdfast/clock/v1\0",
        }
    }

    /// The bytes that are signed: the domain, a zero byte, and the SHA-256 of the document.
    fn payload(self, document: &str) -> Vec<u8> {
        let mut bytes = self.domain().to_vec();
        bytes.extend_from_slice(&Sha256::digest(document.as_bytes()));
        bytes
    }
}

/// A JSON document as text, with the signature over exactly that text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// The document.
    pub document: String,
    /// 64 bytes in hexadecimal digits.
    pub signature: String,
}

/// Why a signed document was not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disbelief {
    /// The signature does not fit document, kind and key.
    #[error("the signature of the {0:?} document does not verify")]
    Signature(Kind),
    /// Rightly signed, but not what it should be.
    #[error("the signed {0:?} document is malformed: {1}")]
    Malformed(Kind, String),
}

impl Signed {
    /// Signs a document that is JSON already.
    pub fn sign(key: &PrivateKey, kind: Kind, document: String) -> Self {
        let signature = hex::encode(key.sign(&kind.payload(&document)).to_bytes());
        Self { document, signature }
    }

    /// Checks the signature, then parses the document.
    pub fn open<T: for<'de> Deserialize<'de>>(&self, key: &SigningKey, kind: Kind) -> Result<T, Disbelief> {
        self.verify(key, kind)?;
        serde_json::from_str(&self.document).map_err(|e| Disbelief::Malformed(kind, e.to_string()))
    }

    /// Checks the signature alone.
    pub fn verify(&self, key: &SigningKey, kind: Kind) -> Result<(), Disbelief> {
        let bad = || Disbelief::Signature(kind);
        let mut signature = [0; 64];
        hex::decode_to_slice(&self.signature, &mut signature).map_err(|_| bad())?;
        VerifyingKey::from_bytes(key.as_bytes())
            .and_then(|key| key.verify_strict(&kind.payload(&self.document), &Signature::from_bytes(&signature)))
            .map_err(|_| bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_one_text_one_kind_and_one_key() {
        let key = PrivateKey::from_bytes(&[7; 32]);
        let public = SigningKey::from_bytes(key.verifying_key().to_bytes());
        let signed = Signed::sign(&key, Kind::Head, "{\"a\":1}".into());
        assert_eq!(signed.open::<serde_json::Value>(&public, Kind::Head), Ok(serde_json::json!({"a": 1})));
        assert_eq!(signed.verify(&public, Kind::Peer), Err(Disbelief::Signature(Kind::Peer)));
        let other = Signed { document: "{\"a\":1 }".into(), ..signed.clone() };
        assert_eq!(other.verify(&public, Kind::Head), Err(Disbelief::Signature(Kind::Head)));
        let stranger = SigningKey::from_bytes(PrivateKey::from_bytes(&[8; 32]).verifying_key().to_bytes());
        assert_eq!(signed.verify(&stranger, Kind::Head), Err(Disbelief::Signature(Kind::Head)));
        let cut = Signed { signature: signed.signature[2..].into(), ..signed };
        assert_eq!(cut.verify(&public, Kind::Head), Err(Disbelief::Signature(Kind::Head)));
    }
}
