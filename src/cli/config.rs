//! `holdfast config show|check`.

use super::failure::Failure;
use super::globals::Globals;
use super::output::{self, Format};
use crate::config::{ConfigFile, Settings, keys, resolve};
use crate::wire::operator::SCHEMA;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Print every key's effective value and where it comes from
    Show(Arguments),
    /// Say whether a configuration would be accepted
    Check(Arguments),
}

/// A configuration: a file, and flags that win over it.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) settings: Settings,
}

impl Arguments {
    /// The file, if one is named.
    pub(super) fn file(&self) -> Result<Option<ConfigFile>, Failure> {
        Ok(self.config.as_deref().map(ConfigFile::read).transpose()?)
    }
}

#[derive(Serialize)]
struct Document {
    schema: u16,
    settings: BTreeMap<String, Value>,
}

#[derive(Serialize)]
struct Value {
    value: String,
    origin: String,
}

/// Does it.
pub(super) fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--output"])?;
    match command {
        Command::Show(arguments) => {
            let document = effective(&arguments)?;
            if globals.format() == Format::Json {
                output::json(&document);
                return Ok(());
            }
            let rows = document.settings.into_iter().map(|(key, Value { value, origin })| vec![key, value, origin]);
            output::table(&["KEY", "VALUE", "FROM"], rows.collect());
            Ok(())
        }
        Command::Check(arguments) => {
            let count = effective(&arguments)?.settings.values().filter(|value| value.origin != "default").count();
            match globals.format() {
                Format::Table => output::line(&format!("accepted: {count} keys set")),
                Format::Json => output::json(&serde_json::json!({ "schema": SCHEMA, "ok": true, "keys_set": count })),
            }
            Ok(())
        }
    }
}

fn effective(arguments: &Arguments) -> Result<Document, Failure> {
    let file = arguments.file()?;
    resolve(arguments.settings.clone(), file.as_ref())?;
    let unset = || Value { value: "-".to_owned(), origin: "default".to_owned() };
    let mut settings: BTreeMap<String, Value> = keys().into_iter().map(|key| (key, unset())).collect();
    let mut put = |from: &Settings, origin: &dyn Fn(&str) -> String| {
        for (key, value) in from.listed() {
            let origin = origin(&key);
            settings.insert(key, Value { value, origin });
        }
    };
    put(&Settings::defaults(), &|_| "default".to_owned());
    if let Some(file) = &file {
        let line = |key: &str| file.lines.get(key).copied().unwrap_or(1);
        put(&file.settings, &|key| format!("{}:{}", file.path.display(), line(key)));
    }
    put(&arguments.settings, &|key| format!("--{}", key.replace('_', "-")));
    Ok(Document { schema: SCHEMA, settings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_says_where_it_is_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        crate::files::replace(&path, b"fleet = \"lab\"\n[ports]\nmesh = 5300\n").unwrap();
        let settings = Settings { listen: Some([198, 51, 100, 2].into()), ..Settings::default() };
        let document = effective(&Arguments { config: Some(path.clone()), settings }).ok().unwrap();
        let shown = |key: &str| {
            let value = &document.settings[key];
            (value.value.clone(), value.origin.clone())
        };
        assert_eq!(shown("fleet"), ("lab".into(), format!("{}:1", path.display())));
        assert_eq!(shown("ports.mesh"), ("5300".into(), format!("{}:3", path.display())));
        assert_eq!(shown("listen"), ("198.51.100.2".into(), "--listen".into()));
        assert_eq!(shown("dns"), ("-".into(), "default".into()));
        assert_eq!(shown("mesh_prefix"), ("10.90.0.0/16".into(), "default".into()));
    }
}
