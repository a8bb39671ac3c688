//! `holdfast status`: the fleet at a glance, or on a machine that is only a node, that node.

use super::client::Client;
use super::failure::Failure;
use super::globals::{Globals, Listener};
use super::output::{self, Format};
use super::words::list;
use crate::wire::operator::StatusView;

/// Prints it.
pub(super) async fn run(globals: &Globals) -> Result<(), Failure> {
    let client = Client::operator(globals);
    match client.listener {
        Listener::Operator => print(&client.get("/v1/status").await?, globals.format()),
        Listener::Agent => super::agent::print_status(&client.get("/v1/agent").await?, globals.format()),
    }
    Ok(())
}

fn print(status: &StatusView, format: Format) {
    if format == Format::Json {
        return output::json(status);
    }
    let nodes = status.nodes;
    output::facts(&[
        ("fleet", status.fleet.to_string()),
        ("fleet id", status.fleet_id.to_string()),
        ("appliance", format!("{}, {}", status.appliance, status.version)),
        ("running since", status.since.clone()),
        ("fingerprint", status.fingerprint.to_string()),
        ("advertised", list(&status.advertised)),
        ("mesh prefix", status.mesh_prefix.to_string()),
        (
            "nodes",
            format!("{} here, {} out of touch, {} never spoken", nodes.here, nodes.out_of_touch, nodes.never_spoken),
        ),
        ("asking to be let in", status.pending.to_string()),
        ("contested names", list(&status.contested)),
        ("epoch", status.epoch.number.to_string()),
        ("revision", status.revision.to_string()),
        (
            "needs attention",
            if status.attention.is_empty() { "nothing".to_owned() } else { status.attention.join("\n") },
        ),
    ]);
}
