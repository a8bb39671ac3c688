//! What a node holds: its id and three private keys for three uses. The fourth, of its client certificate, is in
//! `client.rs`.

use super::{KeyError, Role, claim, expect, make_bytes, make_ed25519, read_bytes, read_ed25519};
use crate::files;
use ed25519_dalek::SigningKey as Ed25519;
use state::model::{NodeId, SealingKey, SigningKey, WireguardKey};
use std::path::{Path, PathBuf};
use x25519_dalek::{PublicKey, StaticSecret};

/// The private key of the tunnel, in the format that the data plane reads.
const WIREGUARD: &str = "wireguard.key";

/// The private keys of a node.
pub struct NodeKeys {
    /// Signs requests.
    pub signing: Ed25519,
    /// The tunnel's.
    pub wireguard: StaticSecret,
    /// Opens credentials.
    pub sealing: StaticSecret,
}

/// The public halves of a node's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicHalves {
    /// What it signs with.
    pub signing_key: SigningKey,
    /// The tunnel's.
    pub wireguard_key: WireguardKey,
    /// What credentials are sealed to.
    pub sealing_key: SealingKey,
}

impl NodeKeys {
    /// Makes the directory and the keys that are missing, then reads them all.
    pub fn make(dir: &Path) -> Result<Self, KeyError> {
        claim(dir, Role::Node)?;
        make_ed25519(&dir.join("signing.key"))?;
        make_bytes(&dir.join(WIREGUARD))?;
        make_bytes(&dir.join("sealing.key"))?;
        Self::read(dir)
    }

    /// Reads the keys; none is ever made here, so a missing one is an error that names it.
    pub fn read(dir: &Path) -> Result<Self, KeyError> {
        expect(dir, Role::Node)?;
        Ok(Self {
            signing: read_ed25519(&dir.join("signing.key"))?,
            wireguard: StaticSecret::from(*read_bytes(&dir.join(WIREGUARD))?),
            sealing: StaticSecret::from(*read_bytes(&dir.join("sealing.key"))?),
        })
    }

    /// The public halves.
    pub fn public(&self) -> PublicHalves {
        PublicHalves {
            signing_key: SigningKey::from_bytes(self.signing.verifying_key().to_bytes()),
            wireguard_key: WireguardKey::from_bytes(PublicKey::from(&self.wireguard).to_bytes()),
            sealing_key: SealingKey::from_bytes(PublicKey::from(&self.sealing).to_bytes()),
        }
    }

    /// The file with the tunnel's private key.
    pub fn wireguard_file(dir: &Path) -> PathBuf {
        dir.join(WIREGUARD)
    }

    /// The node's id; none before it was let in.
    pub fn id(dir: &Path) -> Result<Option<NodeId>, KeyError> {
        let path = dir.join("node.id");
        let bytes = match files::read_secret(&path) {
            Ok(bytes) => bytes,
            Err(error) if files::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let id = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
        id.map(Some).ok_or(KeyError::Malformed { path, problem: "is not one line with a node's id" })
    }

    /// Keeps the id that the node was given, for ever; another one than it has already is refused.
    pub fn keep_id(dir: &Path, id: NodeId) -> Result<(), KeyError> {
        let path = dir.join("node.id");
        files::create_once(&path, format!("{id}\n").as_bytes())?;
        match Self::id(dir)? {
            Some(kept) if kept == id => Ok(()),
            Some(_) | None => Err(KeyError::Malformed { path, problem: "names another node than the appliance does" }),
        }
    }
}
