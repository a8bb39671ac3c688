//! What becomes of jobs: who is given which, what an answer counts, and how each ends.

use crate::common::*;
use proptest::prelude::*;
use state::model::*;
use state::subject::enrolment;
use state::subject::jobs::{self, Board, Command, Event, Job, Lane, Outcome, Phase, Spec};
use state::subject::nodes;
use state::{Code, State, decide};
use std::collections::BTreeMap;

#[test]
fn a_job_goes_to_its_node_once_and_is_answered_for_once() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    fleet.run(submit(1, 1..=1)).unwrap();
    assert_eq!(leased(&mut fleet, lease(2, 60)), None, "it is not its job");
    assert_eq!(leased(&mut fleet, lease(1, 61)), Some((job(1), 1)));
    assert_eq!(leased(&mut fleet, lease(1, 62)), None);
    let done = complete(1, 1, 61, 1, Outcome::Succeeded);
    assert_eq!(fleet.code(complete(2, 1, 61, 1, Outcome::Succeeded)), Code::NotFound);
    assert_eq!(fleet.code(complete(1, 1, 62, 1, Outcome::Succeeded)), Code::StaleLease);
    assert_eq!(fleet.code(complete(1, 1, 61, 2, Outcome::Succeeded)), Code::StaleLease);
    assert_eq!(fleet.code(with(done.clone(), |c| c.live = false)), Code::StaleLease);
    assert_eq!(fleet.code(with(done.clone(), |c| c.certificate = hash(9))), Code::CertificateRefused);
    fleet.run(done.clone()).unwrap();
    assert_eq!((&shown(&fleet, 1).phase, shown(&fleet, 1).completed_at), (&Phase::Succeeded, Some(fleet.now)));
    assert_eq!(fleet.run(with(done.clone(), |c| c.live = false)).unwrap(), [], "the same again changes nothing");
    assert_eq!(fleet.code(with(done, |c| c.result = hash(1))), Code::StaleLease);
    assert_eq!(shown(&fleet, 1).results.len(), 1);
}

#[test]
fn a_lane_takes_its_own_kinds_and_no_lane_takes_all() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=2)).unwrap();
    let network = (3..=4).map(|n| wanted(1, n, Spec::NetworkEnsure {})).collect();
    fleet.run(Command::Submit { jobs: network }).unwrap();
    assert_eq!(leased(&mut fleet, lane(1, 60, Some(Lane::Network))), Some((job(3), 1)));
    assert_eq!(leased(&mut fleet, lane(1, 61, Some(Lane::Workload))), Some((job(1), 1)));
    assert_eq!(leased(&mut fleet, lane(1, 62, None)), Some((job(2), 1)), "the longest wait first");
    assert_eq!(leased(&mut fleet, lane(1, 63, Some(Lane::Workload))), None);
    assert_eq!(leased(&mut fleet, lane(1, 64, None)), Some((job(4), 1)));
}

#[test]
fn a_failed_attempt_waits_longer_each_time_and_the_last_one_ends_the_job() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    for attempt in 1..=jobs::ATTEMPTS {
        let token = 60 + u8::try_from(attempt).unwrap();
        assert_eq!(leased(&mut fleet, lease(1, token)), Some((job(1), attempt)));
        if attempt % 2 == 0 {
            fleet.run(complete(1, 1, token, attempt, Outcome::Retryable)).unwrap();
        } else {
            fleet.run(reap(1, attempt)).unwrap();
            assert_eq!(fleet.code(complete(1, 1, token, attempt, Outcome::Succeeded)), Code::StaleLease);
        }
        assert_eq!(fleet.run(reap(1, attempt)).unwrap(), [], "it is over already");
        if let Phase::Queued { not_before } = shown(&fleet, 1).phase {
            assert!(not_before.since(fleet.now) <= jobs::BACKOFF << (attempt - 1));
            if not_before > fleet.now {
                assert_eq!(leased(&mut fleet, lease(1, 70)), None);
            }
            fleet.now = not_before;
        }
    }
    let Phase::Failed { why } = &shown(&fleet, 1).phase else { panic!("{:?}", shown(&fleet, 1)) };
    assert_eq!(why, "attempt 5 of 5 was the last: its lease ended without an answer");
    assert_eq!(shown(&fleet, 1).results.len(), 2);
    fleet.run(Command::Retry { job: job(1) }).unwrap();
    assert_eq!(leased(&mut fleet, lease(1, 80)), Some((job(1), 6)), "the fence goes on");
    fleet.run(complete(1, 1, 80, 6, Outcome::Failed)).unwrap();
    assert!(matches!(shown(&fleet, 1).phase, Phase::Failed { .. }));
}

