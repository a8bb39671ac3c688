//! A command line that is not understood, in three lines.

use super::failure::Failure;
use std::ffi::OsString;

/// What clap says, in our form. With a token among the arguments nothing of them is repeated.
pub(super) fn failure(error: &clap::Error, arguments: &[OsString]) -> Failure {
    let todo = "see --help of the command";
    let secret = arguments.iter().any(|argument| {
        let text = argument.to_string_lossy();
        text.starts_with("hfj") || text.starts_with("hfa")
    });
    if secret {
        return Failure::usage("the command line is not understood", error.kind().to_string(), todo);
    }
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let what = lines.next().map_or("the command line is not understood", |line| line.trim_start_matches("error: "));
    let why: Vec<&str> =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information")).collect();
    let why = if why.is_empty() { error.kind().to_string() } else { why.join(" ") };
    Failure::usage(what, why, todo)
}
