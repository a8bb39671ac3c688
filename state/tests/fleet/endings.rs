//! Jobs that are stuck on their nodes, and jobs of what is not wanted any more.

use crate::common::*;
use state::Code;
use state::model::*;
use state::subject::enrolment;
use state::subject::jobs::{self, Command, Lane, Outcome, Phase, Spec};

fn stuck(n: u8, token: u8, attempt: u32) -> Command {
    with(complete(1, n, token, attempt, Outcome::Retryable), |c| c.stuck = Some("process 7 does not end".into()))
}

/// Leases job 1 of node 1 as soon as it may be, under this token.
fn at_once(fleet: &mut Fleet, token: u8) -> u32 {
    fleet.run(Command::Retry { job: job(1) }).unwrap();
    let (id, attempt) = leased(fleet, lease(1, token)).unwrap();
    assert_eq!(id, job(1));
    attempt
}

#[test]
fn a_stuck_job_says_so_until_an_attempt_that_was_not_has_ended() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    for attempt in 1..=20 {
        assert_eq!(at_once(&mut fleet, 60), attempt);
        fleet.run(stuck(1, 60, attempt)).unwrap();
        let why = "process 7 does not end".into();
        assert_eq!(shown(&fleet, 1).stuck, Some(jobs::Stuck { attempt, why }));
        assert!(matches!(shown(&fleet, 1).phase, Phase::Queued { .. }), "it is none of the attempts it may have");
    }
    assert_eq!(at_once(&mut fleet, 61), 21);
    fleet.run(reap(1, 21)).unwrap();
    assert!(shown(&fleet, 1).stuck.is_some(), "nobody knows better");
    assert_eq!(at_once(&mut fleet, 62), 22);
    fleet.run(complete(1, 1, 62, 22, Outcome::Retryable)).unwrap();
    assert_eq!(shown(&fleet, 1).stuck, None);
    assert_eq!((shown(&fleet, 1).attempt, shown(&fleet, 1).attempts), (22, 25), "two counted");
}

#[test]
fn a_job_is_not_stuck_for_ever() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    for attempt in 1..=jobs::ATTEMPTS_MAX {
        assert!(!shown(&fleet, 1).phase.is_over());
        assert_eq!(at_once(&mut fleet, 60), attempt);
        fleet.run(stuck(1, 60, attempt)).unwrap();
    }
    let Phase::Failed { why } = &shown(&fleet, 1).phase else { panic!("{:?}", shown(&fleet, 1)) };
    assert_eq!(why, "after 100 attempts it is stuck: process 7 does not end");
}

#[test]
fn a_cancelled_job_that_is_stuck_is_over_when_nothing_of_it_runs() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    assert_eq!(at_once(&mut fleet, 60), 1);
    fleet.run(stuck(1, 60, 1)).unwrap();
    fleet.run(Command::Cancel { job: job(1) }).unwrap();
    assert_eq!(fleet.run(Command::Cancel { job: job(1) }).unwrap(), []);
    assert!(shown(&fleet, 1).cancel && !shown(&fleet, 1).phase.is_over());
    assert_eq!(at_once(&mut fleet, 61), 2);
    fleet.run(stuck(1, 61, 2)).unwrap();
    assert!(shown(&fleet, 1).cancel && !shown(&fleet, 1).phase.is_over());
    assert_eq!(at_once(&mut fleet, 62), 3);
    fleet.run(complete(1, 1, 62, 3, Outcome::Failed)).unwrap();
    assert_eq!((&shown(&fleet, 1).phase, &shown(&fleet, 1).stuck), (&Phase::Cancelled, &None));
}

#[test]
fn what_is_stuck_on_a_machine_stays_behind_with_it() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(submit(1, 1..=1)).unwrap();
    assert_eq!(at_once(&mut fleet, 60), 1);
    fleet.run(stuck(1, 60, 1)).unwrap();
    let enrolment::Command::AddNode(mut replacing) = add(1) else { panic!() };
    (replacing.replace, replacing.token) = (true, hash(50));
    fleet.run(enrolment::Command::AddNode(replacing)).unwrap();
    fleet.run(join(Some(50), 7)).unwrap();
    assert_eq!(shown(&fleet, 1).stuck, None);
    assert_eq!(fleet.code(lease(1, 61)), Code::CertificateRefused, "the former machine gets nothing");
    fleet.run(Command::Retry { job: job(1) }).unwrap();
    let Command::Lease(mut asked) = lease(1, 61) else { panic!() };
    asked.certificate = hash(157);
    assert_eq!(leased(&mut fleet, Command::Lease(asked)), Some((job(1), 2)));
}

fn network(n: u8, spec: Spec) -> Command {
    Command::Submit { jobs: vec![wanted(1, n, spec)] }
}

fn ensure(n: u8) -> Command {
    network(n, Spec::NetworkEnsure {})
}

fn withdraw(n: u8) -> Command {
    network(n, Spec::NetworkWithdraw {})
}

