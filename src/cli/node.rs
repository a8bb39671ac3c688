//! `holdfast node …`.

use super::client::Client;
use super::confirm::{OffTerminal, confirm};
use super::failure::Failure;
use super::globals::Globals;
use super::output::{self, Format};
use super::words::{self, list, or_dash};
use crate::wire::jobs::Capability;
use crate::wire::operator::{
    AddNode, Admit, DrainNode, DrainView, MintToken, Minted, NodeView, Nodes, Nothing, Pending, Removed, ReplaceNode,
    Revoke, SCHEMA, ServiceView,
};
use crate::wire::peers::ClaimVerdict;
use serde::Serialize;
use state::model::{Endpoint, Name, SigningKey};
use std::time::Duration;

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Add a node and print the token that it joins with, once
    Add(Add),
    /// Print a new token for a known node; the outstanding one ends
    Token {
        /// The node
        name: Name,
        /// How long the token lasts [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = words::duration)]
        ttl: Option<Duration>,
    },
    /// List the nodes
    Ls,
    /// Show one node
    Show {
        /// The node
        name: Name,
    },
    /// List the machines that ask to be let in
    Pending,
    /// Let a machine in
    Admit {
        /// Its signing key, as `node pending` lists it
        key: SigningKey,
        /// Another name than the one it proposes
        #[arg(long)]
        name: Option<Name>,
        /// Another site than the one it proposes
        #[arg(long)]
        site: Option<Name>,
    },
    /// Put a node out of the fleet at once, and its key off the admission list
    Revoke {
        /// Its name or signing key
        #[arg(value_name = "NODE|KEY")]
        who: String,
        /// Do not ask, which is done at a terminal alone
        #[arg(long)]
        yes: bool,
    },
    /// Remove a node that is gone; its name and address become free
    Rm(Remove),
    /// Give a node no new jobs; it ends what it has
    Drain {
        /// The node
        name: Name,
        /// How long what it has may go on; without it, to its own end
        #[arg(long, value_name = "TIME", value_parser = words::duration)]
        deadline: Option<Duration>,
    },
    /// Give a drained node jobs again
    Undrain {
        /// The node
        name: Name,
    },
    /// Let a key that asks to be let in take over a dead node's name and address
    Replace {
        /// The node
        name: Name,
        /// The pending signing key
        #[arg(long)]
        key: SigningKey,
        /// Do not ask; needed where there is no terminal
        #[arg(long)]
        yes: bool,
    },
}

/// `node add`.
#[derive(clap::Args)]
pub(super) struct Add {
    /// Its name: lower-case letters, digits and inner hyphens
    name: Name,
    /// Where it is; nodes of one site share a local network
    #[arg(long)]
    site: Option<Name>,
    /// Its tenant
    #[arg(long)]
    org: Option<Name>,
    /// Where every other node can dial it; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Vec<Endpoint>,
    /// It forwards between nodes that cannot reach each other
    #[arg(long)]
    hub: bool,
    /// How long the token lasts [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = words::duration)]
    ttl: Option<Duration>,
    /// The token lets new keys take over this dead node's name and address
    #[arg(long)]
    replace: bool,
}

/// `node rm`.
#[derive(clap::Args)]
pub(super) struct Remove {
    /// The node
    name: Name,
    /// Even though it was heard within two minutes; implies --yes
    #[arg(long)]
    force: bool,
    /// Its key may come back without being admitted again
    #[arg(long)]
    keep_admitted: bool,
    /// Do not ask; needed where there is no terminal
    #[arg(long)]
    yes: bool,
}

/// Does it.
pub(super) async fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    let client = Client::operator(globals);
    let format = globals.format();
    match command {
        Command::Add(add) => {
            let body = AddNode {
                name: add.name,
                site: add.site,
                org: add.org,
                endpoints: add.endpoint,
                hub: add.hub,
                replace: add.replace,
                ttl_seconds: add.ttl.map(|ttl| ttl.as_secs()),
            };
            print_token(&client.post("/v1/nodes", &body).await?, format);
        }
        Command::Token { name, ttl } => {
            let body = MintToken { ttl_seconds: ttl.map(|ttl| ttl.as_secs()) };
            print_token(&client.post(&format!("/v1/nodes/{name}/token"), &body).await?, format);
        }
        Command::Ls => print_nodes(&client.get("/v1/nodes").await?, format),
        Command::Show { name } => print_node(&client.get(&format!("/v1/nodes/{name}")).await?, format),
        Command::Pending => print_pending(&client.get("/v1/pending").await?, format),
        Command::Admit { key, name, site } => {
            let node: NodeView = client.post("/v1/admission/admit", &Admit { key, name, site }).await?;
            print_node(&node, format);
        }
        Command::Revoke { who, yes } => {
            let question = format!("put `{who}` out of the fleet at once?");
            confirm(yes, &question, OffTerminal::GoOn)?;
            print_removed("revoked", &client.post("/v1/admission/revoke", &Revoke { who }).await?, format);
        }
        Command::Rm(Remove { name, force, keep_admitted, yes }) => {
            let question = format!("remove node `{name}` and free its name and address?");
            confirm(yes || force, &question, OffTerminal::Refuse)?;
            let path = format!("/v1/nodes/{name}?force={force}&keep_admitted={keep_admitted}");
            print_removed("removed", &client.delete(&path).await?, format);
        }
        Command::Drain { name, deadline } => {
            let body = DrainNode { deadline_seconds: deadline.map(|deadline| deadline.as_secs()) };
            print_node(&client.post(&format!("/v1/nodes/{name}/drain"), &body).await?, format);
        }
        Command::Undrain { name } => {
            print_node(&client.post(&format!("/v1/nodes/{name}/undrain"), &Nothing {}).await?, format);
        }
        Command::Replace { name, key, yes } => {
            let question = format!("give the name and address of node `{name}` to the key {key}?");
            confirm(yes, &question, OffTerminal::Refuse)?;
            let node = client.post(&format!("/v1/nodes/{name}/replace"), &ReplaceNode { key }).await?;
            print_node(&node, format);
        }
    }
    Ok(())
}

