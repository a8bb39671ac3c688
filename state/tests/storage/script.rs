//! A fleet's life as the store sees it: every command there is, in batches of one to three changes, with receipts, votes,
//! checkpoints and a growing file in between; and what must be found of it afterwards.

use crate::common::{
    Fleet, add, build, complete, hash, id, issue, job, join, lease, name, register, remove, renew, source, submit,
};
use crate::medium::{Op, Recorder};
use state::model::{ApplianceId, Millis, Revision, SigningKey};
use state::store::{Batch, Body, Checkpoint, Entry, EntryId, Head, RowKey, Rows, SideRow, Store, state_hash};
use state::subject::jobs::{self, Outcome};
use state::subject::{appliances, enrolment, nodes, sources};
use state::view::records::{Epoch, Liveness};
use state::{Change, Command, Hash};
use std::collections::BTreeMap;

/// What holds after a batch.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) head: Head,
    pub(crate) state: Hash,
    pub(crate) rows: BTreeMap<RowKey, Vec<u8>>,
}

/// A recorded life.
pub(crate) struct Life {
    /// The medium when it began.
    pub(crate) base: Vec<u8>,
    /// What was done to it.
    pub(crate) ops: Vec<Op>,
    /// By batch, from 0.
    pub(crate) steps: Vec<Step>,
    /// After how many operations each batch was acknowledged.
    pub(crate) acknowledged: Vec<usize>,
    /// The medium after closing the store.
    pub(crate) closed: Vec<u8>,
}

/// Every kind of command, in an order in which each changes something.
fn commands() -> Vec<Command> {
    let mut all: Vec<Command> = Vec::new();
    for n in 1..=8 {
        all.push(add(n).into());
        all.push(join(Some(n), n).into());
        all.push(register(n, &[(if n % 2 == 0 { "shop/web" } else { "shop/db" }, 8000 + u16::from(n))]).into());
    }
    let fresh = SigningKey::from_bytes([20; 32]);
    all.push(enrolment::Command::IssueAdmissionToken { token: hash(99) }.into());
    all.push(enrolment::Command::Admit { key: fresh, name: name("n20"), org: None, site: None, id: id(20) }.into());
    all.push(join(None, 20).into());
    all.push(add(21).into());
    all.push(enrolment::Command::IssueToken { name: name("n21"), token: hash(98), expires: Millis(3_000_000) }.into());
    let silent = Liveness::OutOfTouch { since: Millis(1_000_000) };
    all.push(nodes::Command::Judge { verdicts: vec![(id(1), silent)] }.into());
    let key = SigningKey::from_bytes([16; 32]);
    all.push(enrolment::Command::Replace { key, name: name("n6"), live: false }.into());
    all.push(nodes::Command::Leave { key: SigningKey::from_bytes([3; 32]), node: id(3) }.into());
    all.push(remove(4, true, false).into());
    all.push(nodes::Command::Revoke { target: nodes::RevokeTarget::Name(name("n5")) }.into());
    all.push(submit(1, 1..=3).into());
    all.push(lease(1, 60).into());
    all.push(complete(1, 1, 60, 1, Outcome::Succeeded).into());
    all.push(lease(1, 61).into());
    all.push(jobs::Command::Reap { expired: vec![(job(2), 1)] }.into());
    all.push(jobs::Command::Cancel { job: job(3) }.into());
    all.push(jobs::Command::Retry { job: job(3) }.into());
    all.push(jobs::Command::Drain { name: name("n2"), until: Some(Millis(2_000_000)) }.into());
    all.push(jobs::Command::Undrain { name: name("n2") }.into());
    all.push(sources::Command::Store { source: source(90, 1_000) }.into());
    all.push(build(1, 4, source(90, 1_000)).into());
    all.push(jobs::Command::Cancel { job: job(4) }.into());
    all.push(sources::Command::Collect { before: Millis(u64::MAX) }.into());
    all.push(renew(151, 97).into());
    all.push(enrolment::Command::UseCertificate { certificate: hash(97) }.into());
    all.push(issue(2, 96).into());
    let appliance = appliances::Appliance {
        id: ApplianceId(uuid::Uuid::from_u128(900)),
        signing_key: SigningKey::from_bytes([90; 32]),
        addresses: vec!["198.51.100.3".parse().unwrap()],
    };
    let roster = appliances::RosterText { revision: Revision(2), document: "{}".into(), signature: "01".into() };
    all.push(appliances::Command::PublishRoster { appliance, roster }.into());
    all
}

