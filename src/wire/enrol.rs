//! `POST /v1/enroll`: a token and fresh keys in, a membership out.

use crate::wire::peers::PeerList;
use crate::wire::signed::Signed;
use serde::{Deserialize, Serialize};
use state::model::{Endpoint, Name, NodeId, SealingKey, SigningKey, WireguardKey};
use std::net::{Ipv4Addr, Ipv6Addr};

/// What a machine sends with its token. The request is signed like every other write, so the signing key is proven;
/// the client key is proven by its certificate signing request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl std::fmt::Debug for EnrolRequest {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrolRequest").field("signing_key", &self.signing_key).finish_non_exhaustive()
    }
}

/// What a machine is told when it has been let in, by token or on the admission list.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl std::fmt::Debug for Enrolled {
    /// Without the bearer secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrolled").field("node", &self.node).field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use state::model::FleetId;

    #[test]
    fn no_secret_is_shown() {
        let secret = "5e".repeat(32);
        let request = EnrolRequest {
            audience: FleetId(uuid::Uuid::from_u128(1)),
            secret: secret.clone(),
            signing_key: SigningKey::from_bytes([1; 32]),
            wireguard_key: WireguardKey::from_bytes([2; 32]),
            sealing_key: SealingKey::from_bytes([3; 32]),
            certificate_request: "AAAA".into(),
            listen_port: 51820,
            local_endpoints: vec![],
            agent_version: "1".into(),
        };
        let enrolled = Enrolled {
            node: NodeId(uuid::Uuid::from_u128(2)),
            name: Name::new("web").unwrap(),
            address: Ipv4Addr::new(10, 90, 0, 2),
            address6: None,
            mesh_token: secret.clone(),
            client_certificate: String::new(),
            roster: Signed { document: String::new(), signature: String::new() },
            peers: PeerList::default(),
        };
        let shown = format!("{request:?} {enrolled:?}");
        assert!(shown.contains(&"01".repeat(32)) && !shown.contains(&secret), "{shown}");
    }
}
