//! What an event about jobs makes of the state.

use super::{Ended, Event, Job, Jobs, Network, Phase, Stuck};
use crate::State;
use crate::model::{JobId, Millis, NodeId};
use std::sync::Arc;

/// Ends all work of a node that departs: no other node can do it, and nobody will ask for it any more. What was wanted of
/// its network stays: the machine may come back, and obeys no generation below the highest it has seen.
pub(crate) fn forget(state: &mut State, node: NodeId) {
    let at = state.at;
    let Some(board) = state.jobs.boards.get_mut(&node) else { return };
    board.drain = None;
    board.capabilities.clear();
    let open: Vec<JobId> = board.queued.iter().map(|(_, _, id)| *id).chain(board.leased.iter().copied()).collect();
    for id in open {
        state.jobs.turn(id, at, |job| {
            job.stuck = None;
            Phase::Failed { why: "its node is gone".into() }
        });
    }
    state.jobs.tidy(node);
}

/// Another machine is the node from now on: what its predecessor could not end is not on it.
pub(crate) fn moved(jobs: &mut Jobs, node: NodeId) {
    let Some(board) = jobs.boards.get(&node) else { return };
    for id in board.queued.iter().map(|(_, _, id)| id).chain(&board.leased) {
        if let Some(job) = jobs.all.get_mut(id) {
            Arc::make_mut(job).stuck = None;
        }
    }
}

pub(crate) fn apply(state: &mut State, event: &Event) {
    let (at, revision) = (state.at, state.revision);
    let jobs = &mut state.jobs;
    match event {
        Event::Submitted { job, org, by, binding } => {
            let job = Job {
                id: job.id,
                node: job.node,
                org: org.clone(),
                spec: job.spec.clone(),
                created: at,
                by: by.clone(),
                phase: Phase::Queued { not_before: at },
                attempt: 0,
                attempts: job.attempts,
                binding: *binding,
                stuck: None,
                cancel: false,
                results: Vec::new(),
                completed_at: None,
            };
            jobs.list(&job);
            let network = &mut jobs.boards.entry(job.node).or_default().network;
            if let Some(wanted) = job.spec.wants().filter(|_| binding.generation > network.generation) {
                *network = Network { generation: binding.generation, wanted };
            }
            jobs.all.insert(job.id, Arc::new(job));
        }
        Event::Leased { job, attempt, token } => jobs.turn(*job, at, |job| {
            job.attempt = *attempt;
            Phase::Leased { token: *token, since: at }
        }),
        Event::Completed { job, answered, phase, stuck } => jobs.turn(*job, at, |job| {
            let status = phase.as_str().to_owned();
            job.results.push(Ended { answered: answered.clone(), status, revision });
            job.stuck = stuck.clone().map(|why| Stuck { attempt: answered.attempt, why });
            job.attempts += u32::from(stuck.is_some());
            phase.clone()
        }),
        Event::Expired { job, attempt: _, phase } => jobs.turn(*job, at, |_| phase.clone()),
        Event::CancelAsked { job } => {
            if let Some(job) = jobs.all.get_mut(job) {
                Arc::make_mut(job).cancel = true;
            }
        }
        Event::Cancelled { job } => jobs.turn(*job, at, |_| Phase::Cancelled),
        Event::Superseded { jobs: superseded, generation } => {
            for id in superseded {
                jobs.turn(*id, at, |_| Phase::Superseded { generation: *generation });
            }
        }
        Event::Retried { job, not_before, attempts } => jobs.turn(*job, at, |job| {
            job.attempts = *attempts;
            Phase::Queued { not_before: *not_before }
        }),
        Event::Forgotten { jobs: forgotten } => {
            for id in forgotten {
                let Some(job) = jobs.all.remove(id) else { continue };
                jobs.unlist(&job);
                jobs.tidy(job.node);
            }
        }
        Event::Drained { node, drain } => jobs.boards.entry(*node).or_default().drain = Some(*drain),
        Event::Undrained { node } => {
            if let Some(board) = jobs.boards.get_mut(node) {
                board.drain = None;
            }
            jobs.tidy(*node);
        }
        Event::CapabilitiesReported { node, capabilities } => {
            jobs.boards.entry(*node).or_default().capabilities.clone_from(capabilities);
            jobs.tidy(*node);
        }
    }
}

impl Jobs {
    /// Gives a job another phase, with every list that it stands in.
    fn turn(&mut self, id: JobId, at: Millis, next: impl FnOnce(&mut Job) -> Phase) {
        let Some(mut shared) = self.all.get(&id).cloned() else { return };
        self.unlist(&shared);
        let job = Arc::make_mut(&mut shared);
        job.phase = next(job);
        let over = job.phase.is_over();
        job.completed_at = over.then_some(at);
        job.cancel &= !over;
        self.list(job);
        self.all.insert(id, shared);
    }

    fn list(&mut self, job: &Job) {
        let board = self.boards.entry(job.node).or_default();
        match &job.phase {
            Phase::Queued { not_before } => drop(board.queued.insert((job.spec.lane(), *not_before, job.id))),
            Phase::Leased { .. } => drop(board.leased.insert(job.id)),
            Phase::Succeeded | Phase::Failed { .. } | Phase::Cancelled | Phase::Superseded { .. } => {
                let row = (job.completed_at.unwrap_or_default(), job.id);
                board.finished.insert(row);
                self.finished.insert(row);
            }
        }
    }

    fn unlist(&mut self, job: &Job) {
        let Some(board) = self.boards.get_mut(&job.node) else { return };
        match &job.phase {
            Phase::Queued { not_before } => drop(board.queued.remove(&(job.spec.lane(), *not_before, job.id))),
            Phase::Leased { .. } => drop(board.leased.remove(&job.id)),
            Phase::Succeeded | Phase::Failed { .. } | Phase::Cancelled | Phase::Superseded { .. } => {
                let row = (job.completed_at.unwrap_or_default(), job.id);
                board.finished.remove(&row);
                self.finished.remove(&row);
            }
        }
    }

    /// Drops the board of a node if it has become as good as none.
    fn tidy(&mut self, node: NodeId) {
        if self.boards.get(&node).is_some_and(|board| *board == Default::default()) {
            self.boards.remove(&node);
        }
    }
}
