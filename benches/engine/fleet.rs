//! A founded fleet at the engine: its commands, and how they are submitted.

use anyhow::{Result, bail};
use holdfast::cluster::{Call, Finished, Handle, Home, Outcome, Wish, start};
use state::model::{
    ApplianceId, Fingerprint, FleetId, Millis, Name, NodeId, RequestId, Revision, SealingKey, SigningKey, WireguardKey,
};
use state::store::SideRow;
use state::subject::{appliances, enrolment};
use state::view::records::Epoch;
use state::{Actor, Command, Role, State};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// A store of its own in `dir`, with so many nodes that have joined.
pub(crate) async fn founded(dir: &Path, nodes: usize) -> Result<Handle> {
    let epoch = Epoch { number: 1, appliance: ApplianceId(Uuid::from_u128(1)) };
    let handle = start(Arc::new(Home::new(dir)), epoch).await?;
    change(&handle, found(epoch.appliance)).await?;
    for n in 0..nodes {
        change(&handle, add(n)).await?;
        change(&handle, join(n)).await?;
    }
    Ok(handle)
}

/// A command that must change something.
pub(crate) async fn change(handle: &Handle, command: Command) -> Result<()> {
    match submit(handle, command, vec![], |_| true).await? {
        Some(true) => Ok(()),
        Some(false) | None => bail!("a command changed nothing"),
    }
}

/// A command with rows beside it; what `read` finds in the state after it, if it changed something.
pub(crate) async fn submit<T: Send + 'static>(
    handle: &Handle,
    wish: impl Into<Wish>,
    rows: Vec<SideRow>,
    read: impl FnOnce(&State) -> T + Send + 'static,
) -> Result<Option<T>> {
    let call = Call {
        wish: wish.into(),
        actor: Actor::Appliance,
        org: None,
        role: Role::Admin,
        request: RequestId(Uuid::nil()),
        receipt: None,
    };
    let answered =
        handle.submit(call, |decided| Finished { answer: decided.change.map(|_| read(decided.state)), rows }).await?;
    match answered {
        Outcome::Fresh(answer) => Ok(answer),
        Outcome::Receipt(_) => bail!("a receipt for a call without a key"),
    }
}

pub(crate) fn node(n: usize) -> NodeId {
    NodeId(Uuid::from_u128(n as u128))
}

pub(crate) fn certificate(n: usize) -> Fingerprint {
    Fingerprint::from_bytes(bytes(3, n))
}

fn found(id: ApplianceId) -> Command {
    let appliance = appliances::Appliance { id, signing_key: SigningKey::from_bytes([1; 32]), addresses: vec![] };
    let fleet = appliances::Fleet {
        id: FleetId(Uuid::from_u128(2)),
        name: name("bench".into()),
        root_key: SigningKey::from_bytes([2; 32]),
        mesh_prefix: "10.64.0.0/16".parse().expect("a prefix"),
        mesh_prefix6: None,
        suffix: name("internal".into()),
    };
    let roster = appliances::RosterText { revision: Revision(1), document: "{}".into(), signature: "00".into() };
    appliances::Command::Found { fleet, appliance, roster }.into()
}

fn add(n: usize) -> Command {
    enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: node(n),
        name: name(format!("n{n}")),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        endpoints: vec![],
        token: token(n, u64::MAX),
        expires: Millis(u64::MAX),
        replace: false,
    }))
    .into()
}

fn join(n: usize) -> Command {
    enrolment::Command::Join(Box::new(enrolment::Join {
        token: Some(token(n, u64::MAX)),
        signing_key: SigningKey::from_bytes(bytes(4, n)),
        wireguard_key: WireguardKey::from_bytes(bytes(5, n)),
        sealing_key: SealingKey::from_bytes(bytes(6, n)),
        listen_port: 51820,
        local_endpoints: vec![],
        agent_version: env!("CARGO_PKG_VERSION").into(),
        mesh_token: Fingerprint::from_bytes(bytes(7, n)),
        certificate: certificate(n),
        window: (Millis(0), Millis(u64::MAX)),
        seq: 0,
    }))
    .into()
}

fn bytes(what: u8, n: usize) -> [u8; 32] {
    let mut bytes = [what; 32];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    bytes
}

pub(crate) fn token(n: usize, round: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    bytes[8..16].copy_from_slice(&round.to_be_bytes());
    Fingerprint::from_bytes(bytes)
}

pub(crate) fn name(text: String) -> Name {
    Name::new(&text).expect("a name")
}
