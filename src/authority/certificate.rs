//! Client certificates: issued before the change that holds their fingerprint is submitted, so that one whose change was
//! not committed opens nothing. A node gets its first one by joining, the next ones by the one in use, and one by its
//! signing key when it has none that is good.

use crate::authority::Authority;
use crate::authority::receipt::Claim;
use crate::authority::refusal::{self, Refused};
use crate::authority::request::Now;
use crate::authority::signature::{Caller, Examined};
use crate::keys::IssuedCertificate;
use crate::limits;
use crate::wire::jobs::{Renewal, Renewed};
use crate::wire::peers::CertificateBody;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use state::model::{Fingerprint, Millis, NodeId};
use state::subject::{enrolment, nodes};
use state::{Command, State};
use std::time::Duration;

/// A certificate beside a node's others: what is asked of the writer, and what the node will be told.
pub struct Issuing {
    /// The node.
    pub node: NodeId,
    /// The command.
    pub command: Command,
    /// The answer.
    pub renewed: Renewed,
    /// Where it is kept.
    pub claim: Claim,
    /// What makes another request a repetition: the certificate request in it, and no more.
    pub request: String,
}

impl Authority {
    /// A client certificate for the key of a request in base64. It begins by the latest time ever seen, so that it still
    /// holds when a clock that is behind is set.
    pub(super) fn issue(
        &self,
        state: &State,
        node: NodeId,
        request: &str,
        now: Now,
    ) -> Result<IssuedCertificate, Refused> {
        let request = STANDARD.decode(request).map_err(|_| refusal::invalid("`certificate_request` is not base64"))?;
        let now = now.wall.max(state.at);
        let life = self.certificate_life;
        let millis = |time: Duration| u64::try_from(time.as_millis()).expect("a quarter of a year in milliseconds");
        let begins = now.0.saturating_sub(millis(limits::CERTIFICATE_BACKDATED.min(life / 8)));
        let issued = self.ca.issue(&request, node, Millis(begins), now.plus(millis(life)));
        issued.map_err(|error| refusal::invalid(error.to_string()))
    }

    /// The next certificate of a node that calls by `certificate`.
    pub fn renewal(
        &self,
        state: &State,
        node: NodeId,
        certificate: Fingerprint,
        renewal: Renewal,
        now: Now,
    ) -> Result<Issuing, Refused> {
        let issued = self.issue(state, node, &renewal.certificate_request, now)?;
        let command = enrolment::Command::RenewCertificate {
            by: certificate,
            certificate: issued.fingerprint,
            window: (issued.not_before, issued.not_after),
        };
        let claim = Claim::by_content(node, "certificate/renew", renewal.certificate_request.as_bytes());
        Ok(issuing(node, command, issued, claim, renewal.certificate_request))
    }

    /// The next certificate of a node that asks by its signing key.
    pub fn certificate(
        &self,
        state: &State,
        examined: Examined<CertificateBody>,
        now: Now,
    ) -> Result<Issuing, Refused> {
        let Examined { body, key, caller, .. } = examined;
        let Caller::Node(node) = caller else { return Err(refusal::from_decision(&nodes::not_admitted(&key))) };
        let issued = self.issue(state, node, &body.certificate_request, now)?;
        let command = enrolment::Command::IssueCertificate {
            key,
            seq: body.envelope.seq,
            certificate: issued.fingerprint,
            window: (issued.not_before, issued.not_after),
        };
        Ok(issuing(node, command, issued, asked(node, &body), body.certificate_request))
    }
}

/// Where the answer to a node that asks by its signing key is kept: the same certificate request gets the same one.
pub fn asked(node: NodeId, body: &CertificateBody) -> Claim {
    Claim::by_content(node, "POST /v1/peers/certificate", body.certificate_request.as_bytes())
}

fn issuing(
    node: NodeId,
    command: enrolment::Command,
    issued: IssuedCertificate,
    claim: Claim,
    request: String,
) -> Issuing {
    let renewed = Renewed { certificate: issued.pem, not_after: issued.not_after };
    Issuing { node, command: command.into(), renewed, claim, request }
}
