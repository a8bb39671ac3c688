//! The bytes of every kind of event and of every signed document, pinned: journals and nodes keep them for years.
//!
//! A change here is a change of a format. Old bytes must be read for ever, so lines are added and never altered.

use crate::common::*;
use state::model::*;
use state::subject::jobs::{self, Capability, Outcome};
use state::subject::{enrolment, nodes, sources};
use state::view::records::{Liveness, Scope};
use state::view::told;
use state::{Change, State};
use std::collections::BTreeMap;

const CHANGES: &str = include_str!("../golden/changes.jsonl");
const STATES: &str = include_str!("../golden/states.jsonl");
const DOCUMENTS: &str = include_str!("../golden/documents.jsonl");

/// A fleet in which every kind of event has happened.
fn eventful() -> Fleet {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    let key = |n| SigningKey::from_bytes([n; 32]);
    fleet.run(register(1, &[("shop/web", 80)])).unwrap();
    fleet.run(register(2, &[("shop/web", 80), ("shop/db", 5432)])).unwrap();
    fleet.run(register(2, &[("shop/web", 80)])).unwrap();
    let nodes::Command::Register(mut moved) = register(1, &[("shop/web", 80)]) else { panic!() };
    moved.endpoints = vec![Endpoint::new("203.0.113.9:51820").unwrap()];
    fleet.run(nodes::Command::Register(moved)).unwrap();
    fleet.run(nodes::Command::Judge { verdicts: vec![(id(2), Liveness::OutOfTouch { since: Millis(7) })] }).unwrap();
    fleet
        .run(enrolment::Command::IssueToken { name: name("n1"), token: hash(40), expires: Millis(3_000_000) })
        .unwrap();
    fleet.run(enrolment::Command::IssueAdmissionToken { token: hash(41) }).unwrap();
    fleet
        .run(enrolment::Command::Admit {
            key: key(5),
            name: name("edge"),
            org: None,
            site: Some(name("two")),
            id: id(5),
        })
        .unwrap();
    fleet.run(join(None, 5)).unwrap();
    fleet.run(enrolment::Command::Admit { key: key(6), name: name("gone"), org: None, site: None, id: id(6) }).unwrap();
    fleet.run(nodes::Command::Revoke { target: nodes::RevokeTarget::Key(key(6)) }).unwrap();
    fleet.run(remove(1, true, true)).unwrap();
    fleet.run(renew(152, 70)).unwrap();
    fleet.run(enrolment::Command::UseCertificate { certificate: hash(70) }).unwrap();
    worked(&mut fleet);
    built(&mut fleet);
    fleet
}

/// Node 2 does jobs with its certificate 70.
fn worked(fleet: &mut Fleet) {
    let lease = |token, capable: &[&str]| {
        let capabilities = capable.iter().map(|name| ((*name).to_owned(), Capability::Present)).collect();
        jobs::Command::Lease(Box::new(jobs::Lease {
            certificate: hash(70),
            lane: None,
            token: hash(token),
            capabilities,
        }))
    };
    fleet.run(submit(2, 1..=2)).unwrap();
    fleet.run(jobs::Command::Submit { jobs: vec![wanted(2, 3, jobs::Spec::NetworkCheck {})] }).unwrap();
    fleet.run(lease(60, &["build"])).unwrap();
    let jobs::Command::Complete(mut failed) = complete(2, 1, 60, 1, Outcome::Failed) else { panic!() };
    failed.certificate = hash(70);
    fleet.run(jobs::Command::Complete(failed)).unwrap();
    fleet.run(lease(61, &["build"])).unwrap();
    fleet.run(jobs::Command::Cancel { job: job(2) }).unwrap();
    fleet.run(lease(62, &["build"])).unwrap();
    fleet.run(jobs::Command::Reap { expired: vec![(job(3), 1)] }).unwrap();
    fleet.run(jobs::Command::Cancel { job: job(3) }).unwrap();
    fleet.run(jobs::Command::Retry { job: job(3) }).unwrap();
    fleet.run(jobs::Command::Drain { name: name("n2"), until: Some(Millis(8)) }).unwrap();
    fleet.run(jobs::Command::Undrain { name: name("n2") }).unwrap();
    fleet.run(submit(2, 4..=4)).unwrap();
    let jobs::Command::Lease(mut workload) = lease(63, &["build"]) else { panic!() };
    workload.lane = Some(jobs::Lane::Workload);
    fleet.run(jobs::Command::Lease(workload)).unwrap();
    let jobs::Command::Complete(mut stuck) = complete(2, 4, 63, 1, Outcome::Retryable) else { panic!() };
    (stuck.certificate, stuck.stuck) = (hash(70), Some("process 7 does not end".into()));
    fleet.run(jobs::Command::Complete(stuck)).unwrap();
    fleet.run(jobs::Command::Submit { jobs: vec![wanted(2, 5, jobs::Spec::NetworkWithdraw {})] }).unwrap();
    fleet.run(issue(2, 71)).unwrap();
}

