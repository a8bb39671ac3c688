//! The `seq` of signed requests: rises with every request, across restarts, with one write to disk a thousand requests.

use crate::files::{self, FileError};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Numbers reserved by one write.
const BLOCK: u64 = 1000;

/// The counter of one node. What was reserved and not used is lost with a restart: only rising matters.
pub struct Sequence {
    file: PathBuf,
    counter: Mutex<Counter>,
}

struct Counter {
    next: u64,
    reserved: u64,
}

impl Sequence {
    /// Goes on after what an earlier run may have used.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        let file = dir.join("seq");
        let next = match files::read(&file, 32) {
            Ok(bytes) => {
                std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
                    FileError::Unsafe {
                        path: file.clone(),
                        problem: "is not a decimal number; it counts signed requests".into(),
                    }
                })?
            }
            Err(error) if files::is_absent(&error) => 1,
            Err(error) => return Err(error),
        };
        Ok(Self { file, counter: Mutex::new(Counter { next, reserved: next }) })
    }

    /// The next number, never given before.
    pub fn next(&self) -> Result<u64, FileError> {
        let mut counter = self.counter.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if counter.next >= counter.reserved {
            let reserved = counter.next.saturating_add(BLOCK);
            files::replace(&self.file, reserved.to_string().as_bytes())?;
            counter.reserved = reserved;
        }
        counter.next += 1;
        Ok(counter.next - 1)
    }

    /// Makes the next number exceed a floor that an appliance named.
    pub fn jump(&self, floor: u64) {
        let mut counter = self.counter.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counter.next = counter.next.max(floor.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_over_restarts_and_past_a_floor() {
        let dir = tempfile::tempdir().unwrap();
        let first = Sequence::open(dir.path()).unwrap();
        assert_eq!((first.next().unwrap(), first.next().unwrap()), (1, 2));
        drop(first);
        let second = Sequence::open(dir.path()).unwrap();
        assert_eq!(second.next().unwrap(), 1001);
        second.jump(5000);
        second.jump(3);
        assert_eq!(second.next().unwrap(), 5001);
        drop(second);
        assert_eq!(Sequence::open(dir.path()).unwrap().next().unwrap(), 6001);
        files::replace(&dir.path().join("seq"), b"x").unwrap();
        assert!(Sequence::open(dir.path()).is_err());
    }
}
