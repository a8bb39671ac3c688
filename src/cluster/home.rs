//! Where a store lies on the disk: `store.redb`, beside it `head`, which names the last durable batch and so tells a
//! store that was cut or rolled back, and `reserve`, room that is freed on the day the disk is full.

use crate::{files, limits};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, statvfs};
use serde::{Deserialize, Serialize};
use state::store::{self, Head, Opened, Store, StoreError, Verified};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Where the engine's store lies.
pub trait Place: Send + Sync + 'static {
    /// Opens the store, making it if there has never been one.
    fn open(&self) -> Result<Opened, StoreError>;
    /// Notes the last durable batch outside the store.
    fn keep_head(&self, head: &Head) -> Result<(), StoreError>;
    /// Frees the room kept for a full disk.
    fn free_reserve(&self);
    /// Keeps that room again, if there is plenty.
    fn refill_reserve(&self);
    /// Whether there is room to go on after the disk was full.
    fn has_room(&self) -> bool;
}

/// A directory that holds a store.
#[derive(Clone, Debug)]
pub struct Home {
    pub(super) dir: PathBuf,
    /// Length of a new store's file.
    pub(super) floor: u64,
}

/// The format of the head file that this version writes and reads.
const HEAD_FORMAT: u16 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadFile {
    format: u16,
    head: Head,
}

impl Home {
    /// The store in a directory that exists and is private.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), floor: limits::STORE_FLOOR }
    }

    /// The store as it lies there, to look at while no appliance runs. Nothing is changed.
    pub fn inspect(&self) -> Result<Store, StoreError> {
        Store::inspect(store::file(self.opened(OFlags::RDWR, &self.store())?)?)
    }

    /// Bytes that this user may still write.
    fn room(&self) -> u64 {
        statvfs(&self.dir).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
    }

    fn store(&self) -> PathBuf {
        self.dir.join("store.redb")
    }

    fn reserve(&self) -> PathBuf {
        self.dir.join("reserve")
    }

    fn opened(&self, flags: OFlags, path: &Path) -> Result<File, StoreError> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(path, flags, Mode::from_raw_mode(0o600));
        opened.map(File::from).map_err(|errno| disk("opening the store's file", errno.into()))
    }

    fn known_head(&self) -> Result<Option<Head>, StoreError> {
        match files::document::<HeadFile>(&self.head(), 64 * 1024, HEAD_FORMAT) {
            Ok(file) => Ok(file.map(|file| file.head)),
            Err(files::FileError::Newer { format, reads, .. }) => {
                Err(StoreError::Newer { what: "the head file".into(), needs: format, reads })
            }
            Err(files::FileError::Damaged { problem, .. }) => {
                Err(StoreError::Damaged(format!("the head file: {problem}")))
            }
            Err(error) => Err(from_file(error)),
        }
    }

    /// Takes the store as it lies there for the newest, after its head file was lost: verifies all of it and writes down
    /// where it ends. Refused where there is a head file, which knows better.
    pub fn accept(&self) -> Result<Verified, StoreError> {
        if let Some(known) = self.known_head()? {
            let refused = format!("the head file is there, and names batch {}; it stays", known.batch);
            return Err(disk("accepting the store", io::Error::new(io::ErrorKind::AlreadyExists, refused)));
        }
        let verified = self.inspect()?.verify()?;
        self.keep_head(&verified.head)?;
        Ok(verified)
    }

    fn head(&self) -> PathBuf {
        self.dir.join("head")
    }

    /// Makes the store under another name first, so that a kill at any moment leaves a whole store or none.
    fn create(&self) -> Result<(), StoreError> {
        let staged = self.dir.join("store.redb.new");
        let doing = "creating the store";
        let file = self.opened(OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC, &staged)?;
        Store::create(store::file(file)?, self.floor)?;
        let file = self.opened(OFlags::RDWR, &staged)?;
        file.sync_all().map_err(|error| disk(doing, error))?;
        // Before the store has its name, so that no store is ever seen without one but by somebody's doing.
        self.keep_head(&Head::default())?;
        rustix::fs::rename(&staged, self.store()).map_err(|errno| disk(doing, errno.into()))?;
        files::sync_dir(&self.dir).map_err(from_file)
    }
}

