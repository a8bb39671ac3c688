//! Public halves of keys, and fingerprints. Private halves never enter this crate.

use serde::{Deserialize, Serialize};

/// Why a text is not 32 bytes of hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be 64 hexadecimal digits, this has {length} characters or another digit")]
pub struct KeyError {
    what: &'static str,
    length: usize,
}

macro_rules! bytes32 {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; 32]);

        impl $name {
            /// From its 32 bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Its 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = KeyError;
            /// Either case is accepted.
            fn from_str(text: &str) -> Result<Self, KeyError> {
                let mut bytes = [0; 32];
                hex::decode_to_slice(text, &mut bytes)
                    .map_err(|_| KeyError { what: $what, length: text.chars().count() })?;
                Ok(Self(bytes))
            }
        }

        impl TryFrom<String> for $name {
            type Error = KeyError;
            fn try_from(text: String) -> Result<Self, KeyError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(key: $name) -> Self {
                hex::encode(key.0)
            }
        }

        impl std::fmt::Display for $name {
            /// Lower-case hexadecimal digits.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

bytes32!(
    /// A public Ed25519 key (RFC 8032): of a node, an appliance or the fleet root.
    SigningKey,
    "a signing key"
);
bytes32!(
    /// A public X25519 key of a node's WireGuard interface.
    WireguardKey,
    "a WireGuard key"
);
bytes32!(
    /// A public X25519 key that credentials are sealed to.
    SealingKey,
    "a sealing key"
);
bytes32!(
    /// A SHA-256 digest that names something: a certificate's DER (a *pin*), a secret, a document.
    Fingerprint,
    "a fingerprint"
);

/// The short form of a key that people compare by eye on both ends: five groups of four lower-case letters and digits
/// from the SHA-256 of the key (100 bits of it; the alphabet leaves out `0 1 l o`).
pub fn fingerprint_words(key: &SigningKey) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let digest = crate::hash_of(b"holdfast/words/v1", &[key.as_bytes()]);
    let mut out = String::with_capacity(24);
    for (i, chunk) in digest.as_bytes()[..20].iter().enumerate() {
        if i > 0 && i % 4 == 0 {
            out.push('-');
        }
        out.push(char::from(ALPHABET[usize::from(chunk & 31)]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_either_case_and_written_in_lower() {
        let key: SigningKey = "AB".repeat(32).parse().unwrap();
        assert_eq!(key.to_string(), "ab".repeat(32));
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("\"{key}\""));
        assert!("ab".repeat(31).parse::<SigningKey>().is_err());
        assert!("zz".repeat(32).parse::<SigningKey>().is_err());
        assert_eq!(fingerprint_words(&key).len(), 24);
    }
}
