//! Machines that asked to be admitted and are not: a bounded list, so that strangers cannot fill the memory.

use crate::limits;
use crate::wire::peers::Knock;
use state::model::{Millis, Name, SigningKey};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Attempts of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// The first one.
    pub first: Millis,
    /// The latest one.
    pub last: Millis,
    /// Where the latest came from.
    pub source: IpAddr,
    /// The name that it would like.
    pub name: Name,
    /// Where it says it is.
    pub site: Option<Name>,
}

/// The list, by key.
#[derive(Debug, Default)]
pub struct Pending(BTreeMap<SigningKey, Attempts>);

impl Pending {
    /// Notes an attempt. Where the list is full, the key whose latest attempt is the oldest is dropped.
    pub fn note(&mut self, key: SigningKey, knock: &Knock, source: IpAddr, now: Millis) {
        let first = self.0.get(&key).map_or(now, |held| held.first);
        if self.0.len() >= limits::PENDING && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, attempts)| attempts.last).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        let (name, site) = (knock.name.clone(), knock.site.clone());
        self.0.insert(key, Attempts { first, last: now, source, name, site });
    }

    /// What is known of a key.
    pub fn get(&self, key: &SigningKey) -> Option<&Attempts> {
        self.0.get(key)
    }

    /// Takes a key off the list: it has been admitted.
    pub fn remove(&mut self, key: &SigningKey) {
        self.0.remove(key);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&SigningKey, &Attempts)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_drops_the_oldest() {
        let mut pending = Pending::default();
        let key = |n: u16| SigningKey::from_bytes(*state::hash_of(b"test", &[&n.to_be_bytes()]).as_bytes());
        let source = IpAddr::from([203, 0, 113, 1]);
        let knock = Knock { name: Name::new("web").unwrap(), site: None, certificate_request: String::new() };
        for n in 0..=256u16 {
            pending.note(key(n), &knock, source, Millis(u64::from(n)));
        }
        pending.note(key(1), &knock, source, Millis(999));
        assert_eq!(pending.iter().count(), limits::PENDING);
        assert!(pending.get(&key(0)).is_none());
        let first = pending.get(&key(1)).unwrap();
        assert_eq!((first.first, first.last), (Millis(1), Millis(999)));
        pending.remove(&key(1));
        assert!(pending.get(&key(1)).is_none());
    }
}
