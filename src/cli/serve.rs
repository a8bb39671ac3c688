//! `holdfast serve`: the appliance. The configuration is read and judged before anything is made.

use super::config::Arguments;
use super::failure::Failure;
use super::globals::Globals;
use crate::config::resolve;
use crate::serve::{self, Options};

/// Serves until told to end.
pub(super) fn run(arguments: Arguments, globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--state"])?;
    let file = arguments.file()?;
    let config = resolve(arguments.settings, file.as_ref())?;
    Ok(serve::run(&Options { state: globals.dir()?.to_owned(), config })?)
}
