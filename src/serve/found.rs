//! From a state directory to a founded fleet with its store open: the first start makes what later ones find.
//!
//! Keys are made before the store, and none is ever made beside a store that exists: a missing one is an error. A start
//! that was killed at any point is completed by the next.

use crate::cluster::{Call, Finished, Handle, Home, Outcome, start};
use crate::config::{Config, Host, default_fleet, default_mesh_prefix, overlap};
use crate::keys::{self, ApplianceKeys};
use crate::wire::roster::{Roster, RosterAppliance};
use crate::wire::signed::{Kind, Signed};
use crate::{entropy, files};
use anyhow::Context as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use state::model::{ApplianceId, Endpoint, FleetId, Name, RequestId, Revision};
use state::subject::appliances::{Appliance, Command, Fleet, RosterText};
use state::view::records::Epoch;
use state::{Actor, Code, Refusal, Role, State};
use std::path::Path;
use std::sync::Arc;

/// An appliance's state directory, open.
pub struct Opened {
    /// Its private keys.
    pub keys: ApplianceKeys,
    /// Who it is.
    pub id: ApplianceId,
    /// Its state and writer.
    pub handle: Handle,
    /// Where nodes are told to reach its mesh API.
    pub advertised: Vec<Endpoint>,
    /// Whether the fleet was founded just now.
    pub founded: bool,
    /// Held as long as the directory is in use.
    pub lock: files::Lock,
}

/// Opens the directory, and founds a fleet where there is none. The recovery identity of a new one goes to `recovery`.
pub async fn open(dir: &Path, config: &Config, recovery: &Path) -> anyhow::Result<Opened> {
    let has_store = dir.join("store.redb").exists();
    let has_recovery = || dir.join("recovery.pub").exists();
    if !has_store {
        refuse_overlap(config)?;
    }
    if !has_store && !has_recovery() && !recovery.starts_with(dir) {
        keys::check_recovery(dir, recovery)?;
    }
    let keys = if has_store { ApplianceKeys::read(dir)? } else { ApplianceKeys::make(dir)? };
    let lock = files::lock(dir, "appliance")?;
    files::remove_staged(dir)?;
    if has_store {
        keys::expect_recovery(dir)?;
    } else if !has_recovery() {
        keys::make_recovery(dir, recovery)?;
    }
    let id = appliance_id(&keys);
    let handle =
        start(Arc::new(Home::new(dir)), Epoch { number: 1, appliance: id }).await.context("opening the store")?;
    let founded = handle.state().appliances.fleet.is_none();
    let advertised = match settle(&handle, &keys, id, config).await {
        Ok(advertised) => advertised,
        Err(error) => {
            handle.close().await;
            return Err(error);
        }
    };
    Ok(Opened { keys, id, handle, advertised, founded, lock })
}

