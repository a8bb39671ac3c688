//! What a node believes by the fleet's root key: the roster, and through it the appliances' signatures.

use crate::wire::roster::Roster;
use crate::wire::signed::{Disbelief, Kind, Signed};
use serde::de::DeserializeOwned;
use state::model::{ApplianceId, FleetId, Revision, SigningKey};

/// The roster in force, with the bytes that prove it.
#[derive(Clone, Debug)]
pub struct Trust {
    root: SigningKey,
    signed: Signed,
    roster: Roster,
}

/// Why a roster was not accepted. The one held stays in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// Not signed by the root key, or not a roster.
    #[error("roster: {0}")]
    Disbelief(#[from] Disbelief),
    /// A format of a later version.
    #[error("the roster is of format {0}, which this version of holdfast does not know; update it")]
    Format(u16),
    /// Of another fleet.
    #[error("the roster is of fleet {given}, not of {held}")]
    Fleet {
        /// This node's.
        held: FleetId,
        /// As given.
        given: FleetId,
    },
    /// Older than the one held.
    #[error("the roster has revision {given}, below {held} which is held")]
    Lower {
        /// In force.
        held: Revision,
        /// As given.
        given: Revision,
    },
}

impl Trust {
    /// Believes a first roster, or one read back from disk.
    pub fn new(root: SigningKey, fleet: FleetId, signed: Signed) -> Result<Self, RosterError> {
        let roster = open(&root, fleet, &signed)?;
        Ok(Self { root, signed, roster })
    }

    /// Takes a roster with a higher revision; true if it is now in force.
    pub fn accept(&mut self, signed: &Signed) -> Result<bool, RosterError> {
        let roster = open(&self.root, self.roster.fleet, signed)?;
        if roster.revision < self.roster.revision {
            return Err(RosterError::Lower { held: self.roster.revision, given: roster.revision });
        }
        let newer = roster.revision > self.roster.revision;
        if newer {
            self.roster = roster;
            self.signed = signed.clone();
        }
        Ok(newer)
    }

    /// The roster in force.
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Its signed form, as kept on disk.
    pub const fn signed(&self) -> &Signed {
        &self.signed
    }

    /// Opens a document that any appliance of the roster may have signed.
    pub fn open<T: DeserializeOwned>(&self, signed: &Signed, kind: Kind) -> Result<T, Disbelief> {
        let mut last = Disbelief::Signature(kind);
        for appliance in &self.roster.appliances {
            match signed.open(&appliance.signing_key, kind) {
                Err(error @ Disbelief::Malformed(..)) => return Err(error),
                Err(error @ Disbelief::Signature(_)) => last = error,
                Ok(document) => return Ok(document),
            }
        }
        Err(last)
    }

    /// Whether a document was signed by this very appliance of the roster.
    pub fn signed_by(&self, appliance: ApplianceId, signed: &Signed, kind: Kind) -> bool {
        let mut named = self.roster.appliances.iter().filter(|a| a.id == appliance);
        named.any(|a| signed.verify(&a.signing_key, kind).is_ok())
    }
}

fn open(root: &SigningKey, fleet: FleetId, signed: &Signed) -> Result<Roster, RosterError> {
    let roster: Roster = signed.open(root, Kind::Roster)?;
    if roster.format != 1 {
        return Err(RosterError::Format(roster.format));
    }
    if roster.fleet != fleet {
        return Err(RosterError::Fleet { held: fleet, given: roster.fleet });
    }
    Ok(roster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::Fleet;

    #[test]
    fn a_roster_is_believed_by_root_alone_and_never_goes_back() {
        let mut fleet = Fleet::new();
        let mut trust = fleet.trust();
        let first = fleet.roster();
        fleet.roster_revision = 9;
        assert_eq!(trust.accept(&fleet.roster()), Ok(true));
        assert_eq!(trust.accept(&fleet.roster()), Ok(false));
        assert_eq!(trust.accept(&first), Err(RosterError::Lower { held: Revision(9), given: Revision(1) }));
        fleet.root = ed25519_dalek::SigningKey::from_bytes(&[99; 32]);
        assert_eq!(trust.accept(&fleet.roster()), Err(RosterError::Disbelief(Disbelief::Signature(Kind::Roster))));
        let mut stranger = Fleet::new();
        stranger.id = FleetId(uuid::Uuid::from_u128(77));
        assert!(matches!(trust.accept(&stranger.roster()), Err(RosterError::Fleet { .. })));
        assert_eq!(trust.roster().revision, Revision(9));
    }
}
