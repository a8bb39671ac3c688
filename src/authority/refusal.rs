//! Refusals as the network sees them: one status and one stable code each.

use crate::wire::problem::Problem;
use state::model::FleetId;
use state::{Code, Refusal, State};

/// A refusal by the authority: its answer, boxed because most requests have none.
pub type Refused = Box<Problem>;

/// A problem from its parts. None of the texts may hold a secret.
pub fn problem(status: u16, code: &str, title: &str, detail: impl Into<String>, todo: &str) -> Refused {
    Box::new(Problem {
        r#type: format!("about:holdfast/{code}"),
        title: title.to_owned(),
        detail: detail.into(),
        todo: todo.to_owned(),
        status,
        code: code.to_owned(),
        clock: None,
        tombstone: None,
        floor: None,
        retry_after: None,
    })
}

/// A decision's refusal with its status.
pub fn from_decision(refusal: &Refusal) -> Refused {
    problem(status(refusal.code), refusal.code.as_str(), &refusal.what, refusal.why.clone(), &refusal.todo)
}

fn status(code: Code) -> u16 {
    match code {
        Code::Invalid => 400,
        Code::TokenRefused | Code::CertificateRefused => 401,
        Code::NotAdmitted | Code::WrongKey | Code::Forbidden => 403,
        Code::NotFound => 404,
        Code::WrongAudience
        | Code::EpochBehind
        | Code::Replayed
        | Code::Held
        | Code::AddressPoolExhausted
        | Code::NodeLive
        | Code::StaleLease
        | Code::Cancelled
        | Code::Superseded
        | Code::Conflict => 409,
        Code::RefusedResult => 422,
        Code::QueueFull => 503,
    }
}

/// A body above the limit: 413.
pub fn too_large() -> Refused {
    let detail = "the body is larger than any that is taken here";
    problem(413, "too_large", "the request was refused", detail, "send less")
}

/// Too many attempts: 429, with `Retry-After`.
pub fn too_many() -> Refused {
    let detail = "too many attempts came from this address, or from all together";
    problem(429, "too_many_requests", "the request was not looked at", detail, "try again in a second")
}

/// A malformed body: 400.
pub fn invalid(detail: impl Into<String>) -> Refused {
    problem(400, "invalid", "the request was refused", detail, "correct the request")
}

/// A signature that is absent, malformed or wrong: 401.
pub fn bad_signature() -> Refused {
    problem(
        401,
        "signature",
        "the request was refused",
        "its signature headers are missing or malformed, or the signature does not verify",
        "sign method, path with query, timestamp and the SHA-256 of the body",
    )
}

/// Refuses what is meant for another fleet: 409.
pub fn check_audience(state: &State, audience: FleetId) -> Result<(), Refused> {
    if state.appliances.fleet.as_ref().is_some_and(|fleet| fleet.id == audience) {
        return Ok(());
    }
    let detail = format!("it is meant for fleet {audience}");
    Err(problem(409, "wrong_audience", "the request was refused", detail, "ask an appliance of that fleet"))
}
