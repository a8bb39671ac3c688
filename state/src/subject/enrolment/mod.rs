//! The two ways in, and the secrets and certificates that prove membership afterwards.
//!
//! Secrets are random and long, so their SHA-256 is what is kept. Unknown, spent and expired tokens are refused alike.

mod apply;
mod certificates;
mod rules;

pub(crate) use apply::{apply, forget};
pub use certificates::{certificate_refused, holder, is_successor};
pub(crate) use rules::{admitted_as, decide};
pub use rules::{id_of, token_refused};

use crate::model::{ApplianceId, Endpoint, Fingerprint, Millis, Name, NodeId, SealingKey, SigningKey, WireguardKey};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A token that lets one machine in, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The node it is for.
    pub node: NodeId,
    /// When it ends.
    pub expires: Millis,
    /// Which keys may use it.
    pub good_for: GoodFor,
}

/// Which keys may use a token: decided when it is made, never when it is presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoodFor {
    /// Any: the node has not joined yet.
    AnyKey,
    /// Only the node's recorded key.
    RecordedKey,
    /// New keys, which take over the node's name and address.
    NewKey,
}

/// A key that an operator let in before it registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// The id that it will have.
    pub id: NodeId,
    /// The name that it will have.
    pub name: Name,
    /// Its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// Its site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// Whether it forwards.
    pub hub: bool,
    /// Endpoints given by the operator.
    pub endpoints: Vec<Endpoint>,
}

/// A node's client certificate. The window is judged against it as well as against the X.509 one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Whose it is.
    pub node: NodeId,
    /// Good from.
    pub not_before: Millis,
    /// Good until.
    pub not_after: Millis,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Enrolment {
    /// Unspent tokens by the SHA-256 of their secret; at most one a node.
    pub tokens: OrdMap<Fingerprint, Token>,
    /// Reusable secrets, good for asking to be admitted and nothing else.
    pub admission_tokens: OrdMap<Fingerprint, Millis>,
    /// Keys let in that have not registered yet.
    pub admitted: OrdMap<SigningKey, Admitted>,
    /// Bearer secrets of nodes.
    pub mesh_tokens: OrdMap<Fingerprint, NodeId>,
    /// Client certificates by the SHA-256 of their DER.
    pub certificates: OrdMap<Fingerprint, Certificate>,
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a node and its first token, or with `replace` a token for new keys of a known node.
    AddNode(Box<AddNode>),
    /// A new token for a known node; the outstanding one ends.
    IssueToken {
        /// The node.
        name: Name,
        /// SHA-256 of the secret.
        token: Fingerprint,
        /// When it ends.
        expires: Millis,
    },
    /// A reusable secret for asking to be admitted.
    IssueAdmissionToken {
        /// SHA-256 of the secret.
        token: Fingerprint,
    },
    /// Lets a key in.
    Admit {
        /// The key.
        key: SigningKey,
        /// The node's name.
        name: Name,
        /// Its org.
        org: Option<Name>,
        /// Its site.
        site: Option<Name>,
        /// A fresh id, used unless the key had one before.
        id: NodeId,
    },
    /// Lets a key take over a dead node's name and address.
    Replace {
        /// The key.
        key: SigningKey,
        /// The node.
        name: Name,
        /// Whether it was heard within two minutes (soft state, so the caller says it).
        live: bool,
    },
    /// A machine joins, with a token or with an admitted key.
    Join(Box<Join>),
    /// A node is given its next client certificate.
    RenewCertificate {
        /// The certificate that it asks by.
        by: Fingerprint,
        /// The next one.
        certificate: Fingerprint,
        /// The next one's window.
        window: (Millis, Millis),
    },
    /// A node that has no certificate that is good asks by its signing key.
    IssueCertificate {
        /// The key that signed the request.
        key: SigningKey,
        /// The request's `seq`.
        seq: u64,
        /// SHA-256 of the DER of the certificate that it is given.
        certificate: Fingerprint,
        /// The certificate's window.
        window: (Millis, Millis),
    },
    /// A node has used a certificate: those before it end.
    UseCertificate {
        /// Which.
        certificate: Fingerprint,
    },
}