/// A number for each kind of command: a kind that is added does not compile until it is here, and then the test below
/// asks for it in the script.
fn kind(command: &Command) -> usize {
    match command {
        Command::Appliances(appliances::Command::Found { .. }) => 0,
        Command::Appliances(appliances::Command::PublishRoster { .. }) => 1,
        Command::Enrolment(enrolment::Command::AddNode(_)) => 2,
        Command::Enrolment(enrolment::Command::IssueToken { .. }) => 3,
        Command::Enrolment(enrolment::Command::IssueAdmissionToken { .. }) => 4,
        Command::Enrolment(enrolment::Command::Admit { .. }) => 5,
        Command::Enrolment(enrolment::Command::Replace { .. }) => 6,
        Command::Enrolment(enrolment::Command::Join(_)) => 7,
        Command::Nodes(nodes::Command::Register(_)) => 8,
        Command::Nodes(nodes::Command::Judge { .. }) => 9,
        Command::Nodes(nodes::Command::Leave { .. }) => 10,
        Command::Nodes(nodes::Command::Remove { .. }) => 11,
        Command::Nodes(nodes::Command::Revoke { .. }) => 12,
        Command::Enrolment(enrolment::Command::RenewCertificate { .. }) => 13,
        Command::Enrolment(enrolment::Command::UseCertificate { .. }) => 14,
        Command::Jobs(jobs::Command::Submit { .. }) => 15,
        Command::Jobs(jobs::Command::Lease(_)) => 16,
        Command::Jobs(jobs::Command::Complete(_)) => 17,
        Command::Jobs(jobs::Command::Cancel { .. }) => 18,
        Command::Jobs(jobs::Command::Retry { .. }) => 19,
        Command::Jobs(jobs::Command::Reap { .. }) => 20,
        Command::Jobs(jobs::Command::Drain { .. }) => 21,
        Command::Jobs(jobs::Command::Undrain { .. }) => 22,
        Command::Enrolment(enrolment::Command::IssueCertificate { .. }) => 23,
        Command::Sources(sources::Command::Store { .. }) => 24,
        Command::Sources(sources::Command::Collect { .. }) => 25,
    }
}

#[test]
fn every_command_is_in_the_script() {
    // The fleet that runs the script is founded before it begins, in the same first batch.
    let mut kinds: Vec<usize> = commands().iter().map(kind).chain([0]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, (0..=25).collect::<Vec<_>>());
}