/// The token alone on its line; what is to be known about it goes to stderr.
pub(super) fn print_token(minted: &Minted, format: Format) {
    match format {
        Format::Table => {
            output::line(&minted.token);
            if let Some(end) = &minted.expires {
                output::note(&format!("shown once; it can be used until {end}"));
            }
        }
        Format::Json => output::json(&Versioned { schema: SCHEMA, document: minted }),
    }
}

/// A document that has no `schema` of its own.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema: u16,
    #[serde(flatten)]
    document: &'a T,
}

fn print_nodes(nodes: &Nodes, format: Format) {
    if format == Format::Json {
        return output::json(nodes);
    }
    let now = crate::clock::wall();
    let rows = nodes.nodes.iter().map(|node| {
        vec![
            node.name.to_string(),
            words::liveness(node.liveness, node.last_seen.as_deref(), now),
            or_dash(node.address),
            or_dash(node.site.as_ref()),
            if node.hub { "hub".to_owned() } else { "-".to_owned() },
            or_dash(node.endpoint.as_ref()),
            list(node.services.iter().map(|service| format!("{}/{}", service.space, service.name))),
            or_dash(node.agent_version.as_ref()),
        ]
    });
    output::table(&["NAME", "LIVENESS", "ADDRESS", "SITE", "HUB", "ENDPOINT", "SERVICES", "VERSION"], rows.collect());
}

fn print_node(node: &NodeView, format: Format) {
    if format == Format::Json {
        return output::json(&Versioned { schema: SCHEMA, document: node });
    }
    let heard = words::liveness(node.liveness, node.last_seen.as_deref(), crate::clock::wall());
    output::facts(&[
        ("name", node.name.to_string()),
        ("id", node.id.to_string()),
        ("liveness", heard),
        ("last seen", or_dash(node.last_seen.as_ref())),
        ("address", or_dash(node.address)),
        ("address6", or_dash(node.address6)),
        ("site", or_dash(node.site.as_ref())),
        ("hub", node.hub.to_string()),
        ("endpoint", or_dash(node.endpoint.as_ref())),
        ("services", list(node.services.iter().map(service_words))),
        ("signing key", or_dash(node.signing_key)),
        ("key in words", or_dash(node.signing_key.map(|key| state::model::fingerprint_words(&key)))),
        ("agent version", or_dash(node.agent_version.as_ref())),
        ("declared revision", or_dash(node.declared_revision)),
        ("held revision", or_dash(node.held_revision)),
        ("new jobs", drain_words(node)),
        ("capabilities", list(node.capabilities.iter().map(capability_words))),
    ]);
}

fn drain_words(node: &NodeView) -> String {
    match &node.drain {
        None => "yes".to_owned(),
        Some(DrainView { until: None }) => "no: drained".to_owned(),
        Some(DrainView { until: Some(until) }) => format!("no: drained, and what it has must stop by {until}"),
    }
}

/// `cgroup`, or what is known of it if it is not there.
fn capability_words((name, held): (&Name, &Capability)) -> String {
    match held {
        Capability::Present => name.to_string(),
        Capability::Absent => format!("no {name}"),
        Capability::Unknown => format!("{name} unknown"),
    }
}

/// `shop/web port 80 (routed)`.
pub(super) fn service_words(service: &ServiceView) -> String {
    let verdict = verdict_words(&service.verdict);
    format!("{}/{} port {} ({verdict})", service.space, service.name, service.port)
}

/// A verdict in words.
pub(super) fn verdict_words(verdict: &ClaimVerdict) -> String {
    match verdict {
        ClaimVerdict::Routed => "routed".to_owned(),
        ClaimVerdict::Contested { with } => format!("contested with {}", list(with)),
        ClaimVerdict::Refused { why, .. } => format!("refused: {why}"),
    }
}

fn print_pending(pending: &Pending, format: Format) {
    if format == Format::Json {
        return output::json(pending);
    }
    let now = crate::clock::wall();
    let ago = |instant: &str| words::since(instant, now).map_or_else(|| "-".to_owned(), words::short);
    let rows = pending.pending.iter().map(|machine| {
        vec![
            or_dash(machine.name.as_ref()),
            or_dash(machine.site.as_ref()),
            machine.source.to_string(),
            ago(&machine.first_attempt),
            ago(&machine.last_attempt),
            machine.words.clone(),
            machine.signing_key.to_string(),
        ]
    });
    output::table(&["NAME", "SITE", "FROM", "FIRST", "LAST", "IN WORDS", "SIGNING KEY"], rows.collect());
}

fn print_removed(done: &str, removed: &Removed, format: Format) {
    if format == Format::Json {
        return output::json(removed);
    }
    let who = match (&removed.name, &removed.signing_key) {
        (Some(name), _) => name.to_string(),
        (None, Some(key)) => key.to_string(),
        (None, None) => "nothing".to_owned(),
    };
    let admitted = if removed.still_admitted { "; its key is still admitted" } else { "" };
    output::line(&format!("{done} {who}{admitted}"));
}
