//! Which builds are given to whom, and which snapshots are held for them.

use crate::common::*;
use state::model::*;
use state::subject::jobs::{self, Capability, Job, Outcome, Phase, Spec};
use state::subject::sources::{BYTES, Command, Event, SNAPSHOTS, Source, leased, surplus};
use state::{Code, State};

/// Makes a state and a job of it what no command does.
type Alter = fn(&mut State, &mut Job);

/// Node `node` asks for any job, and says what it can do.
fn able(node: u8, token: u8, capabilities: &[(&str, Capability)]) -> jobs::Command {
    let jobs::Command::Lease(mut asked) = lease(node, token) else { panic!() };
    asked.capabilities = capabilities.iter().map(|(name, held)| ((*name).to_owned(), *held)).collect();
    jobs::Command::Lease(asked)
}

fn builder(node: u8, token: u8) -> jobs::Command {
    able(node, token, &[("build", Capability::Present)])
}

fn given(fleet: &mut Fleet, command: jobs::Command) -> Option<(JobId, u32)> {
    jobs::leased(&fleet.run(command).unwrap())
}

fn store(fleet: &mut Fleet, source: Source) -> Vec<state::Event> {
    fleet.run(Command::Store { source }).unwrap()
}

/// A fleet with nodes 1 and 2, and a build of snapshot 90 for node 1 as job 1.
fn building() -> Fleet {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    store(&mut fleet, source(90, 1_000));
    fleet.run(build(1, 1, source(90, 1_000))).unwrap();
    fleet
}

#[test]
fn a_build_is_given_only_to_a_node_that_can() {
    let mut fleet = building();
    fleet.run(submit(1, 2..=3)).unwrap();
    assert_eq!(given(&mut fleet, lease(1, 60)), Some((job(2), 1)), "what it can do is not kept waiting");
    for held in [Capability::Absent, Capability::Unknown] {
        fleet.run(complete(1, 2, 60, 1, Outcome::Retryable)).ok();
        assert_ne!(
            given(&mut fleet, able(1, 61, &[("build", held), ("other", Capability::Present)])),
            Some((job(1), 1))
        );
    }
    assert_eq!(given(&mut fleet, builder(1, 62)), Some((job(1), 1)), "by this very report");
    assert_eq!(given(&mut fleet, builder(2, 63)), None, "it is not its job");
}

#[test]
fn a_job_names_a_source_exactly_as_it_is_held_and_one_that_its_node_may_see() {
    let mut fleet = building();
    let held = source(90, 1_000);
    for wrong in [
        source(91, 1_000),
        Source { length: 999, ..held },
        Source { sha256: hash(1), ..held },
        Source { snapshot: hash(1), ..held },
        Source { artifact: ArtifactId(uuid::Uuid::nil()), ..held },
    ] {
        assert_eq!(fleet.code(build(1, 2, wrong)), Code::NotFound, "{wrong:?}");
    }
    fleet.org = Some(name("acme"));
    store(&mut fleet, source(92, 10));
    fleet.org = None;
    assert_eq!(fleet.code(build(1, 2, source(92, 10))), Code::NotFound, "another org's");
    let again = store(&mut fleet, Source { artifact: ArtifactId(uuid::Uuid::nil()), ..held });
    let Some(state::Event::Sources(Event::Stored { source, .. })) = again.first() else { panic!("{again:?}") };
    assert_eq!(*source, held, "the same bytes keep their id");
}

