//! How many questions a source outside loopback and the mesh may ask: one bucket an address, a bounded number of them.

use crate::limits;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The buckets: what is left in each, and when that was.
#[derive(Default)]
pub(super) struct Rate {
    buckets: BTreeMap<IpAddr, (f64, Duration)>,
}

impl Rate {
    /// Takes one from the source's bucket if it has one. `now` is time since boot.
    pub(super) fn admit(&mut self, source: IpAddr, now: Duration) -> bool {
        let (size, refill) = limits::DNS_BUCKET;
        if self.buckets.len() >= limits::DNS_SOURCES && !self.buckets.contains_key(&source) {
            let full = |left: f64, at: Duration| left + now.saturating_sub(at).as_secs_f64() * refill >= size;
            self.buckets.retain(|_, (left, at)| !full(*left, *at));
            if self.buckets.len() >= limits::DNS_SOURCES {
                return false;
            }
        }
        let (left, at) = self.buckets.entry(source).or_insert((size, now));
        *left = (*left + now.saturating_sub(*at).as_secs_f64() * refill).min(size);
        *at = now;
        let admitted = *left >= 1.0;
        if admitted {
            *left -= 1.0;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gets_its_share_and_spends_nobody_elses() {
        let mut rate = Rate::default();
        let source = |i: u32| IpAddr::from(std::net::Ipv4Addr::from(0xc000_0200 + i));
        let asked = |rate: &mut Rate, at| (0..1000).filter(|_| rate.admit(source(1), Duration::from_secs(at))).count();
        assert_eq!(asked(&mut rate, 0), 100);
        assert!(rate.admit(source(2), Duration::ZERO));
        assert_eq!(asked(&mut rate, 1), 50);
        let many = u32::try_from(limits::DNS_SOURCES).unwrap() * 2;
        for i in 0..many {
            rate.admit(source(i), Duration::from_secs(1));
        }
        assert!(rate.buckets.len() <= limits::DNS_SOURCES);
        assert!(rate.admit(source(many), Duration::from_secs(100)), "full buckets are forgotten");
    }
}