impl Life {
    /// Lives it once.
    pub(crate) fn lived() -> Self {
        let medium = Recorder::default();
        Store::create(medium.boxed(), 0).unwrap();
        let base = medium.image();
        let medium = Recorder::new(base.clone());
        let store = Store::open(medium.boxed(), 0, None).unwrap().store;
        let mut fleet = Fleet::founded("10.77.0.0/16");
        let mut life = Self { base, ops: vec![], steps: vec![], acknowledged: vec![], closed: vec![] };
        let mut head = Head::default();
        let mut rows = BTreeMap::new();
        let nothing = state_hash(&state::State::default());
        life.steps.push(Step { head, state: nothing, rows: rows.clone() });
        life.acknowledged.push(0);
        let mut index = 0;
        store.set_vote(b"{\"term\":1}").unwrap();
        let mut pending: Vec<Change> = std::mem::take(&mut fleet.changes);
        for (n, command) in commands().into_iter().enumerate() {
            let shown = format!("{command:?}");
            assert!(!fleet.run(command).unwrap().is_empty(), "{shown} changes nothing");
            pending.append(&mut fleet.changes);
            if n % 3 == 1 && n % 2 == 0 {
                continue;
            }
            index += 1;
            let batch = Batch {
                format: 1,
                epoch: Epoch { number: 1, appliance: ApplianceId(uuid::Uuid::from_u128(900)) },
                batch: head.batch + 1,
                prev: head.hash,
                time: fleet.now,
                changes: std::mem::take(&mut pending),
            };
            fleet.now = fleet.now.plus(1000);
            let sealed = batch.seal();
            head = head.follow(&sealed).unwrap().1;
            let brought = receipts(n, &mut rows);
            let entry = Entry { id: EntryId { term: 1, leader: 1, index }, body: Body::Batch(sealed), rows: brought };
            store.append(&[entry]).unwrap();
            life.steps.push(Step { head, state: state_hash(&fleet.state), rows: rows.clone() });
            life.acknowledged.push(medium.count());
            if n % 10 == 9 {
                let applied = EntryId { term: 1, leader: 1, index };
                let state = fleet.state.clone();
                store.keep_checkpoint(&Checkpoint { applied, head, membership: vec![], state }).unwrap();
            }
            if n == 20 {
                store.make_room().unwrap();
            }
        }
        life.ops = medium.ops();
        drop(store);
        life.closed = medium.image();
        life
    }

    /// The last batch acknowledged within the first `ops` operations.
    pub(crate) fn acknowledged_by(&self, ops: usize) -> u64 {
        self.acknowledged.iter().rposition(|at| *at <= ops).unwrap_or(0) as u64
    }

    /// Opens an image with the head file naming the batch `known`, which checks pages, chain and checkpoint, and looks
    /// for the rows; `thorough` replays all of it as well.
    pub(crate) fn check(&self, medium: &Recorder, known: u64, thorough: bool) -> Result<u64, String> {
        let known = self.steps[known as usize].head;
        let opened = Store::open(medium.boxed(), 0, Some(known)).map_err(|error| error.to_string())?;
        let found = opened.head.batch;
        let step = self.steps.get(found as usize).ok_or_else(|| format!("batch {found} was never written"))?;
        if opened.head != step.head {
            return Err(format!("batch {found} is another one than was written"));
        }
        for (key, value) in &step.rows {
            let row = opened.store.row(key).map_err(|error| error.to_string())?;
            if row.map(|row| row.value).as_ref() != Some(value) {
                return Err(format!("a row of batch {found} is not what was written"));
            }
        }
        if thorough {
            let verified = opened.store.verify().map_err(|error| error.to_string())?;
            if verified.head != step.head || verified.state != step.state {
                return Err(format!("replaying up to batch {found} gives another state"));
            }
            if verified.rows != step.rows.len() as u64 {
                return Err(format!("batch {found} has {} rows, not {}", verified.rows, step.rows.len()));
            }
        }
        Ok(found)
    }
}

/// Every third batch brings a row, every ninth takes the oldest away; one is so large that the file must grow.
fn receipts(n: usize, rows: &mut BTreeMap<RowKey, Vec<u8>>) -> Rows {
    let mut brought = Rows::default();
    if n.is_multiple_of(3) {
        let key = RowKey { table: "receipts".into(), key: vec![n as u8; 48] };
        let value = vec![n as u8; if n == 15 { 400_000 } else { 300 }];
        rows.insert(key.clone(), value.clone());
        brought.put.push(SideRow { key, value, expires: Some(Millis(5_000_000)) });
    }
    if n % 9 == 8
        && let Some((key, _)) = rows.pop_first()
    {
        brought.erase.push(key);
    }
    brought
}