#[test]
fn a_source_is_for_the_holder_of_its_build_and_for_nobody_else() {
    let mut fleet = building();
    let ask = |state: &State, node: u8, token| {
        let (certificate, token) = (hash(150 + node), hash(token));
        leased(state, &certificate, job(1), &token, Millis(5), true).map(|(job, source)| (job.id, source))
    };
    let code = |state: &State, node, token| ask(state, node, token).unwrap_err().code;
    assert_eq!(code(&fleet.state, 1, 60), Code::NotFound, "it has never said that it can build");
    assert_eq!(given(&mut fleet, builder(1, 60)), Some((job(1), 1)));
    fleet.run(builder(2, 61)).unwrap();
    assert_eq!(ask(&fleet.state, 1, 60), Ok((job(1), source(90, 1_000))));
    assert_eq!(code(&fleet.state, 1, 61), Code::StaleLease);
    assert_eq!(code(&fleet.state, 2, 60), Code::NotFound);
    assert_eq!(code(&fleet.state, 9, 60), Code::CertificateRefused);
    let altered = |alter: Alter| {
        let mut state = fleet.state.clone();
        let mut altered = state.jobs.all[&job(1)].clone();
        alter(&mut state, std::sync::Arc::make_mut(&mut altered));
        state.jobs.all.insert(job(1), altered);
        code(&state, 1, 60)
    };
    let cases: [(&str, Alter); 7] = [
        ("another kind", |_, job| job.spec = Spec::NetworkCheck {}),
        ("another org's job", |_, job| job.org = Some(name("acme"))),
        ("another org's source", |state, _| state.sources.all[&source(90, 0).artifact].org = Some(name("acme"))),
        ("another length", |state, _| state.sources.all[&source(90, 0).artifact].source.length = 7),
        ("another digest", |state, _| state.sources.all[&source(90, 0).artifact].source.sha256 = hash(1)),
        ("not held", |state, _| state.sources.all.clear()),
        ("unable", |state, _| state.jobs.boards[&id(1)].capabilities.clear()),
    ];
    for (what, alter) in cases {
        assert_eq!(altered(alter), Code::NotFound, "{what}");
    }
    assert_eq!(altered(|_, job| job.cancel = true), Code::Cancelled);
    assert_eq!(altered(|_, job| job.phase = Phase::Queued { not_before: Millis(0) }), Code::StaleLease);
}

#[test]
fn a_snapshot_is_kept_while_a_build_needs_it_and_then_from_that_builds_end() {
    let mut fleet = building();
    store(&mut fleet, source(91, 10));
    let stored = fleet.now;
    let collect = |before| Command::Collect { before };
    assert_eq!(fleet.run(collect(Millis(stored.0 - 1))).unwrap(), []);
    assert_eq!(surplus(&fleet.state, stored), [source(91, 0).artifact], "nobody has ever built it");
    fleet.now = fleet.now.plus(500);
    let over = fleet.now;
    fleet.run(jobs::Command::Cancel { job: job(1) }).unwrap();
    fleet.run(collect(Millis(over.0 - 1))).unwrap();
    assert!(fleet.state.sources.holds(&source(90, 1_000)) && !fleet.state.sources.holds(&source(91, 10)));
    fleet.run(collect(over)).unwrap();
    assert!(fleet.state.sources.is_empty());
    assert_eq!(fleet.code(jobs::Command::Retry { job: job(1) }), Code::Conflict, "there is nothing to build");
    let text = String::from_utf8(state::to_bytes(&fleet.state)).unwrap();
    assert!(!text.contains("\"sources\""), "a state without any reads as before there were any");
}

#[test]
fn what_is_held_is_bounded_and_the_longest_idle_gives_way() {
    let mut fleet = building();
    let half = BYTES / 2;
    store(&mut fleet, source(91, half));
    fleet.now = fleet.now.plus(1);
    store(&mut fleet, source(92, half - 1_000));
    fleet.now = fleet.now.plus(1);
    store(&mut fleet, source(93, 1));
    let held = |fleet: &Fleet| fleet.state.sources.all.keys().map(|artifact| artifact.0.as_u128()).collect::<Vec<_>>();
    assert_eq!(held(&fleet), [90, 92, 93], "90 is older, and a build needs it");
    fleet.run(build(1, 2, source(92, half - 1_000))).unwrap();
    fleet.run(build(1, 3, source(93, 1))).unwrap();
    assert_eq!(fleet.code(Command::Store { source: source(94, half) }), Code::QueueFull);
    let mut fleet = building();
    for n in 1..=SNAPSHOTS {
        let artifact = ArtifactId(uuid::Uuid::from_u128(1_000 + n as u128));
        let sha256 = state::hash_of(b"test", &[&n.to_be_bytes()]);
        store(&mut fleet, Source { artifact, sha256, ..source(1, 1) });
    }
    assert_eq!(fleet.state.sources.all.len(), SNAPSHOTS);
    assert!(fleet.state.sources.holds(&source(90, 1_000)));
}
