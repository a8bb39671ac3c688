//! The fleet itself, its appliances, the roster and the epoch.

use crate::model::{ApplianceId, FleetId, Name, Prefix, Revision, SigningKey};
use crate::state::Touched;
use crate::view::records::{Epoch, Mesh};
use crate::{Code, Context, Refusal, State};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// What never changes about a fleet, and its mesh's ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fleet {
    /// The fleet.
    pub id: FleetId,
    /// Its name.
    pub name: Name,
    /// The public root key, which signs rosters.
    pub root_key: SigningKey,
    /// Where mesh addresses come from.
    pub mesh_prefix: Prefix,
    /// The second range, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh_prefix6: Option<ipnet::Ipv6Net>,
    /// The top-level name: `internal`.
    pub suffix: Name,
}

/// One appliance, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appliance {
    /// The appliance.
    pub id: ApplianceId,
    /// What it signs with.
    pub signing_key: SigningKey,
    /// The addresses it advertises, as far as they are literal.
    pub addresses: Vec<IpAddr>,
}

/// The roster as the root key signed it: text and signature, never encoded again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterText {
    /// Its revision.
    pub revision: Revision,
    /// The document.
    pub document: String,
    /// 64 bytes in hexadecimal digits.
    pub signature: String,
}

/// This subject's part of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Appliances {
    /// None before the fleet is founded.
    pub fleet: Option<Fleet>,
    /// By id.
    pub all: OrdMap<ApplianceId, Appliance>,
    /// The roster in force.
    pub roster: Option<RosterText>,
    /// The epoch in force.
    pub epoch: Option<Epoch>,
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Founds the fleet on its first appliance.
    Found {
        /// The fleet.
        fleet: Fleet,
        /// The first appliance: the primary.
        appliance: Appliance,
        /// The first roster.
        roster: RosterText,
    },
    /// Puts a newly signed roster in force, with the appliance facts that it was made from.
    PublishRoster {
        /// The appliance whose facts changed.
        appliance: Appliance,
        /// The roster.
        roster: RosterText,
    },
}

impl Command {
    /// The kind that the journal shows.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Found { .. } => "fleet.found",
            Self::PublishRoster { .. } => "roster.publish",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Event {
    /// The fleet exists, led by this appliance in epoch 1.
    Founded {
        /// The fleet.
        fleet: Fleet,
        /// The first appliance.
        appliance: Appliance,
    },
    /// A roster is in force.
    RosterPublished {
        /// The roster.
        roster: RosterText,
    },
    /// An appliance advertises these addresses now.
    ApplianceChanged {
        /// The appliance.
        appliance: Appliance,
    },
}

pub(crate) fn decide(state: &State, command: Command, _context: &Context) -> Result<Vec<crate::Event>, Refusal> {
    let part = &state.appliances;
    match command {
        Command::Found { fleet, appliance, roster } => {
            if let Some(present) = &part.fleet {
                return Err(Refusal::new(
                    Code::Conflict,
                    format!("fleet `{}` was not founded", fleet.name),
                    format!("this store holds fleet `{}` already", present.name),
                    "use another state directory for another fleet",
                ));
            }
            Ok(vec![Event::Founded { fleet, appliance }.into(), Event::RosterPublished { roster }.into()])
        }
        Command::PublishRoster { appliance, roster } => {
            let held = part.roster.as_ref().map_or(Revision(0), |r| r.revision);
            if roster.revision <= held {
                return Err(Refusal::new(
                    Code::Conflict,
                    format!("roster {} was not published", roster.revision),
                    format!("roster {held} is in force, and a roster never goes back"),
                    "sign one with a higher revision",
                ));
            }
            let mut events = vec![Event::RosterPublished { roster }.into()];
            if part.all.get(&appliance.id) != Some(&appliance) {
                events.push(Event::ApplianceChanged { appliance }.into());
            }
            Ok(events)
        }
    }
}

pub(crate) fn apply(state: &mut State, event: &Event, _touched: &mut Touched) {
    let part = &mut state.appliances;
    match event {
        Event::Founded { fleet, appliance } => {
            part.epoch = Some(Epoch { number: 1, appliance: appliance.id });
            part.all.insert(appliance.id, appliance.clone());
            part.fleet = Some(fleet.clone());
            state.told.mesh_changed(state.revision);
        }
        Event::RosterPublished { roster } => part.roster = Some(roster.clone()),
        Event::ApplianceChanged { appliance } => {
            part.all.insert(appliance.id, appliance.clone());
            state.told.mesh_changed(state.revision);
        }
    }
}

impl State {
    /// The fleet.
    ///
    /// # Errors
    /// Before it is founded.
    pub fn fleet(&self) -> Result<&Fleet, Refusal> {
        self.appliances.fleet.as_ref().ok_or_else(|| {
            Refusal::new(
                Code::Conflict,
                "there is no fleet yet",
                "this store holds no founding entry",
                "run `holdfast init` or `holdfast serve` on an empty state directory",
            )
        })
    }

    /// What holds for every node of the mesh; none before the fleet is founded.
    pub fn mesh(&self) -> Option<Mesh> {
        let fleet = self.appliances.fleet.as_ref()?;
        Some(Mesh {
            prefix: fleet.mesh_prefix,
            prefix6: fleet.mesh_prefix6,
            suffix: fleet.suffix.clone(),
            appliances: self.appliances.all.values().flat_map(|a| a.addresses.clone()).collect(),
        })
    }
}
