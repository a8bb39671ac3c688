//! The checks of a signed request, in their one order.
//!
//! Body limit 413, rate 429, bearer 401, signature 401 over the received bytes, clock 401, body 400, (another appliance
//! leads: 307, once there are several), admission and key 403, audience and epoch 409, sequence 409. Whatever comes
//! after is the decision's. Each answer tells as little as its place in the order allows.

use crate::authority::presence::Sequence;
use crate::authority::refusal::{self, Refused, problem};
use crate::authority::request::{Now, Request};
use crate::authority::{Authority, Soft, body};
use crate::limits;
use crate::wire::peers::{CertificateBody, Envelope, Knock, LeaveBody, RegisterBody};
use crate::wire::problem::Clock;
use crate::wire::signed::Kind;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use state::model::{Fingerprint, Millis, NodeId, SigningKey};
use state::subject::enrolment::Admitted;
use state::{Actor, State};

/// A body that is signed.
pub trait Enveloped: DeserializeOwned {
    /// Sequence, audience, epoch.
    fn envelope(&self) -> &Envelope;

    /// What it proposes if its sender is not a node yet.
    fn knock(&self) -> Option<&Knock> {
        None
    }
}

impl Enveloped for RegisterBody {
    fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    fn knock(&self) -> Option<&Knock> {
        self.knock.as_ref()
    }
}

impl Enveloped for LeaveBody {
    fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

impl Enveloped for CertificateBody {
    fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

/// Who signed a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A node.
    Node(NodeId),
    /// A machine whose key was let in and that registers for the first time.
    Admitted(Box<Admitted>),
}

/// A request that has passed every check.
#[derive(Clone, Debug)]
pub struct Examined<B> {
    /// Its body.
    pub body: B,
    /// The key that signed it.
    pub key: SigningKey,
    /// Whose that is.
    pub caller: Caller,
    /// Whether it is a repetition, by which nobody is heard.
    pub again: bool,
}

impl<B> Examined<B> {
    /// As whom the caller acts.
    pub fn actor(&self) -> Actor {
        match self.caller {
            Caller::Node(id) => Actor::Node { id },
            Caller::Admitted(_) => Actor::Stranger { key: self.key },
        }
    }
}

/// What a bearer secret is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bearer {
    /// Everything that its node may.
    Mesh(NodeId),
    /// Asking to be admitted.
    Admission,
}

impl Authority {
    /// All checks of a request that changes something.
    pub fn examine<B: Enveloped>(
        &self,
        state: &State,
        request: &Request<'_>,
        now: Now,
    ) -> Result<Examined<B>, Refused> {
        let (bearer, key, bytes) = self.prove(state, request, now)?;
        let body: B = body::parse(bytes).map_err(refusal::invalid)?;
        let caller = self.admitted(state, bearer, key, &body, request, now)?;
        let envelope = body.envelope();
        refusal::check_audience(state, envelope.audience)?;
        check_epoch(state, envelope)?;
        let again = match &caller {
            Caller::Admitted(_) => false,
            Caller::Node(id) => {
                let journaled = state.nodes.all.get(id).and_then(|node| node.member.as_ref()).map_or(0, |m| m.seq);
                let hash = Fingerprint::from_bytes(Sha256::digest(bytes).into());
                match self.soft().presence.sequence(*id, envelope.seq, hash, journaled) {
                    Sequence::New => false,
                    Sequence::Again => true,
                    Sequence::Replayed { floor } => return Err(replayed(envelope.seq, floor)),
                }
            }
        };
        Ok(Examined { body, key, caller, again })
    }

    /// All checks of a request that only reads: it has no body, so no sequence either.
    pub fn examine_read(&self, state: &State, request: &Request<'_>, now: Now) -> Result<NodeId, Refused> {
        let (bearer, key, bytes) = self.prove(state, request, now)?;
        if !bytes.is_empty() {
            return Err(refusal::invalid("a read has no body"));
        }
        member(state, bearer, key).map_err(|refused| self.with_tombstone(state, key, refused))
    }

