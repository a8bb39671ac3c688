//! How a command ends when it does not end well: an exit code and three lines.

use crate::config::ConfigError;
use crate::files::FileError;
use crate::keys::KeyError;
use crate::node::client::CallError;
use crate::node::failure as node;
use crate::wire::problem::Problem;
use crate::wire::token::TokenError;
use state::Refusal;

/// The exit code of the process. 0 is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Exit {
    /// Refused, or tried and failed.
    Failed = 1,
    /// The command line or the configuration is not understood.
    Usage = 2,
    /// Nobody answers.
    Unreachable = 3,
    /// There is no such thing.
    NotFound = 4,
    /// Somebody or something else holds it.
    Conflict = 5,
}

/// Why a command did not do what it was told: what was refused, why, what to do, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub(super) struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// For programs; the same codes as the API's.
    pub code: String,
    /// What was refused.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do.
    pub todo: String,
}

impl Failure {
    /// A failure with all its lines.
    pub(super) fn new(
        exit: Exit,
        code: &str,
        what: impl Into<String>,
        why: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { exit, code: code.to_owned(), what: what.into(), why: why.into(), todo: todo.into() }
    }

    /// A flag that is missing, or given where it has no meaning.
    pub(super) fn usage(what: impl Into<String>, why: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", what, why, todo)
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        node::Failure::from(error).into()
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let todo = error.todo();
        Self::new(Exit::Usage, "config_invalid", "the configuration is refused", error.to_string(), todo)
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        KeyError::File(error).into()
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        node::Failure::from(error).into()
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = match problem.status {
            404 => Exit::NotFound,
            409 => Exit::Conflict,
            _ => Exit::Failed,
        };
        Self::new(exit, &problem.code, problem.title, problem.detail, problem.todo)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let exit = match refusal.code {
            state::Code::NotFound => Exit::NotFound,
            state::Code::Conflict
            | state::Code::Held
            | state::Code::NodeLive
            | state::Code::StaleLease
            | state::Code::Cancelled
            | state::Code::Superseded
            | state::Code::AddressPoolExhausted => Exit::Conflict,
            state::Code::Invalid
            | state::Code::TokenRefused
            | state::Code::NotAdmitted
            | state::Code::WrongKey
            | state::Code::WrongAudience
            | state::Code::EpochBehind
            | state::Code::Replayed
            | state::Code::CertificateRefused
            | state::Code::RefusedResult
            | state::Code::QueueFull
            | state::Code::Forbidden => Exit::Failed,
        };
        Self::new(exit, refusal.code.as_str(), refusal.what, refusal.why, refusal.todo)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(problem) => (*problem).into(),
            CallError::Disk(error) => error.into(),
            CallError::Unreachable(_) => Self::new(
                Exit::Unreachable,
                "unreachable",
                "no appliance was reached",
                error.to_string(),
                "check that the appliance runs and that this machine reaches the address it advertises",
            ),
            CallError::Malformed(_) => Self::new(
                Exit::Failed,
                "malformed",
                "the appliance's answer is not understood",
                error.to_string(),
                "run the same version of holdfast on both machines",
            ),
        }
    }
}

impl From<node::Failure> for Failure {
    fn from(failure: node::Failure) -> Self {
        let node::Failure { code, what, why, todo } = failure;
        let exit = match code.as_str() {
            "unreachable" => Exit::Unreachable,
            "not_found" | "not_set_up" => Exit::NotFound,
            "conflict" | "held" | "in_use" | "foreign_directory" | "address_pool_exhausted" => Exit::Conflict,
            _ => Exit::Failed,
        };
        Self { exit, code, what, why, todo }
    }
}

impl From<anyhow::Error> for Failure {
    /// What is known of the error's kind is kept; of any other the whole chain is shown.
    fn from(error: anyhow::Error) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        let error = match error.downcast::<node::Failure>() {
            Ok(failure) => return failure.into(),
            Err(error) => error,
        };
        let error = match error.downcast::<CallError>() {
            Ok(call) => return call.into(),
            Err(error) => error,
        };
        let error = match error.downcast::<KeyError>() {
            Ok(key) => return key.into(),
            Err(error) => error,
        };
        let error = match error.downcast::<FileError>() {
            Ok(file) => return file.into(),
            Err(error) => error,
        };
        let error = match error.downcast::<Refusal>() {
            Ok(refusal) => return refusal.into(),
            Err(error) => error,
        };
        match error.downcast::<TokenError>() {
            Ok(token) => token.into(),
            Err(error) => {
                let todo = "correct what is named there and try again";
                Self::new(Exit::Failed, "failed", "it did not work", format!("{error:#}"), todo)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_error_keeps_its_kind_through_anyhow() {
        let code = |error: anyhow::Error| {
            let failure = Failure::from(error);
            (failure.exit, failure.code)
        };
        let not_found = Refusal::new(state::Code::NotFound, "node `x`", "there is none", "see node ls");
        assert_eq!(code(anyhow::Error::new(not_found.clone())), (Exit::NotFound, "not_found".to_owned()));
        assert_eq!(code(anyhow::Error::new(not_found).context("adding")), (Exit::NotFound, "not_found".to_owned()));
        let locked = FileError::Locked { path: "/x/agent.lock".into(), pid: "7".into() };
        assert_eq!(code(locked.into()), (Exit::Conflict, "in_use".to_owned()));
        assert_eq!(code(TokenError::CutShort.into()), (Exit::Failed, "token_malformed".to_owned()));
        let absent = KeyError::Absent { path: "/x".into(), wanted: "node" };
        assert_eq!(Failure::from(node::Failure::from(absent)).exit, Exit::NotFound, "whoever noticed it");
        let unreachable = CallError::Unreachable("198.51.100.2:4300: refused".into());
        assert_eq!(code(unreachable.into()), (Exit::Unreachable, "unreachable".to_owned()));
        assert_eq!(Failure::from(anyhow::anyhow!("inner").context("outer")).why, "outer: inner");
    }
}
