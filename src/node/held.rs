//! What a node holds of the fleet: signed heads, records and tombstones. Everything is verified when it comes and again
//! when it is read back from disk.
//!
//! An error can never look like a shorter list: a record is forgotten by a signed tombstone above it and by nothing
//! else. Each document stands for itself: one that is bad is left out with an alarm, and the others count.

use crate::node::trust::Trust;
use crate::wire::peers::PeerList;
use crate::wire::signed::{Disbelief, Kind, Signed};
use serde::{Deserialize, Serialize};
use state::model::{ApplianceId, Fingerprint, Name, NodeId, Revision};
use state::view::records::{Epoch, Head, Mesh, NodeRecord, Scope, Tombstone, record_hash, set_digest};
use std::collections::{BTreeMap, BTreeSet};

/// Verified heads, records and tombstones.
#[derive(Clone, Debug, Default)]
pub struct Held {
    heads: BTreeMap<Scope, (Signed, Head)>,
    records: BTreeMap<NodeId, Entry>,
    tombstones: BTreeMap<(Scope, NodeId), (Signed, Tombstone)>,
}

/// Whether a list has every record of its heads' scopes or only what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    Full,
    /// What changed since the revision held.
    Delta,
}

/// What accepting a list did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Whether anything held is now different.
    pub changed: bool,
    /// Whether a full list is needed to agree with a head again.
    pub resync: bool,
    /// What was not believed or not done.
    pub alarms: Vec<Alarm>,
}

/// Something about a list that should not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// A document that is left out.
    #[error("a document of the list is left out: {0}")]
    Disbelief(#[from] Disbelief),
    /// A head that another appliance, a removed one or a stranger signed.
    #[error("the head of {0} is not signed by the appliance that it names")]
    Signer(Scope),
    /// A head of another fleet.
    #[error("the head of {0} is of another fleet")]
    Fleet(Scope),
    /// A head below the one held: an appliance that was restored or replaced and does not know it.
    #[error("the head of {scope} goes back from {held:?} to {given:?}; it is not followed")]
    Backwards {
        /// Which scope.
        scope: Scope,
        /// Epoch number and revision held.
        held: (u64, Revision),
        /// As given.
        given: (u64, Revision),
    },
    /// The set does not agree with its head.
    #[error("the records of {0} do not agree with their head; asking for all of them")]
    Digest(Scope),
    /// A record that is missing without a tombstone. It is kept.
    #[error("node {0} is missing from the list without a tombstone; its record is kept")]
    Missing(NodeId),
    /// Two records of one node and revision.
    #[error("node {0} has two different records of revision {1}; the first is kept")]
    Twins(NodeId, Revision),
    /// A record that belongs to no scope of this node.
    #[error("the record of node {0} is of no scope that this node holds; it is left out")]
    Scope(NodeId),
}

/// As kept in `peers.json`: a full list, and apart from it what is kept although the heads do not cover it.
#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(flatten)]
    list: PeerList,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kept: Vec<Signed>,
}

#[derive(Clone, Debug)]
struct Entry {
    signed: Signed,
    hash: Fingerprint,
    brief: Brief,
    /// None if the document is rightly signed and cannot be used by this version: it still counts for the digest.
    record: Option<NodeRecord>,
    /// Held although the head no longer covers it.
    kept: bool,
}

/// As much of a record as says where it belongs, readable even if the rest is not.
#[derive(Clone, Debug, Deserialize)]
struct Brief {
    id: NodeId,
    revision: Revision,
    #[serde(default)]
    org: Option<Name>,
    #[serde(default)]
    hub: bool,
    #[serde(default)]
    appliance: Option<ApplianceId>,
}

impl Brief {
    /// An org's scope has its own nodes, and every hub and appliance.
    fn in_scope(&self, scope: &Scope) -> bool {
        *scope == Scope::mesh(self.org.clone()) || self.hub || self.appliance.is_some()
    }
}

impl Entry {
    fn open(trust: &Trust, signed: &Signed) -> Result<Self, Disbelief> {
        let brief: Brief = trust.open(signed, Kind::Peer)?;
        let record = serde_json::from_str(&signed.document).ok().filter(|r: &NodeRecord| r.format == 1);
        let hash = record_hash(signed.document.as_bytes());
        Ok(Self { signed: signed.clone(), hash, brief, record, kept: false })
    }
}

