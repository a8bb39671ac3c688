//! When leases on jobs end: soft state on the primary's boot clock, lost with the process.
//!
//! Who holds which attempt is in the state, and is checked there first. A lease that the state shows and that is not known
//! here was granted before this primary started, and is good for a whole lease more from when it is first seen. So one
//! that has expired here is kept until the published state shows that its attempt is over, or it would come alive again. Each
//! attempt has a deadline of its own: a grant whose batch came to nothing leaves that of the attempt before it alone.

use crate::limits;
use state::State;
use state::model::{JobId, Millis};
use std::collections::BTreeMap;
use std::time::Duration;

/// The deadlines of open leases.
#[derive(Debug, Default)]
pub struct Leases {
    open: BTreeMap<(JobId, u32), Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// When the attempt must be over.
    last: Duration,
    /// When the lease ends unless it is extended.
    ends: Duration,
}

impl Lease {
    const fn new(now: Duration) -> Self {
        Self { last: now.saturating_add(limits::ATTEMPT), ends: now.saturating_add(limits::LEASE) }
    }
}

impl Leases {
    /// A job was leased. Gives how long the lease is good for.
    pub fn grant(&mut self, job: JobId, attempt: u32, now: Duration) -> Duration {
        self.open.insert((job, attempt), Lease::new(now));
        limits::LEASE
    }

    /// Extends the lease of an attempt that the published state shows. Gives how long it is good for from now on; none if
    /// it has expired.
    pub fn extend(&mut self, job: JobId, attempt: u32, now: Duration) -> Option<Duration> {
        if !self.live(job, attempt, now) {
            return None;
        }
        let lease = self.open.entry((job, attempt)).or_insert(Lease::new(now));
        lease.ends = lease.ends.max((now + limits::LEASE).min(lease.last));
        Some(lease.ends - now)
    }

    /// Whether the lease of an attempt that the state shows, at a decision, has not expired.
    pub fn live(&self, job: JobId, attempt: u32, now: Duration) -> bool {
        self.open.get(&(job, attempt)).is_none_or(|lease| now < lease.ends)
    }

    /// How long the lease of an attempt is good for yet, if it is known.
    pub fn left(&self, job: JobId, attempt: u32, now: Duration) -> Option<Duration> {
        let lease = self.open.get(&(job, attempt))?;
        Some(lease.ends.saturating_sub(now))
    }

    /// The leases that have expired, also those of attempts that are over in other ways.
    pub fn expired(&self, now: Duration) -> Vec<(JobId, u32)> {
        let expired = self.open.iter().filter(|(_, lease)| lease.ends <= now);
        expired.map(|(attempt, _)| *attempt).collect()
    }

    /// Brings the leases in line with a published state: at the start, after every restart of the engine, and each time
    /// before looking for what has expired. A lease that is not known is good for a whole one more, even if its attempt
    /// has taken its four hours since then by the wall clock; it is not extended beyond them.
    pub fn settle(&mut self, state: &State, now: Duration, wall: Millis) {
        self.open.retain(|(id, attempt), _| {
            state.jobs.get(id).is_some_and(|job| *attempt > job.attempt && !job.phase.is_over())
                || state.jobs.is_open(*id, *attempt)
        });
        for (job, attempt, since) in state.jobs.open() {
            self.open.entry((job, attempt)).or_insert_with(|| {
                let left = limits::ATTEMPT.saturating_sub(Duration::from_millis(wall.since(since)));
                Lease { last: now.saturating_add(left), ..Lease::new(now) }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(uuid::Uuid::from_u128(1));

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_ends_unless_it_is_extended_and_never_comes_back() {
        let mut leases = Leases::default();
        assert_eq!(leases.grant(JOB, 1, at(100)), at(45));
        assert_eq!(leases.extend(JOB, 1, at(110)), Some(at(45)));
        assert!(leases.live(JOB, 1, at(154)) && !leases.live(JOB, 1, at(155)));
        assert_eq!((leases.expired(at(154)), leases.expired(at(155))), (vec![], vec![(JOB, 1)]));
        assert_eq!(leases.extend(JOB, 1, at(155)), None);
        assert_eq!(leases.expired(at(156)), [(JOB, 1)], "kept until the state shows that it is over");
        leases.grant(JOB, 2, at(160));
        assert!(leases.live(JOB, 2, at(160)) && !leases.live(JOB, 1, at(160)));
    }

    #[test]
    fn a_grant_that_came_to_nothing_leaves_the_attempt_before_it_alone() {
        let mut leases = Leases::default();
        leases.grant(JOB, 1, at(0));
        leases.grant(JOB, 2, at(10));
        assert_eq!(leases.extend(JOB, 1, at(20)), Some(at(45)));
        assert!(leases.live(JOB, 1, at(64)) && !leases.live(JOB, 1, at(65)));
        assert!(leases.expired(at(65)).contains(&(JOB, 1)), "given back, or the job would never go on");
    }

    #[test]
    fn an_attempt_lasts_four_hours_at_most() {
        let mut leases = Leases::default();
        leases.grant(JOB, 1, at(0));
        let last = (1..).map(|n| at(n * 30)).take_while(|now| leases.extend(JOB, 1, *now).is_some()).last();
        assert_eq!(last, Some(at(4 * 3600 - 30)));
        assert_eq!(leases.expired(at(4 * 3600)), [(JOB, 1)]);
    }

    #[test]
    fn a_lease_of_an_earlier_primary_is_good_for_a_whole_one_more() {
        let mut leases = Leases::default();
        assert!(leases.live(JOB, 3, at(7)));
        assert_eq!(leases.extend(JOB, 3, at(7)), Some(at(45)));
        leases.grant(JOB, 4, at(8));
        assert!(leases.live(JOB, 5, at(60)), "the grant of attempt 4 was never committed here");
    }
}
