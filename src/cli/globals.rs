//! The flags that may stand in any position, and which socket they mean.

use super::failure::Failure;
use super::output::Format;
use std::path::{Path, PathBuf};

/// Where the packages' units put the sockets.
const RUN: &str = "/run/holdfast";

/// Flags of all commands, last in their helps. One that a command has no use for is refused rather than ignored.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Globals {
    /// State directory of the appliance or the node
    #[arg(long, global = true, value_name = "DIR", display_order = 900)]
    pub state: Option<PathBuf>,
    /// Unix socket of the running appliance or agent; else $HOLDFAST_SOCKET, else the one in --state, else in /run/holdfast
    #[arg(long, global = true, value_name = "PATH", display_order = 901)]
    pub socket: Option<PathBuf>,
    /// How data is shown
    #[arg(short = 'o', long, global = true, value_enum, value_name = "FORMAT", display_order = 902)]
    pub output: Option<Format>,
}

/// Who listens on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// `holdfast serve`.
    Operator,
    /// `holdfast agent run`.
    Agent,
}

impl Listener {
    /// The socket's file name.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::Operator => "operator.sock",
            Self::Agent => "agent.sock",
        }
    }
}

/// A socket, and whether it was named or is where one is by convention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    /// The path.
    pub path: PathBuf,
    /// Named by flag or environment: then no other is tried.
    pub named: bool,
}

impl Globals {
    /// How data is to be shown.
    pub(super) fn format(&self) -> Format {
        self.output.unwrap_or_default()
    }

    /// The state directory of a command that cannot do without.
    pub(super) fn dir(&self) -> Result<&Path, Failure> {
        self.state.as_deref().ok_or_else(|| {
            Failure::usage(
                "the state directory is not given",
                "this command needs --state DIR",
                "add --state DIR, such as --state /var/lib/holdfast",
            )
        })
    }

    /// Refuses flags that a command would ignore: all global ones but those named.
    pub(super) fn only(&self, used: &[&str]) -> Result<(), Failure> {
        let given = [
            ("--state", self.state.is_some()),
            ("--socket", self.socket.is_some()),
            ("--output", self.output.is_some()),
        ];
        match given.iter().find(|(flag, given)| *given && !used.contains(flag)) {
            None => Ok(()),
            Some((flag, _)) => Err(Failure::usage(
                format!("{flag} is not a flag of this command"),
                "it would be ignored",
                format!("leave {flag} out"),
            )),
        }
    }

    /// The socket of a listener.
    pub(super) fn socket(&self, listener: Listener) -> Socket {
        self.socket_from(listener, std::env::var_os("HOLDFAST_SOCKET").map(PathBuf::from))
    }

    fn socket_from(&self, listener: Listener, environment: Option<PathBuf>) -> Socket {
        match (self.socket.clone().or(environment), &self.state) {
            (Some(path), _) => Socket { path, named: true },
            (None, Some(dir)) => Socket { path: dir.join(listener.file()), named: false },
            (None, None) => Socket { path: Path::new(RUN).join(listener.file()), named: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_then_environment_then_state_then_run() {
        let path = |socket: Option<&str>, state: Option<&str>, env: Option<&str>| {
            let globals = Globals { socket: socket.map(Into::into), state: state.map(Into::into), output: None };
            globals.socket_from(Listener::Agent, env.map(Into::into))
        };
        let named = |path: &str| Socket { path: path.into(), named: true };
        let found = |path: &str| Socket { path: path.into(), named: false };
        assert_eq!(path(Some("/a"), Some("/s"), Some("/e")), named("/a"));
        assert_eq!(path(None, Some("/s"), Some("/e")), named("/e"));
        assert_eq!(path(None, Some("/s"), None), found("/s/agent.sock"));
        assert_eq!(path(None, None, None), found("/run/holdfast/agent.sock"));
    }

    #[test]
    fn a_flag_without_a_use_is_refused() {
        let globals = Globals { socket: Some("/a".into()), ..Globals::default() };
        assert!(globals.only(&["--socket"]).is_ok());
        assert_eq!(globals.only(&["--state"]).unwrap_err().what, "--socket is not a flag of this command");
    }
}
