//! Identifiers. Made outside (they need randomness or a clock) and only carried here.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub uuid::Uuid);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                text.parse().map(Self)
            }
        }
    };
}

id!(
    /// A fleet; also the `audience` of every signed request.
    FleetId
);
id!(
    /// A node, for ever: never given to another key.
    NodeId
);
id!(
    /// An appliance.
    ApplianceId
);
id!(
    /// One call, as logs, journal and answers name it.
    RequestId
);
id!(
    /// A job.
    JobId
);
id!(
    /// A thing that was handed over once and is kept unchanged, such as a source snapshot.
    ArtifactId
);
