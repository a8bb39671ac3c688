//! The headers that prove who sends a request.

use super::Sequence;
use crate::clock;
use crate::files::FileError;
use crate::wire::peers::{HEADER_KEY, HEADER_SIGNATURE, HEADER_TIMESTAMP, signed_lines};
use ed25519_dalek::{Signer as _, SigningKey};
use state::model::Millis;
use std::sync::atomic::{AtomicI64, Ordering};
use zeroize::Zeroizing;

/// One node's way of signing: its key, its bearer secret, its request numbers, and how far its clock is off.
pub struct Signer {
    key: SigningKey,
    bearer: Option<Zeroizing<String>>,
    sequence: Sequence,
    /// Milliseconds to add to this machine's clock.
    correction: AtomicI64,
}

impl Signer {
    /// `bearer` is the mesh token in hexadecimal digits; none while enrolling.
    pub const fn new(key: SigningKey, bearer: Option<Zeroizing<String>>, sequence: Sequence) -> Self {
        Self { key, bearer, sequence, correction: AtomicI64::new(0) }
    }

    /// The next request number.
    pub(super) fn seq(&self) -> Result<u64, FileError> {
        self.sequence.next()
    }

    pub(super) fn jump(&self, floor: u64) {
        self.sequence.jump(floor);
    }

    /// Goes by an appliance's clock from now on.
    pub(super) fn correct_clock(&self, theirs: Millis) {
        let difference = i128::from(theirs.0) - i128::from(clock::wall().0);
        self.correction.store(i64::try_from(difference).unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn headers(&self, method: &str, path_and_query: &str, body: &[u8]) -> Vec<(&'static str, String)> {
        let now = clock::wall().0.saturating_add_signed(self.correction.load(Ordering::Relaxed)).to_string();
        let signature = self.key.sign(signed_lines(method, path_and_query, &now, body).as_bytes());
        let mut headers = vec![
            (HEADER_KEY, hex::encode(self.key.verifying_key().to_bytes())),
            (HEADER_SIGNATURE, hex::encode(signature.to_bytes())),
            (HEADER_TIMESTAMP, now),
        ];
        if let Some(bearer) = &self.bearer {
            headers.push(("authorization", format!("Bearer {}", bearer.as_str())));
        }
        headers
    }
}