/// An appliance's id follows from its signing key, so it needs no file that could be lost or swapped.
fn appliance_id(keys: &ApplianceKeys) -> ApplianceId {
    let hash = state::hash_of(b"holdfast/appliance/v1", &[keys.signing_key().as_bytes()]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    ApplianceId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

fn refuse_overlap(config: &Config) -> anyhow::Result<()> {
    let prefix = config.mesh_prefix.unwrap_or_else(default_mesh_prefix);
    match overlap(prefix) {
        None => Ok(()),
        Some(found) => Err(Refusal::new(
            Code::Conflict,
            format!("the mesh range {prefix} was refused"),
            format!("this machine routes {} over {} already, and the two overlap", found.route, found.interface),
            "choose another range with --mesh-prefix",
        )
        .into()),
    }
}

/// Founds the fleet, or checks that the store is that of these keys and this configuration; publishes a new roster
/// where what it says of this appliance has changed.
async fn settle(
    handle: &Handle,
    keys: &ApplianceKeys,
    id: ApplianceId,
    config: &Config,
) -> anyhow::Result<Vec<Endpoint>> {
    let state = handle.state();
    let Some(fleet) = &state.appliances.fleet else {
        let advertised = endpoints(&config.advertise, config.ports.mesh);
        let fleet = Fleet {
            id: FleetId(entropy::uuid()),
            name: config.fleet.clone().unwrap_or_else(default_fleet),
            root_key: keys.root_key(),
            mesh_prefix: config.mesh_prefix.unwrap_or_else(default_mesh_prefix),
            mesh_prefix6: None,
            suffix: Name::new("internal").expect("the suffix is a name"),
        };
        let hosts = hosts(&advertised);
        let roster = roster(keys, id, &fleet, Revision(1), &advertised, &endpoints(&hosts, config.ports.gateway));
        let appliance = described(keys, id, &advertised);
        submit(handle, Command::Found { fleet, appliance, roster }).await?;
        return Ok(advertised);
    };
    refuse_other(&state, fleet, keys, id, config)?;
    let held: Roster = state
        .appliances
        .roster
        .as_ref()
        .and_then(|text| serde_json::from_str(&text.document).ok())
        .context("the store holds no roster that can be read")?;
    let own = held.appliances.iter().find(|appliance| appliance.id == id);
    let named = if config.advertise.is_empty() {
        own.map(|own| hosts(&own.mesh)).unwrap_or_default()
    } else {
        config.advertise.clone()
    };
    let advertised = endpoints(&named, config.ports.mesh);
    let next = Revision(held.revision.0 + 1);
    let gateway = endpoints(&named, config.ports.gateway);
    let changed =
        own.is_none_or(|own| own.mesh != advertised || own.gateway != gateway || !own.pins.contains(&keys.pin()));
    if changed {
        let roster = roster(keys, id, fleet, next, &advertised, &gateway);
        submit(handle, Command::PublishRoster { appliance: described(keys, id, &advertised), roster }).await?;
    }
    Ok(advertised)
}

fn refuse_other(
    state: &State,
    fleet: &Fleet,
    keys: &ApplianceKeys,
    id: ApplianceId,
    config: &Config,
) -> anyhow::Result<()> {
    let refuse =
        |why: String, todo: &str| Err(Refusal::new(Code::Conflict, "the appliance was not started", why, todo).into());
    if fleet.root_key != keys.root_key() {
        return refuse("root.key is not the key of the fleet in this store".into(), "restore the right root.key");
    }
    if !state.appliances.all.contains_key(&id) {
        return refuse("signing.key is no appliance's of this store".into(), "restore the right signing.key");
    }
    if let Some(name) = config.fleet.as_ref().filter(|name| **name != fleet.name) {
        let why = format!("the store holds fleet `{}`, and `fleet` says `{name}`", fleet.name);
        return refuse(why, "leave `fleet` out, or use another state directory");
    }
    if let Some(prefix) = config.mesh_prefix.filter(|prefix| *prefix != fleet.mesh_prefix) {
        let why = format!("the fleet's mesh range is {}, and `mesh_prefix` says {prefix}", fleet.mesh_prefix);
        return refuse(why, "leave `mesh_prefix` out");
    }
    Ok(())
}

fn endpoints(hosts: &[Host], port: u16) -> Vec<Endpoint> {
    hosts.iter().filter_map(|host| host.endpoint(port)).collect()
}

fn hosts(endpoints: &[Endpoint]) -> Vec<Host> {
    let host = |endpoint: &Endpoint| match endpoint.host() {
        state::model::Host::Address(address) => address.to_string().parse().ok(),
        state::model::Host::Name(name) => name.parse().ok(),
    };
    endpoints.iter().filter_map(host).collect()
}

fn described(keys: &ApplianceKeys, id: ApplianceId, advertised: &[Endpoint]) -> Appliance {
    let addresses = advertised.iter().filter_map(|endpoint| endpoint.socket()).map(|socket| socket.ip()).collect();
    Appliance { id, signing_key: keys.signing_key(), addresses }
}

fn roster(
    keys: &ApplianceKeys,
    id: ApplianceId,
    fleet: &Fleet,
    revision: Revision,
    mesh: &[Endpoint],
    gateway: &[Endpoint],
) -> RosterText {
    let roster = Roster {
        format: 1,
        fleet: fleet.id,
        fleet_name: fleet.name.clone(),
        revision,
        appliances: vec![RosterAppliance {
            id,
            signing_key: keys.signing_key(),
            ca: STANDARD.encode(keys.ca.certificate()),
            pins: vec![keys.pin()],
            mesh: mesh.to_vec(),
            gateway: gateway.to_vec(),
            may_lead: true,
        }],
    };
    let document = state::to_text(&roster);
    let Signed { document, signature } = Signed::sign(&keys.root, Kind::Roster, document);
    RosterText { revision, document, signature }
}

async fn submit(handle: &Handle, command: Command) -> anyhow::Result<()> {
    let call = Call {
        wish: command.into(),
        actor: Actor::Appliance,
        org: None,
        role: Role::System,
        request: RequestId(entropy::uuid()),
        receipt: None,
    };
    match handle.submit(call, |_| Finished { answer: (), rows: Vec::new() }).await? {
        Outcome::Fresh(()) | Outcome::Receipt(_) => Ok(()),
    }
}
