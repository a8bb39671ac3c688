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
    bytes: usize,
    spoken: u64,
}

impl Logs {
    /// Adds lines. The job's oldest go beyond its limit; beyond the limit of jobs goes the one silent longest.
    pub fn add(&mut self, job: JobId, attempt: u32, lines: impl IntoIterator<Item = String>) {
        self.spoken += 1;
        let log = self.jobs.entry(job).or_default();
        log.spoken = self.spoken;
        for mut line in lines {
            truncate(&mut line);
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

fn truncate(line: &mut String) {
    if line.len() > limits::LOG_LINE {
        let end = (0..=limits::LOG_LINE).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn logs_are_bounded_in_lines_bytes_and_jobs() {
        let mut logs = Logs::default();
        let job = |n: u128| JobId(Uuid::from_u128(n));
        logs.add(job(1), 1, (0..limits::LOG_LINES + 3).map(|n| n.to_string()));
        let log = logs.of(job(1)).unwrap();
        assert_eq!((log.lines.len(), log.dropped, log.lines[0].clone()), (limits::LOG_LINES, 3, (1, "3".to_owned())));
        logs.add(job(2), 7, (0..100).map(|_| "é".repeat(limits::LOG_LINE)));
        let log = logs.of(job(2)).unwrap();
        assert!(log.bytes <= limits::LOG_BYTES && log.lines.iter().all(|(_, line)| line.len() <= limits::LOG_LINE + 3));
        logs.add(job(1), 2, []);
        for n in 10..10 + limits::LOGS as u128 {
            logs.add(job(n), 1, ["x".to_owned()]);
        }
        assert!(logs.of(job(2)).is_none() && logs.jobs.len() == limits::LOGS);
    }
}
