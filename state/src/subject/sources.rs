//! Source snapshots: what builds are made from, each handed over once and never changed.
//!
//! The bytes lie beside the store, under their digest. What is here is which of them are held and whose they are, and
//! that is what a job's own words about its source are compared with each time somebody asks for it.

use crate::model::{ArtifactId, Fingerprint, JobId, Millis, Name};
use crate::subject::enrolment::holder;
use crate::subject::jobs::{self, Job, Spec};
use crate::subject::nodes::Node;
use crate::{Code, Context, Refusal, State};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of all snapshots together: the largest, 64 MiB, sixty-four times.
pub const BYTES: u64 = 4 << 30;
/// Snapshots that are held at a time.
pub const SNAPSHOTS: usize = 1_024;

/// A snapshot, as a job names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Under which it was handed over.
    pub artifact: ArtifactId,
    /// SHA-256 of its content, before it was compressed: the same source, the same snapshot.
    pub snapshot: Fingerprint,
    /// SHA-256 of the archive's bytes.
    pub sha256: Fingerprint,
    /// How many those are.
    pub length: u64,
}

/// A snapshot that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Which.
    pub source: Source,
    /// The tenant of who handed it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// When it was handed over last.
    pub stored: Millis,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sources {
    /// By id.
    pub all: OrdMap<ArtifactId, Held>,
}

impl Sources {
    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether this one is held, exactly as it is named.
    pub fn holds(&self, source: &Source) -> bool {
        self.all.get(&source.artifact).is_some_and(|held| held.source == *source)
    }

    /// What an org, or the fleet itself, has handed over with these bytes.
    pub fn of(&self, sha256: &Fingerprint, org: Option<&Name>) -> Option<&Held> {
        self.all.values().find(|held| held.source.sha256 == *sha256 && held.org.as_ref() == org)
    }
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A snapshot's bytes have been stored. If there are such bytes of the same org already, it keeps their id.
    Store {
        /// The snapshot.
        source: Source,
    },
    /// What no build has needed since then is to go.
    Collect {
        /// Then.
        before: Millis,
    },
}

impl Command {
    /// The kind that the journal shows.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Store { .. } => "source.store",
            Self::Collect { .. } => "source.collect",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// A snapshot is held.
    Stored {
        /// Which.
        source: Source,
        /// The tenant of who handed it over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        org: Option<Name>,
    },
    /// Snapshots are held no longer.
    Forgotten {
        /// Which.
        artifacts: Vec<ArtifactId>,
    },
}

pub(crate) fn decide(state: &State, command: Command, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    match command {
        Command::Store { source } => decide_store(state, source, context),
        Command::Collect { before } => {
            let artifacts = surplus(state, before);
            Ok(if artifacts.is_empty() { Vec::new() } else { vec![Event::Forgotten { artifacts }.into()] })
        }
    }
}

fn decide_store(state: &State, source: Source, context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    if let Some(held) = state.sources.of(&source.sha256, context.org.as_ref()) {
        return Ok(vec![Event::Stored { source: held.source, org: context.org.clone() }.into()]);
    }
    let held = state.sources.all.values().map(|held| held.source.length);
    let (mut count, mut bytes) = (state.sources.all.len() + 1, held.sum::<u64>() + source.length);
    let mut artifacts = Vec::new();
    for (_, artifact) in idle(state) {
        if count <= SNAPSHOTS && bytes <= BYTES {
            break;
        }
        count -= 1;
        bytes -= state.sources.all[&artifact].source.length;
        artifacts.push(artifact);
    }
    if count > SNAPSHOTS || bytes > BYTES {
        let why =
            format!("builds that are not over need all of the {SNAPSHOTS} snapshots or {BYTES} bytes there may be");
        return Err(Refusal::new(Code::QueueFull, "the source was not stored", why, "wait until some are over"));
    }
    let forgotten = (!artifacts.is_empty()).then_some(Event::Forgotten { artifacts });
    let stored = Event::Stored { source, org: context.org.clone() };
    Ok(forgotten.into_iter().chain([stored]).map(Into::into).collect())
}

