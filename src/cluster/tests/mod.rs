//! The engine as its callers see it, on real directories and on media that fail.

mod engine;
mod faults;
mod kill;
mod medium;
mod suite;

use super::{Call, Finished, Handle, Outcome, ReceiptKey, SubmitError};
use state::model::{ApplianceId, Fingerprint, FleetId, Millis, Name, NodeId, RequestId, Revision, SigningKey};
use state::subject::{appliances, enrolment};
use state::view::records::Epoch;
use state::{Actor, Command, Role};
use uuid::Uuid;

const EPOCH: Epoch = Epoch { number: 1, appliance: ApplianceId(Uuid::from_u128(900)) };

fn found() -> Command {
    let appliance = appliances::Appliance {
        id: EPOCH.appliance,
        signing_key: SigningKey::from_bytes([90; 32]),
        addresses: vec!["198.51.100.2".parse().unwrap()],
    };
    let fleet = appliances::Fleet {
        id: FleetId(Uuid::from_u128(800)),
        name: Name::new("lab").unwrap(),
        root_key: SigningKey::from_bytes([80; 32]),
        mesh_prefix: "10.64.0.0/16".parse().unwrap(),
        mesh_prefix6: None,
        suffix: Name::new("internal").unwrap(),
    };
    let roster = appliances::RosterText { revision: Revision(1), document: "{}".into(), signature: "00".into() };
    appliances::Command::Found { fleet, appliance, roster }.into()
}

fn add(n: u64) -> Command {
    let mut token = [0; 32];
    token[..8].copy_from_slice(&n.to_be_bytes());
    enrolment::Command::AddNode(Box::new(enrolment::AddNode {
        id: NodeId(Uuid::from_u128(u128::from(n))),
        name: Name::new(&format!("n{n}")).unwrap(),
        org: None,
        site: None,
        hub: false,
        appliance: None,
        endpoints: vec![],
        token: Fingerprint::from_bytes(token),
        expires: Millis(u64::MAX),
        replace: false,
    }))
    .into()
}

fn call(command: Command) -> Call {
    Call {
        wish: command.into(),
        actor: Actor::Appliance,
        org: None,
        role: Role::Admin,
        request: RequestId(Uuid::nil()),
        receipt: None,
    }
}

/// Submits and gives the number of the change, 0 if there was none.
async fn submit(handle: &Handle, command: Command) -> Result<u64, SubmitError> {
    let answer = handle.submit(call(command), |decided| Finished {
        answer: decided.change.map_or(0, |change| change.change.0),
        rows: vec![],
    });
    match answer.await? {
        Outcome::Fresh(change) => Ok(change),
        Outcome::Receipt(_) => panic!("there was no receipt to find"),
    }
}

/// Submits with a receipt key; keeps the number of the change as the receipt.
async fn submit_once(handle: &Handle, command: Command, key: ReceiptKey) -> Result<Outcome<u64>, SubmitError> {
    let mut call = call(command);
    call.receipt = Some(key.clone());
    let answer = handle.submit(call, move |decided| {
        let change = decided.change.map_or(0, |change| change.change.0);
        Finished { answer: change, rows: vec![key.keep(change.to_be_bytes().to_vec(), Millis(u64::MAX))] }
    });
    answer.await
}

fn receipt_key(n: u8) -> ReceiptKey {
    ReceiptKey { caller: "node 7".into(), route: "POST /v1/enroll".into(), key: Fingerprint::from_bytes([n; 32]) }
}
