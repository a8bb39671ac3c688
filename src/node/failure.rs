//! Why something was not done on the node, as people and programs read it.

use crate::files::FileError;
use crate::keys::KeyError;
use crate::node::client::CallError;
use crate::wire::problem::Problem;
use crate::wire::token::TokenError;

/// A stable code and three lines: what was not done, why, and what to do. Nothing secret in any.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failure {
    /// The API's code, or one of this machine's: `unreachable`, `invalid`, `conflict`, `in_use`, `file`…
    pub code: String,
    /// What was not done.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do.
    pub todo: String,
}

impl Failure {
    /// A failure with all its parts.
    pub fn new(code: &str, what: impl Into<String>, why: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { code: code.into(), what: what.into(), why: why.into(), todo: todo.into() }
    }

    /// Something on this machine: a file, the kernel, the data plane.
    pub fn local(what: &str, why: impl std::fmt::Display) -> Self {
        Self::new("local", what, why.to_string(), "put right what is named and try again")
    }

    /// As the agent's socket answers it.
    pub fn problem(&self) -> Problem {
        let status = match self.code.as_str() {
            "unreachable" => 503,
            "not_found" => 404,
            "conflict" | "in_use" => 409,
            "invalid" => 400,
            _ => 500,
        };
        Problem {
            r#type: format!("about:holdfast/{}", self.code),
            title: self.what.clone(),
            detail: self.why.clone(),
            todo: self.todo.clone(),
            status,
            code: self.code.clone(),
            clock: None,
            tombstone: None,
            floor: None,
            retry_after: None,
        }
    }

    /// From a call that failed; `what` says what it was for unless the appliance said so.
    pub fn call(what: &str, error: CallError) -> Self {
        match error {
            CallError::Refused(problem) => (*problem).into(),
            CallError::Unreachable(why) => Self::new(
                "unreachable",
                what,
                format!("no appliance answers: {why}"),
                "check that the appliance runs and that this machine reaches it, then try again",
            ),
            CallError::Malformed(why) => {
                Self::new("malformed", what, why, "check that both ends run versions of holdfast that fit together")
            }
            CallError::Disk(error) => Self::local(what, error),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let Problem { title, detail, todo, code, .. } = problem;
        Self { code, what: title, why: detail, todo }
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        let code = match &error {
            KeyError::File(FileError::Io { .. }) => "file",
            KeyError::File(FileError::Unsafe { .. }) => "file_unsafe",
            KeyError::File(FileError::Newer { .. }) => "file_newer",
            KeyError::File(FileError::Locked { .. }) => "in_use",
            KeyError::Malformed { .. } | KeyError::File(FileError::Damaged { .. }) => "file_malformed",
            KeyError::Foreign(_) | KeyError::OtherRole { .. } => "foreign_directory",
            KeyError::Absent { .. } => "not_set_up",
            KeyError::Request(_) => "invalid",
        };
        Self::new(code, "the state directory cannot be used", error.to_string(), error.todo())
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        KeyError::File(error).into()
    }
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        let code = if error == TokenError::Expired { "token_expired" } else { "token_malformed" };
        Self::new(code, "the token is refused", error.to_string(), error.todo())
    }
}
