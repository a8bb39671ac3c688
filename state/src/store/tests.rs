//! The form of what is stored, and stores that this version must not touch.

use super::*;
use crate::model::{ApplianceId, Millis, RequestId, Revision};
use crate::view::records::Epoch;
use crate::{Actor, Change, Hash, State};
use std::io;
use std::sync::Mutex;

#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Medium for Memory {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let image = self.0.lock().unwrap();
        let data = image.get(offset as usize..offset as usize + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        self.0.lock().unwrap().resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.lock().unwrap()[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        Ok(())
    }
}

impl Memory {
    fn made() -> Self {
        let memory = Self::default();
        Store::create(Box::new(memory.clone()), 0).unwrap();
        memory
    }

    fn open(&self, known: Option<Head>) -> Result<Opened, StoreError> {
        Store::open(Box::new(self.clone()), 0, known)
    }

    fn image(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

fn batch(head: &Head) -> Batch {
    Batch {
        format: 1,
        epoch: Epoch { number: 1, appliance: ApplianceId(uuid::Uuid::from_u128(9)) },
        batch: head.batch + 1,
        prev: head.hash,
        time: Millis(1000 + head.batch),
        changes: vec![Change {
            change: Revision(head.change.0 + 1),
            actor: Actor::Appliance,
            request: RequestId(uuid::Uuid::nil()),
            kind: "test".into(),
            v: 1,
            events: vec![],
        }],
    }
}

fn entry(index: u64, sealed: Sealed) -> Entry {
    Entry { id: EntryId { term: 1, leader: 1, index }, body: Body::Batch(sealed), rows: Rows::default() }
}

/// A store with three batches; gives its medium and its head.
fn three() -> (Memory, Head) {
    let memory = Memory::made();
    let store = memory.open(None).unwrap().store;
    let mut head = Head::default();
    for index in 1..=3 {
        let sealed = batch(&head).seal();
        store.append(&[entry(index, sealed.clone())]).unwrap();
        head = head.follow(&sealed).unwrap().1;
    }
    (memory, head)
}

#[test]
fn a_batch_has_these_bytes_for_ever() {
    let sealed = batch(&Head::default()).seal();
    let bytes = "{\"format\":1,\"epoch\":{\"number\":1,\"appliance\":\"00000000-0000-0000-0000-000000000009\"},\
        \"batch\":1,\"prev\":\"0000000000000000000000000000000000000000000000000000000000000000\",\"time\":1000,\
        \"changes\":[{\"change\":1,\"actor\":{\"as\":\"appliance\"},\"request\":\"00000000-0000-0000-0000-000000000000\",\
        \"kind\":\"test\",\"v\":1,\"events\":[]}]}";
    assert_eq!(std::str::from_utf8(&sealed.bytes).unwrap(), bytes);
    assert_eq!(sealed.hash().to_string(), "f0d15605f7913f9ce032f416f183388fa34f3538132b2f5538acc0badafe6ffe");
    assert_eq!(sealed.open().unwrap(), batch(&Head::default()));
    let framed = entry::encode(&entry(7, sealed.clone()));
    let mut expected = hex::decode("01000000000000000100000000000000010200000000000000010000000000000001").unwrap();
    expected.extend(hex::decode("0000000000000001").unwrap());
    expected.extend((bytes.len() as u32).to_be_bytes());
    expected.extend(bytes.as_bytes());
    expected.extend([0, 0]);
    assert_eq!(framed, expected);
    let back = entry::decode(7, &framed).unwrap();
    assert_eq!((back.id.index, back.body), (7, Body::Batch(sealed)));
}

#[test]
fn a_newer_store_is_refused_and_not_a_byte_of_it_changed() {
    let (memory, _) = three();
    let store = memory.open(None).unwrap().store;
    let write = store.db.begin_write().unwrap();
    let newer = crate::to_bytes(&Format { format: 3, reader: 2 });
    write.open_table(META).unwrap().insert(FORMAT, newer.as_slice()).unwrap();
    write.commit().unwrap();
    let crashed = memory.image();
    drop(store);
    for image in [memory.image(), crashed] {
        let memory = Memory(Arc::new(Mutex::new(image.clone())));
        let refused = memory.open(None).unwrap_err();
        assert!(matches!(refused, StoreError::Newer { needs: 2, reads: 1, .. }), "{refused}");
        assert!(matches!(Store::inspect(Box::new(memory.clone())), Err(StoreError::Newer { .. })));
        assert_eq!(memory.image(), image);
    }
}

#[test]
fn a_kind_that_is_not_known_stops_before_anything_is_applied() {
    let (memory, head) = three();
    let store = memory.open(None).unwrap().store;
    let mut sealed = batch(&head).seal();
    let text = String::from_utf8(sealed.bytes.to_vec()).unwrap();
    sealed.bytes =
        text.replace("\"events\":[]", "\"events\":[{\"subject\":\"later\",\"event\":1}]").into_bytes().into();
    store.append(&[entry(4, sealed)]).unwrap();
    drop(store);
    let before = memory.image();
    let refused = memory.open(None).unwrap_err();
    assert!(matches!(refused, StoreError::Unreadable { batch: 4, .. }), "{refused}");
    assert!(refused.to_string().contains("later"), "{refused}");
    assert_eq!(memory.image(), before);
}

#[test]
fn a_head_that_leads_or_differs_is_refused() {
    let (memory, head) = three();
    assert_eq!(memory.open(Some(head)).unwrap().head, head);
    let before = memory.image();
    let ahead = memory.open(Some(Head { batch: 4, ..head })).unwrap_err();
    assert_eq!(
        ahead.to_string(),
        "store: ends at batch 3, but batch 4 was durable here; restore the store that has it"
    );
    let other = memory.open(Some(Head { hash: Hash::from_bytes([1; 32]), batch: 2, ..head })).unwrap_err();
    assert!(matches!(other, StoreError::Foreign { batch: 2 }), "{other}");
    assert_eq!(memory.image(), before);
}

#[test]
fn what_does_not_link_is_found() {
    let (memory, head) = three();
    let store = memory.open(None).unwrap().store;
    let mut wrong = batch(&head);
    wrong.prev = Hash::from_bytes([1; 32]);
    store.append(&[entry(4, wrong.seal())]).unwrap();
    assert!(store.verify().unwrap_err().to_string().contains("batch 4: does not link"));
    store.truncate(4).unwrap();
    assert_eq!(store.verify().unwrap().batches, 3);
    let mut lone = entry(4, batch(&head).seal());
    let key = RowKey { table: "receipts".into(), key: vec![1] };
    lone.rows.put.push(SideRow { key: key.clone(), value: vec![2], expires: None });
    store.append(&[lone]).unwrap();
    assert_eq!(store.verify().unwrap().rows, 1);
    assert_eq!(store.entries(4..).unwrap()[0].rows.put.len(), 1);
    store.truncate(4).unwrap();
    assert_eq!(store.row(&key).unwrap(), None);
    let write = store.db.begin_write().unwrap();
    write.open_table(SIDE).unwrap().insert(key.stored().as_slice(), [0; 9].as_slice()).unwrap();
    write.commit().unwrap();
    assert!(store.verify().unwrap_err().to_string().contains("row 01 of table receipts came with no entry"));
}

#[test]
fn a_checkpoint_is_compared_with_its_hash_and_with_a_replay() {
    let (memory, head) = three();
    let store = memory.open(None).unwrap().store;
    let applied = EntryId { term: 1, leader: 1, index: 3 };
    let mut state = State::default();
    for batch in store.batches(Revision(1), usize::MAX).unwrap() {
        batch.apply(&mut state);
    }
    let mut checkpoint = Checkpoint { applied, head, membership: b"[]".to_vec(), state };
    store.keep_checkpoint(&checkpoint).unwrap();
    let verified = store.verify().unwrap();
    assert_eq!((verified.batches, verified.checkpoints), (3, 1));
    drop(store);
    let opened = memory.open(Some(head)).unwrap();
    assert_eq!(opened.checkpoint.as_ref(), Some(&checkpoint));
    assert_eq!(opened.head, head);
    checkpoint.state.at = Millis(5);
    opened.store.keep_checkpoint(&checkpoint).unwrap();
    let found = opened.store.verify().unwrap_err();
    assert!(found.to_string().contains("the checkpoint at entry 3 is not what replaying gives"), "{found}");
}

#[test]
fn only_rows_that_have_expired_are_found_and_an_entry_deletes_them() {
    let (memory, head) = three();
    let store = memory.open(None).unwrap().store;
    let key = |n: u8| RowKey { table: "receipts".into(), key: vec![n] };
    let mut rows = entry(4, batch(&head).seal());
    for (n, expires) in [(1, Some(5)), (2, Some(6)), (3, None)] {
        rows.rows.put.push(SideRow { key: key(n), value: vec![n], expires: expires.map(Millis) });
    }
    store.append(&[rows]).unwrap();
    assert_eq!(store.expired(Millis(4), 10).unwrap(), []);
    assert_eq!(store.expired(Millis(6), 1).unwrap(), [key(1)]);
    let erase = store.expired(Millis(5), 10).unwrap();
    let mut deletes = entry(5, batch(&head).seal());
    (deletes.body, deletes.rows.erase) = (Body::Rows, erase.clone());
    store.append(&[deletes]).unwrap();
    assert_eq!(store.entries(5..).unwrap()[0].rows, Rows { put: vec![], erase }, "another appliance deletes them too");
    assert_eq!([1, 2, 3].map(|n| store.row(&key(n)).unwrap().is_some()), [false, true, true]);
    assert_eq!(store.verify().unwrap().rows, 2);
}

#[test]
fn changes_are_found_by_their_number() {
    let memory = Memory::made();
    let store = memory.open(None).unwrap().store;
    let mut head = Head::default();
    for index in 1..=50 {
        if index % 5 == 0 {
            let blank = Entry { body: Body::Blank, ..entry(index, batch(&head).seal()) };
            store.append(&[blank]).unwrap();
        } else {
            let sealed = batch(&head).seal();
            head = head.follow(&sealed).unwrap().1;
            store.append(&[entry(index, sealed)]).unwrap();
        }
    }
    for from in 1..=40 {
        let found = store.batches(Revision(from), 1).unwrap();
        assert_eq!(found[0].changes[0].change, Revision(from));
    }
    assert_eq!(store.batches(Revision(38), 100).unwrap().len(), 3);
    assert!(store.batches(Revision(41), 1).unwrap().is_empty());
}
