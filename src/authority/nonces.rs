//! Nonces that stand in for a clock, once.

use crate::limits;
use state::model::SigningKey;
use std::collections::BTreeMap;
use std::time::Duration;

/// A nonce's life: the retry comes at once.
const LIFE: Duration = Duration::from_secs(60);

/// The outstanding nonces, one a key.
#[derive(Debug, Default)]
pub struct Nonces(BTreeMap<SigningKey, (String, Duration)>);

impl Nonces {
    /// Remembers `nonce` for the machine with `key`, in place of its former one.
    pub fn issue(&mut self, key: SigningKey, nonce: String, now: Duration) {
        if self.0.len() >= limits::PENDING && !self.0.contains_key(&key) {
            self.0.retain(|_, (_, until)| *until > now);
            if self.0.len() >= limits::PENDING {
                self.0.pop_first();
            }
        }
        self.0.insert(key, (nonce, now + LIFE));
    }

    /// Whether `nonce` is the key's, and still good. It is good no more afterwards.
    pub fn redeem(&mut self, key: &SigningKey, nonce: &str, now: Duration) -> bool {
        let good = self.0.get(key).is_some_and(|(held, until)| held == nonce && *until > now);
        if good {
            self.0.remove(key);
        }
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_good_once_for_its_key() {
        let mut nonces = Nonces::default();
        let key = |n: u16| SigningKey::from_bytes(state::hash_of(b"test", &[&n.to_be_bytes()]).as_bytes().to_owned());
        let now = Duration::from_secs(10);
        nonces.issue(key(1), "a".into(), now);
        assert!(!nonces.redeem(&key(2), "a", now));
        assert!(!nonces.redeem(&key(1), "b", now));
        assert!(nonces.redeem(&key(1), "a", now));
        assert!(!nonces.redeem(&key(1), "a", now));
        nonces.issue(key(1), "a".into(), now);
        assert!(!nonces.redeem(&key(1), "a", now + LIFE));
        for n in 0..1000 {
            nonces.issue(key(n), "a".into(), now);
        }
        assert_eq!(nonces.0.len(), limits::PENDING);
    }
}