    /// From the body's size to the clock.
    fn prove<'a>(
        &self,
        state: &State,
        request: &Request<'a>,
        now: Now,
    ) -> Result<(Bearer, SigningKey, &'a [u8]), Refused> {
        let bytes = request.body.ok_or_else(refusal::too_large)?;
        if !request.proven && !self.soft().failures.has_attempt(request.source, now.boot) {
            return Err(refusal::too_many());
        }
        let failed = |refused: Refused| {
            self.soft().failures.attempt(request.source, now.boot);
            refused
        };
        let bearer = bearer(state, request).ok_or_else(|| failed(bad_bearer()))?;
        let (key, at) = request.signer(bytes).ok_or_else(|| failed(refusal::bad_signature()))?;
        self.check_clock(state, request, key, at, now)?;
        Ok((bearer, key, bytes))
    }

    fn check_clock(
        &self,
        state: &State,
        request: &Request<'_>,
        key: SigningKey,
        at: Millis,
        now: Now,
    ) -> Result<(), Refused> {
        let skew = i128::from(at.0) - i128::from(now.wall.0);
        if skew.unsigned_abs() <= limits::CLOCK_SKEW.as_millis() {
            return Ok(());
        }
        let mut soft = self.soft();
        if request.nonce.is_some_and(|nonce| soft.nonces.redeem(&key, nonce, now.boot)) {
            return Ok(());
        }
        let nonce = hex::encode(crate::entropy::bytes::<16>());
        soft.nonces.issue(key, nonce.clone(), now.boot);
        drop(soft);
        let skew_ms = i64::try_from(skew).unwrap_or(if skew < 0 { i64::MIN } else { i64::MAX });
        let mut refused = problem(
            401,
            "clock_skew",
            "the request was refused",
            format!("its time is {} s {} the appliance's", skew.unsigned_abs() / 1000, side(skew)),
            "set this machine's clock; the attached nonce stands in for it once",
        );
        if let Ok(fleet) = state.fleet() {
            refused.clock =
                Some(self.records.sign(Kind::Clock, &Clock { fleet: fleet.id, now: now.wall, skew_ms, nonce }));
        }
        Err(refused)
    }

    /// Whose the key is. A key that is nobody's is remembered as one that asked.
    fn admitted<B: Enveloped>(
        &self,
        state: &State,
        bearer: Bearer,
        key: SigningKey,
        body: &B,
        request: &Request<'_>,
        now: Now,
    ) -> Result<Caller, Refused> {
        let refused = match member(state, bearer, key) {
            Ok(id) => return Ok(Caller::Node(id)),
            Err(refused) if state.nodes.by_key.contains_key(&key) => return Err(refused),
            Err(refused) => refused,
        };
        if let (Some(admitted), Some(_)) = (state.enrolment.admitted.get(&key), body.knock())
            && (bearer == Bearer::Admission || bearer == Bearer::Mesh(admitted.id))
        {
            return Ok(Caller::Admitted(Box::new(admitted.clone())));
        }
        if let Some(knock) = body.knock() {
            let name = knock.name.clone();
            tracing::info!("refused {name}: signing key {key} is not admitted");
            self.soft().pending.note(key, knock, request.source, now.wall);
        }
        Err(self.with_tombstone(state, key, refused))
    }

    fn with_tombstone(&self, state: &State, key: SigningKey, mut refused: Refused) -> Refused {
        if refused.code == state::Code::NotAdmitted.as_str() {
            refused.tombstone = state.nodes.departed.get(&key).map(|departed| self.records.tombstone(departed));
        }
        refused
    }

    /// The soft state, for a moment.
    pub fn soft(&self) -> std::sync::MutexGuard<'_, Soft> {
        self.soft.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Looked up by its SHA-256, so the time that takes says nothing about any secret.
fn bearer(state: &State, request: &Request<'_>) -> Option<Bearer> {
    let hash = request.bearer()?;
    match state.enrolment.mesh_tokens.get(&hash) {
        Some(node) => Some(Bearer::Mesh(*node)),
        None => state.enrolment.admission_tokens.contains_key(&hash).then_some(Bearer::Admission),
    }
}

/// The node whose key this is, if the bearer secret is its own.
fn member(state: &State, bearer: Bearer, key: SigningKey) -> Result<NodeId, Refused> {
    match (state.nodes.by_key.get(&key), bearer) {
        (None, Bearer::Mesh(_) | Bearer::Admission) => {
            Err(refusal::from_decision(&state::subject::nodes::not_admitted(&key)))
        }
        (Some(id), Bearer::Mesh(owner)) if *id == owner => Ok(*id),
        (Some(_), Bearer::Mesh(_)) => Err(problem(
            403,
            "wrong_key",
            "the request was refused",
            "its bearer secret belongs to a node with another signing key",
            "restore this machine's state directory, or join anew with a token",
        )),
        (Some(_), Bearer::Admission) => Err(problem(
            403,
            "wrong_key",
            "the request was refused",
            "its key is a node's already, and its bearer secret is only good for asking to be admitted",
            "join again with a token: `holdfast node token NAME`",
        )),
    }
}

fn check_epoch(state: &State, envelope: &Envelope) -> Result<(), Refused> {
    match (envelope.epoch, state.appliances.epoch) {
        (Some(theirs), Some(ours)) if theirs < ours => Err(problem(
            409,
            "epoch_behind",
            "the request was refused",
            format!("it was made in epoch {}, and {} is in force", theirs.number, ours.number),
            "fetch the peer list, accept its epoch and ask again",
        )),
        (_, _) => Ok(()),
    }
}

fn bad_bearer() -> Refused {
    problem(
        401,
        "bearer",
        "the request was refused",
        "its bearer secret is missing or unknown",
        "join with a token, or set the mesh token",
    )
}

fn replayed(seq: u64, floor: u64) -> Refused {
    let detail = format!("its sequence number {seq} has been used; {floor} is the highest seen");
    let mut refused = problem(409, "replayed", "the request was refused", detail, "go on above the floor");
    refused.floor = Some(floor);
    refused
}

const fn side(skew: i128) -> &'static str {
    if skew < 0 { "behind" } else { "ahead of" }
}