impl Held {
    /// Reads back what was kept. What no longer verifies is left out, with an alarm.
    pub fn read(trust: &Trust, bytes: &[u8]) -> Result<(Self, Vec<Alarm>), serde_json::Error> {
        let document: Document = serde_json::from_slice(bytes)?;
        let mut held = Self::default();
        let mut alarms = held.accept(trust, &document.list, Extent::Full).alarms;
        for signed in &document.kept {
            match Entry::open(trust, signed) {
                Ok(entry) => {
                    held.records.entry(entry.brief.id).or_insert(Entry { kept: true, ..entry });
                }
                Err(error) => alarms.push(error.into()),
            }
        }
        Ok((held, alarms))
    }

    /// As it is kept on disk.
    pub fn write(&self) -> Vec<u8> {
        let of = |kept| self.records.values().filter(move |e| e.kept == kept).map(|e| e.signed.clone()).collect();
        state::to_bytes(&Document {
            list: PeerList {
                heads: self.heads.values().map(|(signed, _)| signed.clone()).collect(),
                records: of(false),
                tombstones: self.tombstones.values().map(|(signed, _)| signed.clone()).collect(),
            },
            kept: of(true),
        })
    }

    /// Takes over what a list proves.
    pub fn accept(&mut self, trust: &Trust, list: &PeerList, extent: Extent) -> Accepted {
        let mut out = Accepted::default();
        let heads = self.believable_heads(trust, list, &mut out.alarms);
        for signed in &list.tombstones {
            match trust.open::<Tombstone>(signed, Kind::Tombstone) {
                Ok(tombstone) => out.changed |= self.bury(signed, tombstone),
                Err(error) => out.alarms.push(error.into()),
            }
        }
        let mut listed = BTreeMap::new();
        for signed in &list.records {
            match Entry::open(trust, signed) {
                Ok(entry) => {
                    if entry.record.is_none() {
                        out.alarms.push(unusable(&entry));
                    }
                    listed.insert(entry.brief.id, entry);
                }
                Err(error) => out.alarms.push(error.into()),
            }
        }
        let scopes: BTreeSet<Scope> = self.heads.keys().chain(heads.keys()).cloned().collect();
        for entry in listed.values() {
            if !scopes.iter().any(|scope| entry.brief.in_scope(scope)) {
                out.alarms.push(Alarm::Scope(entry.brief.id));
            } else if !buried(&self.tombstones, &scopes, &entry.brief) {
                out.changed |= self.take(entry.clone(), &mut out.alarms);
            }
        }
        self.records.retain(|_, entry| !buried(&self.tombstones, &scopes, &entry.brief));
        for (scope, (signed, head)) in heads {
            let agrees = match extent {
                Extent::Full => agrees(&head, listed.values()),
                Extent::Delta => agrees(&head, self.records.values().filter(|e| !e.kept)),
            };
            if !agrees {
                out.alarms.push(Alarm::Digest(scope));
                out.resync = true;
                continue;
            }
            if extent == Extent::Full {
                self.keep_missing(&scope, &listed, &mut out.alarms);
            }
            out.changed |= self.heads.get(&scope).is_none_or(|(_, held)| *held != head);
            self.heads.insert(scope, (signed, head));
        }
        out
    }

    /// Heads that are rightly signed, of this fleet, and not below the ones held.
    fn believable_heads(
        &self,
        trust: &Trust,
        list: &PeerList,
        alarms: &mut Vec<Alarm>,
    ) -> BTreeMap<Scope, (Signed, Head)> {
        let epoch = self.epoch();
        let mut heads = BTreeMap::new();
        for signed in &list.heads {
            let head: Head = match trust.open(signed, Kind::Head) {
                Ok(head) => head,
                Err(error) => {
                    alarms.push(error.into());
                    continue;
                }
            };
            let scope = head.scope.clone();
            let held = self.heads.get(&scope).map_or(Revision(0), |(_, head)| head.revision);
            if !trust.signed_by(head.signer, signed, Kind::Head) {
                alarms.push(Alarm::Signer(scope));
            } else if head.fleet != trust.roster().fleet {
                alarms.push(Alarm::Fleet(scope));
            } else if Some(head.epoch) < epoch || (Some(head.epoch) == epoch && head.revision < held) {
                let held = (epoch.map_or(0, |e| e.number), held);
                alarms.push(Alarm::Backwards { scope, held, given: (head.epoch.number, head.revision) });
            } else {
                heads.insert(scope, (signed.clone(), head));
            }
        }
        heads
    }

