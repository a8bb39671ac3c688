//! `holdfast init`: a new fleet and its first appliance.

use super::failure::Failure;
use super::globals::Globals;
use super::output::{self, Format};
use crate::config::{Host, Settings, default_mesh_prefix, resolve};
use crate::serve::{Options, RECOVERY, init};
use crate::wire::operator::SCHEMA;
use serde::Serialize;
use state::model::{Fingerprint, Name, Prefix};
use std::path::PathBuf;

/// How to begin.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Name of the fleet
    #[arg(long, value_name = "NAME")]
    fleet: Name,
    /// Address or host name at which nodes reach this appliance; may be given several times
    #[arg(long, value_name = "HOST")]
    advertise: Vec<Host>,
    /// Range of the mesh addresses [default: 10.90.0.0/16]
    #[arg(long, value_name = "PREFIX")]
    mesh_prefix: Option<Prefix>,
    /// Where to put the recovery identity, without which no snapshot can be opened elsewhere [default: in --state]
    #[arg(long, value_name = "FILE")]
    recovery_file: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    schema: u16,
    fleet: Name,
    mesh_prefix: Prefix,
    advertise: Vec<Host>,
    fingerprint: Fingerprint,
    recovery_file: PathBuf,
}

/// Begins.
pub(super) fn run(arguments: Arguments, globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--state", "--output"])?;
    let dir = globals.dir()?;
    let Arguments { fleet, advertise, mesh_prefix, recovery_file } = arguments;
    let settings =
        Settings { fleet: Some(fleet.clone()), advertise: Some(advertise.clone()), mesh_prefix, ..Settings::default() };
    let options = Options { state: dir.to_owned(), config: resolve(settings, None)? };
    let fingerprint = init(&options, recovery_file.as_deref())?;
    let document = Document {
        schema: SCHEMA,
        fleet,
        mesh_prefix: mesh_prefix.unwrap_or_else(default_mesh_prefix),
        advertise,
        fingerprint,
        recovery_file: recovery_file.unwrap_or_else(|| dir.join(RECOVERY)),
    };
    print(&document, globals.format());
    Ok(())
}

fn print(document: &Document, format: Format) {
    if format == Format::Json {
        return output::json(document);
    }
    output::facts(&[
        ("fleet", document.fleet.to_string()),
        ("mesh prefix", document.mesh_prefix.to_string()),
        ("advertised", super::words::list(&document.advertise)),
        ("fingerprint", document.fingerprint.to_string()),
        ("recovery identity", format!("{}: keep it elsewhere", document.recovery_file.display())),
    ]);
}
