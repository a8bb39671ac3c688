//! `holdfast join`: from a token to a node.

use super::failure::Failure;
use super::globals::Globals;
use super::output::{self, Format};
use super::{asking, secret};
use crate::node::join::{Joined, Wishes, join};
use crate::wire::operator::SCHEMA;
use serde::Serialize;
use state::model::Name;
use std::net::Ipv4Addr;

/// How to join.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The token's line, - for standard input, or @FILE
    #[arg(required = true, num_args = 1.., value_name = "TOKEN|-|@FILE")]
    token: Vec<String>,
    /// Name of the mesh interface [default: that of an earlier join, else hf0]
    #[arg(long, value_name = "NAME")]
    ifname: Option<String>,
    /// UDP port of the tunnel [default: that of an earlier join, else 51820]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// With an admission token: the name to propose [default: the host name]
    #[arg(long)]
    name: Option<Name>,
    /// With an admission token: the site to propose
    #[arg(long)]
    site: Option<Name>,
    /// Go on as the agent, as `holdfast agent run` does
    #[arg(long)]
    pub(super) run: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u16,
    fleet: &'a Name,
    name: &'a Name,
    /// None while the machine has yet to be admitted.
    address: Option<Ipv4Addr>,
    key_words: &'a str,
}

/// Joins, and says as what.
pub(super) fn run(arguments: Arguments, globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--state", "--output"])?;
    let dir = globals.dir()?;
    let token = secret::token(&arguments.token)?;
    let Arguments { ifname, port, name, site, run, .. } = arguments;
    let joined = asking(async { Ok(join(&token, dir, Wishes { ifname, port, name, site }).await?) })?;
    print(&joined, globals.format());
    if run { Ok(crate::node::run::main(dir)?) } else { Ok(()) }
}

fn print(joined: &Joined, format: Format) {
    let (fleet, name, address, words) = match joined {
        Joined::Member { fleet, name, address, words } => (fleet, name, Some(*address), words),
        Joined::Knocking { fleet, name, words } => (fleet, name, None, words),
    };
    match (format, address) {
        (Format::Json, address) => output::json(&Document { schema: SCHEMA, fleet, name, address, key_words: words }),
        (Format::Table, Some(address)) => {
            output::line(&format!("joined fleet `{fleet}` as `{name}`, address {address}, key {words}"));
        }
        (Format::Table, None) => output::line(&format!(
            "ready to ask fleet `{fleet}` to be let in as `{name}`: compare the key {words} there and admit it"
        )),
    }
}
