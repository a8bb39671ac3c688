//! Nouns that cannot be wrong: each is checked once, where it enters, and is right from then on.

mod endpoint;
mod id;
mod key;
mod name;
mod prefix;
mod time;

pub use endpoint::{Endpoint, EndpointError, Host};
pub use id::{ApplianceId, ArtifactId, FleetId, JobId, NodeId, RequestId};
pub use key::{Fingerprint, KeyError, SealingKey, SigningKey, WireguardKey, fingerprint_words};
pub use name::{Name, NameError, OrgName, RESERVED};
pub use prefix::{Prefix, PrefixError};
pub use time::{Millis, Revision};
