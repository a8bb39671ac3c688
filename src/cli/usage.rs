//! A command line that is not understood, in three lines.

use super::Cli;
use super::failure::Failure;
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::ffi::OsString;

/// What clap says, in our form. With a token among the arguments nothing of them is repeated.
pub(super) fn failure(error: &clap::Error, arguments: &[OsString]) -> Failure {
    let text = error.render().to_string();
    let command = command_of(arguments);
    let todo = format!("see `{command} --help`");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing", format!("`{command}` needs one to know what to do"), todo);
    }
    let secret = arguments.iter().any(|argument| {
        let text = argument.to_string_lossy();
        text.starts_with("hfj") || text.starts_with("hfa")
    });
    if secret {
        return Failure::usage("the command line is not understood", error.kind().to_string(), todo);
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let what = lines.next().map_or("the command line is not understood", |line| line.trim_start_matches("error: "));
    // A refused value comes as "invalid value 'V' for 'F': reason".
    let (what, reason) = what.split_once("': ").map_or((what.to_owned(), None), |(w, r)| (format!("{w}'"), Some(r)));
    let ends = |line: &str| line.starts_with("Usage:") || line.starts_with("For more information");
    let why: Vec<&str> = reason.into_iter().chain(lines.take_while(|line| !ends(line))).collect();
    Failure::usage(what, if why.is_empty() { error.kind().to_string() } else { why.join(" ") }, todo)
}

/// The command that was meant, as far as the arguments name one.
fn command_of(arguments: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut path = command.get_name().to_owned();
    for argument in arguments.iter().skip(1) {
        if let Some(found) = command.find_subcommand(argument).cloned() {
            path = format!("{path} {}", found.get_name());
            command = found;
        }
    }
    path
}
