//! A founded fleet that commands are run against, each as its own change.

use state::model::*;
use state::subject::jobs::{self, Outcome, Probe, Spec};
use state::subject::services::{Pair, Port};
use state::subject::sources::Source;
use state::subject::{appliances, enrolment, nodes};
use state::view::records::Protocol;
use state::{Actor, Change, Code, Command, Context, Event, Refusal, Role, State, decide};

pub(crate) fn id(n: u8) -> NodeId {
    NodeId(uuid::Uuid::from_u128(u128::from(n)))
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn hash(n: u8) -> Fingerprint {
    Fingerprint::from_bytes([n; 32])
}

pub(crate) fn pair(text: &str) -> Pair {
    text.parse().unwrap()
}

pub(crate) struct Fleet {
    pub(crate) state: State,
    pub(crate) changes: Vec<Change>,
    pub(crate) now: Millis,
    pub(crate) clock_trusted: bool,
    pub(crate) org: Option<Name>,
}

impl Fleet {
    pub(crate) fn founded(prefix: &str) -> Self {
        let mut fleet =
            Self { state: State::default(), changes: vec![], now: Millis(1_000_000), clock_trusted: true, org: None };
        let appliance = appliances::Appliance {
            id: ApplianceId(uuid::Uuid::from_u128(900)),
            signing_key: SigningKey::from_bytes([90; 32]),
            addresses: vec!["198.51.100.2".parse().unwrap()],
        };
        let found = appliances::Command::Found {
            fleet: appliances::Fleet {
                id: FleetId(uuid::Uuid::from_u128(800)),
                name: name("lab"),
                root_key: SigningKey::from_bytes([80; 32]),
                mesh_prefix: prefix.parse().unwrap(),
                mesh_prefix6: None,
                suffix: name("internal"),
            },
            appliance,
            roster: appliances::RosterText { revision: Revision(1), document: "{}".into(), signature: "00".into() },
        };
        fleet.run(found).unwrap();
        fleet
    }

    pub(crate) fn run(&mut self, command: impl Into<Command>) -> Result<Vec<Event>, Refusal> {
        let command = command.into();
        let kind = command.kind().to_owned();
        let context = self.context();
        let events = decide(&self.state, command, &context)?;
        if !events.is_empty() {
            let change = Change {
                change: Revision(self.state.revision.0 + 1),
                actor: context.actor,
                request: context.request,
                kind,
                v: 1,
                events: events.clone(),
            };
            self.state.apply(&change, self.now);
            self.changes.push(change);
        }
        Ok(events)
    }

    pub(crate) fn context(&self) -> Context {
        Context {
            actor: Actor::Appliance,
            org: self.org.clone(),
            role: Role::Admin,
            now: self.now,
            clock_trusted: self.clock_trusted,
            entropy: [0; 32],
            request: RequestId(uuid::Uuid::nil()),
        }
    }

    pub(crate) fn code(&mut self, command: impl Into<Command>) -> Code {
        self.run(command).unwrap_err().code
    }

    /// Adds node `n<n>` with a token whose hash is `n`, and joins it with keys `n`.
    pub(crate) fn joined(&mut self, n: u8) -> NodeId {
        self.run(add(n)).unwrap();
        self.run(join(Some(n), n)).unwrap();
        id(n)
    }
}

pub(crate) fn add(n: u8) -> enrolment::Command {
    enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: id(n),
        name: name(&format!("n{n}")),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        endpoints: vec![],
        token: hash(n),
        expires: Millis(2_000_000),
        replace: false,
    }))
}

pub(crate) fn join(token: Option<u8>, key: u8) -> enrolment::Command {
    enrolment::Command::Join(Box::new(enrolment::Join {
        token: token.map(hash),
        signing_key: SigningKey::from_bytes([key; 32]),
        wireguard_key: WireguardKey::from_bytes([key; 32]),
        sealing_key: SealingKey::from_bytes([key; 32]),
        listen_port: 51820,
        local_endpoints: vec![],
        agent_version: "0.1.0".into(),
        mesh_token: hash(100 + key),
        certificate: hash(150 + key),
        window: (Millis(0), Millis(9_000_000)),
        seq: 0,
    }))
}

pub(crate) fn job(n: u8) -> JobId {
    JobId(uuid::Uuid::from_u128(7_000 + u128::from(n)))
}

