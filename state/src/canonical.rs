//! The one hash and the one encoding.
//!
//! Everything stored, signed or compared is JSON made once by [`to_bytes`] and then carried as bytes. The types that
//! pass through here have a fixed field order, ordered maps only, and integers only, so equal values give equal bytes.

use crate::model::Fingerprint;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// A SHA-256 digest.
pub type Hash = Fingerprint;

/// SHA-256 over a domain, a zero byte and the parts, each part preceded by its length as 8 bytes big-endian, so that
/// no two lists of parts have the same input.
pub fn hash_of(domain: &[u8], parts: &[&[u8]]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(domain);
    hasher.update([0]);
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    Hash::from_bytes(hasher.finalize().into())
}

/// The canonical bytes of a value: its JSON.
///
/// # Panics
/// If the type cannot be written as JSON (a map with keys that are not text), which is a bug in the type.
pub fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("a stored type must have a JSON form")
}

/// The same as text.
///
/// # Panics
/// As [`to_bytes`].
pub fn to_text<T: Serialize>(value: &T) -> String {
    String::from_utf8(to_bytes(value)).expect("JSON is UTF-8")
}