#[test]
fn the_pause_is_drawn_from_all_of_its_length_and_never_exceeds_five_minutes() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let mut job_1 = wanted(1, 1, check());
    job_1.attempts = jobs::ATTEMPTS_MAX;
    fleet.run(Command::Submit { jobs: vec![job_1] }).unwrap();
    let mut pauses: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    fleet.clock_trusted = false;
    for attempt in 1..=40 {
        assert_eq!(leased(&mut fleet, lease(1, 60)), Some((job(1), attempt)));
        for chance in 0..50 {
            let mut context = fleet.context();
            context.entropy = [chance; 32];
            let events = decide(&fleet.state, reap(1, attempt).into(), &context).unwrap();
            let state::Event::Jobs(Event::Expired { phase: Phase::Queued { not_before }, .. }) = &events[0] else {
                panic!("{events:?}")
            };
            pauses.entry(attempt).or_default().push(not_before.since(fleet.now));
        }
        fleet.run(reap(1, attempt)).unwrap();
    }
    for (attempt, pauses) in pauses {
        let longest = (jobs::BACKOFF << (attempt - 1).min(20)).min(jobs::BACKOFF_MAX);
        assert!(pauses.iter().all(|pause| *pause <= longest), "attempt {attempt}");
        assert!(pauses.iter().any(|pause| *pause < longest / 4) && pauses.iter().any(|pause| *pause > longest * 3 / 4));
    }
}

#[test]
fn a_clock_that_is_not_to_be_believed_keeps_nothing_back() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    fleet.now = Millis(1);
    assert_eq!(leased(&mut fleet, lease(1, 60)), None);
    fleet.clock_trusted = false;
    assert_eq!(leased(&mut fleet, lease(1, 60)), Some((job(1), 1)));
}

#[test]
fn a_cancel_counts_when_the_node_has_stopped() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=4)).unwrap();
    let cancel = |n| Command::Cancel { job: job(n) };
    fleet.run(cancel(4)).unwrap();
    assert_eq!(shown(&fleet, 4).phase, Phase::Cancelled, "nobody had it");
    assert_eq!(fleet.run(cancel(4)).unwrap(), []);
    for n in 1..=3 {
        fleet.run(lease(1, 60 + n)).unwrap();
    }
    let held = |fleet: &Fleet, n: u8| {
        jobs::held(&fleet.state, &hash(151), job(n), &hash(60 + n), fleet.now, true).map(|job| job.attempt)
    };
    assert_eq!(held(&fleet, 1), Ok(1));
    for n in 1..=3 {
        fleet.run(cancel(n)).unwrap();
        assert_eq!(fleet.run(cancel(n)).unwrap(), []);
        assert_eq!(held(&fleet, n).unwrap_err().code, Code::Cancelled);
        assert!(matches!(shown(&fleet, n).phase, Phase::Leased { .. }));
    }
    fleet.run(complete(1, 1, 61, 1, Outcome::Retryable)).unwrap();
    fleet.run(complete(1, 2, 62, 1, Outcome::Succeeded)).unwrap();
    fleet.run(reap(3, 1)).unwrap();
    let phases: Vec<&str> = (1..=3).map(|n| shown(&fleet, n).phase.as_str()).collect();
    assert_eq!(phases, ["cancelled", "succeeded", "cancelled"], "what was done before is done");
    assert_eq!(fleet.code(complete(1, 3, 63, 1, Outcome::Succeeded)), Code::Cancelled);
    assert_eq!(fleet.code(cancel(2)), Code::Conflict);
    assert_eq!(fleet.code(Command::Retry { job: job(2) }), Code::Conflict);
    fleet.run(Command::Retry { job: job(3) }).unwrap();
    assert_eq!(leased(&mut fleet, lease(1, 70)), Some((job(3), 2)));
    assert_eq!(fleet.code(Command::Retry { job: job(3) }), Code::Conflict);
}

#[test]
fn a_node_that_goes_takes_its_work_along() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    fleet.run(submit(1, 1..=2)).unwrap();
    fleet.run(submit(2, 3..=3)).unwrap();
    fleet.run(lease(1, 61)).unwrap();
    fleet.run(Command::Drain { name: name("n1"), until: None }).unwrap();
    fleet.run(nodes::Command::Revoke { target: nodes::RevokeTarget::Name(name("n1")) }).unwrap();
    for n in 1..=2 {
        assert_eq!(shown(&fleet, n).phase, Phase::Failed { why: "its node is gone".into() });
    }
    assert_eq!(fleet.code(complete(1, 1, 61, 1, Outcome::Succeeded)), Code::CertificateRefused);
    assert_eq!(fleet.code(Command::Retry { job: job(1) }), Code::Conflict);
    assert_eq!(fleet.code(submit(1, 5..=5)), Code::NotFound);
    assert_eq!(leased(&mut fleet, lease(2, 62)), Some((job(3), 1)));
}