/// Node 2 is given something to build, and what nobody builds any more goes. What is new comes last, here: a line keeps
/// its number.
fn built(fleet: &mut Fleet) {
    fleet.run(sources::Command::Store { source: source(90, 1_000) }).unwrap();
    fleet.run(build(2, 40, source(90, 1_000))).unwrap();
    fleet.run(jobs::Command::Cancel { job: job(40) }).unwrap();
    fleet.run(sources::Command::Collect { before: fleet.now }).unwrap();
}

/// Compares, or with `HOLDFAST_GOLDEN=write` writes what a new format looks like, to be looked at and committed.
fn check(file: &str, held: &str, lines: &[String]) {
    let made: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("HOLDFAST_GOLDEN").is_some() {
        #[expect(clippy::disallowed_methods, reason = "golden files are written by hand, on purpose")]
        std::fs::write(format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR")), made).unwrap();
        return;
    }
    for (n, (held, made)) in held.lines().zip(made.lines()).enumerate() {
        assert_eq!(held, made, "{file}, line {}", n + 1);
    }
    assert_eq!(held.lines().count(), made.lines().count(), "{file}");
}

#[test]
fn changes_keep_their_bytes() {
    let fleet = eventful();
    let lines: Vec<String> =
        fleet.changes.iter().map(|change| String::from_utf8(state::to_bytes(change)).unwrap()).collect();
    check("changes.jsonl", CHANGES, &lines);
    for line in CHANGES.lines() {
        let change: Change = serde_json::from_str(line).unwrap();
        assert_eq!(String::from_utf8(state::to_bytes(&change)).unwrap(), line);
    }
}

#[test]
fn signed_documents_keep_their_bytes() {
    let fleet = eventful();
    let scope = Scope::mesh(None);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut lines = Vec::new();
    let mut set = BTreeMap::new();
    for (id, _) in told::members(&fleet.state, &scope) {
        let record = told::record(&fleet.state, id).unwrap();
        let bytes = state::to_bytes(&record);
        set.insert(id, (record.revision, state::view::records::record_hash(&bytes)));
        lines.push(text(bytes));
    }
    let signer = ApplianceId(uuid::Uuid::from_u128(900));
    lines.push(text(state::to_bytes(&told::head(&fleet.state, &scope, signer, &set).unwrap())));
    lines.extend(told::tombstones(&fleet.state, &scope, Revision(0)).iter().map(|t| text(state::to_bytes(t))));
    check("documents.jsonl", DOCUMENTS, &lines);
}

/// The state that the first changes of the golden file lead to, each decided at the time of its number.
#[derive(serde::Serialize, serde::Deserialize)]
struct After {
    changes: usize,
    state: State,
}

#[test]
fn the_same_changes_lead_to_the_same_state_for_ever() {
    let after = |changes: usize| {
        let mut state = State::default();
        for line in CHANGES.lines().take(changes) {
            let change: Change = serde_json::from_str(line).unwrap();
            state.apply(&change, Millis(change.change.0));
        }
        String::from_utf8(state::to_bytes(&After { changes, state })).unwrap()
    };
    let mut lines: Vec<String> = STATES.lines().map(str::to_owned).collect();
    if std::env::var_os("HOLDFAST_GOLDEN").is_some() {
        lines.push(after(CHANGES.lines().count()));
        lines.dedup();
    }
    check("states.jsonl", STATES, &lines);
    for line in &lines {
        let held: After = serde_json::from_str(line).unwrap();
        assert_eq!(after(held.changes), *line);
        assert_eq!(String::from_utf8(state::to_bytes(&held)).unwrap(), *line);
    }
}

#[test]
fn a_change_of_an_unknown_kind_is_not_read() {
    let line = CHANGES.lines().next().unwrap().replace("\"founded\"", "\"flown\"");
    assert!(serde_json::from_str::<Change>(&line).unwrap_err().to_string().contains("unknown variant `flown`"));
}
