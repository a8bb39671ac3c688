//! What can go wrong with a store, and what the reader can do about it.

use std::io;

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk did not take or give bytes. Whether the last write is there is only known after opening again.
    #[error("store: {doing}: {source}")]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// The answer of the operating system.
        source: io::Error,
    },
    /// The bytes are not what was written. Nothing is repaired silently.
    #[error("store: damaged: {0}; restore it from a copy")]
    Damaged(String),
    /// Written by a newer version. Nothing was changed.
    #[error(
        "store: {what} was written by a newer version: it needs one that reads format {needs}, this one reads {reads}; \
         start that version, nothing was changed"
    )]
    Newer {
        /// What of it.
        what: String,
        /// The format that a reader must know.
        needs: u64,
        /// The newest that this program knows.
        reads: u16,
    },
    /// The store lacks batches that were durable once, so it is an old copy or was cut. Nothing was changed.
    #[error("store: ends at batch {store}, but batch {known} was durable here; restore the store that has it")]
    Behind {
        /// The last batch in the store.
        store: u64,
        /// The last batch that the head file names.
        known: u64,
    },
    /// The file that tells an old copy from the newest is not there, and the store is not new. Nothing was changed.
    #[error(
        "store: it ends at batch {batch}, and the file `head` beside it is gone, without which an old copy passes for the \
         newest; put it back from where the store came, or, if no newer copy of this store exists anywhere, run \
         `holdfast journal accept --state DIR`"
    )]
    Headless {
        /// The last batch in the store.
        batch: u64,
    },
    /// The store and the head file tell two histories. Nothing was changed.
    #[error("store: batch {batch} is another one than the head file names; this is not the store that was here")]
    Foreign {
        /// The batch on which they differ.
        batch: u64,
    },
    /// A batch holds something that this version does not know. Nothing was applied.
    #[error("store: batch {batch} cannot be read by this version: {problem}")]
    Unreadable {
        /// The batch.
        batch: u64,
        /// What was not understood.
        problem: String,
    },
}

impl StoreError {
    /// Whether there was no room left.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Disk { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Damaged(_)
            | Self::Newer { .. }
            | Self::Behind { .. }
            | Self::Headless { .. }
            | Self::Foreign { .. }
            | Self::Unreadable { .. } => false,
        }
    }

    /// Whether trying again later may help: true for the disk, false for what is wrong with the content.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }

    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    /// Sorts an error of redb into the disk's and the content's.
    pub(super) fn from_redb(doing: &'static str, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => Self::Disk { doing, source },
            redb::Error::PreviousIo => Self::Disk {
                doing,
                source: io::Error::other("an earlier write failed; the store must be opened again"),
            },
            redb::Error::DatabaseAlreadyOpen => {
                Self::Disk { doing, source: io::Error::new(io::ErrorKind::ResourceBusy, "it is open already") }
            }
            other => Self::Damaged(format!("{doing}: {other}")),
        }
    }
}

/// Names what was tried when redb refuses.
pub(super) trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T, StoreError>;
}

impl<T, E: Into<redb::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: &'static str) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::from_redb(what, error))
    }
}
