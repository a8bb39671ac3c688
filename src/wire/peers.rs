//! `/v1/peers…`: signed requests, registering, and the signed lists that answer them.

use crate::wire::enrol::Enrolled;
use crate::wire::signed::Signed;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use state::model::{Endpoint, Fingerprint, FleetId, Millis, Name, NodeId, Revision, SealingKey, WireguardKey};
use state::view::records::{Epoch, Protocol, Verdict};

/// The key that signs the request, 64 hexadecimal digits. Beside it goes `Authorization: Bearer <mesh token>`. Names are
/// in lower case, as HTTP libraries give them.
pub const HEADER_KEY: &str = "holdfast-key";
/// Unix milliseconds, decimal.
pub const HEADER_TIMESTAMP: &str = "holdfast-timestamp";
/// 64 bytes in hexadecimal digits.
pub const HEADER_SIGNATURE: &str = "holdfast-signature";
/// The nonce of a `clock_skew` refusal, sent back once in place of a good clock.
pub const HEADER_NONCE: &str = "holdfast-nonce";
/// At least 128 random bits in hexadecimal digits, on every call that changes something.
pub const HEADER_IDEMPOTENCY: &str = "idempotency-key";

/// The four lines that a request's signature covers: method, path with query, timestamp, hex SHA-256 of the body.
pub fn signed_lines(method: &str, path_and_query: &str, timestamp: &str, body: &[u8]) -> String {
    format!("{method}\n{path_and_query}\n{timestamp}\n{}", hex::encode(Sha256::digest(body)))
}

/// One published service, as its node claims it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceClaim {
    /// The space.
    pub space: Name,
    /// The service.
    pub name: Name,
    /// How it is reached.
    pub protocol: Protocol,
    /// The port on the node's mesh address.
    pub port: u16,
}

/// What every signed body begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Rises with every request of the node; reserved on its disk in blocks.
    pub seq: u64,
    /// The fleet that the request is meant for.
    pub audience: FleetId,
    /// The highest epoch that the node has accepted; absent before its first answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

/// `POST /v1/peers/register`: the node's full present state, and its heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterBody {
    /// Sequence, audience, epoch.
    pub envelope: Envelope,
    /// Made at random by each start of the agent.
    pub instance: uuid::Uuid,
    /// The tunnel key.
    pub wireguard_key: WireguardKey,
    /// What credentials are sealed to.
    pub sealing_key: SealingKey,
    /// The UDP port that the tunnel listens on.
    pub listen_port: u16,
    /// Endpoints that the node declares for itself; each must have its observed source address.
    pub endpoints: Vec<Endpoint>,
    /// The machine's own addresses with the listen port.
    pub local_endpoints: Vec<Endpoint>,
    /// What it publishes.
    pub services: Vec<ServiceClaim>,
    /// `holdfast --version` of the machine.
    pub agent_version: String,
    /// The revision of the roster that it holds.
    pub roster_revision: Revision,
    /// The revision of its peer list.
    pub held_revision: Revision,
    /// Given only by a machine that is not enrolled yet and knocks on the admission list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knock: Option<Knock>,
}

impl RegisterBody {
    /// SHA-256 of what it says without its envelope and without the revisions that it holds: two registers with the
    /// same one say the same of their node, and a presence may stand for either.
    pub fn content(&self) -> Fingerprint {
        let bare = Self {
            envelope: Envelope { seq: 0, audience: FleetId(uuid::Uuid::nil()), epoch: None },
            roster_revision: Revision(0),
            held_revision: Revision(0),
            ..self.clone()
        };
        state::hash_of(b"holdfast/register/v1", &[&state::to_bytes(&bare)])
    }
}

/// What a machine imaged ahead of time proposes when it asks to be admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knock {
    /// The name it would like.
    pub name: Name,
    /// Where it says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// DER of a PKCS #10 request for the client certificate, in base64.
    pub certificate_request: String,
}

/// What became of one claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum ClaimVerdict {
    /// The only claim.
    Routed,
    /// Recorded, and answered for nobody.
    Contested {
        /// The other claimants.
        with: Vec<Name>,
    },
    /// Not recorded.
    Refused {
        /// Why, as a stable code.
        code: String,
        /// Why, in words.
        why: String,
    },
}

impl From<Verdict> for ClaimVerdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Routed => Self::Routed,
            Verdict::Contested { with } => Self::Contested { with },
        }
    }
}

/// A claim and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The space.
    pub space: Name,
    /// The service.
    pub name: Name,
    /// What became of it.
    pub verdict: ClaimVerdict,
}

/// The answer to a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterAnswer {
    /// The revision of the newest head of the node's scopes.
    pub revision: Revision,
    /// The epoch in force.
    pub epoch: Epoch,
    /// The appliance's clock.
    pub now: Millis,
    /// One for each claim of the body, in its order.
    pub services: Vec<Judged>,
    /// The roster, when the node holds an older one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roster: Option<Signed>,
    /// For a machine that has just been let in on the admission list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolled: Option<Enrolled>,
    /// Two machines use this node's keys: what it registers is not taken over until one makes keys of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate_identity: bool,
}

/// `DELETE /v1/peers/<id>`: the node leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveBody {
    /// Sequence, audience, epoch.
    pub envelope: Envelope,
    /// The node that leaves: the caller itself.
    pub node: NodeId,
}

/// `POST /v1/peers/certificate`: a node that has no client certificate that is good asks for one by its signing key. The
/// answer is a [`Renewed`](crate::wire::jobs::Renewed).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateBody {
    /// Sequence, audience, epoch.
    pub envelope: Envelope,
    /// DER of a PKCS #10 request for a fresh key, in base64.
    pub certificate_request: String,
}

/// Heads with records: the answer of `GET /v1/peers`, each line of `GET /v1/peers/watch?after=REV`, and `peers.json`.
///
/// As a full list it has every record of each head's scope. As a delta it has the heads that changed, the records whose
/// revision is above `after`, and the tombstones above it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerList {
    /// Signed heads, one a scope.
    pub heads: Vec<Signed>,
    /// Signed node records; one that is in several scopes stands once.
    pub records: Vec<Signed>,
    /// Signed tombstones.
    pub tombstones: Vec<Signed>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_lines_are_pinned() {
        assert_eq!(
            signed_lines("GET", "/v1/peers?after=7", "1700000000000", b""),
            "GET\n/v1/peers?after=7\n1700000000000\n\
             e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(
            signed_lines("POST", "/v1/peers/register", "1", b"{}"),
            "POST\n/v1/peers/register\n1\n44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        );
    }
}