/// See [`Command::AddNode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddNode {
    /// A fresh id.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Its org.
    pub org: Option<Name>,
    /// Its site.
    pub site: Option<Name>,
    /// Whether it forwards.
    pub hub: bool,
    /// The appliance on the same machine.
    pub appliance: Option<ApplianceId>,
    /// Where everybody can dial it.
    pub endpoints: Vec<Endpoint>,
    /// SHA-256 of the token's secret.
    pub token: Fingerprint,
    /// When the token ends.
    pub expires: Millis,
    /// New keys shall take over a known node.
    pub replace: bool,
}

/// See [`Command::Join`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// SHA-256 of the presented secret; none for a key on the admission list.
    pub token: Option<Fingerprint>,
    /// The key that the request was signed with.
    pub signing_key: SigningKey,
    /// The tunnel key.
    pub wireguard_key: WireguardKey,
    /// The sealing key.
    pub sealing_key: SealingKey,
    /// UDP port of the tunnel.
    pub listen_port: u16,
    /// The machine's own addresses.
    pub local_endpoints: Vec<Endpoint>,
    /// Version of its binary.
    pub agent_version: String,
    /// SHA-256 of the bearer secret that it is given.
    pub mesh_token: Fingerprint,
    /// SHA-256 of the DER of the client certificate that it is given.
    pub certificate: Fingerprint,
    /// The certificate's window.
    pub window: (Millis, Millis),
    /// The `seq` of a registering request; 0 with a token.
    pub seq: u64,
}

impl Command {
    /// The kind that the journal shows.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::AddNode(_) => "node.add",
            Self::IssueToken { .. } => "node.token",
            Self::IssueAdmissionToken { .. } => "admission.token",
            Self::Admit { .. } => "node.admit",
            Self::Replace { .. } => "node.replace",
            Self::Join(_) => "node.join",
            Self::RenewCertificate { .. } => "certificate.renew",
            Self::IssueCertificate { .. } => "certificate.issue",
            Self::UseCertificate { .. } => "certificate.use",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// A node exists in the registry.
    NodeAdded {
        /// The node, not joined yet.
        node: Added,
    },
    /// A token for a node is good; any other one of that node is not any more.
    TokenIssued {
        /// SHA-256 of its secret.
        token: Fingerprint,
        /// Which node, until when, for which keys.
        grant: Token,
    },
    /// A reusable admission secret is good.
    AdmissionTokenIssued {
        /// SHA-256 of it.
        token: Fingerprint,
    },
    /// A key is let in.
    KeyAdmitted {
        /// The key.
        key: SigningKey,
        /// What it will be.
        admitted: Admitted,
    },
    /// A machine has joined: token spent, keys bound, address assigned, certificate issued.
    Joined(Joined),
    /// A node has one more client certificate.
    CertificateIssued {
        /// The node.
        node: NodeId,
        /// SHA-256 of its DER.
        certificate: Fingerprint,
        /// Good from.
        not_before: Millis,
        /// Good until.
        not_after: Millis,
    },
    /// Client certificates of a node are good no more.
    CertificatesRetired {
        /// The node.
        node: NodeId,
        /// SHA-256 of their DER.
        certificates: Vec<Fingerprint>,
    },
}

/// See [`Event::Joined`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The node.
    pub node: NodeId,
    /// The spent token; none for an admitted key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Fingerprint>,
    /// What it signs with.
    pub signing_key: SigningKey,
    /// Its tunnel key.
    pub wireguard_key: WireguardKey,
    /// Its sealing key.
    pub sealing_key: SealingKey,
    /// Its address.
    pub address: Ipv4Addr,
    /// UDP port of its tunnel.
    pub listen_port: u16,
    /// Its own addresses.
    pub local_endpoints: Vec<Endpoint>,
    /// Version of its binary.
    pub agent_version: String,
    /// SHA-256 of its bearer secret.
    pub mesh_token: Fingerprint,
    /// SHA-256 of its certificate.
    pub certificate: Fingerprint,
    /// The certificate's window.
    pub not_before: Millis,
    /// The certificate's window.
    pub not_after: Millis,
    /// Floor of its `seq`.
    pub seq: u64,
}

/// What an operator says of a node when adding it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// The node.
    pub id: NodeId,
    /// Its name.
    pub name: Name,
    /// Its org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<Name>,
    /// Its site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Name>,
    /// Whether it forwards.
    pub hub: bool,
    /// The appliance on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appliance: Option<ApplianceId>,
    /// Where everybody can dial it.
    pub endpoints: Vec<Endpoint>,
}
