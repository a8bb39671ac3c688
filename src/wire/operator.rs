//! The two local sockets: `operator.sock` of an appliance and `agent.sock` of a node. HTTP/1.1, JSON both ways, errors
//! as [`crate::wire::problem::Problem`], `Idempotency-Key` on every call that changes something.
//!
//! | operator socket | body | answer |
//! |---|---|---|
//! | `POST /v1/nodes` | [`AddNode`] | [`Minted`] |
//! | `POST /v1/nodes/{name}/token` | [`MintToken`] | [`Minted`] |
//! | `POST /v1/nodes/{name}/replace` | [`ReplaceNode`] | [`NodeView`] |
//! | `GET /v1/nodes` | | [`Nodes`] |
//! | `GET /v1/nodes/{name}` | | [`NodeView`] |
//! | `DELETE /v1/nodes/{name}?force=…&keep_admitted=…` | | [`Removed`] |
//! | `POST /v1/nodes/{name}/drain` | [`DrainNode`] | [`NodeView`] |
//! | `POST /v1/nodes/{name}/undrain` | [`Nothing`] | [`NodeView`] |
//! | `POST /v1/jobs` | [`RunJob`] | [`Jobs`] |
//! | `GET /v1/jobs?state=…&node=…` | | [`Jobs`] |
//! | `GET /v1/jobs/{id}` | | [`JobDetail`] |
//! | `POST /v1/jobs/{id}/cancel` | [`Nothing`] | [`JobDetail`] |
//! | `POST /v1/jobs/{id}/retry` | [`Nothing`] | [`JobDetail`] |
//! | `POST /v1/sources` | an archive | [`StoredSource`] |
//! | `GET /v1/pending` | | [`Pending`] |
//! | `POST /v1/admission/admit` | [`Admit`] | [`NodeView`] |
//! | `POST /v1/admission/revoke` | [`Revoke`] | [`Removed`] |
//! | `POST /v1/admission/tokens` | [`Nothing`] | [`Minted`] |
//! | `GET /v1/mesh` | | [`MeshView`] |
//! | `GET /v1/status` | | [`StatusView`] |
//! | `GET /v1/journal?after=…&limit=…` | | [`JournalPage`] |
//! | `GET /v1/journal/verify` | | [`JournalCheck`] |
//!
//! | agent socket | body | answer |
//! |---|---|---|
//! | `GET /v1/agent` | | [`AgentView`] |
//! | `GET /v1/agent/plan` | | [`PlanView`] |
//! | `POST /v1/agent/down` | [`Nothing`] | [`Done`] |
//! | `POST /v1/agent/leave` | [`Nothing`] | [`Done`] |
//! | `POST /v1/services` | [`Publish`] | [`Published`] |
//! | `DELETE /v1/services/{space}/{name}` | | [`Done`] |
//!
//! Every document that a person or a script reads has `schema`, and its keys are only ever added to.

#[cfg(test)]
mod golden;
mod jobs;

pub use jobs::{DrainNode, JobDetail, JobView, Jobs, LogLine, On, ResultView, RunJob, STATES, StoredSource};

use crate::wire::jobs::Capability;
use crate::wire::peers::ClaimVerdict;
use serde::{Deserialize, Serialize};
use state::model::{ApplianceId, Endpoint, Fingerprint, FleetId, Name, NodeId, Prefix, Revision, SigningKey};
use state::view::records::{Epoch, Liveness, Protocol};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The version of the documents here. A change that takes a key away or alters its meaning raises it.
pub const SCHEMA: u16 = 1;

/// An instant as RFC 3339 in UTC, made by `crate::clock::rfc3339`.
pub type Instant = String;

/// `POST /v1/nodes`: make the record of a node that is yet to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddNode {
    /// Its name.
    pub name: Name,
    /// Where it is.
    #[serde(default)]
    pub site: Option<Name>,
    /// Its tenant.
    #[serde(default)]
    pub org: Option<Name>,
    /// Where everybody can dial it.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// Whether it forwards between others.
    #[serde(default)]
    pub hub: bool,
    /// Whether new keys may take over a dead node's name and address.
    #[serde(default)]
    pub replace: bool,
    /// The token's life; an hour where absent.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

/// The body of a call that has nothing to say: `{}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// `POST /v1/nodes/{name}/token`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MintToken {
    /// The token's life; an hour where absent.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

/// A token that was just made. Shown once; no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct Minted {
    /// The whole line, `hfj1_…` or `hfa1_…`.
    pub token: String,
    /// When it ends; an admission token lasts until it is withdrawn.
    pub expires: Option<Instant>,
}

impl Drop for Minted {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.token);
    }
}

/// `POST /v1/nodes/{name}/replace`: a key that is pending takes over a dead node's name and address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceNode {
    /// The pending key.
    pub key: SigningKey,
}

/// `POST /v1/admission/admit`: let a pending key in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admit {
    /// The key.
    pub key: SigningKey,
    /// Another name than the one proposed.
    #[serde(default)]
    pub name: Option<Name>,
    /// Another site than the one proposed.
    #[serde(default)]
    pub site: Option<Name>,
}