    /// Remembers a tombstone unless a later one is held; true if it is new.
    fn bury(&mut self, signed: &Signed, tombstone: Tombstone) -> bool {
        let key = (tombstone.scope.clone(), tombstone.id);
        if self.tombstones.get(&key).is_some_and(|(_, held)| held.revision >= tombstone.revision) {
            return false;
        }
        self.tombstones.insert(key, (signed.clone(), tombstone));
        true
    }

    /// Takes a record if it is newer than the one held; true if it changed anything.
    fn take(&mut self, entry: Entry, alarms: &mut Vec<Alarm>) -> bool {
        let (id, revision) = (entry.brief.id, entry.brief.revision);
        match self.records.get_mut(&id) {
            None => {}
            Some(held) if revision > held.brief.revision => {}
            Some(held) if revision < held.brief.revision => return false,
            Some(held) => {
                if held.hash == entry.hash {
                    held.kept = false;
                } else {
                    alarms.push(Alarm::Twins(id, revision));
                }
                return false;
            }
        }
        self.records.insert(id, entry);
        true
    }

    /// Marks what a full, proven list lacks although nothing buried it.
    fn keep_missing(&mut self, scope: &Scope, listed: &BTreeMap<NodeId, Entry>, alarms: &mut Vec<Alarm>) {
        for (id, entry) in &mut self.records {
            if !entry.kept && entry.brief.in_scope(scope) && !listed.contains_key(id) {
                entry.kept = true;
                alarms.push(Alarm::Missing(*id));
            }
        }
    }

    /// All records that can be used, in the order of their ids.
    pub fn records(&self) -> impl Iterator<Item = &NodeRecord> {
        self.records.values().filter_map(|entry| entry.record.as_ref())
    }

    /// One node's record.
    pub fn record(&self, id: NodeId) -> Option<&NodeRecord> {
        self.records.get(&id).and_then(|entry| entry.record.as_ref())
    }

    /// The tombstone that took a node out of what this node sees, if that is why it is not there.
    pub fn tombstone(&self, id: NodeId) -> Option<&Tombstone> {
        if self.records.contains_key(&id) {
            return None;
        }
        self.tombstones.values().map(|(_, t)| t).filter(|t| t.id == id).max_by_key(|t| t.revision)
    }

    /// Buries one node by a tombstone that came alone, in a refusal; true if it was believed and is new.
    pub fn accept_tombstone(&mut self, trust: &Trust, signed: &Signed) -> Result<bool, Disbelief> {
        let tombstone: Tombstone = trust.open(signed, Kind::Tombstone)?;
        let new = self.bury(signed, tombstone);
        let scopes = self.heads.keys().cloned().collect();
        self.records.retain(|_, entry| !buried(&self.tombstones, &scopes, &entry.brief));
        Ok(new)
    }

    /// Facts of the whole mesh, from the newest head.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.heads.values().map(|(_, head)| head).max_by_key(|h| (h.epoch, h.revision)).map(|h| &h.mesh)
    }

    /// The revision up to which this node knows everything of its scopes.
    pub fn revision(&self) -> Revision {
        self.heads.values().map(|(_, head)| head.revision).max().unwrap_or_default()
    }

    /// The highest epoch accepted.
    pub fn epoch(&self) -> Option<Epoch> {
        self.heads.values().map(|(_, head)| head.epoch).max()
    }
}

/// Whether every scope of this node that a record belongs to has a tombstone above it.
fn buried(
    tombstones: &BTreeMap<(Scope, NodeId), (Signed, Tombstone)>,
    scopes: &BTreeSet<Scope>,
    brief: &Brief,
) -> bool {
    let gone = |scope: &&Scope| {
        tombstones.get(&((*scope).clone(), brief.id)).is_some_and(|(_, t)| t.revision > brief.revision)
    };
    let mut of = scopes.iter().filter(|scope| brief.in_scope(scope)).peekable();
    of.peek().is_some() && of.all(|scope| gone(&scope))
}

fn agrees<'a>(head: &Head, entries: impl Iterator<Item = &'a Entry>) -> bool {
    let set: BTreeMap<_, _> =
        entries.filter(|e| e.brief.in_scope(&head.scope)).map(|e| (e.brief.id, (e.brief.revision, e.hash))).collect();
    set.len() as u64 == head.count && set_digest(&set) == head.digest
}

