//! How the state is kept: the replicated log that is the journal, checkpoints of the whole state, side tables.
//!
//! A store lies on a [`Medium`], which is a file or a test's own. It is created with [`Store::create`], opened with
//! [`Store::open`], which checks every page, every link of the chain and the newest checkpoint before it changes a
//! byte, and after any error of the medium it must be dropped and opened again. One call is one transaction, durable
//! when the call returns. It has no thread and no clock; who drives it is the cluster.

mod ahead;
mod batch;
mod checkpoint;
mod entry;
mod error;
mod held;
mod log;
mod side;
mod verify;

pub use batch::{BATCH_FORMAT, Batch, Head, Sealed, state_hash};
pub use checkpoint::Checkpoint;
pub use entry::{Body, Entry, EntryId};
pub use error::StoreError;
pub use redb::StorageBackend as Medium;
pub use side::{RowKey, Rows, SideRow};
pub use verify::Verified;

use ahead::Ahead;
use error::Doing;
use held::Held;
use redb::{Database, ReadableDatabase, TableDefinition};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The store format that this version writes, and the newest it reads.
pub const STORE_FORMAT: u16 = 1;

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const CHECKPOINTS: TableDefinition<u64, &[u8]> = TableDefinition::new("checkpoints");
const SIDE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("side");
const META: TableDefinition<&[u8], &[u8]> = TableDefinition::new("meta");

const FORMAT: &[u8] = b"format";
const VOTE: &[u8] = b"vote";
const PURGED: &[u8] = b"purged";

/// What redb may keep of the file in memory: the journal's end and the tables' roots. The state is kept elsewhere.
const CACHE: usize = 8 << 20;

/// The first row that any version reads.
#[derive(Debug, Serialize, Deserialize)]
struct Format {
    /// The format in which it was written.
    format: u16,
    /// The oldest format whose reader understands it.
    reader: u16,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    db: Database,
    ahead: Arc<Ahead>,
}

/// An open store, and from where to go on.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The newest checkpoint, from which the entries after it are to be applied; none before the first.
    pub checkpoint: Option<Checkpoint>,
    /// The end of the chain in the log, applied or not.
    pub head: Head,
}

/// The file of a store as a medium. Another process or handle that has it open is refused.
pub fn file(file: std::fs::File) -> Result<Box<dyn Medium>, StoreError> {
    Ok(Box::new(redb::backends::FileBackend::new(file).doing("taking the file")?))
}

impl Store {
    /// Makes a store on an empty medium, which is filled with zeros up to `floor` bytes so that commits need not grow
    /// it. Durable on return; what holds the name of the file must be synced by the caller.
    pub fn create(medium: Box<dyn Medium>, floor: u64) -> Result<(), StoreError> {
        let (store, held) = Self::assemble(medium, floor, false)?;
        held.accept().doing("creating the store")?;
        let doing = "creating the store";
        let write = store.db.begin_write().doing(doing)?;
        write.open_table(ENTRIES).doing(doing)?;
        write.open_table(CHECKPOINTS).doing(doing)?;
        write.open_table(SIDE).doing(doing)?;
        let format = crate::to_bytes(&Format { format: STORE_FORMAT, reader: STORE_FORMAT });
        write.open_table(META).doing(doing)?.insert(FORMAT, format.as_slice()).doing(doing)?;
        write.commit().doing(doing)
    }

    /// Opens a store, checking all of it. `known` is the head that the head file names, which may lag behind the store
    /// and never lead it. Whatever is refused is refused before a byte is changed.
    pub fn open(medium: Box<dyn Medium>, floor: u64, known: Option<Head>) -> Result<Opened, StoreError> {
        let (store, held) = Self::assemble(medium, floor, true)?;
        store.check_format()?;
        let checkpoint = store.newest_checkpoint()?;
        let head = store.walk(checkpoint.as_ref(), known)?;
        held.accept().doing("opening the store")?;
        Ok(Opened { store, checkpoint, head })
    }

    /// Opens a store to look at it. Nothing is changed, whatever is done, and a store in use is refused.
    pub fn inspect(medium: Box<dyn Medium>) -> Result<Self, StoreError> {
        let (store, _) = Self::assemble(medium, 0, true)?;
        store.check_format()?;
        Ok(store)
    }

    fn assemble(medium: Box<dyn Medium>, floor: u64, check: bool) -> Result<(Self, Held), StoreError> {
        let doing = "opening the store";
        let ahead = Arc::new(Ahead::new(medium, floor).doing(doing)?);
        if check && ahead.is_empty().doing(doing)? {
            return Err(StoreError::damaged("the file is empty"));
        }
        let held = Held::new(Arc::clone(&ahead));
        let db = redb::Builder::new()
            .set_cache_size(CACHE)
            .set_check_integrity_on_open(check)
            .create_with_backend(held.clone())
            .doing(doing)?;
        Ok((Self { db, ahead }, held))
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let bytes = self.meta(FORMAT)?.ok_or_else(|| StoreError::damaged("it does not say which format it has"))?;
        let format: Format =
            serde_json::from_slice(&bytes).map_err(|error| StoreError::damaged(format!("its format: {error}")))?;
        if format.reader > STORE_FORMAT {
            return Err(StoreError::Newer {
                what: "the store".into(),
                needs: format.reader.into(),
                reads: STORE_FORMAT,
            });
        }
        Ok(())
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let doing = "reading a setting";
        let table = self.db.begin_read().doing(doing)?.open_table(META).doing(doing)?;
        Ok(table.get(key).doing(doing)?.map(|value| value.value().to_vec()))
    }

    /// The vote, in the form of whoever runs the cluster.
    pub fn vote(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.meta(VOTE)
    }

    /// Keeps the vote.
    pub fn set_vote(&self, vote: &[u8]) -> Result<(), StoreError> {
        let doing = "keeping the vote";
        let write = self.db.begin_write().doing(doing)?;
        write.open_table(META).doing(doing)?.insert(VOTE, vote).doing(doing)?;
        write.commit().doing(doing)
    }

    /// Bytes of the file. What was filled ahead since it was opened is not counted.
    pub fn size(&self) -> u64 {
        self.ahead.size()
    }

    /// Whether the file should be filled ahead again.
    pub fn wants_room(&self) -> bool {
        self.ahead.wants_room()
    }

    /// Fills the file ahead, so that no commit has to grow it: a commit into blocks that exist is two to three times as
    /// fast. Takes as long as writing as much again as the store holds; commits go on meanwhile.
    pub fn make_room(&self) -> Result<(), StoreError> {
        self.ahead.make_room().doing("growing the file")
    }
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