/// `POST /v1/admission/revoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// A node's name or a signing key.
    pub who: String,
}

/// What was removed or revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The node's name, where there was one.
    pub name: Option<Name>,
    /// Its signing key, where it had one.
    pub signing_key: Option<SigningKey>,
    /// Whether the key may still come back by itself.
    pub still_admitted: bool,
}

/// Whether a node has been heard, as people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LivenessWord {
    /// Within 30 s.
    Here,
    /// Once, and silent longer.
    OutOfTouch,
    /// Never.
    NeverSpoken,
}

impl From<Liveness> for LivenessWord {
    fn from(liveness: Liveness) -> Self {
        match liveness {
            Liveness::Here => Self::Here,
            Liveness::OutOfTouch { .. } => Self::OutOfTouch,
            Liveness::NeverSpoken => Self::NeverSpoken,
        }
    }
}

/// One published service of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// The space.
    pub space: Name,
    /// The service.
    pub name: Name,
    /// How it is reached.
    pub protocol: Protocol,
    /// The port on the node's mesh address.
    pub port: u16,
    /// What became of the claim.
    pub verdict: ClaimVerdict,
}

/// One node. Every key is always there; what is unknown is `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// The node.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Where it is.
    pub site: Option<Name>,
    /// Whether it forwards between others.
    pub hub: bool,
    /// Its mesh address; none before it joined.
    pub address: Option<Ipv4Addr>,
    /// Its second mesh address.
    pub address6: Option<Ipv6Addr>,
    /// Where others dial it: declared, else as the appliance sees it.
    pub endpoint: Option<Endpoint>,
    /// Whether it has been heard.
    pub liveness: LivenessWord,
    /// When it was last heard.
    pub last_seen: Option<Instant>,
    /// What it publishes.
    pub services: Vec<ServiceView>,
    /// The spaces that it publishes in.
    pub spaces: Vec<Name>,
    /// What it signs with; none before it joined.
    pub signing_key: Option<SigningKey>,
    /// `holdfast --version` there.
    pub agent_version: Option<String>,
    /// The revision that it should hold.
    pub declared_revision: Option<Revision>,
    /// The revision that it said it holds.
    pub held_revision: Option<Revision>,
    /// That it is given no new jobs; left out of a node that is given some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainView>,
    /// What its machine says that it can do: `present`, `absent` or `unknown`; left out before it has said anything.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capabilities: BTreeMap<Name, Capability>,
}

/// How a node is drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// When what it still does must have stopped; none: it may end its work.
    pub until: Option<Instant>,
}

/// `GET /v1/nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// [`SCHEMA`].
    pub schema: u16,
    /// By name.
    pub nodes: Vec<NodeView>,
}

/// A machine that asked to be let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingView {
    /// Its signing key.
    pub signing_key: SigningKey,
    /// The key's short form, to compare with what the machine shows.
    pub words: String,
    /// The name that it proposes.
    pub name: Option<Name>,
    /// The site that it proposes.
    pub site: Option<Name>,
    /// Where the last attempt came from.
    pub source: IpAddr,
    /// When it first asked.
    pub first_attempt: Instant,
    /// When it last asked.
    pub last_attempt: Instant,
}

/// `GET /v1/pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The last to ask first.
    pub pending: Vec<PendingView>,
}

/// One node as the mesh reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshNode {
    /// Its name.
    pub name: Name,
    /// Where it is.
    pub site: Option<Name>,
    /// Its mesh address.
    pub address: Ipv4Addr,
    /// Its second mesh address.
    pub address6: Option<Ipv6Addr>,
    /// Whether it forwards between others.
    pub hub: bool,
    /// Where everybody can dial it; none means through a hub, or from its own site.
    pub endpoints: Vec<Endpoint>,
    /// Where its own site can dial it.
    pub local_endpoints: Vec<Endpoint>,
    /// Whether it has been heard.
    pub liveness: LivenessWord,
}

/// `GET /v1/mesh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshView {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The range of the mesh addresses.
    pub prefix: Prefix,
    /// The second range.
    pub prefix6: Option<ipnet::Ipv6Net>,
    /// The top-level name.
    pub suffix: Name,
    /// Addresses given out or reserved.
    pub addresses_used: u64,
    /// Addresses left.
    pub addresses_free: u64,
    /// By name.
    pub nodes: Vec<MeshNode>,
}

