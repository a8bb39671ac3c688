//! `holdfast fingerprint`: the pin, read from the certificate itself, with or without a running appliance.

use super::failure::Failure;
use super::globals::Globals;
use super::output::{self, Format};

#[derive(serde::Serialize)]
struct Document {
    schema: u16,
    fingerprint: state::model::Fingerprint,
}

/// Prints 64 hexadecimal digits and nothing else.
pub(super) fn run(globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--state", "--output"])?;
    let fingerprint = crate::keys::fingerprint(globals.dir()?)?;
    match globals.format() {
        Format::Table => output::line(&fingerprint.to_string()),
        Format::Json => output::json(&Document { schema: crate::wire::operator::SCHEMA, fingerprint }),
    }
    Ok(())
}
