//! `holdfast mesh …`.

use super::client::Client;
use super::failure::Failure;
use super::globals::Globals;
use super::output::{self, Format};
use super::words::{self, list, or_dash};
use crate::wire::operator::MeshView;

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the nodes with the addresses by which they are reached
    Ls,
}

/// Does it.
pub(super) async fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    match command {
        Command::Ls => {
            let mesh = Client::operator(globals).get("/v1/mesh").await?;
            print(&mesh, globals.format());
            Ok(())
        }
    }
}

fn print(mesh: &MeshView, format: Format) {
    if format == Format::Json {
        return output::json(mesh);
    }
    output::facts(&[
        ("mesh prefix", mesh.prefix.to_string()),
        ("second prefix", or_dash(mesh.prefix6)),
        ("names end in", format!(".{}", mesh.suffix)),
        ("addresses", format!("{} used, {} free", mesh.addresses_used, mesh.addresses_free)),
    ]);
    output::line("");
    let now = crate::clock::wall();
    let rows = mesh.nodes.iter().map(|node| {
        vec![
            node.name.to_string(),
            node.address.to_string(),
            or_dash(node.address6),
            or_dash(node.site.as_ref()),
            if node.hub { "hub".to_owned() } else { "-".to_owned() },
            list(&node.endpoints),
            list(&node.local_endpoints),
            words::liveness(node.liveness, None, now),
        ]
    });
    let header = ["NAME", "ADDRESS", "ADDRESS6", "SITE", "HUB", "DIALLED BY ALL", "DIALLED IN ITS SITE", "LIVENESS"];
    output::table(&header, rows.collect());
}