/// The snapshots that no build has needed since then.
pub fn surplus(state: &State, before: Millis) -> Vec<ArtifactId> {
    idle(state).into_iter().filter(|(since, _)| *since <= before).map(|(_, artifact)| artifact).collect()
}

/// The snapshots that no build needs which is not over, each with since when, the longest first.
fn idle(state: &State) -> Vec<(Millis, ArtifactId)> {
    let mut since: BTreeMap<ArtifactId, Option<Millis>> =
        state.sources.all.iter().map(|(artifact, held)| (*artifact, Some(held.stored))).collect();
    if since.is_empty() {
        return Vec::new();
    }
    for job in state.jobs.all.values() {
        if let Spec::BuildModule { source } = &job.spec
            && let Some(since) = since.get_mut(&source.artifact)
        {
            *since = since.zip(job.completed_at).map(|(since, over)| since.max(over));
        }
    }
    let mut idle: Vec<_> = since.into_iter().filter_map(|(artifact, since)| Some((since?, artifact))).collect();
    idle.sort();
    idle
}

/// Refuses a job for a node that names a source which is not held, or is not for that node.
pub(crate) fn expect(state: &State, source: &Source, node: &Node, context: &Context) -> Result<(), Refusal> {
    let held = state.sources.all.get(&source.artifact).filter(|held| held.source == *source);
    if held.is_some_and(|held| context.covers(held.org.as_ref()) && is_for(held, node)) {
        return Ok(());
    }
    let why = format!("no source {} with that digest and length is held for node `{}`", source.artifact, node.name);
    Err(Refusal::new(
        Code::NotFound,
        "nothing was queued",
        why,
        "hand it over anew: `holdfast job run build.module --source DIR`",
    ))
}

/// What the fleet itself has handed over is for every node, what an org has for its own.
fn is_for(held: &Held, node: &Node) -> bool {
    held.org.is_none() || held.org == node.org
}

/// The build whose present lease this certificate and token prove, with its source. Whether the lease has expired is not
/// known here; `trusted` is as in [`holder`].
///
/// # Errors
/// [`Code::CertificateRefused`]. [`Code::NotFound`] of a job that is not this node's, builds nothing, names a source that
/// is not held as it says, or is one that its node cannot do. [`Code::StaleLease`], [`Code::Cancelled`].
pub fn leased<'a>(
    state: &'a State,
    certificate: &Fingerprint,
    id: JobId,
    token: &Fingerprint,
    now: Millis,
    trusted: bool,
) -> Result<(&'a Job, Source), Refusal> {
    let node = holder(state, certificate, now, trusted)?;
    let node = state.nodes.all.get(&node);
    let source =
        node.and_then(|node| provenance(state, node, state.jobs.get(&id)?)).ok_or_else(|| jobs::not_own(id))?;
    Ok((jobs::held(state, certificate, id, token, now, trusted)?, source))
}

/// The source of a node's own build, if all that is known of it agrees.
fn provenance(state: &State, node: &Node, job: &Job) -> Option<Source> {
    let Spec::BuildModule { source } = &job.spec else { return None };
    let held = state.sources.all.get(&source.artifact)?;
    let board = state.jobs.boards.get(&node.id)?;
    let agrees = job.node == node.id
        && job.org == node.org
        && held.source == *source
        && is_for(held, node)
        && job.spec.is_for(&board.capabilities);
    agrees.then_some(*source)
}

pub(crate) fn apply(state: &mut State, event: &Event) {
    match event {
        Event::Stored { source, org } => {
            let held = Held { source: *source, org: org.clone(), stored: state.at };
            state.sources.all.insert(source.artifact, held);
        }
        Event::Forgotten { artifacts } => {
            artifacts.iter().for_each(|artifact| drop(state.sources.all.remove(artifact)))
        }
    }
}
