//! The TOML file: read whole, or refused with file, line and the nearest known key.

use super::Settings;
use crate::files::{self, FileError};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// No configuration file is larger, in bytes.
const LIMIT: u64 = 256 * 1024;
/// A key further away than this many slips of the keyboard is not what was meant.
const NEAR: usize = 4;

/// A file that was understood.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub settings: Settings,
    /// The line of each key in it.
    pub lines: BTreeMap<String, usize>,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key that there is not.
    #[error("{}:{line}: there is no key `{key}`{}", path.display(), meant(.nearest.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As written.
        key: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// Not TOML, or a value of the wrong type or form.
    #[error("{}:{line}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// Values that cannot hold together.
    #[error("{origin}: {why}")]
    Impossible {
        /// The keys, with file and line where they stand in one.
        origin: String,
        /// Why not.
        why: String,
    },
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map(|key| format!("; did you mean `{key}`?")).unwrap_or_default()
}

impl ConfigError {
    pub(super) fn impossible(file: Option<&ConfigFile>, keys: [&str; 2], why: String) -> Self {
        let place = |key: &str| match file.and_then(|file| Some((file, file.lines.get(key)?))) {
            Some((file, line)) => format!("{}:{line}: `{key}`", file.path.display()),
            None => format!("`{key}`"),
        };
        let mut places: Vec<String> = keys.iter().map(|key| place(key)).collect();
        places.dedup();
        Self::Impossible { origin: places.join(" and "), why }
    }

    /// What to do about it.
    pub fn todo(&self) -> String {
        match self {
            Self::File(_) => "give an existing file with --config, or none".to_owned(),
            Self::UnknownKey { .. } => format!("the keys are: {}", keys().join(", ")),
            Self::Value { .. } => "correct that line; `holdfast config check` tells when all is right".to_owned(),
            Self::Impossible { .. } => "give them values that can hold together".to_owned(),
        }
    }
}

/// Every key, as the flags define them.
pub fn keys() -> Vec<String> {
    let command = Settings::augment_args(clap::Command::new("keys"));
    command.get_arguments().filter_map(|arg| arg.get_long()).map(|long| long.replace('-', "_")).collect()
}

impl ConfigFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let bytes = files::read(path, LIMIT)?;
        let text = String::from_utf8(bytes).map_err(|error| ConfigError::Value {
            path: path.to_owned(),
            line: line_of(error.as_bytes(), error.utf8_error().valid_up_to()),
            problem: "is not UTF-8 text".to_owned(),
        })?;
        Self::parse(path, &text)
    }

    /// Reads a file's text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let refuse = |error: toml::de::Error| ConfigError::Value {
            path: path.to_owned(),
            line: line_of(text.as_bytes(), error.span().map_or(0, |span| span.start)),
            problem: error.message().trim_end().replace('\n', ", "),
        };
        let table = DeTable::parse(text).map_err(refuse)?;
        let mut lines = BTreeMap::new();
        collect("", table.get_ref(), text, &mut lines);
        let known = keys();
        let is_table = |key: &str| known.iter().any(|k| k.starts_with(&format!("{key}.")));
        for (key, line) in &lines {
            if !known.contains(key) && !is_table(key) {
                return Err(ConfigError::UnknownKey {
                    path: path.to_owned(),
                    line: *line,
                    key: key.clone(),
                    nearest: nearest(key, &known),
                });
            }
        }
        let settings: Settings = toml::from_str(text).map_err(refuse)?;
        if let Some((key, _)) =
            settings.listed().into_iter().find(|(key, value)| key.starts_with("ports.") && value == "0")
        {
            let line = lines.get(&key).copied().unwrap_or(1);
            let problem = format!("`{key}` is 0, and a port is 1 to 65535");
            return Err(ConfigError::Value { path: path.to_owned(), line, problem });
        }
        Ok(Self { path: path.to_owned(), settings, lines })
    }
}

/// Each key with its line; the keys of tables by their dotted names.
fn collect(prefix: &str, table: &DeTable<'_>, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => collect(&format!("{name}."), inner, text, lines),
            _ => {
                lines.insert(name, line_of(text.as_bytes(), key.span().start));
            }
        }
    }
}

fn line_of(text: &[u8], at: usize) -> usize {
    1 + text.iter().take(at).filter(|byte| **byte == b'\n').count()
}

fn nearest(key: &str, known: &[String]) -> Option<String> {
    let distance = |k: &String| strsim::damerau_levenshtein(key, k);
    known.iter().min_by_key(|k| distance(k)).filter(|k| distance(k) <= NEAR).cloned()
}
