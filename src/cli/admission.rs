//! `holdfast admission …`.

use super::client::Client;
use super::failure::Failure;
use super::globals::Globals;
use super::node::print_token;
use crate::wire::operator::Nothing;

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Print a reusable token, good for asking to be admitted and nothing else
    Token,
}

/// Does it.
pub(super) async fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    match command {
        Command::Token => {
            let minted = Client::operator(globals).post("/v1/admission/tokens", &Nothing {}).await?;
            print_token(&minted, globals.format());
            Ok(())
        }
    }
}
