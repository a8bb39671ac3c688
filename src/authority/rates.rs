//! How many attempts a source has, and all of them together.

use crate::bucket::{Buckets, source};
use crate::limits;
use std::net::IpAddr;
use std::time::Duration;

/// Sources remembered at most.
const SOURCES: usize = 4096;

/// The attempts of every source and, where that is bounded too, of all together.
#[derive(Debug)]
pub struct Rates {
    sources: Buckets<IpAddr>,
    total: Option<Buckets<()>>,
}

impl Rates {
    /// Full buckets; with a total, so many attempts a second of all together, and a source's bucket of them at once.
    pub fn new(total: Option<u32>) -> Self {
        let (size, per_second) = limits::ENROL_BUCKET;
        let (size, per_second) = (f64::from(size), f64::from(per_second));
        let total = total.map(|total| Buckets::new((size, f64::from(total)), 1));
        Self { sources: Buckets::new((size, per_second), SOURCES), total }
    }

    /// Whether `address` has an attempt left. Takes none.
    pub fn has_attempt(&self, address: IpAddr, now: Duration) -> bool {
        self.sources.has(&source(address), now)
    }

    /// Takes one attempt of `address` and one of the total; false, and none taken, where either has none left.
    pub fn attempt(&mut self, address: IpAddr, now: Duration) -> bool {
        if self.total.as_ref().is_some_and(|total| !total.has(&(), now)) || !self.sources.take(source(address), now) {
            return false;
        }
        self.total.as_mut().is_none_or(|total| total.take((), now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_bucket_and_all_have_theirs() {
        let mut rates = Rates::new(Some(64));
        let (a, b) = (IpAddr::from([203, 0, 113, 1]), IpAddr::from([203, 0, 113, 2]));
        let taken = |rates: &mut Rates, from, at| (0..1000).take_while(|_| rates.attempt(from, at)).count();
        let second = Duration::from_secs(1);
        assert_eq!(taken(&mut rates, a, second), 128);
        assert_eq!(taken(&mut rates, b, second), 0, "the total bounds all together");
        assert_eq!(taken(&mut rates, a, second * 2), 16, "a source gets back what it gets back");
        assert_eq!(taken(&mut rates, b, second * 2), 48, "others have the rest of the total");
        assert!(rates.has_attempt(b, second * 2) && !rates.has_attempt(a, second * 2));
    }
}
