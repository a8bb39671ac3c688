//! Work that happens once: queued for one node, leased to it under a fence, and answered for.
//!
//! A lease's deadline is not here: it lives on the primary's boot clock, because a heartbeat must cost no disk. What is
//! here is who holds which attempt, and that is what every later call is checked against.

use crate::model::{JobId, Name, NodeId};
use serde::{Deserialize, Serialize};

/// Which of a node's two independent, serial lanes takes a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// `network.*` jobs: short, never behind a workload.
    Network,
    /// Everything else.
    Workload,
}

/// What is to be done. Typed operations only; a kind is added here, and as one file on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields)]
pub enum Spec {
    /// Make the mesh on the node what it should be, and read it back.
    #[serde(rename = "network.ensure")]
    NetworkEnsure {},
    /// Read the mesh on the node and compare.
    #[serde(rename = "network.check")]
    NetworkCheck {},
    /// Take the mesh on the node down until its agent starts again.
    #[serde(rename = "network.withdraw")]
    NetworkWithdraw {},
    /// Ask a service for an answer, from the node.
    #[serde(rename = "service.check")]
    ServiceCheck {
        /// How.
        probe: Probe,
        /// The longest it may take, seconds.
        timeout_s: u16,
    },
}

/// How a service is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
    /// A TCP connection to `host:port` is accepted.
    Tcp(String),
    /// `GET` of an `http://` URL answers with a status below 400.
    Http(String),
    /// A name has an address, asked at `server` (`address:port`) or at the node's own resolver.
    Dns {
        /// The name.
        name: String,
        /// Where to ask.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<String>,
    },
    /// A PostgreSQL server at `host:port` answers a start-up message.
    Postgres(String),
}

impl Spec {
    /// The kind as people write it, e.g. `service.check`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NetworkEnsure {} => "network.ensure",
            Self::NetworkCheck {} => "network.check",
            Self::NetworkWithdraw {} => "network.withdraw",
            Self::ServiceCheck { .. } => "service.check",
        }
    }

    /// The lane that takes it.
    pub const fn lane(&self) -> Lane {
        match self {
            Self::NetworkEnsure {} | Self::NetworkCheck {} | Self::NetworkWithdraw {} => Lane::Network,
            Self::ServiceCheck { .. } => Lane::Workload,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Succeeded,
    /// Not done, and trying again would not help.
    Failed,
    /// Not done; another attempt may be made.
    Retryable,
}

/// A job that is to be queued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// A fresh id.
    pub id: JobId,
    /// The node that is to do it.
    pub node: NodeId,
    /// Its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// What.
    pub spec: Spec,
    /// How often it may be tried.
    pub attempts: u32,
}
