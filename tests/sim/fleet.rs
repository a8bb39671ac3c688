//! A founded fleet with joined nodes, as commands.

use state::Command;
use state::model::*;
use state::subject::{appliances, enrolment};

pub(crate) const NODES: u8 = 2;

pub(crate) fn node(n: u8) -> NodeId {
    NodeId(uuid::Uuid::from_u128(u128::from(n) + 1))
}

pub(crate) fn certificate(n: u8) -> Fingerprint {
    Fingerprint::from_bytes([100 + n; 32])
}

pub(crate) fn name(n: u8) -> Name {
    Name::new(&format!("n{n}")).unwrap()
}

fn found() -> Command {
    let appliance = appliances::Appliance {
        id: ApplianceId(uuid::Uuid::from_u128(900)),
        signing_key: SigningKey::from_bytes([90; 32]),
        addresses: vec![],
    };
    let fleet = appliances::Fleet {
        id: FleetId(uuid::Uuid::from_u128(800)),
        name: Name::new("sim").unwrap(),
        root_key: SigningKey::from_bytes([80; 32]),
        mesh_prefix: "10.90.0.0/16".parse().unwrap(),
        mesh_prefix6: None,
        suffix: Name::new("internal").unwrap(),
    };
    let roster = appliances::RosterText { revision: Revision(1), document: "{}".into(), signature: "00".into() };
    appliances::Command::Found { fleet, appliance, roster }.into()
}

fn add(n: u8) -> Command {
    enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: node(n),
        name: name(n),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        endpoints: vec![],
        token: Fingerprint::from_bytes([n; 32]),
        expires: Millis(u64::MAX),
        replace: false,
    }))
    .into()
}

fn join(n: u8) -> Command {
    enrolment::Command::Join(Box::new(enrolment::Join {
        token: Some(Fingerprint::from_bytes([n; 32])),
        signing_key: SigningKey::from_bytes([n; 32]),
        wireguard_key: WireguardKey::from_bytes([n; 32]),
        sealing_key: SealingKey::from_bytes([n; 32]),
        listen_port: 51820,
        local_endpoints: vec![],
        agent_version: "0.1.0".into(),
        mesh_token: Fingerprint::from_bytes([50 + n; 32]),
        certificate: certificate(n),
        window: (Millis(0), Millis(u64::MAX)),
        seq: 0,
    }))
    .into()
}

/// What makes the fleet, in order.
pub(crate) fn commands() -> Vec<Command> {
    let nodes = (0..NODES).flat_map(|n| [add(n), join(n)]);
    [found()].into_iter().chain(nodes).collect()
}
