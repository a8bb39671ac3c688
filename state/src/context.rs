//! Who asks, with what right, and when: the only way time reaches a decision. Chance comes in the commands, as ids and
//! hashes of secrets that were made outside.

use crate::model::{Millis, Name, NodeId, OrgName, RequestId, SigningKey};
use serde::{Deserialize, Serialize};

/// Who asked for a change. Stored with the change: the journal is the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "as")]
pub enum Actor {
    /// A person at the operator socket, by user name or number.
    Operator {
        /// As the kernel names the peer, e.g. `uid 0`.
        user: String,
    },
    /// A node, proven by its signature.
    Node {
        /// The node.
        id: NodeId,
    },
    /// A machine that is not (yet) a node, proven only by the key it signs with.
    Stranger {
        /// That key.
        key: SigningKey,
    },
    /// The appliance itself: timers and first start.
    Appliance,
}

/// What an actor may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Nothing that changes the state.
    Viewer,
    /// What a node may do for itself.
    Node,
    /// What the appliance does by itself.
    System,
}

/// Everything a decision may know beside the state and the command.
#[derive(Clone, Debug)]
pub struct Context {
    /// Who asks.
    pub actor: Actor,
    /// The org that the actor is bound to; none means the fleet itself.
    pub org: Option<OrgName>,
    /// With what right.
    pub role: Role,
    /// The appliance's wall clock when the writer decides.
    pub now: Millis,
    /// Whether `now` may be believed: false while it lies behind the latest time ever seen, and then nothing expires.
    pub clock_trusted: bool,
    /// Fresh random bytes, for this decision alone.
    pub entropy: [u8; 32],
    /// The call this belongs to.
    pub request: RequestId,
}

impl Context {
    /// Whether `end` has passed. Nothing has while the clock is not trusted.
    pub fn expired(&self, end: Millis) -> bool {
        self.clock_trusted && self.now >= end
    }

    /// Whether the actor may see and change what belongs to `owner`.
    pub fn covers(&self, owner: Option<&Name>) -> bool {
        match &self.org {
            None => true,
            Some(org) => owner == Some(org),
        }
    }
}
