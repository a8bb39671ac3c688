//! `POST /v1/enroll`: a token and fresh keys in, a membership out.

use crate::wire::peers::PeerList;
use crate::wire::signed::Signed;
use serde::{Deserialize, Serialize};
use state::model::{Endpoint, Name, NodeId, SealingKey, SigningKey, WireguardKey};
use std::net::{Ipv4Addr, Ipv6Addr};

/// What a machine sends with its token. The request is signed like every other write, so the signing key is proven;
/// the client key is proven by its certificate signing request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolRequest {
    /// The fleet that the token names.
    pub audience: state::model::FleetId,
    /// The token's 256-bit secret in hexadecimal digits.
    pub secret: String,
    /// The key that the request is signed with.
    pub signing_key: SigningKey,
    /// The tunnel key.
    pub wireguard_key: WireguardKey,
    /// What credentials are to be sealed to.
    pub sealing_key: SealingKey,
    /// DER of a PKCS #10 request for the client certificate, in base64.
    pub certificate_request: String,
    /// The UDP port that the tunnel will listen on.
    pub listen_port: u16,
    /// The machine's own addresses with that port.
    pub local_endpoints: Vec<Endpoint>,
    /// `holdfast --version` of the machine.
    pub agent_version: String,
}

/// What a machine is told when it has been let in, by token or on the admission list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// Its id, for ever.
    pub node: NodeId,
    /// Its name.
    pub name: Name,
    /// Its mesh address.
    pub address: Ipv4Addr,
    /// Its second mesh address, where the fleet has an IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<Ipv6Addr>,
    /// Its bearer secret for all later calls, in hexadecimal digits.
    pub mesh_token: String,
    /// The certificate for its client key, PEM.
    pub client_certificate: String,
    /// The root-signed roster.
    pub roster: Signed,
    /// Heads and records of its scopes.
    pub peers: PeerList,
}
