//! `holdfast completions SHELL`.

use super::failure::Failure;
use super::globals::Globals;
use super::{Cli, output};
use clap::CommandFactory;

/// For which shell.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Prints the script.
pub(super) fn run(arguments: &Arguments, globals: &Globals) -> Result<(), Failure> {
    globals.only(&[])?;
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "holdfast", &mut script);
    output::raw(&script);
    Ok(())
}
