//! What a network job is bound to: the wanting that it was asked under. Once something newer is wanted, jobs of what was
//! wanted before are superseded: those that wait are ended, and what comes of one that runs counts for nothing.

use super::{Job, Jobs, Lane, Spec};
use crate::model::{NodeId, Revision};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;

/// What a job was asked under. The default, that of a network never turned and of a first credential, is left out of what
/// is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    /// The generation of what is wanted. A node obeys none that is below the highest it has seen.
    #[serde(default, skip_serializing_if = "is_default")]
    pub generation: Revision,
    /// The revision of the credential that it needs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub credential_revision: CredentialRevision,
}

/// Which of a network's successive credentials, from 1. A missing one means 1; `null` and 0 are malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CredentialRevision(pub NonZeroU64);

impl Default for CredentialRevision {
    fn default() -> Self {
        Self(NonZeroU64::MIN)
    }
}

/// What is wanted of a node's network, and since which change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The change that turned it last; 0 before the first turn. So it never falls, also for a node that left and came back.
    pub generation: Revision,
    /// Which way.
    pub wanted: Level,
}

/// Whether a network is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is.
    #[default]
    Up,
    /// It is not.
    Down,
}

impl Binding {
    pub(super) fn is_default(&self) -> bool {
        is_default(self)
    }
}

impl Network {
    pub(super) fn is_default(&self) -> bool {
        is_default(self)
    }
}

impl Spec {
    /// What a job that says so wants of its node's network.
    pub(super) const fn wants(&self) -> Option<Level> {
        match self {
            Self::NetworkEnsure {} => Some(Level::Up),
            Self::NetworkWithdraw {} => Some(Level::Down),
            Self::NetworkCheck {} | Self::ServiceCheck { .. } | Self::BuildModule { .. } => None,
        }
    }
}

impl Jobs {
    /// What is wanted of a node's network.
    pub fn network(&self, node: NodeId) -> Network {
        self.boards.get(&node).map(|board| board.network).unwrap_or_default()
    }

    /// The generation that superseded what a job was asked under, whatever became of the job.
    pub fn superseded_by(&self, job: &Job) -> Option<Revision> {
        let wanted = match job.spec.lane() {
            Lane::Network => self.network(job.node).generation,
            Lane::Workload => return None,
        };
        (job.binding.generation < wanted).then_some(wanted)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_revision_means_one_and_no_other_is_made_up() {
        let read = |text: &str| serde_json::from_str::<Binding>(text);
        let first = Binding::default();
        assert_eq!((first.generation.0, first.credential_revision.0.get()), (0, 1));
        assert_eq!((read("{}").unwrap(), crate::to_bytes(&first)), (first, b"{}".to_vec()));
        assert_eq!(read(r#"{"credential_revision":1}"#).unwrap(), first);
        let third = read(r#"{"generation":7,"credential_revision":3}"#).unwrap();
        assert_eq!((third.generation.0, third.credential_revision.0.get()), (7, 3));
        assert_eq!(crate::to_bytes(&third), br#"{"generation":7,"credential_revision":3}"#);
        for malformed in ["null", "0", "-1", "\"2\"", "1.5"] {
            assert!(read(&format!(r#"{{"credential_revision":{malformed}}}"#)).is_err(), "{malformed}");
        }
        assert!(read(r#"{"generation":null}"#).is_err());
    }
}
