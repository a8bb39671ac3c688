//! The two ways in: `POST /v1/enroll` with a token, and the first register of an admitted key.
//!
//! The certificate is issued before the change is submitted, and the change holds its fingerprint and window. The bearer
//! secret is made here too, and only its hash goes into the change.

use crate::authority::records::Records;
use crate::authority::refusal::{self, Refused};
use crate::authority::request::{Now, Request};
use crate::authority::{Authority, body, receipt::Claim};
use crate::limits;
use crate::wire::enrol::{EnrolRequest, Enrolled};
use crate::wire::peers::{Knock, PeerList, RegisterBody};
use crate::wire::signed::Signed;
use sha2::{Digest, Sha256};
use state::model::{Fingerprint, Millis, NodeId, SigningKey};
use state::subject::enrolment::{self, Admitted, Join};
use state::{Command, State};
use zeroize::Zeroizing;

/// A machine on its way in: what is asked of the writer, and what it will be told.
pub struct Joining {
    /// The command.
    pub command: Command,
    /// The key that joins.
    pub key: SigningKey,
    mesh_token: Zeroizing<String>,
    certificate: String,
}

/// An enrolment whose request is well-formed, rightly signed and within the limits.
pub struct Presented {
    /// What it says.
    pub body: EnrolRequest,
    /// Where its receipt is kept.
    pub claim: Claim,
    /// When that may go: with the token.
    pub expires: Millis,
    token: Fingerprint,
}

impl Presented {
    /// What makes another request a repetition of this one: the same keys.
    pub fn keys(&self) -> Vec<u8> {
        let EnrolRequest { signing_key, wireguard_key, sealing_key, .. } = &self.body;
        [signing_key.as_bytes().as_slice(), wireguard_key.as_bytes(), sealing_key.as_bytes()].concat()
    }
}

impl Authority {
    /// The checks of an enrolment: size, rate, signature, body, audience. Its clock does not matter, because the token
    /// ends by the appliance's.
    pub fn examine_enrolment(&self, state: &State, request: &Request<'_>, now: Now) -> Result<Presented, Refused> {
        let bytes = request.body.ok_or_else(refusal::too_large)?;
        if !self.soft().enrolments.attempt(request.source, now.boot) {
            return Err(refusal::too_many());
        }
        let (key, _) = request.signer(bytes).ok_or_else(refusal::bad_signature)?;
        let body: EnrolRequest = body::parse(bytes).map_err(refusal::invalid)?;
        if body.signing_key != key {
            return Err(refusal::invalid("the request is signed with another key than the one it brings"));
        }
        if body.local_endpoints.len() > limits::ENDPOINTS {
            return Err(refusal::invalid(format!("a node has at most {} endpoints", limits::ENDPOINTS)));
        }
        refusal::check_audience(state, body.audience)?;
        let mut secret = Zeroizing::new([0; 32]);
        hex::decode_to_slice(&body.secret, secret.as_mut_slice())
            .map_err(|_| refusal::invalid("`secret` is not 64 hexadecimal digits"))?;
        let token = Fingerprint::from_bytes(Sha256::digest(secret.as_slice()).into());
        let expires = state.enrolment.tokens.get(&token).map_or(now.wall, |grant| grant.expires);
        Ok(Presented { claim: Claim::by_token(&secret), expires, token, body })
    }

    /// A machine with a token that is good so far. Unknown, spent and expired are refused alike.
    pub fn enrol(&self, state: &State, presented: &Presented, now: Now) -> Result<Joining, Refused> {
        let grant = state.enrolment.tokens.get(&presented.token);
        let trusted = now.wall >= state.at;
        let Some(grant) = grant.filter(|grant| !trusted || now.wall < grant.expires) else {
            let reason = if grant.is_some() { "expired" } else { "unknown or spent" };
            tracing::info!(key = %presented.body.signing_key, reason, "a token was refused");
            return Err(refusal::from_decision(&enrolment::token_refused()));
        };
        let EnrolRequest { wireguard_key, sealing_key, listen_port, .. } = presented.body;
        let join = Join {
            token: Some(presented.token),
            signing_key: presented.body.signing_key,
            wireguard_key,
            sealing_key,
            listen_port,
            local_endpoints: presented.body.local_endpoints.clone(),
            agent_version: presented.body.agent_version.clone(),
            mesh_token: Fingerprint::from_bytes([0; 32]),
            certificate: Fingerprint::from_bytes([0; 32]),
            window: (Millis(0), Millis(0)),
            seq: 0,
        };
        let node = enrolment::id_of(state, &join.signing_key, grant.node);
        self.joining(state, join, node, &presented.body.certificate_request, now)
    }

    /// A machine whose key was let in and that registers for the first time.
    pub fn join_admitted(
        &self,
        state: &State,
        admitted: &Admitted,
        key: SigningKey,
        body: &RegisterBody,
        knock: &Knock,
        now: Now,
    ) -> Result<Joining, Refused> {
        let join = Join {
            token: None,
            signing_key: key,
            wireguard_key: body.wireguard_key,
            sealing_key: body.sealing_key,
            listen_port: body.listen_port,
            local_endpoints: body.local_endpoints.clone(),
            agent_version: body.agent_version.clone(),
            mesh_token: Fingerprint::from_bytes([0; 32]),
            certificate: Fingerprint::from_bytes([0; 32]),
            window: (Millis(0), Millis(0)),
            seq: body.envelope.seq,
        };
        self.joining(state, join, admitted.id, &knock.certificate_request, now)
    }

    fn joining(
        &self,
        state: &State,
        mut join: Join,
        node: NodeId,
        request: &str,
        now: Now,
    ) -> Result<Joining, Refused> {
        let issued = self.issue(state, node, request, now)?;
        let secret = crate::entropy::secret();
        join.mesh_token = Fingerprint::from_bytes(Sha256::digest(secret.as_slice()).into());
        join.certificate = issued.fingerprint;
        join.window = (issued.not_before, issued.not_after);
        Ok(Joining {
            key: join.signing_key,
            mesh_token: Zeroizing::new(hex::encode(secret.as_slice())),
            certificate: issued.pem,
            command: enrolment::Command::Join(Box::new(join)).into(),
        })
    }

    /// What a machine is told that has joined, by the state after it, durable or not.
    pub fn enrolled(&self, state: &State, joining: &Joining) -> Option<Enrolled> {
        let node = state.nodes.all.get(state.nodes.by_key.get(&joining.key)?)?;
        let roster = state.appliances.roster.as_ref()?;
        let (scopes, _) = Records::standing(state, node.id)?;
        let peers: PeerList =
            serde_json::from_slice(&self.records.preview(state, &scopes)).expect("a list is made of signed documents");
        Some(Enrolled {
            node: node.id,
            name: node.name.clone(),
            address: node.member.as_ref()?.address,
            address6: None,
            mesh_token: joining.mesh_token.to_string(),
            client_certificate: joining.certificate.clone(),
            roster: Signed { document: roster.document.clone(), signature: roster.signature.clone() },
            peers,
        })
    }
}
