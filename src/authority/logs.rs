//! What running jobs say on their way: soft state, lost with the process. Results are kept; a log helps while one looks.

use crate::limits;
use state::model::JobId;
use std::collections::{BTreeMap, VecDeque};

/// The logs of the jobs that spoke last.
#[derive(Debug, Default)]
pub struct Logs {
    jobs: BTreeMap<JobId, Log>,
    /// When each spoke last, as a count of all calls.
    spoken: u64,
}

/// The end of one job's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The lines, oldest first, each with the attempt that said it.
    pub lines: VecDeque<(u32, String)>,
    /// How many lines there were before these.
    pub dropped: u64,
    /// The attempt that numbered its lines last, and the number of its next one.
    next: (u32, u64),
    bytes: usize,
    spoken: u64,
}

impl Logs {
    /// Adds lines, of which the first is number `from` of its attempt, but for those that are known by their numbers. The
    /// job's oldest go beyond its limit; beyond the limit of jobs goes the one silent longest.
    pub fn add<L>(&mut self, job: JobId, attempt: u32, from: Option<u64>, lines: L)
    where
        L: IntoIterator<Item = String, IntoIter: ExactSizeIterator>,
    {
        self.spoken += 1;
        let log = self.jobs.entry(job).or_default();
        log.spoken = self.spoken;
        let lines = lines.into_iter();
        let known = from.map_or(0, |from| log.number(attempt, from, lines.len() as u64));
        for line in lines.skip(known) {
            let line = truncated(line, limits::LOG_LINE);
            log.bytes += line.len();
            log.lines.push_back((attempt, line));
        }
        while log.lines.len() > limits::LOG_LINES || log.bytes > limits::LOG_BYTES {
            let Some((_, line)) = log.lines.pop_front() else { break };
            log.bytes -= line.len();
            log.dropped += 1;
        }
        if self.jobs.len() > limits::LOGS {
            let silent = self.jobs.iter().min_by_key(|(_, log)| log.spoken).map(|(job, _)| *job);
            silent.map(|job| self.jobs.remove(&job));
        }
    }

    /// A job's log, if it has said anything.
    pub fn of(&self, job: JobId) -> Option<&Log> {
        self.jobs.get(&job)
    }
}

impl Log {
    /// How many of so many lines, the first of them number `from`, are known. From now on all of them are.
    fn number(&mut self, attempt: u32, from: u64, count: u64) -> usize {
        let next = if self.next.0 == attempt { self.next.1 } else { 0 };
        self.next = (attempt, next.max(from.saturating_add(count)));
        usize::try_from(next.saturating_sub(from)).unwrap_or(usize::MAX)
    }
}

/// A text of which only the beginning is kept if it has more than so many bytes.
pub fn truncated(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn logs_are_bounded_in_lines_bytes_and_jobs() {
        let mut logs = Logs::default();
        let job = |n: u128| JobId(Uuid::from_u128(n));
        logs.add(job(1), 1, None, (0..limits::LOG_LINES + 3).map(|n| n.to_string()));
        let log = logs.of(job(1)).unwrap();
        assert_eq!((log.lines.len(), log.dropped, log.lines[0].clone()), (limits::LOG_LINES, 3, (1, "3".to_owned())));
        logs.add(job(2), 7, None, (0..100).map(|_| "é".repeat(limits::LOG_LINE)));
        let log = logs.of(job(2)).unwrap();
        assert!(log.bytes <= limits::LOG_BYTES && log.lines.iter().all(|(_, line)| line.len() <= limits::LOG_LINE + 3));
        logs.add(job(1), 2, None, []);
        for n in 10..10 + limits::LOGS as u128 {
            logs.add(job(n), 1, None, ["x".to_owned()]);
        }
        assert!(logs.of(job(2)).is_none() && logs.jobs.len() == limits::LOGS);
    }

    #[test]
    fn lines_that_are_told_again_are_not_added_again() {
        let mut logs = Logs::default();
        let job = JobId(Uuid::from_u128(1));
        let mut said = |attempt, from, lines: &[&str]| {
            logs.add(job, attempt, from, lines.iter().map(|line| (*line).to_owned()));
            logs.of(job).unwrap().lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(said(1, Some(0), &["a", "b"]), "a b");
        assert_eq!(said(1, Some(0), &["a", "b"]), "a b", "the answer was lost");
        assert_eq!(said(1, Some(1), &["b", "c"]), "a b c", "and more had been said since");
        assert_eq!(said(1, Some(0), &["a"]), "a b c", "a late copy");
        assert_eq!(said(1, None, &["d"]), "a b c d", "who does not number is believed");
        assert_eq!(said(2, Some(0), &["e"]), "a b c d e", "each attempt counts for itself");
        assert_eq!(said(2, Some(9), &["f"]), "a b c d e f", "what was lost stays lost");
        assert_eq!(said(2, Some(u64::MAX), &["g", "h"]), "a b c d e f g h");
    }
}
