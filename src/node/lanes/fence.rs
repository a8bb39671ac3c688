//! `fence.json`: the highest attempt of each job that was ever begun on this machine, and the highest generation of its
//! network that was ever asked for, written before the work starts. An attempt that is not above the one is refused here,
//! and a network job that is below the other, whatever an appliance says.

use crate::files::{self, FileError};
use crate::limits;
use serde::{Deserialize, Serialize};
use state::model::{JobId, Revision};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An attempt that must not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attempt {attempt} is stale: attempt {begun} of this job has begun on this machine")]
pub struct Stale {
    /// As asked for.
    pub attempt: u32,
    /// The highest one begun.
    pub begun: u32,
}

/// A network job that must not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("generation {generation} of this network is superseded: generation {seen} has been asked for")]
pub struct Outdated {
    /// As asked for.
    pub generation: Revision,
    /// The highest one seen.
    pub seen: Revision,
}

/// The format of the file that this version writes and reads.
const FORMAT: u16 = 1;

/// The fence of one state directory.
#[derive(Debug)]
pub struct Fence {
    path: PathBuf,
    kept: Document,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Document {
    format: u16,
    begun: BTreeMap<JobId, u32>,
    #[serde(default, skip_serializing_if = "is_first")]
    generation: Revision,
}

fn is_first(generation: &Revision) -> bool {
    *generation == Revision::default()
}

impl Fence {
    /// As it was kept; empty where none is. A damaged one is an error: guessing could let a stale attempt through.
    pub fn open(state_dir: &Path) -> Result<Self, FileError> {
        let path = state_dir.join("fence.json");
        let kept = match files::document(&path, limits::FENCE_FILE, FORMAT) {
            Ok(kept) => kept,
            Err(FileError::Damaged { path, problem }) => {
                let problem = format!("is damaged ({problem}); remove it once no job of this node runs");
                return Err(FileError::Unsafe { path, problem });
            }
            Err(error) => return Err(error),
        };
        let first = || Document { format: FORMAT, begun: BTreeMap::new(), generation: Revision::default() };
        let kept = kept.unwrap_or_else(first);
        Ok(Self { path, kept })
    }

    /// Keeps on disk that an attempt begins, or refuses it: [`Stale`] inside, the disk's own errors outside.
    pub fn begin(&mut self, job: JobId, attempt: u32) -> Result<Result<(), Stale>, FileError> {
        if let Some(begun) = self.kept.begun.get(&job).copied().filter(|begun| *begun >= attempt) {
            return Ok(Err(Stale { attempt, begun }));
        }
        let mut next = self.kept.clone();
        next.begun.insert(job, attempt);
        while next.begun.len() > limits::FENCED_JOBS {
            // Ids are ordered by the time they were made.
            next.begun.pop_first();
        }
        self.keep(next).map(Ok)
    }

    /// Keeps on disk that a generation of the network is asked for, or refuses it, in the same way.
    pub fn turn(&mut self, generation: Revision) -> Result<Result<(), Outdated>, FileError> {
        let seen = self.kept.generation;
        if generation == seen {
            return Ok(Ok(()));
        }
        if generation < seen {
            return Ok(Err(Outdated { generation, seen }));
        }
        self.keep(Document { generation, ..self.kept.clone() }).map(Ok)
    }

    fn keep(&mut self, next: Document) -> Result<(), FileError> {
        files::replace(&self.path, &state::to_bytes(&next))?;
        self.kept = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u128) -> JobId {
        JobId(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn an_attempt_begins_once_and_never_after_a_higher_one_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut fence = Fence::open(dir.path()).unwrap();
        assert_eq!(fence.begin(job(1), 2).unwrap(), Ok(()));
        assert_eq!(fence.begin(job(1), 2).unwrap(), Err(Stale { attempt: 2, begun: 2 }));
        let mut fence = Fence::open(dir.path()).unwrap();
        assert_eq!(fence.begin(job(1), 1).unwrap(), Err(Stale { attempt: 1, begun: 2 }));
        assert_eq!(fence.begin(job(2), 1).unwrap(), Ok(()));
        assert_eq!(fence.begin(job(1), 3).unwrap(), Ok(()));
    }

    #[test]
    fn a_network_is_never_turned_back_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut fence = Fence::open(dir.path()).unwrap();
        assert_eq!(fence.turn(Revision(0)).unwrap(), Ok(()));
        assert_eq!(fence.turn(Revision(7)).unwrap(), Ok(()));
        let mut fence = Fence::open(dir.path()).unwrap();
        assert_eq!(fence.turn(Revision(7)).unwrap(), Ok(()), "several jobs of one generation");
        let outdated = Outdated { generation: Revision(6), seen: Revision(7) };
        assert_eq!(fence.turn(Revision(6)).unwrap(), Err(outdated));
        fence.begin(job(1), 1).unwrap().unwrap();
        assert!(fence.turn(Revision(6)).unwrap().is_err());
        let golden = r#"{"format":1,"begun":{"00000000-0000-0000-0000-000000000001":1},"generation":7}"#;
        assert_eq!(std::fs::read_to_string(dir.path().join("fence.json")).unwrap(), golden);
    }

    #[test]
    fn it_is_pinned_bounded_and_never_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fence.json");
        let mut fence = Fence::open(dir.path()).unwrap();
        fence.begin(job(7), 1).unwrap().unwrap();
        let golden = r#"{"format":1,"begun":{"00000000-0000-0000-0000-000000000007":1}}"#;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), golden);
        fence.kept.begun = (10..10 + limits::FENCED_JOBS as u128).map(|number| (job(number), 1)).collect();
        fence.begin(job(1 << 100), 1).unwrap().unwrap();
        assert_eq!(fence.kept.begun.len(), limits::FENCED_JOBS);
        assert!(!fence.kept.begun.contains_key(&job(10)), "the oldest is forgotten");
        assert!(std::fs::metadata(&path).unwrap().len() < limits::FENCE_FILE);
        Fence::open(dir.path()).unwrap();
        std::fs::write(&path, b"{").unwrap();
        assert!(Fence::open(dir.path()).unwrap_err().to_string().contains("is damaged"));
    }
}
