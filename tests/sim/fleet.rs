//! A founded fleet with joined nodes, as commands.

use state::Command;
use state::model::*;
use state::subject::{appliances, enrolment};

pub(crate) const NODES: u8 = 2;
/// How often a machine may be revoked and come back.
pub(crate) const LIVES: u8 = 8;

/// Who a machine is: its number, and how often it has come back as somebody else after a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    machine: u8,
    pub(crate) times: u8,
}

impl Identity {
    pub(crate) fn first(machine: u8) -> Self {
        Self { machine, times: 0 }
    }

    pub(crate) fn next(self) -> Self {
        Self { times: self.times + 1, ..self }
    }

    fn number(self) -> u8 {
        self.machine * LIVES + self.times
    }

    pub(crate) fn node(self) -> NodeId {
        NodeId(uuid::Uuid::from_u128(u128::from(self.number()) + 1))
    }

    pub(crate) fn certificate(self) -> Fingerprint {
        Fingerprint::from_bytes([100 + self.number(); 32])
    }

    pub(crate) fn name(self) -> Name {
        Name::new(&format!("n{}", self.number())).unwrap()
    }

    /// What lets it in, in order.
    pub(crate) fn joins(self) -> [Command; 2] {
        [add(self), join(self)]
    }
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

fn add(who: Identity) -> Command {
    enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: who.node(),
        name: who.name(),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        endpoints: vec![],
        token: Fingerprint::from_bytes([who.number(); 32]),
        expires: Millis(u64::MAX),
        replace: false,
    }))
    .into()
}

fn join(who: Identity) -> Command {
    let n = who.number();
    enrolment::Command::Join(Box::new(enrolment::Join {
        token: Some(Fingerprint::from_bytes([n; 32])),
        signing_key: SigningKey::from_bytes([n; 32]),
        wireguard_key: WireguardKey::from_bytes([n; 32]),
        sealing_key: SealingKey::from_bytes([n; 32]),
        listen_port: 51820,
        local_endpoints: vec![],
        agent_version: "0.1.0".into(),
        mesh_token: Fingerprint::from_bytes([50 + n; 32]),
        certificate: who.certificate(),
        window: (Millis(0), Millis(u64::MAX)),
        seq: 0,
    }))
    .into()
}

/// What makes the fleet, in order.
pub(crate) fn commands() -> Vec<Command> {
    let nodes = (0..NODES).flat_map(|n| Identity::first(n).joins());
    [found()].into_iter().chain(nodes).collect()
}
