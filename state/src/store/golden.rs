//! The bytes of what the store holds, pinned: entries and checkpoints are read for as long as they are kept.
//!
//! A change here is a change of a format: lines are added to the golden file and never altered.

use super::*;
use crate::State;
use crate::model::{Millis, Revision};

const STORE: &str = include_str!("../../tests/golden/store.jsonl");

/// One value as stored.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    /// What it is.
    what: String,
    /// Its bytes, in hexadecimal digits.
    bytes: String,
}

fn id() -> EntryId {
    EntryId { term: 2, leader: 1, index: 7 }
}

fn head() -> Head {
    Head { batch: 3, hash: crate::Hash::from_bytes([5; 32]), change: Revision(9), latest: Millis(1000) }
}

fn with_rows() -> Entry {
    let sealed = Sealed { batch: 3, first: Revision(8), last: Revision(9), bytes: b"{}".as_slice().into() };
    let key = |table: &str, n: u8| RowKey { table: table.into(), key: vec![n, n] };
    let row = |key, expires| SideRow { key, value: b"value".to_vec(), expires };
    let put = vec![row(key("receipts", 1), Some(Millis(5000))), row(key("results", 2), None)];
    Entry { id: id(), body: Body::Batch(sealed), rows: Rows { put, erase: vec![] } }
}

fn deletes() -> Entry {
    let mut entry = with_rows();
    entry.rows.erase = entry.rows.put.drain(1..).map(|row| row.key).collect();
    entry
}

fn checkpoint() -> Checkpoint {
    Checkpoint { applied: id(), head: head(), membership: b"[]".to_vec(), state: State::default() }
}

/// Everything as this version writes it.
fn written() -> Vec<Line> {
    let line = |what: &str, bytes: Vec<u8>| Line { what: what.into(), bytes: hex::encode(bytes) };
    let bare = |body| Entry { id: id(), body, rows: Rows::default() };
    vec![
        line("blank entry", entry::encode(&bare(Body::Blank))),
        line("membership entry", entry::encode(&bare(Body::Membership(b"[]".to_vec())))),
        line("batch entry with rows", entry::encode(&with_rows())),
        line("rows entry", entry::encode(&Entry { body: Body::Rows, ..with_rows() })),
        line("checkpoint", checkpoint::encode(&checkpoint(), &crate::to_bytes(&State::default()))),
        line("row", side::encode(&with_rows().rows.put[0])),
        line("row key", with_rows().rows.put[0].key.stored()),
        line("format", crate::to_bytes(&Format { format: STORE_FORMAT, reader: STORE_FORMAT })),
        line("purged", crate::to_bytes(&id())),
        line("entry that deletes rows", entry::encode(&deletes())),
    ]
}

#[test]
fn what_is_stored_keeps_its_bytes() {
    let made: String = written().iter().map(|line| format!("{}\n", crate::to_text(line))).collect();
    assert_eq!(STORE, made);
}

#[test]
fn what_was_stored_is_read_as_it_was_meant() {
    let mut seen = 0;
    for line in STORE.lines() {
        let Line { what, bytes } = serde_json::from_str(line).unwrap();
        let bytes = hex::decode(bytes).unwrap();
        let brought = with_rows().rows.put.into_iter().map(|row| entry::Brought { key: row.key, expires: row.expires });
        let (body, brought) = match what.as_str() {
            "blank entry" => (Body::Blank, vec![]),
            "membership entry" => (Body::Membership(b"[]".to_vec()), vec![]),
            "batch entry with rows" => (with_rows().body, brought.collect()),
            "rows entry" => (Body::Rows, brought.collect()),
            "entry that deletes rows" => (with_rows().body, brought.take(1).collect()),
            "checkpoint" => {
                assert_eq!(checkpoint::decode(7, &bytes).unwrap(), checkpoint());
                continue;
            }
            "row" => {
                let row = with_rows().rows.put.remove(0);
                assert_eq!(side::decode(row.key.clone(), &bytes).unwrap(), row);
                continue;
            }
            "row key" => {
                assert_eq!(RowKey::from_stored(&bytes), Some(with_rows().rows.put[0].key.clone()));
                continue;
            }
            "format" => {
                assert_eq!(serde_json::from_slice::<Format>(&bytes).unwrap().reader, 1);
                continue;
            }
            "purged" => {
                assert_eq!(serde_json::from_slice::<EntryId>(&bytes).unwrap(), id());
                continue;
            }
            other => panic!("{other} is not tested"),
        };
        let stored = entry::decode(7, &bytes).unwrap();
        let erased = if what == "entry that deletes rows" { deletes().rows.erase } else { vec![] };
        assert_eq!(stored.erased, erased, "{what}");
        assert_eq!((stored.id, stored.body, stored.brought), (id(), body, brought), "{what}");
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn an_entry_of_a_newer_version_is_refused_by_name() {
    let mut bytes = entry::encode(&with_rows());
    bytes[0] = 3;
    let refused = entry::decode(7, &bytes).unwrap_err().to_string();
    assert!(refused.contains("entry 7 was written by a newer version"), "{refused}");
}
