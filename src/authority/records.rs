//! Signs what nodes are told, once for each change, and keeps the bytes for everybody who asks.
//!
//! A record is signed again only when its revision has changed, a list is put together once for all nodes with the same
//! scopes and the same revision in hand. The lists are made of texts that are signed already, never encoded anew.

use crate::limits;
use crate::wire::signed::{Kind, Signed};
use bytes::Bytes;
use ed25519_dalek::SigningKey as PrivateKey;
use serde::Serialize;
use state::State;
use state::model::{ApplianceId, Fingerprint, NodeId, Revision};
use state::subject::nodes::Departed;
use state::view::records::{Scope, Tombstone, record_hash};
use state::view::told;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The scopes of a node.
pub type Scopes = BTreeSet<Scope>;

/// Signs documents with the appliance's key and remembers them.
pub struct Records {
    key: PrivateKey,
    appliance: ApplianceId,
    cache: Mutex<Cache>,
}

#[derive(Clone, Default)]
struct Cache {
    current: Revision,
    records: BTreeMap<NodeId, Record>,
    heads: BTreeMap<Scope, Text>,
    tombstones: BTreeMap<(Scope, NodeId), Text>,
    lists: BTreeMap<(Scopes, Revision), Bytes>,
}

#[derive(Clone)]
struct Record {
    text: Text,
    hash: Fingerprint,
    scopes: Scopes,
}

/// A signed document as JSON, and the change that made it so.
#[derive(Clone)]
struct Text {
    revision: Revision,
    json: Arc<str>,
}

impl Records {
    /// Signs as this appliance.
    pub fn new(key: PrivateKey, appliance: ApplianceId) -> Self {
        Self { key, appliance, cache: Mutex::default() }
    }

    /// The scopes of a node, and the newest revision of any of them.
    pub fn standing(state: &State, node: NodeId) -> Option<(Scopes, Revision)> {
        let scopes = told::scopes_of(state, state.nodes.all.get(&node)?);
        let newest = scopes.iter().filter_map(|scope| state.told.scopes.get(scope)).map(|told| told.revision).max()?;
        Some((scopes, newest))
    }

    /// One line of JSON, a `PeerList`: everything in the scopes that is above `after`. Above zero, that is the full list.
    /// The state must be a published one.
    pub fn list(&self, state: &State, scopes: &Scopes, after: Revision) -> Bytes {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if state.revision < cache.current {
            // An older state than the cache's, by a reader that was overtaken: answered from it alone.
            let mut own = Cache::default();
            self.refresh(&mut own, state);
            return own.list(scopes, after);
        }
        if state.revision > cache.current {
            self.refresh(&mut cache, state);
        }
        let key = (scopes.clone(), after);
        if let Some(list) = cache.lists.get(&key) {
            return list.clone();
        }
        let list = cache.list(scopes, after);
        if cache.lists.len() >= limits::LISTS {
            cache.lists.clear();
        }
        cache.lists.insert(key, list.clone());
        list
    }

    /// The full list by a state that is not durable yet, so nothing of it is remembered.
    pub fn preview(&self, state: &State, scopes: &Scopes) -> Bytes {
        let mut own = self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.refresh(&mut own, state);
        own.list(scopes, Revision(0))
    }

    /// The signed tombstone of a key that was a node's once.
    pub fn tombstone(&self, departed: &Departed) -> Signed {
        let Departed { id, org, reason, revision, .. } = departed;
        let scope = Scope::mesh(org.clone());
        self.sign(Kind::Tombstone, &Tombstone { format: 1, id: *id, scope, revision: *revision, reason: *reason })
    }

    /// Signs any document as this appliance.
    pub fn sign<T: Serialize>(&self, kind: Kind, document: &T) -> Signed {
        Signed::sign(&self.key, kind, state::to_text(document))
    }

    fn text<T: Serialize>(&self, kind: Kind, revision: Revision, document: &T) -> (Text, Fingerprint) {
        let signed = self.sign(kind, document);
        let hash = record_hash(signed.document.as_bytes());
        (Text { revision, json: state::to_text(&signed).into() }, hash)
    }

    fn refresh(&self, cache: &mut Cache, state: &State) {
        cache.lists.clear();
        cache.records.retain(|id, _| state.told.records.contains_key(id));
        for (id, told) in &state.told.records {
            if cache.records.get(id).is_some_and(|held| held.text.revision == told.revision) {
                continue;
            }
            let Some(record) = told::record(state, *id) else { continue };
            let (text, hash) = self.text(Kind::Peer, told.revision, &record);
            cache.records.insert(*id, Record { text, hash, scopes: told.scopes.clone() });
        }
        for (scope, told) in &state.told.scopes {
            if cache.heads.get(scope).is_some_and(|held| held.revision == told.revision) {
                continue;
            }
            let in_scope = cache.records.iter().filter(|(_, record)| record.scopes.contains(scope));
            let set = in_scope.map(|(id, record)| (*id, (record.text.revision, record.hash))).collect();
            let Some(head) = told::head(state, scope, self.appliance, &set) else { continue };
            cache.heads.insert(scope.clone(), self.text(Kind::Head, told.revision, &head).0);
            let held = cache.current;
            cache.tombstones.retain(|(of, id), _| of != scope || told.gone.contains_key(id));
            for tombstone in told::tombstones(state, scope, held) {
                let text = self.text(Kind::Tombstone, tombstone.revision, &tombstone).0;
                cache.tombstones.insert((scope.clone(), tombstone.id), text);
            }
        }
        cache.current = state.revision;
    }
}

impl Cache {
    fn list(&self, scopes: &Scopes, after: Revision) -> Bytes {
        let heads = scopes.iter().filter_map(|scope| self.heads.get(scope)).filter(|head| head.revision > after);
        let records = self.records.values().filter(|record| !record.scopes.is_disjoint(scopes));
        let records = records.map(|record| &record.text).filter(|text| text.revision > after);
        let gone = self.tombstones.iter().filter(|((scope, _), text)| text.revision > after && scopes.contains(scope));
        let mut json = String::from("{\"heads\":[");
        join(&mut json, heads);
        json.push_str("],\"records\":[");
        join(&mut json, records);
        json.push_str("],\"tombstones\":[");
        join(&mut json, gone.map(|(_, text)| text));
        json.push_str("]}\n");
        Bytes::from(json)
    }
}

fn join<'a>(out: &mut String, texts: impl Iterator<Item = &'a Text>) {
    for (n, text) in texts.enumerate() {
        if n > 0 {
            out.push(',');
        }
        out.push_str(&text.json);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_names_any_revision_fills_no_memory() {
        let records = Records::new(PrivateKey::from_bytes(&[7; 32]), ApplianceId(uuid::Uuid::nil()));
        for after in 0..1000 {
            let list = records.list(&State::default(), &Scopes::new(), Revision(after));
            assert_eq!(list, "{\"heads\":[],\"records\":[],\"tombstones\":[]}\n");
        }
        assert!(records.cache.lock().unwrap().lists.len() <= limits::LISTS);
    }
}
