//! Private keys in a state directory: made once, read from then on, never changed.
//!
//! Each key is a file of its own, 0600. However many processes start at once, one file wins and all read that one. A
//! directory is ours by its marker, which is the first file made in it. No private half here has `Serialize` or a
//! `Debug` that shows it.

mod appliance;
mod certificate;
mod client;
mod node;
mod recovery;

pub use appliance::{ApplianceKeys, fingerprint};
pub use certificate::{CertificateAuthority, IssuedCertificate, P256Key, TlsIdentity, pin};
pub use client::{ClientIdentity, ClientKey, NextClientKey};
pub use node::{NodeKeys, PublicHalves};
pub use recovery::{check_recovery, expect_recovery, make_recovery};

use crate::files::{self, FileError};
use ed25519_dalek::SigningKey as Ed25519;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file that says whose directory it is.
pub const MARKER: &str = "holdfast.role";

/// What a state directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `holdfast init` and `serve`.
    Appliance,
    /// `holdfast join` and `agent run`.
    Node,
}

impl Role {
    /// As the marker has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Appliance => "appliance",
            Self::Node => "node",
        }
    }
}

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file or its directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that is not what its name says. Its content is not shown.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should be.
        problem: &'static str,
    },
    /// A directory with something in it and no marker of ours.
    #[error("{}: is not empty and not a state directory of holdfast, so it is not taken over", .0.display())]
    Foreign(PathBuf),
    /// A directory of the other role.
    #[error("{}: is a state directory of role {found}, and role {wanted} is needed here", path.display())]
    OtherRole {
        /// The directory.
        path: PathBuf,
        /// What its marker says.
        found: String,
        /// What was wanted.
        wanted: &'static str,
    },
    /// A directory that does not exist or was never set up.
    #[error("{}: holds no holdfast {wanted}", path.display())]
    Absent {
        /// The directory.
        path: PathBuf,
        /// What was wanted.
        wanted: &'static str,
    },
    /// A certificate request that cannot be granted.
    #[error("the certificate request is refused: {0}")]
    Request(&'static str),
}

impl KeyError {
    /// What to do about it.
    pub fn todo(&self) -> &'static str {
        match self {
            Self::File(FileError::Io { .. }) => "check that the path is right and the disk works",
            Self::File(FileError::Unsafe { .. }) => "put owner and mode right by hand: nothing is changed for you",
            Self::File(FileError::Damaged { .. }) => {
                "restore the file from a backup, or move it away and join again with a token of `holdfast node token NAME`"
            }
            Self::File(FileError::Newer { .. }) => "start the version of holdfast that wrote it, or a later one",
            Self::File(FileError::Locked { .. }) => "stop that process first",
            Self::Malformed { .. } => "restore the file from a backup; it is never made anew",
            Self::Foreign(_) | Self::OtherRole { .. } => "give another directory with --state",
            Self::Absent { wanted: "node", .. } => "run `holdfast join TOKEN --state DIR` first",
            Self::Absent { .. } => "run `holdfast init --state DIR --fleet NAME` first",
            Self::Request(_) => "update holdfast on that machine",
        }
    }
}

/// Makes a state directory with its marker, or accepts one that has it.
pub fn claim(dir: &Path, role: Role) -> Result<(), KeyError> {
    files::private_dir(dir)?;
    if marked(dir, role)? {
        return Ok(());
    }
    // Whoever makes files of ours makes the marker first: files without a marker, looked at in this order, are foreign.
    if has_content(dir)? && !marked(dir, role)? {
        return Err(KeyError::Foreign(dir.to_owned()));
    }
    files::create_once(&dir.join(MARKER), format!("{}\n", role.as_str()).as_bytes())?;
    marked(dir, role)?;
    Ok(())
}

/// Accepts a state directory that has its marker already.
pub fn expect(dir: &Path, role: Role) -> Result<(), KeyError> {
    let absent = || KeyError::Absent { path: dir.to_owned(), wanted: role.as_str() };
    match files::check_private_dir(dir) {
        Ok(()) if marked(dir, role)? => Ok(()),
        Ok(()) => Err(absent()),
        Err(error) if files::is_absent(&error) => Err(absent()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the directory has the marker of this role; another role's is an error.
fn marked(dir: &Path, role: Role) -> Result<bool, KeyError> {
    let bytes = match files::read_secret(&dir.join(MARKER)) {
        Ok(bytes) => bytes,
        Err(error) if files::is_absent(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let found = String::from_utf8_lossy(&bytes).trim().to_owned();
    if found == role.as_str() {
        return Ok(true);
    }
    Err(KeyError::OtherRole { path: dir.to_owned(), found, wanted: role.as_str() })
}

/// Whether there is anything beside the copies that a killed start of ours may have left half-made.
fn has_content(dir: &Path) -> Result<bool, KeyError> {
    let io = |source| FileError::Io { path: dir.to_owned(), doing: "listing the directory", source };
    for entry in std::fs::read_dir(dir).map_err(io)? {
        if !entry.map_err(io)?.file_name().to_string_lossy().starts_with(files::STAGED) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The 32 bytes of a key file, made at random first where there is none.
fn make_bytes(path: &Path) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    match read_bytes(path) {
        Err(KeyError::File(error)) if files::is_absent(&error) => {}
        other => return other,
    }
    let mut line = Zeroizing::new(hex::encode(crate::entropy::secret().as_slice()));
    line.push('\n');
    files::create_once(path, line.as_bytes())?;
    read_bytes(path)
}

/// The 32 bytes of a key file: one line of hexadecimal digits.
fn read_bytes(path: &Path) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let line = files::read_secret(path)?;
    let mut bytes = Zeroizing::new([0; 32]);
    hex::decode_to_slice(line.trim_ascii(), bytes.as_mut_slice()).map_err(|_| KeyError::Malformed {
        path: path.to_owned(),
        problem: "is not one line of 64 hexadecimal digits",
    })?;
    Ok(bytes)
}

fn make_ed25519(path: &Path) -> Result<Ed25519, KeyError> {
    Ok(Ed25519::from_bytes(&*make_bytes(path)?))
}

fn read_ed25519(path: &Path) -> Result<Ed25519, KeyError> {
    Ok(Ed25519::from_bytes(&*read_bytes(path)?))
}

#[cfg(test)]
mod tests;
