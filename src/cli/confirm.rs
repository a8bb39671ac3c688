//! Asking before something that cannot simply be undone.

use super::failure::{Exit, Failure};
use super::output;
use std::io::{BufRead, IsTerminal};

/// What happens where nobody can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OffTerminal {
    /// It is refused without `--yes`.
    Refuse,
    /// It is done: a script says what it means.
    GoOn,
}

/// Goes on with `--yes`, or when the person at the terminal says so.
pub(super) fn confirm(yes: bool, question: &str, off_terminal: OffTerminal) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    let input = std::io::stdin();
    if !input.is_terminal() {
        return match off_terminal {
            OffTerminal::GoOn => Ok(()),
            OffTerminal::Refuse => Err(Failure::usage(
                "this is not done unasked",
                format!("nobody can be asked here: {question}"),
                "add --yes if it is meant",
            )),
        };
    }
    output::note(&format!("{question} [y/N]"));
    let mut answer = String::new();
    let read = input.lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failed,
        "declined",
        "nothing was done",
        "the answer was not y",
        "run it again if it is meant",
    ))
}