/// How many nodes there are of each liveness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    /// Heard within 30 s.
    pub here: u64,
    /// Silent longer.
    pub out_of_touch: u64,
    /// Never heard.
    pub never_spoken: u64,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The fleet's name.
    pub fleet: Name,
    /// The fleet.
    pub fleet_id: FleetId,
    /// This appliance.
    pub appliance: ApplianceId,
    /// `holdfast --version` of the running process.
    pub version: String,
    /// The pin of its TLS leaf.
    pub fingerprint: Fingerprint,
    /// Where nodes are told to reach it.
    pub advertised: Vec<Endpoint>,
    /// The epoch in force.
    pub epoch: Epoch,
    /// The number of the last change.
    pub revision: Revision,
    /// SHA-256 of the whole state.
    pub state_hash: Option<Fingerprint>,
    /// When the process started.
    pub since: Instant,
    /// The range of the mesh addresses.
    pub mesh_prefix: Prefix,
    /// Nodes by liveness.
    pub nodes: NodeCounts,
    /// How many machines ask to be let in.
    pub pending: u64,
    /// Names that two nodes claim, as `service.space`.
    pub contested: Vec<String>,
    /// What needs a person, in words; empty means all is well.
    pub attention: Vec<String>,
}

/// One change of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Its number, gap-free from 1.
    pub change: Revision,
    /// When it was decided.
    pub at: Instant,
    /// Who asked, in words: `uid 0`, `node web-1`, `appliance`.
    pub actor: String,
    /// In which call.
    pub request: String,
    /// What was asked for, e.g. `node.add`.
    pub kind: String,
    /// What became true.
    pub events: Vec<serde_json::Value>,
}

/// `GET /v1/journal?after=…&limit=…`: the changes above `after`, at most `limit` of them; without `after` the last ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPage {
    /// [`SCHEMA`].
    pub schema: u16,
    /// Oldest first.
    pub changes: Vec<JournalEntry>,
    /// The number of the last change of the whole journal.
    pub last: Revision,
}

/// `GET /v1/journal/verify`: every batch read, hashed and replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalCheck {
    /// [`SCHEMA`].
    pub schema: u16,
    /// Whether nothing was found wrong.
    pub ok: bool,
    /// Batches read.
    pub batches: u64,
    /// Changes replayed.
    pub changes: u64,
    /// The hash of the last batch.
    pub head: Option<Fingerprint>,
    /// The hash of the state that the replay gave.
    pub state_hash: Option<Fingerprint>,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

/// `POST /v1/services` on the agent: claim a name for a port of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// The space.
    pub space: Name,
    /// The service.
    pub name: Name,
    /// How it is reached.
    pub protocol: Protocol,
    /// The port on the node's mesh address.
    pub port: u16,
    /// Where the service really listens, if not on that port of the mesh address.
    #[serde(default)]
    pub target: Option<SocketAddr>,
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The name that others resolve.
    pub name: String,
    /// The appliance's verdict; none means kept here and sent when an appliance answers again.
    pub verdict: Option<ClaimVerdict>,
}

/// Done, and nothing more to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// [`SCHEMA`].
    pub schema: u16,
    /// What was done, in words.
    pub done: String,
}

/// One peer as the node's tunnel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Its name; none for a peer of the device that no record explains.
    pub name: Option<Name>,
    /// Its mesh address.
    pub address: Option<Ipv4Addr>,
    /// Where its packets go.
    pub endpoint: Option<SocketAddr>,
    /// The hub between, where it is not reached directly.
    pub via: Option<Name>,
    /// Why it is reached as it is, or why not: `b can be dialled at 203.0.113.7:51820`.
    #[serde(default)]
    pub path: Option<String>,
    /// Bytes received from it, where it is reached directly.
    #[serde(default)]
    pub received_bytes: Option<u64>,
    /// Bytes sent to it, where it is reached directly.
    #[serde(default)]
    pub sent_bytes: Option<u64>,
    /// Seconds since the last handshake.
    pub handshake_age_seconds: Option<u64>,
    /// The authority's last verdict on it.
    pub liveness: Option<LivenessWord>,
}

/// `GET /v1/agent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentView {
    /// [`SCHEMA`].
    pub schema: u16,
    /// The fleet's name.
    pub fleet: Name,
    /// The node; none before it was let in.
    pub node: Option<NodeId>,
    /// Its name.
    pub name: Option<Name>,
    /// Its mesh address.
    pub address: Option<Ipv4Addr>,
    /// Its second mesh address.
    pub address6: Option<Ipv6Addr>,
    /// The mesh interface.
    pub ifname: String,
    /// The UDP port of the tunnel.
    pub listen_port: u16,
    /// `kernel` or `userspace`.
    pub tunnel: String,
    /// Whether kernel and data plane are as wanted.
    pub up: bool,
    /// The appliance that answered last.
    pub authority: Option<Endpoint>,
    /// When an appliance last answered.
    pub last_contact: Option<Instant>,
    /// The revision of the list held.
    pub revision: Revision,
    /// The revision of the roster held.
    #[serde(default)]
    pub roster_revision: Revision,
    /// The highest epoch accepted.
    pub epoch: Option<Epoch>,
    /// By name.
    pub peers: Vec<PeerView>,
    /// What this node publishes; a claim that has not been judged yet is not among them.
    pub services: Vec<ServiceView>,
    /// What is wrong, in words; empty means all is well.
    pub problems: Vec<String>,
}

/// `GET /v1/agent/plan`: what the reconciler would do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanView {
    /// [`SCHEMA`].
    pub schema: u16,
    /// One line a step, in order; empty means everything is as wanted.
    pub steps: Vec<String>,
}
