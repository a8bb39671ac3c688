//! Token buckets: how many attempts a source has, and all of them together.

use crate::limits;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Sources remembered at most; a full bucket is the same as none, so only those that spent lately are kept.
const SOURCES: usize = 4096;

/// The attempts of every source and, where that is bounded too, of all together.
#[derive(Debug)]
pub struct Rates {
    sources: BTreeMap<IpAddr, Bucket>,
    total: Option<(u32, Bucket)>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Bucket {
    const fn full(size: u32, at: Duration) -> Self {
        Self { left: size as f64, at }
    }

    fn refill(&mut self, size: u32, per_second: u32, now: Duration) {
        let gained = now.saturating_sub(self.at).as_secs_f64() * f64::from(per_second);
        self.left = (self.left + gained).min(f64::from(size));
        self.at = now;
    }
}

impl Rates {
    /// Full buckets; with a total, so many attempts a second of all together, and a source's bucket of them at once.
    pub const fn new(total: Option<u32>) -> Self {
        let total = match total {
            Some(per_second) => Some((per_second, Bucket::full(limits::ENROL_BUCKET.0, Duration::ZERO))),
            None => None,
        };
        Self { sources: BTreeMap::new(), total }
    }

    /// Whether `source` has an attempt left. Takes none.
    pub fn has_attempt(&self, source: IpAddr, now: Duration) -> bool {
        self.bucket(source.to_canonical(), now).left >= 1.0
    }

    /// Takes one attempt of `source` and one of the total; false, and none taken, where either has none left.
    pub fn attempt(&mut self, source: IpAddr, now: Duration) -> bool {
        let source = source.to_canonical();
        let mut bucket = self.bucket(source, now);
        if let Some((per_second, total)) = &mut self.total {
            total.refill(limits::ENROL_BUCKET.0, *per_second, now);
            if total.left < 1.0 || bucket.left < 1.0 {
                return false;
            }
            total.left -= 1.0;
        } else if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        if self.sources.len() >= SOURCES && !self.sources.contains_key(&source) {
            self.forget_full(now);
        }
        self.sources.insert(source, bucket);
        true
    }

    fn bucket(&self, source: IpAddr, now: Duration) -> Bucket {
        let (size, per_second) = limits::ENROL_BUCKET;
        let mut bucket = self.sources.get(&source).copied().unwrap_or(Bucket::full(size, now));
        bucket.refill(size, per_second, now);
        bucket
    }

    fn forget_full(&mut self, now: Duration) {
        let (size, per_second) = limits::ENROL_BUCKET;
        self.sources.retain(|_, bucket| {
            bucket.refill(size, per_second, now);
            bucket.left < f64::from(size)
        });
        if self.sources.len() >= SOURCES {
            self.sources.pop_first();
        }
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