#[test]
fn a_drained_node_is_given_nothing_and_may_end_its_work_in_time() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=2)).unwrap();
    fleet.run(lease(1, 61)).unwrap();
    let until = fleet.now.plus(600_000);
    let drain = Command::Drain { name: name("n1"), until: Some(until) };
    fleet.run(drain.clone()).unwrap();
    assert_eq!(fleet.run(drain).unwrap(), []);
    assert_eq!(leased(&mut fleet, lease(1, 62)), None);
    let held = |fleet: &Fleet, trusted| {
        jobs::held(&fleet.state, &hash(151), job(1), &hash(61), fleet.now, trusted).map(|job| job.attempt)
    };
    assert!(held(&fleet, true).is_ok());
    fleet.now = until;
    assert_eq!(held(&fleet, true).unwrap_err().code, Code::StaleLease);
    assert!(held(&fleet, false).is_ok());
    fleet.run(complete(1, 1, 61, 1, Outcome::Succeeded)).unwrap();
    fleet.run(Command::Undrain { name: name("n1") }).unwrap();
    assert_eq!(fleet.run(Command::Undrain { name: name("n1") }).unwrap(), []);
    assert_eq!(leased(&mut fleet, lease(1, 62)), Some((job(2), 1)));
}

#[test]
fn an_org_has_its_own_nodes_do_its_own_jobs() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let enrolment::Command::AddNode(mut tenant) = add(2) else { panic!() };
    tenant.org = Some(name("acme"));
    fleet.run(enrolment::Command::AddNode(tenant)).unwrap();
    fleet.run(join(Some(2), 2)).unwrap();
    fleet.run(submit(1, 1..=1)).unwrap();
    fleet.org = Some(name("acme"));
    let unknown = Command::Submit { jobs: vec![wanted(9, 2, check())] };
    let why = |refusal: state::Refusal| (refusal.code, refusal.what, refusal.todo);
    assert_eq!(why(fleet.run(submit(1, 2..=2)).unwrap_err()), why(fleet.run(unknown).unwrap_err()));
    let both = Command::Submit { jobs: vec![wanted(2, 2, check()), wanted(1, 3, check())] };
    assert_eq!(fleet.code(both), Code::NotFound);
    fleet.run(submit(2, 2..=2)).unwrap();
    assert_eq!(shown(&fleet, 2).org, Some(name("acme")));
    for command in [Command::Cancel { job: job(1) }, Command::Retry { job: job(1) }] {
        assert_eq!(fleet.code(command), Code::NotFound);
    }
    assert_eq!(fleet.code(Command::Drain { name: name("n1"), until: None }), Code::NotFound);
    fleet.run(Command::Cancel { job: job(2) }).unwrap();
}

#[test]
fn capabilities_are_those_of_the_workload_lane() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let report = |lane, names: &[&str]| {
        let Command::Lease(mut asked) = lease(1, 60) else { panic!() };
        asked.lane = lane;
        asked.capabilities = names.iter().map(|name| ((*name).to_owned(), jobs::Capability::Unknown)).collect();
        Command::Lease(asked)
    };
    let kept = |fleet: &Fleet| fleet.state.jobs.boards.get(&id(1)).map_or(0, |board| board.capabilities.len());
    fleet.run(report(Some(Lane::Network), &["build"])).unwrap();
    assert_eq!(kept(&fleet), 0);
    fleet.run(report(None, &["build"])).unwrap();
    assert_eq!(fleet.run(report(Some(Lane::Workload), &["build"])).unwrap(), [], "a poll costs no change");
    fleet.run(report(Some(Lane::Network), &[])).unwrap();
    assert_eq!(kept(&fleet), 1);
    fleet.run(report(Some(Lane::Workload), &[])).unwrap();
    assert_eq!(fleet.state.jobs.boards.len(), 0);
    assert_eq!(fleet.code(report(None, &["Not A Name"])), Code::Invalid);
    let many: Vec<String> = (0..=jobs::CAPABILITIES).map(|n| format!("c{n}")).collect();
    assert_eq!(fleet.code(report(None, &many.iter().map(String::as_str).collect::<Vec<_>>())), Code::Invalid);
}

