//! What nodes are told about each other: one record a node, and per scope a head over its records.
//!
//! The types here are documents that are signed, sent, stored by nodes and verified again at their next start. They
//! only grow: a field is added with a default, none is renamed or removed (golden bytes in `state/tests/golden/`).

use crate::model::{
    ApplianceId, Endpoint, Fingerprint, Millis, Name, NodeId, Revision, SealingKey, SigningKey, WireguardKey,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A set of records that a node is shown as a whole: `mesh/-` for the fleet's own nodes, `mesh/<org>` for an org's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope(Option<Name>);

impl Scope {
    /// The mesh scope of an org's nodes, or of the fleet's own.
    pub const fn mesh(org: Option<Name>) -> Self {
        Self(org)
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            None => f.write_str("mesh/-"),
            Some(org) => write!(f, "mesh/{org}"),
        }
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl TryFrom<String> for Scope {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match text.strip_prefix("mesh/") {
            Some("-") => Ok(Self(None)),
            Some(org) => Name::new(org).map(|org| Self(Some(org))).map_err(|e| e.to_string()),
            None => Err(format!("`{text}` is not a scope such as mesh/-")),
        }
    }
}

/// Whether a node has been heard lately, judged by the authority alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Liveness {
    /// Heard within 30 s.
    Here,
    /// Heard once, silent longer.
    OutOfTouch {
        /// When it was last heard.
        since: Millis,
    },
    /// The record exists, nothing was ever heard.
    NeverSpoken,
}

/// How a published service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A TCP port.
    Tcp,
    /// A UDP port.
    Udp,
    /// A TCP port that speaks HTTP: counts as TCP for SRV, ports and contests.
    Http,
}

/// What became of a node's claim to a (space, service) pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// The only claim: answered while the node is here.
    Routed,
    /// Somebody else claims it too: answered for nobody until one side withdraws or is removed.
    Contested {
        /// The other claimants, by name.
        with: Vec<Name>,
    },
}

/// One published service, as the node's record carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRecord {
    /// The space, e.g. `shop`.
    pub space: Name,
    /// The service, e.g. `web`.
    pub name: Name,
    /// How it is reached.
    pub protocol: Protocol,
    /// The port on the node's mesh address.
    pub port: u16,
    /// Whether it is routed.
    pub verdict: Verdict,
}

/// What one node is, for the others. The bytes of its JSON are what is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Format of this document: 1.
    pub format: u16,
    /// The node.
    pub id: NodeId,
    /// The number of the change that last altered this record.
    pub revision: Revision,
    /// Its name: `<name>.internal`.
    pub name: Name,
    /// Its tenant, none for the fleet's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// Where it is; none is a site of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// Whether it forwards between nodes that cannot reach each other.
    pub hub: bool,
    /// The appliance that runs on the same machine, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appliance: Option<ApplianceId>,
    /// Its mesh address.
    pub address: Ipv4Addr,
    /// Its second mesh address, where the fleet has an IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<Ipv6Addr>,
    /// What it signs with.
    pub signing_key: SigningKey,
    /// Its tunnel key.
    pub wireguard_key: WireguardKey,
    /// What credentials are sealed to.
    pub sealing_key: SealingKey,
    /// The UDP port its tunnel listens on.
    pub listen_port: u16,
    /// Endpoints that everybody can dial: declared by the operator, or by the node from its observed address.
    pub endpoints: Vec<Endpoint>,
    /// The node's own addresses with its listen port, dialable within its site.
    pub local_endpoints: Vec<Endpoint>,
    /// Whether it has been heard.
    pub liveness: Liveness,
    /// What it publishes, sorted by (space, name).
    pub services: Vec<ServiceRecord>,
}

/// A head of a scope: what the set of its records is, as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Format of this document: 1.
    pub format: u16,
    /// The fleet.
    pub fleet: crate::model::FleetId,
    /// The appliance whose key signs it.
    pub signer: ApplianceId,
    /// The scope.
    pub scope: Scope,
    /// The epoch in force.
    pub epoch: Epoch,
    /// The number of the change that last altered the set.
    pub revision: Revision,
    /// How many records there are.
    pub count: u64,
    /// SHA-256 over the records' (id, revision, hash), sorted by id: [`set_digest`].
    pub digest: Fingerprint,
    /// Facts of the whole fleet that a node needs beside the records.
    pub mesh: Mesh,
}

/// What holds for every node of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    /// The range that all mesh addresses come from.
    pub prefix: crate::model::Prefix,
    /// The second range, where the fleet has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix6: Option<ipnet::Ipv6Net>,
    /// The top-level name, `internal` unless the fleet chose another.
    pub suffix: Name,
    /// What `appliance.<suffix>` answers where no appliance is a node, primary first.
    pub appliances: Vec<std::net::IpAddr>,
}

/// Counts forced promotions; a higher epoch fences every lower one. Ordered by number, then by appliance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// 1 from the first start.
    pub number: u64,
    /// The appliance that raised it.
    pub appliance: ApplianceId,
}

/// That a record is gone, and why: the only thing that makes a node forget one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Format of this document: 1.
    pub format: u16,
    /// The node that is gone from the scope.
    pub id: NodeId,
    /// Which scope.
    pub scope: Scope,
    /// The number of the change that removed it.
    pub revision: Revision,
    /// Why.
    pub reason: Gone,
}

/// Why a record left a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gone {
    /// The node said that it leaves.
    Left,
    /// An operator removed it.
    Removed,
    /// An operator revoked its key: the node itself takes its mesh down.
    Revoked,
    /// It lives on, elsewhere.
    Moved,
}

/// The digest of a set of records, from each id to its revision and the hash of its bytes.
pub fn set_digest(set: &BTreeMap<NodeId, (Revision, Fingerprint)>) -> Fingerprint {
    let mut bytes = Vec::with_capacity(set.len() * 56);
    for (id, (revision, hash)) in set {
        bytes.extend_from_slice(id.0.as_bytes());
        bytes.extend_from_slice(&revision.0.to_be_bytes());
        bytes.extend_from_slice(hash.as_bytes());
    }
    crate::hash_of(b"holdfast/set/v1", &[&bytes])
}

/// The hash of a record's bytes, as [`set_digest`] takes it.
pub fn record_hash(bytes: &[u8]) -> Fingerprint {
    crate::hash_of(b"holdfast/record/v1", &[bytes])
}
