//! The rows that hold what attempts found. They lie beside the state, since they are big, and go with the job that they
//! belong to: nobody could ask for them any more.

use crate::model::JobId;
use crate::store::RowKey;
use crate::{Event, State};

/// The side table of results.
const TABLE: &str = "results";

/// The row of an attempt's result; without an attempt, where the rows of a job's results begin.
pub fn result_row(job: JobId, attempt: Option<u32>) -> RowKey {
    let mut key = job.0.as_bytes().to_vec();
    key.extend(attempt.into_iter().flat_map(u32::to_be_bytes));
    RowKey { table: TABLE.into(), key }
}

/// The rows of the jobs that these events, which come next, have the state forget.
pub fn forgotten_rows(state: &State, events: &[Event]) -> Vec<RowKey> {
    let forgotten = events.iter().flat_map(|event| match event {
        Event::Jobs(super::Event::Forgotten { jobs }) => jobs.as_slice(),
        Event::Jobs(_)
        | Event::Appliances(_)
        | Event::Enrolment(_)
        | Event::Nodes(_)
        | Event::Services(_)
        | Event::Sources(_) => &[],
    });
    let jobs = forgotten.filter_map(|id| state.jobs.get(id));
    jobs.flat_map(|job| job.results.iter().map(|ended| result_row(job.id, Some(ended.answered.attempt)))).collect()
}
