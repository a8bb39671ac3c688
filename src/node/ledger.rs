//! Intents: what is about to be changed in the kernel, on disk before the change and gone after it was read back, and
//! what was there before where it must be put back. So a stop between any two changes is repaired at the next start,
//! and an object without its mark yet is known to be ours.

use crate::files::{self, FileError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Who an object belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// The mesh.
    Mesh,
}

/// What kind of object it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An nftables table.
    Table,
    /// An interface.
    Link,
    /// An address of an interface.
    Address,
    /// A WireGuard device's own settings.
    Device,
    /// A peer of it.
    Peer,
    /// A route.
    Route,
    /// A kernel variable.
    Sysctl,
    /// Our rule in an iptables chain of somebody else.
    Forward,
}

/// Names one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Whose.
    pub owner: Owner,
    /// What.
    pub kind: Kind,
    /// Which.
    pub id: String,
}

impl Key {
    /// An object of the mesh.
    pub fn mesh(kind: Kind, id: impl ToString) -> Self {
        Self { owner: Owner::Mesh, kind, id: id.to_string() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u16,
    intents: BTreeSet<Key>,
    #[serde(with = "pairs")]
    before: BTreeMap<Key, String>,
}

/// The ledger of a state directory: `ledger.json`.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    document: Document,
}

const FORMAT: u16 = 1;
/// The longest ledger read, bytes: 10,000 intents.
const LONGEST: u64 = 4 << 20;

impl Ledger {
    /// Opens it; none yet is an empty one. One that cannot be read is refused by name, never overwritten.
    pub fn open(state_dir: &Path) -> Result<Self, FileError> {
        let path = state_dir.join("ledger.json");
        let document = match files::read(&path, LONGEST) {
            Ok(bytes) => serde_json::from_slice::<Document>(&bytes)
                .map_err(|error| error.to_string())
                .and_then(|document| match document.format {
                    FORMAT => Ok(document),
                    other => Err(format!("it has format {other}, this program reads {FORMAT}")),
                })
                .map_err(|error| FileError::Unsafe {
                    path: path.clone(),
                    problem: format!("cannot be read ({error}); move it away if the mesh is down"),
                })?,
            Err(error) if files::is_absent(&error) => Document { format: FORMAT, ..Document::default() },
            Err(error) => return Err(error),
        };
        Ok(Self { path, document })
    }

    /// Whether a change of this object was begun and not read back.
    pub fn intends(&self, key: &Key) -> bool {
        self.document.intents.contains(key)
    }

    /// Objects of a kind that were there before, by id, with what they were.
    pub fn before(&self, kind: Kind) -> BTreeMap<String, String> {
        let of_kind = self.document.before.iter().filter(|(key, _)| key.kind == kind);
        of_kind.map(|(key, value)| (key.id.clone(), value.clone())).collect()
    }

    /// Whether anything is noted of a kind.
    pub fn knows(&self, kind: Kind) -> bool {
        self.document.intents.iter().chain(self.document.before.keys()).any(|key| key.kind == kind)
    }

    /// Notes what is about to be changed and what it was. An older value of before is kept: it is the one to go back to.
    pub fn intend(
        &mut self,
        keys: impl IntoIterator<Item = Key>,
        before: impl IntoIterator<Item = (Key, String)>,
    ) -> Result<(), FileError> {
        let mut document = self.document.clone();
        document.intents.extend(keys);
        for (key, value) in before {
            document.before.entry(key).or_insert(value);
        }
        self.write(document)
    }

    /// Forgets all intents but those still open: the others were read back.
    pub fn settle(&mut self, open: impl IntoIterator<Item = Key>) -> Result<(), FileError> {
        self.write(Document { intents: open.into_iter().collect(), ..self.document.clone() })
    }

    /// Forgets what was there before, because it is there again.
    pub fn put_back(&mut self, keys: impl IntoIterator<Item = Key>) -> Result<(), FileError> {
        let mut document = self.document.clone();
        for key in keys {
            document.before.remove(&key);
        }
        self.write(document)
    }

    /// Forgets everything: nothing of ours is left in the kernel.
    pub fn clear(&mut self) -> Result<(), FileError> {
        files::remove(&self.path)?;
        self.document = Document { format: FORMAT, ..Document::default() };
        Ok(())
    }

    fn write(&mut self, document: Document) -> Result<(), FileError> {
        if document != self.document {
            let bytes = serde_json::to_vec(&document).expect("a ledger is plain data");
            files::replace(&self.path, &bytes)?;
            self.document = document;
        }
        Ok(())
    }
}

/// A map whose keys are no strings, as an array of pairs.
mod pairs {
    use super::Key;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<Key, String>, to: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Key, String>, D::Error> {
        Ok(Vec::<(Key, String)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_outlive_a_stop_and_the_first_value_of_before_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let link = Key::mesh(Kind::Link, "hf0");
        let sysctl = Key::mesh(Kind::Sysctl, "net/x");
        let mut ledger = Ledger::open(dir.path()).unwrap();
        assert!(!dir.path().join("ledger.json").exists());
        ledger.intend([link.clone(), sysctl.clone()], [(sysctl.clone(), "0".into())]).unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        assert!(ledger.intends(&link));
        ledger.intend([], [(sysctl.clone(), "1".into())]).unwrap();
        assert_eq!(ledger.before(Kind::Sysctl), BTreeMap::from([("net/x".into(), "0".into())]));
        ledger.settle([]).unwrap();
        let text = std::fs::read_to_string(dir.path().join("ledger.json")).unwrap();
        assert_eq!(text, r#"{"format":1,"intents":[],"before":[[{"owner":"mesh","kind":"sysctl","id":"net/x"},"0"]]}"#);
        ledger.put_back([sysctl]).unwrap();
        assert!(!ledger.knows(Kind::Sysctl));
        ledger.clear().unwrap();
        assert!(!dir.path().join("ledger.json").exists());
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["{", r#"{"format":2,"intents":[],"before":[]}"#, r#"{"format":1,"intents":[],"before":[],"x":1}"#]
        {
            files::replace(&dir.path().join("ledger.json"), text.as_bytes()).unwrap();
            assert!(Ledger::open(dir.path()).unwrap_err().to_string().contains("ledger.json: cannot be read"));
        }
    }
}