impl Place for Home {
    fn open(&self) -> Result<Opened, StoreError> {
        let known = self.known_head()?;
        let file = match self.opened(OFlags::RDWR, &self.store()) {
            Err(StoreError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                if let Some(known) = known.filter(|known| known.batch > 0) {
                    return Err(StoreError::Behind { store: 0, known: known.batch });
                }
                self.create()?;
                self.opened(OFlags::RDWR, &self.store())?
            }
            file => file?,
        };
        if known.is_none() {
            let batch = self.inspect()?.verify()?.head.batch;
            if batch > 0 {
                return Err(StoreError::Headless { batch });
            }
        }
        let opened = Store::open(store::file(file)?, self.floor, known)?;
        self.refill_reserve();
        Ok(opened)
    }

    fn keep_head(&self, head: &Head) -> Result<(), StoreError> {
        let bytes = state::to_bytes(&HeadFile { format: HEAD_FORMAT, head: *head });
        files::replace(&self.head(), &bytes).map_err(from_file)
    }

    fn free_reserve(&self) {
        if !self.reserve().exists() {
            return;
        }
        match files::remove(&self.reserve()) {
            Ok(()) => tracing::warn!("the disk is full; the reserve has been freed"),
            Err(error) => tracing::error!(%error, "the disk is full, and the reserve could not be freed"),
        }
    }

    fn refill_reserve(&self) {
        let kept = std::fs::metadata(self.reserve()).is_ok_and(|file| file.len() == limits::RESERVE);
        if kept || self.room() < 2 * limits::RESERVE {
            return;
        }
        let made = self.opened(OFlags::WRONLY | OFlags::CREATE, &self.reserve()).and_then(|file| {
            let kept = fallocate(&file, FallocateFlags::empty(), 0, limits::RESERVE);
            kept.map_err(|errno| disk("keeping the reserve", errno.into()))
        });
        if let Err(error) = made {
            tracing::warn!(%error, "no room is kept for a full disk");
            // Half a reserve would pass for a whole one.
            let _ = files::remove(&self.reserve());
        }
    }

    fn has_room(&self) -> bool {
        self.room() >= limits::RESERVE / 2
    }
}

const fn disk(doing: &'static str, source: io::Error) -> StoreError {
    StoreError::Disk { doing, source }
}

fn from_file(error: files::FileError) -> StoreError {
    match error {
        files::FileError::Io { doing, source, .. } => disk(doing, source),
        other @ (files::FileError::Unsafe { .. }
        | files::FileError::Damaged { .. }
        | files::FileError::Newer { .. }
        | files::FileError::Locked { .. }) => disk("using the state directory", io::Error::other(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use state::model::{Fingerprint, Millis, Revision};

    #[test]
    fn the_head_file_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home { dir: dir.path().to_owned(), floor: 0 };
        let head = Head { batch: 3, hash: Fingerprint::from_bytes([5; 32]), change: Revision(9), latest: Millis(1000) };
        home.keep_head(&head).unwrap();
        let text = format!(
            "{{\"format\":1,\"head\":{{\"batch\":3,\"hash\":\"{}\",\"change\":9,\"latest\":1000}}}}",
            "05".repeat(32)
        );
        assert_eq!(std::fs::read_to_string(dir.path().join("head")).unwrap(), text);
        assert_eq!(home.known_head().unwrap(), Some(head));
    }

    #[test]
    fn a_newer_head_file_is_refused_by_name_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home { dir: dir.path().to_owned(), floor: 0 };
        drop(home.open().unwrap());
        let store = std::fs::read(home.store()).unwrap();
        files::replace(&home.head(), br#"{"format":2}"#).unwrap();
        let refused = home.open().unwrap_err().to_string();
        assert!(refused.contains("the head file was written by a newer version") && refused.contains("format 2"));
        assert_eq!(std::fs::read(home.store()).unwrap(), store);
        assert_eq!(std::fs::read(home.head()).unwrap(), br#"{"format":2}"#);
        assert!(matches!(home.accept(), Err(StoreError::Newer { .. })));
    }
}
