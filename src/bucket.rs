//! Token buckets: how much each source may ask for at once and in a second, for a bounded number of sources.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// What counts as one source: an IPv4 address, or the /64 that an IPv6 subscriber has at least, in which a single machine
/// takes as many addresses as it likes.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        IpAddr::V4(address) => address.into(),
    }
}

/// The buckets of all sources. A full one is the same as none, so only those that spent lately are kept.
#[derive(Debug)]
pub struct Buckets<S> {
    size: f64,
    per_second: f64,
    sources: usize,
    left: BTreeMap<S, (f64, Duration)>,
}

impl<S: Ord> Buckets<S> {
    /// Full buckets of a size, with what comes back each second, for so many sources.
    pub fn new((size, per_second): (f64, f64), sources: usize) -> Self {
        Self { size, per_second, sources, left: BTreeMap::new() }
    }

    /// Whether the source has one left. Takes none. `now` is time since boot.
    pub fn has(&self, source: &S, now: Duration) -> bool {
        self.left.get(source).is_none_or(|spent| self.refilled(*spent, now) >= 1.0)
    }

    /// Takes one of the source's, if it has one left. While as many sources as are remembered have spent of theirs, others
    /// get none.
    pub fn take(&mut self, source: S, now: Duration) -> bool {
        if self.left.len() >= self.sources && !self.left.contains_key(&source) {
            let mut left = std::mem::take(&mut self.left);
            left.retain(|_, spent| self.refilled(*spent, now) < self.size);
            self.left = left;
            if self.left.len() >= self.sources {
                return false;
            }
        }
        let left = self.left.get(&source).map_or(self.size, |spent| self.refilled(*spent, now));
        let taken = left >= 1.0;
        self.left.insert(source, (if taken { left - 1.0 } else { left }, now));
        taken
    }

    fn refilled(&self, (left, at): (f64, Duration), now: Duration) -> f64 {
        (left + now.saturating_sub(at).as_secs_f64() * self.per_second).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gets_its_share_and_spends_nobody_elses() {
        const SOURCES: usize = 64;
        let mut buckets = Buckets::new((100.0, 50.0), SOURCES);
        let source = |i: u32| IpAddr::from(std::net::Ipv4Addr::from(0xc000_0200 + i));
        let second = Duration::from_secs(1);
        let taken = |buckets: &mut Buckets<_>, at| (0..1000).filter(|_| buckets.take(source(1), at)).count();
        assert_eq!(taken(&mut buckets, Duration::ZERO), 100);
        assert!(!buckets.has(&source(1), Duration::ZERO) && buckets.has(&source(2), Duration::ZERO));
        assert!(buckets.take(source(2), Duration::ZERO));
        assert_eq!(taken(&mut buckets, second), 50);
        for i in 0..1000 {
            buckets.take(source(i), second);
        }
        assert!(buckets.left.len() <= SOURCES);
        assert!(buckets.take(source(1000), second * 100), "full buckets are forgotten");
    }

    #[test]
    fn a_subscriber_is_one_source_whatever_addresses_it_takes() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:203.0.113.1"), of("203.0.113.1"));
        assert_ne!(of("203.0.113.1"), of("203.0.113.2"));
    }
}