pub(crate) fn wanted(node: u8, n: u8, spec: Spec) -> jobs::Wanted {
    jobs::Wanted { id: job(n), node: id(node), spec, attempts: jobs::ATTEMPTS }
}

pub(crate) fn check() -> Spec {
    Spec::ServiceCheck { probe: Probe::Tcp("127.0.0.1:22".into()), timeout_s: 10 }
}

/// A snapshot of so many bytes, whose every id and digest is of this number.
pub(crate) fn source(n: u8, length: u64) -> Source {
    Source { artifact: ArtifactId(uuid::Uuid::from_u128(u128::from(n))), snapshot: hash(n), sha256: hash(n), length }
}

/// A build of it on node `node`, as the job of this number.
pub(crate) fn build(node: u8, n: u8, source: Source) -> jobs::Command {
    jobs::Command::Submit { jobs: vec![wanted(node, n, Spec::BuildModule { source })] }
}

/// Checks for node `node`, as the jobs of these numbers.
pub(crate) fn submit(node: u8, jobs: std::ops::RangeInclusive<u8>) -> jobs::Command {
    jobs::Command::Submit { jobs: jobs.map(|n| wanted(node, n, check())).collect() }
}

/// Node `node` asks with its first certificate for any job, under the token of this number.
pub(crate) fn lease(node: u8, token: u8) -> jobs::Command {
    jobs::Command::Lease(Box::new(jobs::Lease {
        certificate: hash(150 + node),
        lane: None,
        token: hash(token),
        capabilities: Default::default(),
    }))
}

/// Node `node` answers with its first certificate for an attempt whose lease has not expired.
pub(crate) fn complete(node: u8, n: u8, token: u8, attempt: u32, outcome: Outcome) -> jobs::Command {
    jobs::Command::Complete(Box::new(jobs::Complete {
        certificate: hash(150 + node),
        job: job(n),
        token: hash(token),
        attempt,
        outcome,
        result: hash(200),
        stuck: None,
        live: true,
    }))
}

pub(crate) fn renew(by: u8, next: u8) -> enrolment::Command {
    let window = (Millis(0), Millis(9_000_000));
    enrolment::Command::RenewCertificate { by: hash(by), certificate: hash(next), window }
}

/// Node `key` asks by its signing key.
pub(crate) fn issue(key: u8, next: u8) -> enrolment::Command {
    let (key, window) = (SigningKey::from_bytes([key; 32]), (Millis(0), Millis(9_000_000)));
    enrolment::Command::IssueCertificate { key, seq: u64::from(next), certificate: hash(next), window }
}

pub(crate) fn register(key: u8, services: &[(&str, u16)]) -> nodes::Command {
    nodes::Command::Register(Box::new(nodes::Register {
        key: SigningKey::from_bytes([key; 32]),
        wireguard_key: WireguardKey::from_bytes([key; 32]),
        sealing_key: SealingKey::from_bytes([key; 32]),
        listen_port: 51820,
        endpoints: vec![],
        local_endpoints: vec![],
        services: services
            .iter()
            .map(|(text, port)| (pair(text), Port { protocol: Protocol::Tcp, port: *port }))
            .collect(),
        agent_version: "0.1.0".into(),
        source: "203.0.113.9".parse().unwrap(),
        seq: 1,
    }))
}

pub(crate) fn remove(n: u8, force: bool, live: bool) -> nodes::Command {
    nodes::Command::Remove { name: name(&format!("n{n}")), force, keep_admitted: false, live }
}

pub(crate) fn shown(fleet: &Fleet, n: u8) -> &jobs::Job {
    &fleet.state.jobs.all[&job(n)]
}

pub(crate) fn leased(fleet: &mut Fleet, command: jobs::Command) -> Option<(JobId, u32)> {
    jobs::leased(&fleet.run(command).unwrap())
}

pub(crate) fn lane(node: u8, token: u8, lane: Option<jobs::Lane>) -> jobs::Command {
    let jobs::Command::Lease(mut asked) = lease(node, token) else { panic!() };
    asked.lane = lane;
    jobs::Command::Lease(asked)
}

pub(crate) fn reap(n: u8, attempt: u32) -> jobs::Command {
    jobs::Command::Reap { expired: vec![(job(n), attempt)] }
}

pub(crate) fn with(command: jobs::Command, change: impl FnOnce(&mut jobs::Complete)) -> jobs::Command {
    let jobs::Command::Complete(mut complete) = command else { panic!() };
    change(&mut complete);
    jobs::Command::Complete(complete)
}
