//! The roster: the only thing a node believes by the fleet's root key.

use serde::{Deserialize, Serialize};
use state::model::{ApplianceId, Endpoint, Fingerprint, FleetId, Name, Revision, SigningKey};

/// Which appliances there are, how to know and reach them, and which may lead. Signed by the root key alone and never
/// accepted with a lower revision than the one held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Format of this document: 1.
    pub format: u16,
    /// The fleet.
    pub fleet: FleetId,
    /// Its name.
    pub fleet_name: Name,
    /// Grows by at least one with every roster.
    pub revision: Revision,
    /// The appliances, primary-to-be first.
    pub appliances: Vec<RosterAppliance>,
}

/// One appliance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterAppliance {
    /// The appliance.
    pub id: ApplianceId,
    /// What it signs records, heads and tombstones with.
    pub signing_key: SigningKey,
    /// The DER of the CA that signs its nodes' client certificates, in base64.
    pub ca: String,
    /// SHA-256 of the DER of its TLS leaf: the one in use, then the next one while it is being rotated.
    pub pins: Vec<Fingerprint>,
    /// Where its mesh API listens.
    pub mesh: Vec<Endpoint>,
    /// Where its gateway listens.
    pub gateway: Vec<Endpoint>,
    /// Whether it may become primary and raise the epoch.
    pub may_lead: bool,
}
