//! What only the first start of an appliance needs: `holdfast init`, or `serve` on an empty directory.

use super::{Config, Host, Ports, default_fleet, default_mesh_prefix, overlap};
use state::model::{Name, Prefix};
use state::{Code, Refusal};

/// What a fleet is founded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// The fleet's name.
    pub fleet: Name,
    /// The range of its mesh addresses.
    pub mesh_prefix: Prefix,
    /// Where nodes reach its first appliance.
    pub advertise: Vec<Host>,
    /// At which ports.
    pub ports: Ports,
}

impl From<&Config> for Founding {
    fn from(config: &Config) -> Self {
        Self {
            fleet: config.fleet.clone().unwrap_or_else(default_fleet),
            mesh_prefix: config.mesh_prefix.unwrap_or_else(default_mesh_prefix),
            advertise: config.advertise.clone(),
            ports: config.ports,
        }
    }
}

impl Founding {
    /// Refuses what this machine rules out, before anything is made: a mesh range that it routes elsewhere already.
    pub fn check(&self) -> Result<(), Refusal> {
        match overlap(self.mesh_prefix) {
            None => Ok(()),
            Some(found) => Err(Refusal::new(
                Code::Invalid,
                format!("the mesh prefix {} is refused", self.mesh_prefix),
                format!("this machine routes {} to {} already", found.route, found.interface),
                "give another range with --mesh-prefix, such as 10.91.0.0/16",
            )),
        }
    }
}
