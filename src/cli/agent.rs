//! `holdfast agent …`: this machine as a node.

use super::asking;
use super::client::Client;
use super::confirm::{OffTerminal, confirm};
use super::failure::{Exit, Failure};
use super::globals::Globals;
use super::node::service_words;
use super::output::{self, Format};
use super::words::{self, or_dash};
use crate::keys::NodeKeys;
use crate::wire::operator::{AgentView, Done, Nothing, PlanView, SCHEMA};
use serde::Serialize;
use state::model::{SealingKey, SigningKey, WireguardKey};
use std::time::Duration;

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Keep this machine in the mesh, until told to end
    Run,
    /// Show what this node is and whom it reaches
    Status,
    /// Show what would be changed on this machine now
    Plan,
    /// Print the public halves of this node's keys
    Identity,
    /// Take the mesh down on this machine; the node stays in the fleet
    Down,
    /// Leave the fleet and take the mesh down
    Leave {
        /// Do not ask, which is done at a terminal alone
        #[arg(long)]
        yes: bool,
    },
}

/// Does it.
pub(super) fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    match command {
        Command::Run => {
            globals.only(&["--state"])?;
            Ok(crate::node::run::main(globals.dir()?)?)
        }
        Command::Status => asking(async {
            print_status(&Client::agent(globals).get("/v1/agent").await?, globals.format());
            Ok(())
        }),
        Command::Plan => asking(async {
            print_plan(&Client::agent(globals).get("/v1/agent/plan").await?, globals.format());
            Ok(())
        }),
        Command::Identity => identity(globals),
        Command::Down => down(globals),
        Command::Leave { yes } => {
            confirm(yes, "leave the fleet and take the mesh down on this machine?", OffTerminal::GoOn)?;
            asking(ordered(globals, "/v1/agent/leave"))
        }
    }
}

/// Asks the agent; where none answers, does it from here, because the data plane outlives the agent.
fn down(globals: &Globals) -> Result<(), Failure> {
    let asked = asking(ordered(globals, "/v1/agent/down"));
    match (asked, &globals.state) {
        (Err(failure), Some(dir)) if failure.exit == Exit::Unreachable => {
            asking(async { Ok(crate::node::run::down(dir).await?) })?;
            print_done(&Done { schema: SCHEMA, done: crate::node::run::DOWN.into() }, globals.format());
            Ok(())
        }
        (asked, _) => asked,
    }
}

async fn ordered(globals: &Globals, path: &str) -> Result<(), Failure> {
    print_done(&Client::agent(globals).post(path, &Nothing {}).await?, globals.format());
    Ok(())
}

#[derive(Serialize)]
struct Identity {
    schema: u16,
    signing_key: SigningKey,
    wireguard_key: WireguardKey,
    sealing_key: SealingKey,
}

fn identity(globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--state", "--output"])?;
    let keys = NodeKeys::read(globals.dir()?)?.public();
    match globals.format() {
        Format::Table => {
            output::line(&format!("signing_key {}", keys.signing_key));
            output::line(&format!("wireguard_key {}", keys.wireguard_key));
            output::line(&format!("sealing_key {}", keys.sealing_key));
        }
        Format::Json => output::json(&Identity {
            schema: SCHEMA,
            signing_key: keys.signing_key,
            wireguard_key: keys.wireguard_key,
            sealing_key: keys.sealing_key,
        }),
    }
    Ok(())
}

/// `done`, in words or as a document.
pub(super) fn print_done(done: &Done, format: Format) {
    match format {
        Format::Table => output::line(&done.done),
        Format::Json => output::json(done),
    }
}

fn print_plan(plan: &PlanView, format: Format) {
    match format {
        Format::Json => output::json(plan),
        Format::Table if plan.steps.is_empty() => output::line("nothing to do: this machine is as it should be"),
        Format::Table => plan.steps.iter().for_each(|step| output::line(step)),
    }
}

/// The node, its peers and its services.
pub(super) fn print_status(agent: &AgentView, format: Format) {
    if format == Format::Json {
        return output::json(agent);
    }
    let now = crate::clock::wall();
    let heard = agent.last_contact.as_deref().and_then(|instant| words::since(instant, now));
    let authority = match (&agent.authority, heard) {
        (Some(endpoint), Some(ago)) => format!("{endpoint}, answered {} ago", words::short(ago)),
        (Some(endpoint), None) => endpoint.to_string(),
        (None, _) => "none has answered yet".to_owned(),
    };
    let services: Vec<String> = agent.services.iter().map(service_words).collect();
    let problems = if agent.problems.is_empty() { "none".to_owned() } else { agent.problems.join("\n") };
    output::facts(&[
        ("node", or_dash(agent.name.as_ref())),
        ("fleet", agent.fleet.to_string()),
        ("address", or_dash(agent.address)),
        ("address6", or_dash(agent.address6)),
        ("mesh", format!("{} {}", agent.ifname, if agent.up { "is up" } else { "is not up" })),
        ("tunnel", format!("{}, UDP port {}", agent.tunnel, agent.listen_port)),
        ("appliance", authority),
        ("revision", agent.revision.to_string()),
        ("services", if services.is_empty() { "-".to_owned() } else { services.join("\n") }),
        ("problems", problems),
    ]);
    if agent.peers.is_empty() {
        return;
    }
    output::line("");
    let rows = agent.peers.iter().map(|peer| {
        vec![
            or_dash(peer.name.as_ref()),
            or_dash(peer.address),
            or_dash(peer.endpoint),
            or_dash(peer.via.as_ref()),
            or_dash(peer.path.as_ref()),
            or_dash(peer.handshake_age_seconds.map(|age| words::short(Duration::from_secs(age)))),
            peer.liveness.map_or_else(|| "-".to_owned(), |word| words::liveness(word, None, now)),
        ]
    });
    output::table(&["PEER", "ADDRESS", "ENDPOINT", "VIA", "WHY", "HANDSHAKE", "LIVENESS"], rows.collect());
}
