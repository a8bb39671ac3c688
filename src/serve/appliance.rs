//! What the listeners of one appliance share, and the one way from them to the writer.

use crate::authority::Authority;
use crate::authority::certificate::Issuing;
use crate::authority::receipt::{Answer, Claim};
use crate::authority::refusal::{self, Refused, problem};
use crate::authority::request::Now;
use crate::cluster::{Call, Finished, Handle, Outcome, SubmitError, Wish};
use crate::serve::http::ok;
use crate::serve::observed::Observed;
use crate::serve::sources::Sources;
use crate::{clock, entropy, limits};
use axum::body::Bytes;
use state::model::{ApplianceId, Endpoint, Fingerprint, Millis, RequestId};
use state::store::SideRow;
use state::{Actor, Context, Role, State};
use std::sync::Arc;

/// The status of an answer that nothing came of: asking again may come to something, so it is not kept.
const NOTHING: u16 = 204;

/// A running appliance.
pub struct Appliance {
    /// The state, and the way to the writer.
    pub handle: Handle,
    /// What decides who may ask what.
    pub authority: Authority,
    /// The source snapshots on its disk.
    pub sources: Sources,
    /// Who this is.
    pub id: ApplianceId,
    /// The pin of its TLS leaf.
    pub pin: Fingerprint,
    /// Where nodes are told to reach its mesh API.
    pub advertised: Vec<Endpoint>,
    /// When it started.
    pub since: Millis,
    /// What it has noticed since.
    pub observed: Observed,
}

/// A wish to change something, with what answers it.
pub struct Change {
    /// What is wished.
    pub wish: Wish,
    /// Who wishes it.
    pub actor: Actor,
    /// With what right.
    pub role: Role,
    /// Where its answer is kept, if anywhere.
    pub claim: Option<Claim>,
    /// What makes another request a repetition of this one.
    pub request: Bytes,
    /// When the receipt may go.
    pub expires: Millis,
    /// Rows that are kept with it, unless it is refused or changes nothing.
    pub rows: Vec<SideRow>,
}

impl Change {
    /// A change whose receipt, if it has one, lives an hour.
    pub fn new(wish: impl Into<Wish>, actor: Actor, role: Role, claim: Option<Claim>, request: Bytes) -> Self {
        let life = u64::try_from(limits::RECEIPT_LIFE.as_millis()).expect("an hour in milliseconds");
        Self { wish: wish.into(), actor, role, claim, request, expires: clock::wall().plus(life), rows: Vec::new() }
    }
}

/// Both clocks.
pub fn now() -> Now {
    Now { wall: clock::wall(), boot: clock::boot() }
}

impl Appliance {
    /// The context in which a decision is tried out before it is submitted.
    pub fn context(&self, actor: Actor, role: Role, state: &State) -> Context {
        let now = clock::wall();
        Context {
            actor,
            org: None,
            role,
            now,
            clock_trusted: now >= state.at,
            entropy: [0; 32],
            request: RequestId(entropy::uuid()),
        }
    }

    /// Has a change decided once. `answer` makes the answer from the state right after it, durable or not; the answer
    /// is given out when it is. A repetition gets the bytes of the first answer.
    pub async fn change(
        &self,
        change: Change,
        answer: impl FnOnce(&State) -> Result<Answer, Refused> + Send + 'static,
    ) -> Result<Answer, Refused> {
        let Change { wish, actor, role, claim, request, expires, mut rows } = change;
        let claim = claim.map(Arc::new);
        let receipt = claim.as_ref().map(|claim| claim.receipt.clone());
        let call = Call { wish, actor, org: None, role, request: RequestId(entropy::uuid()), receipt };
        let (kept, of) = (claim.clone(), request.clone());
        let finish = move |decided: &crate::cluster::Decided<'_>| {
            let answer = answer(decided.state);
            if decided.change.is_none() {
                rows.clear();
            }
            match (&answer, kept) {
                (Ok(answer), Some(claim)) if answer.status != NOTHING => {
                    rows.push(claim.receipt.keep(claim.seal(&of, answer, expires), expires));
                }
                (Ok(_), _) => {}
                (Err(_), _) => rows.clear(),
            }
            Finished { answer, rows }
        };
        match self.handle.submit(call, finish).await.map_err(|error| undecided(&error))? {
            Outcome::Fresh(answer) => answer,
            Outcome::Receipt(sealed) => match claim {
                Some(claim) => claim.open(&request, &sealed, clock::wall())?.ok_or_else(lost_receipt),
                None => Err(lost_receipt()),
            },
        }
    }

    /// Has a certificate recorded as a node's. The answer is kept no longer than the certificate holds.
    pub async fn certify(&self, issuing: Issuing) -> Result<Answer, Refused> {
        let Issuing { node, command, renewed, claim, request } = issuing;
        let mut change = Change::new(command, Actor::Node { id: node }, Role::Node, Some(claim), request.into());
        change.expires = change.expires.min(renewed.not_after);
        self.change(change, move |_| Ok(ok(&renewed))).await
    }

    /// The answer that a claim was given before.
    pub async fn repeated(&self, claim: &Claim, request: &[u8]) -> Result<Option<Answer>, Refused> {
        match self.handle.receipt(&claim.receipt).await {
            Some(sealed) => claim.open(request, &sealed, clock::wall()),
            None => Ok(None),
        }
    }
}

/// Why a change has no answer, as the network sees it.
fn undecided(error: &SubmitError) -> Refused {
    let what = "the change was not answered";
    match error {
        SubmitError::Refused(refusal) => refusal::from_decision(refusal),
        SubmitError::OutcomeUnknown => {
            problem(503, "outcome_unknown", what, error.to_string(), "ask again with the same Idempotency-Key")
        }
        SubmitError::DiskFull => problem(507, "disk_full", what, error.to_string(), "free space on the appliance"),
        SubmitError::Restarting => problem(503, "store_restarting", what, error.to_string(), "ask again in a moment"),
        SubmitError::Busy => problem(503, "busy", what, error.to_string(), "ask again in a moment"),
    }
}

fn lost_receipt() -> Refused {
    let detail = "it was decided before, and its answer cannot be read any more";
    problem(
        409,
        "conflict",
        "the request was refused",
        detail,
        "look at what there is, and ask with a new Idempotency-Key",
    )
}