#[test]
fn what_is_wanted_anew_supersedes_what_waits_and_what_runs() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    fleet.run(submit(1, 9..=9)).unwrap();
    fleet.run(Command::Submit { jobs: vec![wanted(2, 10, Spec::NetworkEnsure {})] }).unwrap();
    fleet.run(ensure(1)).unwrap();
    fleet.run(ensure(2)).unwrap();
    fleet.run(network(3, Spec::NetworkCheck {})).unwrap();
    let generation = |fleet: &Fleet, n| shown(fleet, n).binding.generation;
    assert!((1..=3).all(|n| generation(&fleet, n) == Revision(0)), "it was wanted so from the first");
    assert_eq!(leased(&mut fleet, lane(1, 60, Some(Lane::Network))), Some((job(1), 1)));
    let held = |fleet: &Fleet, n, token| {
        jobs::held(&fleet.state, &hash(151), job(n), &hash(token), fleet.now, true).map(|job| job.attempt)
    };
    assert_eq!(held(&fleet, 1, 60), Ok(1));

    fleet.run(withdraw(4)).unwrap();
    let turned = fleet.state.revision;
    assert_eq!(generation(&fleet, 4), turned);
    for n in [2, 3] {
        assert_eq!(shown(&fleet, n).phase, Phase::Superseded { generation: turned });
        assert_eq!(shown(&fleet, n).completed_at, Some(fleet.now));
        assert_eq!(fleet.code(Command::Retry { job: job(n) }), Code::Conflict);
        assert_eq!(fleet.code(Command::Cancel { job: job(n) }), Code::Conflict);
        assert_eq!(held(&fleet, n, 60).unwrap_err().code, Code::Superseded);
    }
    assert!(matches!(shown(&fleet, 9).phase, Phase::Queued { .. }), "a workload is another matter");
    assert!(matches!(shown(&fleet, 10).phase, Phase::Queued { .. }), "so is another node");
    assert!(matches!(shown(&fleet, 1).phase, Phase::Leased { .. }), "it may still run");
    assert_eq!(held(&fleet, 1, 60).unwrap_err().code, Code::Superseded);
    for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Retryable] {
        assert_eq!(fleet.code(complete(1, 1, 60, 1, outcome)), Code::Superseded);
    }
    assert_eq!(fleet.state.jobs.network(id(1)).generation, turned, "and has no effect");

    assert_eq!(leased(&mut fleet, lane(1, 61, Some(Lane::Network))), Some((job(4), 1)));
    fleet.run(reap(1, 1)).unwrap();
    assert_eq!(shown(&fleet, 1).phase, Phase::Superseded { generation: turned }, "it is not tried again");
    assert_eq!((shown(&fleet, 1).results.len(), shown(&fleet, 1).completed_at), (0, Some(fleet.now)));
    assert_eq!(fleet.code(complete(1, 1, 60, 1, Outcome::Succeeded)), Code::Superseded);
    assert_eq!(held(&fleet, 4, 61), Ok(1), "nothing of that touched the newer");

    fleet.run(withdraw(5)).unwrap();
    fleet.run(network(6, Spec::NetworkCheck {})).unwrap();
    assert!([5, 6].iter().all(|n| generation(&fleet, *n) == turned), "the same is no newer wish");
    fleet.run(complete(1, 4, 61, 1, Outcome::Succeeded)).unwrap();
    fleet.run(ensure(7)).unwrap();
    assert!(generation(&fleet, 7) > turned);
    assert_eq!(shown(&fleet, 4).phase, Phase::Succeeded, "done is done");
    assert!([5, 6].iter().all(|n| shown(&fleet, *n).phase.as_str() == "superseded"));
}

#[test]
fn a_node_is_not_asked_for_opposite_things_at_once() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let both = vec![wanted(1, 1, Spec::NetworkEnsure {}), wanted(1, 2, Spec::NetworkWithdraw {})];
    assert_eq!(fleet.code(Command::Submit { jobs: both }), Code::Invalid);
    let after = vec![wanted(1, 1, Spec::NetworkCheck {}), wanted(1, 2, Spec::NetworkWithdraw {})];
    fleet.run(Command::Submit { jobs: after }).unwrap();
    assert_eq!(shown(&fleet, 1).binding, shown(&fleet, 2).binding, "what is asked together is asked under the same");
}

#[test]
fn a_machine_that_comes_back_finds_no_lower_generation() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(withdraw(1)).unwrap();
    let turned = fleet.state.jobs.network(id(1)).generation;
    fleet.run(remove(1, true, true)).unwrap();
    let key = SigningKey::from_bytes([1; 32]);
    let beta = Some(name("beta"));
    fleet.run(enrolment::Command::Admit { key, name: name("n1"), org: beta, site: None, id: id(8) }).unwrap();
    fleet.run(join(None, 1)).unwrap();
    assert_eq!(fleet.code(Command::Retry { job: job(1) }), Code::Conflict, "it is another tenant's now");
    fleet.run(withdraw(2)).unwrap();
    assert_eq!(shown(&fleet, 2).binding.generation, turned);
    fleet.run(ensure(3)).unwrap();
    assert!(shown(&fleet, 3).binding.generation > turned);
}