#[test]
fn what_cannot_be_a_job_is_refused_whole() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    assert_eq!(fleet.code(submit(1, 1..=2)), Code::Held);
    let twice = Command::Submit { jobs: vec![wanted(1, 2, check()), wanted(1, 2, check())] };
    assert_eq!(fleet.code(twice), Code::Held);
    for attempts in [0, jobs::ATTEMPTS_MAX + 1] {
        let jobs = vec![jobs::Wanted { attempts, ..wanted(1, 2, check()) }];
        assert_eq!(fleet.code(Command::Submit { jobs }), Code::Invalid);
    }
    let probe = || jobs::Probe::Tcp("127.0.0.1:22".into());
    for timeout_s in [0, jobs::TIMEOUT_MAX + 1] {
        let spec = Spec::ServiceCheck { probe: probe(), timeout_s };
        assert_eq!(fleet.code(Command::Submit { jobs: vec![wanted(1, 2, spec)] }), Code::Invalid);
    }
    let spec = Spec::ServiceCheck { probe: jobs::Probe::Http("http://u:p@127.0.0.1/".into()), timeout_s: 5 };
    assert_eq!(fleet.code(Command::Submit { jobs: vec![wanted(1, 2, spec)] }), Code::Invalid);
    assert_eq!(fleet.state.jobs.all.len(), 1);
}

fn many(from: u128, count: usize) -> Command {
    let one = |n| jobs::Wanted { id: JobId(uuid::Uuid::from_u128(from + n as u128)), ..wanted(1, 1, check()) };
    Command::Submit { jobs: (0..count).map(one).collect() }
}

#[test]
fn a_queue_is_bounded_and_so_is_what_is_remembered() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    assert_eq!(fleet.code(many(1 << 64, jobs::OPEN_PER_NODE + 1)), Code::QueueFull);
    fleet.run(many(1 << 64, jobs::OPEN_PER_NODE)).unwrap();
    assert_eq!(fleet.code(submit(1, 1..=1)), Code::QueueFull);
    for n in 0..=jobs::FINISHED_PER_NODE + 1 {
        fleet.now = fleet.now.plus(1);
        let (id, attempt) = leased(&mut fleet, lease(1, 60)).unwrap();
        let done = with(complete(1, 1, 60, attempt, Outcome::Succeeded), |c| c.job = id);
        let events = fleet.run(done).unwrap();
        let forgets = n >= jobs::FINISHED_PER_NODE;
        assert_eq!(events.len(), if forgets { 2 } else { 1 }, "{n}");
        if n == jobs::FINISHED_PER_NODE {
            let bytes = String::from_utf8(state::to_bytes(&events[1])).unwrap();
            let golden =
                r#"{"subject":"jobs","event":{"what":"forgotten","jobs":["00000000-0000-0001-0000-000000000000"]}}"#;
            assert_eq!(bytes, golden);
        }
    }
    assert_eq!(fleet.state.jobs.finished.len(), jobs::FINISHED_PER_NODE);
    assert_eq!(fleet.state.jobs.of(id(1)).count(), fleet.state.jobs.all.len());
    fleet.run(submit(1, 1..=1)).unwrap();
}

/// One random wish: what, node, job, token, attempt, and a little time.
fn wish() -> impl Strategy<Value = (u8, u8, u8, u8, u32, u64)> {
    (0u8..17, 1u8..4, 1u8..9, 60u8..64, 1u32..4, 0u64..4000)
}

fn perform(fleet: &mut Fleet, (what, node, n, token, attempt, later): (u8, u8, u8, u8, u32, u64)) {
    fleet.now = fleet.now.plus(later);
    let outcome = [Outcome::Succeeded, Outcome::Failed, Outcome::Retryable][usize::from(token % 3)];
    let spec = match (token % 2, what) {
        (0, _) => check(),
        (_, 0) => Spec::NetworkCheck {},
        (_, 1) => Spec::NetworkEnsure {},
        (_, _) => Spec::NetworkWithdraw {},
    };
    // A refusal is as good an outcome as any; what must hold afterwards is checked by the caller.
    drop(match what {
        0..=1 | 14 | 15 => fleet.run(Command::Submit { jobs: vec![wanted(node, n, spec)] }),
        2..=4 => fleet.run(lease(node, token)),
        5 | 6 => fleet.run(complete(node, n, token, attempt, outcome)),
        7 | 8 => fleet.run(reap(n, attempt)),
        9 => fleet.run(Command::Cancel { job: job(n) }),
        10 => fleet.run(Command::Retry { job: job(n) }),
        11 => fleet.run(Command::Drain { name: name(&format!("n{node}")), until: None }),
        16 => fleet.run(with(complete(node, n, token, attempt, Outcome::Retryable), |c| c.stuck = Some("x".into()))),
        12 => fleet.run(Command::Undrain { name: name(&format!("n{node}")) }),
        _ => fleet.run(remove(3, true, true)),
    });
}

