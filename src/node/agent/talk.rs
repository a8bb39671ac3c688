//! What the agent is told and what it asks for in return.

use crate::node::client::CallError;
use crate::node::failure::Failure;
use crate::node::wanted::{Machine, Wanted};
use crate::wire::jobs::{Presence, Seen};
use crate::wire::operator::Publish;
use crate::wire::peers::{ClaimVerdict, PeerList, RegisterAnswer, RegisterBody};
use crate::wire::signed::Signed;
use state::model::{Millis, Name, Revision};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// When an input arrives, and chance to go with it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Time since boot: all waiting is measured by it.
    pub boot: Duration,
    /// Wall-clock time: for display and ages.
    pub wall: Millis,
    /// Uniform over its whole range.
    pub chance: u32,
}

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// The agent starts. The first input.
    Started,
    /// The time of [`Agent::deadline`](super::Agent::deadline) has come.
    Tick,
    /// This node holds a client certificate: an unchanged heartbeat may be an [`Output::Present`] from now on.
    Certified,
    /// A presence was answered or failed.
    Presented(Result<Seen, CallError>),
    /// A register was answered or failed.
    Registered(Result<Box<RegisterAnswer>, CallError>),
    /// The held stream brought changes.
    Changes(PeerList),
    /// The held stream ended or could not begin.
    ChangesEnded,
    /// A full list was answered or failed.
    Listed(Result<PeerList, CallError>),
    /// The machine's addresses or MTU, when they changed.
    Machine(Machine),
    /// Where a host name leads; none if it leads nowhere at present, then the old answer stays.
    Resolved(String, Option<IpAddr>),
    /// The operator publishes a service, and the claims are on disk with it. `call` names whom to answer.
    Publish {
        /// Who waits.
        call: u64,
        /// What is claimed.
        claim: Publish,
    },
    /// The operator withdraws a service, and the claims are on disk without it.
    Withdraw {
        /// Who waits.
        call: u64,
        /// The space.
        space: Name,
        /// The service.
        name: Name,
    },
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Say that nothing has changed. The answer comes back as [`Input::Presented`].
    Present(Presence),
    /// Register; the client fills in `seq`. The answer comes back as [`Input::Registered`].
    Register(Box<RegisterBody>),
    /// Hold the stream of what changes after a revision, in place of the one held.
    Watch {
        /// What is known already.
        after: Revision,
    },
    /// Ask for the full list. The answer comes back as [`Input::Listed`].
    List,
    /// Look up host names.
    Resolve(BTreeSet<String>),
    /// Make the machine so.
    Up(Box<Wanted>),
    /// Take the mesh down: this node is no longer of the fleet.
    Down,
    /// Keep the list on disk, as [`Agent::report`](super::Agent::report) has it.
    KeepPeers,
    /// Keep the roster on disk, and call the appliances that it names from now on.
    KeepRoster(Signed),
    /// Keep the claims on disk.
    KeepClaims(Vec<Publish>),
    /// Keep on disk that an appliance has just confirmed what is held.
    KeepConfirmed(Millis),
    /// Answer whoever published or withdrew.
    Answer {
        /// Who waits.
        call: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// Tell the log, as news.
    Info(String),
    /// Tell the log, as something that should not be.
    Warn(String),
}

/// What became of a publish or withdraw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The appliance judged the claim.
    Judged(ClaimVerdict),
    /// The claim is gone.
    Withdrawn,
    /// No appliance answers; it is kept and will be sent.
    Stored,
    /// Not done.
    Failed(Failure),
}