fn unusable(entry: &Entry) -> Alarm {
    let why = match serde_json::from_str::<NodeRecord>(&entry.signed.document) {
        Ok(record) => format!("node {} has format {}, which this version does not know", record.id, record.format),
        Err(error) => format!("node {}: {error}", entry.brief.id),
    };
    Disbelief::Malformed(Kind::Peer, why).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{Fleet, name, node};
    use proptest::prelude::*;
    use state::model::FleetId;
    use state::view::records::Gone;

    fn three() -> (Fleet, Trust, Held) {
        let mut fleet = Fleet::new();
        for number in 0..3 {
            fleet.set(number, |_| {});
        }
        let trust = fleet.trust();
        let mut held = Held::default();
        let accepted = held.accept(&trust, &fleet.full(), Extent::Full);
        assert_eq!(accepted, Accepted { changed: true, resync: false, alarms: vec![] });
        (fleet, trust, held)
    }

    fn names(held: &Held) -> Vec<String> {
        held.records().map(|r| r.name.to_string()).collect()
    }

    #[test]
    fn a_list_and_its_deltas_agree_with_their_heads() {
        let (mut fleet, trust, mut held) = three();
        assert_eq!(held.accept(&trust, &fleet.full(), Extent::Full), Accepted::default());
        let after = held.revision().0;
        fleet.set(1, |r| r.hub = true);
        fleet.set(7, |_| {});
        fleet.remove(0, Gone::Removed);
        let accepted = held.accept(&trust, &fleet.delta(after), Extent::Delta);
        assert_eq!(accepted, Accepted { changed: true, resync: false, alarms: vec![] });
        assert_eq!(names(&held), ["n1", "n2", "n7"]);
        assert_eq!(held.revision(), Revision(fleet.revision));
        assert!(held.record(node(1)).unwrap().hub);
        assert_eq!(held.tombstone(node(0)).unwrap().reason, Gone::Removed);
        let (read, alarms) = Held::read(&trust, &held.write()).unwrap();
        assert_eq!((names(&read), alarms, read.revision()), (names(&held), vec![], held.revision()));
        assert_eq!(read.write(), held.write());
    }

    #[test]
    fn a_record_vanishes_by_a_tombstone_only() {
        let (mut fleet, trust, mut held) = three();
        fleet.revision += 1;
        fleet.records.remove(&node(2));
        let accepted = held.accept(&trust, &fleet.full(), Extent::Full);
        assert_eq!(accepted, Accepted { changed: true, resync: false, alarms: vec![Alarm::Missing(node(2))] });
        assert_eq!(names(&held), ["n0", "n1", "n2"]);
        let after = held.revision().0;
        fleet.set(3, |_| {});
        assert_eq!(held.accept(&trust, &fleet.delta(after), Extent::Delta).alarms, vec![]);
        let (mut held, alarms) = Held::read(&trust, &held.write()).unwrap();
        assert_eq!((names(&held), alarms), (vec!["n0".into(), "n1".into(), "n2".into(), "n3".into()], vec![]));
        fleet.remove(2, Gone::Left);
        assert_eq!(held.accept(&trust, &fleet.full(), Extent::Full).alarms, vec![]);
        assert_eq!(names(&held), ["n0", "n1", "n3"]);
    }

    #[test]
    fn a_replayed_record_or_tombstone_changes_nothing() {
        let (mut fleet, trust, mut held) = three();
        let old = fleet.delta(0);
        fleet.remove(1, Gone::Removed);
        held.accept(&trust, &fleet.full(), Extent::Full);
        let replayed = PeerList { heads: vec![], ..old.clone() };
        assert_eq!(held.accept(&trust, &replayed, Extent::Delta), Accepted::default());
        assert_eq!(names(&held), ["n0", "n2"]);
        let accepted = held.accept(&trust, &old, Extent::Full);
        assert!(matches!(accepted.alarms[..], [Alarm::Backwards { .. }]), "{accepted:?}");
        assert_eq!(names(&held), ["n0", "n2"]);
        fleet.set(1, |_| {});
        held.accept(&trust, &fleet.full(), Extent::Full);
        assert_eq!(names(&held), ["n0", "n1", "n2"]);
    }

    #[test]
    fn a_lower_epoch_is_not_followed_whatever_its_revision() {
        let (mut fleet, trust, mut held) = three();
        fleet.epoch = 2;
        assert!(held.accept(&trust, &fleet.full(), Extent::Full).changed);
        fleet.epoch = 1;
        fleet.set(0, |r| r.name = name("other"));
        let accepted = held.accept(&trust, &fleet.full(), Extent::Full);
        assert!(matches!(accepted.alarms[..], [Alarm::Backwards { held: (2, _), given: (1, _), .. }]));
        assert_eq!(held.epoch().unwrap().number, 2);
    }

    #[test]
    fn one_bad_record_does_not_break_the_others() {
        let (mut fleet, trust, mut held) = three();
        let after = held.revision().0;
        fleet.set(0, |r| r.hub = true);
        fleet.set(1, |r| r.hub = true);
        let mut forged = fleet.delta(after);
        forged.records[0].document = forged.records[0].document.replace("10.90.0.1", "10.90.0.9");
        let accepted = held.accept(&trust, &forged, Extent::Delta);
        assert!(accepted.resync && accepted.alarms.len() == 2, "{accepted:?}");
        assert!(!held.record(node(0)).unwrap().hub && held.record(node(1)).unwrap().hub);
        assert_eq!(held.revision().0, after, "a head that does not agree is not taken");
        assert!(!held.accept(&trust, &fleet.full(), Extent::Full).resync);
        assert!(held.record(node(0)).unwrap().hub);
    }

    #[test]
    fn a_record_of_a_later_format_counts_and_is_not_used() {
        let (mut fleet, trust, mut held) = three();
        fleet.set(1, |r| r.format = 2);
        let accepted = held.accept(&trust, &fleet.full(), Extent::Full);
        assert!(!accepted.resync, "{accepted:?}");
        assert!(accepted.alarms[0].to_string().contains("format 2"), "{accepted:?}");
        assert_eq!(names(&held), ["n0", "n2"]);
    }

    #[test]
    fn heads_of_strangers_are_not_taken() {
        let (mut fleet, trust, mut held) = three();
        let before = held.write();
        fleet.revision += 1;
        fleet.id = FleetId(uuid::Uuid::from_u128(9));
        let other = PeerList { heads: vec![fleet.head()], ..PeerList::default() };
        assert!(matches!(held.accept(&trust, &other, Extent::Delta).alarms[..], [Alarm::Fleet(_)]));
        fleet.appliance = ed25519_dalek::SigningKey::from_bytes(&[9; 32]);
        assert!(matches!(held.accept(&trust, &fleet.full(), Extent::Full).alarms[0], Alarm::Disbelief(_)));
        assert_eq!(held.write(), before);
    }

    proptest! {
        /// Whatever is lost, damaged or repeated on the way: no record is forgotten without its tombstone, and one full
        /// list puts everything right.
        #[test]
        fn no_damage_shortens_the_list(
            steps in proptest::collection::vec((0u8..6, 0u8..3, any::<u64>()), 1..24),
        ) {
            let (mut fleet, trust, mut held) = three();
            let mut buried = BTreeSet::new();
            for (number, action, damage) in steps {
                let after = held.revision().0;
                match action {
                    0 | 1 => {
                        fleet.set(number, |r| r.hub = !r.hub);
                    }
                    _ if fleet.records.contains_key(&node(number)) => {
                        fleet.remove(number, Gone::Removed);
                        buried.insert(node(number));
                    }
                    _ => {}
                }
                let before: BTreeSet<_> = held.records().map(|r| r.id).collect();
                let mut list = if damage & 1 == 0 { fleet.delta(after) } else { fleet.full() };
                let extent = if damage & 1 == 0 { Extent::Delta } else { Extent::Full };
                list.records.retain(|r| damage & 2 == 0 || r.signature.as_bytes()[0] % 2 == 0);
                if damage & 4 != 0 {
                    list.tombstones.clear();
                }
                if damage & 8 != 0 && let Some(record) = list.records.first_mut() {
                    record.document.push(' ');
                }
                held.accept(&trust, &list, extent);
                let now: BTreeSet<_> = held.records().map(|r| r.id).collect();
                for lost in before.difference(&now) {
                    prop_assert!(buried.contains(lost), "{lost} was forgotten");
                }
            }
            let accepted = held.accept(&trust, &fleet.full(), Extent::Full);
            prop_assert!(!accepted.resync && accepted.alarms.is_empty(), "{accepted:?}");
            let ours: Vec<_> = held.records().cloned().collect();
            let theirs: Vec<_> = fleet.records.values().cloned().collect();
            prop_assert_eq!(ours, theirs);
            let (read, alarms) = Held::read(&trust, &held.write()).unwrap();
            prop_assert_eq!((read.write(), alarms), (held.write(), vec![]));
        }
    }
}