/// The lists of a part are those that its jobs ask for.
fn check_lists(s: &State) -> Result<(), TestCaseError> {
    let mut boards: BTreeMap<NodeId, Board> = BTreeMap::new();
    let mut finished = 0;
    for job in s.jobs.all.values() {
        let board = boards.entry(job.node).or_default();
        match &job.phase {
            Phase::Queued { not_before } => drop(board.queued.insert((job.spec.lane(), *not_before, job.id))),
            Phase::Leased { .. } => drop(board.leased.insert(job.id)),
            Phase::Succeeded | Phase::Failed { .. } | Phase::Cancelled | Phase::Superseded { .. } => {
                finished += 1;
                prop_assert!(s.jobs.finished.contains(&(job.completed_at.unwrap(), job.id)));
                board.finished.insert((job.completed_at.unwrap(), job.id));
            }
        }
        prop_assert_eq!(job.phase.is_over(), job.completed_at.is_some());
        let node = s.nodes.all.get(&job.node);
        prop_assert!(job.phase.is_over() || node.is_some_and(|node| node.org == job.org), "its node may lease it");
        let outdated = s.jobs.superseded_by(job).is_some();
        prop_assert!(!(outdated && matches!(job.phase, Phase::Queued { .. })), "what is superseded does not wait");
        prop_assert!(outdated || job.phase.as_str() != "superseded");
        prop_assert!(job.attempt <= job.attempts && job.results.len() <= job.attempt as usize);
        prop_assert!(
            job.results.is_sorted_by(|a, b| a.answered.attempt < b.answered.attempt),
            "at most one answer an attempt"
        );
    }
    prop_assert_eq!(s.jobs.finished.len(), finished);
    for (node, board) in &s.jobs.boards {
        let kept = boards.entry(*node).or_default();
        kept.drain = board.drain;
        kept.network = board.network;
        prop_assert_eq!(&*kept, board);
    }
    boards.retain(|node, _| !s.jobs.boards.contains_key(node));
    prop_assert_eq!(boards, BTreeMap::new());
    Ok(())
}

proptest! {
    #[test]
    fn whatever_is_asked_a_job_is_in_one_place(wishes in proptest::collection::vec(wish(), 1..80)) {
        let mut fleet = Fleet::founded("10.90.0.0/29");
        for n in 1..=3 {
            fleet.joined(n);
        }
        let mut before: BTreeMap<JobId, Job> = BTreeMap::new();
        let mut old_state = fleet.state.clone();
        let mut times = vec![fleet.now; fleet.changes.len()];
        for wish in wishes {
            perform(&mut fleet, wish);
            times.resize(fleet.changes.len(), fleet.now);
            check_lists(&fleet.state)?;
            for (node, board) in &old_state.jobs.boards {
                prop_assert!(fleet.state.jobs.network(*node).generation >= board.network.generation);
            }
            for (id, old) in &before {
                let new = &fleet.state.jobs.all[id];
                prop_assert!(new.attempt >= old.attempt, "a fence never falls");
                prop_assert!(new.results.starts_with(&old.results), "evidence stays");
                prop_assert!(old.phase != Phase::Succeeded || **new == *old, "done is done");
                prop_assert_eq!(new.binding, old.binding);
                let outdated = old_state.jobs.superseded_by(old).is_some();
                prop_assert!(!outdated || (&new.results, new.attempt) == (&old.results, old.attempt), "late is late");
            }
            old_state = fleet.state.clone();
            before = fleet.state.jobs.all.iter().map(|(id, job)| (*id, jobs::Job::clone(job))).collect();
        }
        let mut replayed = State::default();
        for (change, at) in fleet.changes.iter().zip(times) {
            replayed.apply(&serde_json::from_slice(&state::to_bytes(change)).unwrap(), at);
        }
        prop_assert_eq!(&replayed, &fleet.state);
        let kept: State = serde_json::from_slice(&state::to_bytes(&fleet.state)).unwrap();
        prop_assert_eq!(&kept, &fleet.state);
    }
}
