//! A request as it was received, before anything about it is believed.

use crate::wire::peers::signed_lines;
use ed25519_dalek::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};
use state::model::{Fingerprint, Millis, SigningKey};
use std::net::IpAddr;
use std::time::Duration;

/// What arrived. The header values are as received; none is trusted.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, `POST`, `DELETE`.
    pub method: &'a str,
    /// Path with query, as on the request line.
    pub path_and_query: &'a str,
    /// `Authorization`.
    pub authorization: Option<&'a str>,
    /// `Holdfast-Key`.
    pub key: Option<&'a str>,
    /// `Holdfast-Timestamp`.
    pub timestamp: Option<&'a str>,
    /// `Holdfast-Signature`.
    pub signature: Option<&'a str>,
    /// `Holdfast-Nonce`.
    pub nonce: Option<&'a str>,
    /// The body; none if it is above the limit.
    pub body: Option<&'a [u8]>,
    /// Where it came from.
    pub source: IpAddr,
    /// Whether its connection has carried a proven request before.
    pub proven: bool,
}

/// Both clocks, as they stood when the request was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The wall clock.
    pub wall: Millis,
    /// The boot clock.
    pub boot: Duration,
}

impl Request<'_> {
    /// The SHA-256 of the presented bearer secret.
    pub fn bearer(&self) -> Option<Fingerprint> {
        secret_hash(self.authorization?.strip_prefix("Bearer ")?)
    }

    /// The key and the timestamp that the request is rightly signed with.
    pub fn signer(&self, body: &[u8]) -> Option<(SigningKey, Millis)> {
        let key: SigningKey = self.key?.parse().ok()?;
        let timestamp = self.timestamp?;
        let decimal = !timestamp.is_empty() && timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let at = timestamp.parse().ok().filter(|_| decimal).map(Millis)?;
        let mut signature = [0; 64];
        hex::decode_to_slice(self.signature?, &mut signature).ok()?;
        let lines = signed_lines(self.method, self.path_and_query, timestamp, body);
        VerifyingKey::from_bytes(key.as_bytes())
            .and_then(|key| key.verify_strict(lines.as_bytes(), &Signature::from_bytes(&signature)))
            .ok()
            .map(|()| (key, at))
    }
}

/// The SHA-256 of a secret given as 64 hexadecimal digits.
pub fn secret_hash(digits: &str) -> Option<Fingerprint> {
    let mut secret = zeroize::Zeroizing::new([0; 32]);
    hex::decode_to_slice(digits, secret.as_mut_slice()).ok()?;
    Some(Fingerprint::from_bytes(Sha256::digest(secret.as_slice()).into()))
}
