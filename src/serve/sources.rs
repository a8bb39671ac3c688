//! The bytes of source snapshots: a private file each, under the digest of its bytes, never altered.
//!
//! Which of them are held, the state says; a file that it does not know is removed. Handing one over and removing take
//! turns, so that none goes between its storing and its being known. Delivering waits for neither: it has slots, and a
//! slot is held until both the read and what goes out of it are over, whatever becomes of who asked.

use crate::authority::refusal::{Refused, invalid, problem};
use crate::files::{self, FileError};
use crate::listen::stop::Stop;
use crate::serve::appliance::{Appliance, Change};
use crate::serve::gate::Place;
use crate::serve::http::ok;
use crate::source::{self, SourceError};
use crate::wire::operator::Nothing;
use crate::{clock, entropy, limits, tasks};
use axum::body::Bytes;
use sha2::{Digest, Sha256};
use state::model::{ArtifactId, Fingerprint, Millis};
use state::subject::sources::{Command, Source, surplus};
use state::{Actor, Role};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};

/// The snapshots on the disk of an appliance.
pub struct Sources {
    dir: PathBuf,
    slots: Option<Arc<Semaphore>>,
    within: Duration,
    changing: Mutex<()>,
}

/// The right to read and send one snapshot, given back when it is dropped.
pub struct Slot(#[expect(dead_code, reason = "held for its place")] OwnedSemaphorePermit);

/// A snapshot that was read, and is what was stored. It keeps its slot as long as any of its bytes are kept.
pub struct Archive {
    bytes: Vec<u8>,
    _slot: Slot,
    /// Dropped with the rest: what watches over the sending ends.
    _over: Option<oneshot::Sender<()>>,
}

impl Sources {
    /// The snapshots of a state directory, with this many slots; none turns their delivery off.
    pub fn open(state: &Path, slots: u8) -> Result<Self, FileError> {
        let dir = state.join("sources");
        files::private_dir(&dir)?;
        files::remove_staged(&dir)?;
        if slots == 0 {
            tracing::warn!("sources are delivered to no builder: `source_slots` is 0");
        }
        let slots = (slots > 0).then(|| Arc::new(Semaphore::new(slots.into())));
        Ok(Self { dir, slots, within: limits::SOURCE_SEND, changing: Mutex::new(()) })
    }

    /// The same, with another deadline for taking one.
    #[cfg(test)]
    pub(super) fn with_deadline(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// How many slots are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.slots.as_ref().map_or(0, |slots| slots.available_permits())
    }

    /// How long a node may take over taking one.
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// The turn of who stores or removes.
    pub async fn alone(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// A slot, or the refusal while there is none: 503.
    pub fn slot(&self) -> Result<Slot, Refused> {
        let what = "the source was not sent";
        let Some(slots) = &self.slots else {
            let detail = "this appliance delivers no sources";
            return Err(problem(
                503,
                "source_off",
                what,
                detail,
                "set `source_slots` on the appliance, and start it again",
            ));
        };
        let busy = || problem(503, "busy", what, "as many sources are on their way as may be", "ask again in a moment");
        slots.clone().try_acquire_owned().map(Slot).map_err(|_| busy())
    }

    fn path(&self, sha256: &Fingerprint) -> PathBuf {
        self.dir.join(sha256.to_string())
    }

    /// Stores an archive, unless it is there already, and gives what it is.
    pub(super) async fn keep(&self, archive: Bytes) -> Result<Source, Refused> {
        let dir = self.dir.clone();
        tasks::blocking(move || {
            let snapshot = source::content(&archive).map_err(|error| unreadable(&error))?;
            let sha256 = digest(&archive);
            let length = u64::try_from(archive.len()).expect("64 MiB");
            let source = Source { artifact: ArtifactId(entropy::uuid()), snapshot, sha256, length };
            let path = dir.join(sha256.to_string());
            let made = files::create_once(&path, &archive).map_err(|error| not_stored(&error))?;
            if !made {
                verified(&path, &source).map_err(|error| not_stored(&error))?;
            }
            Ok(source)
        })
        .await
    }

    /// Reads and verifies a snapshot: 500 where it is not what was stored.
    pub async fn read(&self, source: &Source, slot: Slot) -> Result<Archive, Refused> {
        let (path, source) = (self.path(&source.sha256), *source);
        let read =
            tasks::blocking(move || verified(&path, &source).map(|bytes| Archive { bytes, _slot: slot, _over: None }));
        read.await.map_err(|error| {
            tracing::error!(%error, "a source cannot be sent: its file is not what was stored");
            let detail = "what the appliance has stored of it is missing or damaged";
            problem(
                500,
                "source_damaged",
                "the source was not sent",
                detail,
                "hand the source over and queue the build anew",
            )
        })
    }

    /// Removes the files that no snapshot of these has.
    fn sweep(&self, held: &BTreeSet<String>) -> Result<(), FileError> {
        let mut unknown = files::names(&self.dir)?;
        unknown.retain(|name| !held.contains(name));
        if unknown.is_empty() {
            return Ok(());
        }
        unknown.iter().try_for_each(|name| files::remove(&self.dir.join(name)))?;
        files::sync_dir(&self.dir)
    }
}

impl Archive {
    /// Its bytes, to be sent. Whoever has not taken them in time is cut off.
    pub fn send(mut self, within: Duration, place: Arc<Place>) -> Bytes {
        let (over, ended) = oneshot::channel::<()>();
        self._over = Some(over);
        drop(tasks::spawn("source deadline", async move {
            if tokio::time::timeout(within, ended).await.is_err() {
                tracing::warn!(source = %place.source(), "cut off: it has not taken a build's source in time");
                place.cut_off();
            }
        }));
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Archive {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn digest(bytes: &[u8]) -> Fingerprint {
    Fingerprint::from_bytes(Sha256::digest(bytes).into())
}

/// The bytes of a file, if they are those of the snapshot.
fn verified(path: &Path, source: &Source) -> Result<Vec<u8>, FileError> {
    let bytes = files::read_whole(path, usize::try_from(source.length).unwrap_or(usize::MAX))?;
    if digest(&bytes) == source.sha256 {
        return Ok(bytes);
    }
    Err(FileError::Damaged { path: path.to_owned(), problem: "its bytes do not have the digest that names it".into() })
}

fn unreadable(error: &SourceError) -> Refused {
    match error {
        SourceError::TooLarge => problem(
            413,
            "too_large",
            "the source was not stored",
            error.to_string(),
            "leave out what is not built from",
        ),
        SourceError::Refused { .. } | SourceError::Io { .. } => invalid(error.to_string()),
    }
}

fn not_stored(error: &FileError) -> Refused {
    let full = matches!(error, FileError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull);
    let (status, code, todo) = if full {
        (507, "disk_full", "free space on the appliance")
    } else {
        (500, "source_damaged", "look at that file, remove it if it is damaged, and hand the source over again")
    };
    problem(status, code, "the source was not stored", error.to_string(), todo)
}

/// Once a minute, until told to stop: what has been kept long enough goes, and then every file that is not held.
pub(super) async fn run(appliance: Arc<Appliance>, mut stop: Stop) {
    loop {
        care(&appliance).await;
        tokio::select! {
            () = tokio::time::sleep(limits::SOURCE_CARE) => {}
            () = stop.requested() => return,
        }
    }
}

/// One look.
pub(super) async fn care(appliance: &Arc<Appliance>) {
    let _alone = appliance.sources.alone().await;
    let (state, now) = (appliance.handle.state(), clock::wall());
    let kept = u64::try_from(limits::SOURCE_KEPT.as_millis()).expect("a day in milliseconds");
    let before = Millis(now.0.saturating_sub(kept));
    // A clock that is not to be believed ends nothing.
    if now >= state.at && !surplus(&state, before).is_empty() {
        let change = Change::new(Command::Collect { before }, Actor::Appliance, Role::System, None, Bytes::new());
        if let Err(refused) = appliance.change(change, |_| Ok(ok(&Nothing {}))).await {
            tracing::warn!(code = refused.code, "sources that nobody builds were not given up");
        }
    }
    let state = appliance.handle.state();
    let held: BTreeSet<String> = state.sources.all.values().map(|held| held.source.sha256.to_string()).collect();
    let sweeping = appliance.clone();
    if let Err(error) = tasks::blocking(move || sweeping.sources.sweep(&held)).await {
        tracing::warn!(%error, "sources that nobody builds were not removed");
    }
}
