//! A deterministic simulator of jobs: the real state and its rules, the real deadlines of leases, the real lanes of nodes;
//! and between them a made-up time, network, writer and machines, in which everything goes wrong that may.
//!
//! A schedule follows from its seed alone. A failure names its seed: `HOLDFAST_SIM_SEED=n cargo test --test sim` shows it
//! again, and it is then kept in `KEPT`. `HOLDFAST_SIM_COUNT=n` runs more of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stderr, reason = "the seed of a failure must be seen")]

mod agent;
mod appliance;
mod chance;
mod fleet;
mod trouble;
mod watch;
mod world;

use trouble::Plan;
use watch::Seen;
use world::World;

/// Seeds that have failed once.
const KEPT: &[u64] = &[];
/// Schedules of an ordinary run.
const SCHEDULES: u64 = 2_048;
/// Schedules in which the primary dies at each of its steps in turn.
const CALM: u64 = 3;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn run(seed: u64, plan: Plan) -> (Seen, u64) {
    std::panic::catch_unwind(|| World::new(seed, plan).run()).unwrap_or_else(|panic| {
        eprintln!("seed {seed} fails ({plan:?}): HOLDFAST_SIM_SEED={seed} cargo test --test sim");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn no_schedule_breaks_the_promises_about_jobs() {
    let seeds: Vec<u64> = match number("HOLDFAST_SIM_SEED") {
        Some(seed) => vec![seed],
        None => KEPT.iter().copied().chain(0..number("HOLDFAST_SIM_COUNT").unwrap_or(SCHEDULES)).collect(),
    };
    let mut seen = Seen::default();
    seeds.iter().for_each(|seed| seen.add(&run(*seed, Plan::Storm).0));
    eprintln!("{} schedules: {seen:?}", seeds.len());
    if seeds.len() > 1_000 {
        seen.everything_happened();
    }
}

#[test]
fn a_primary_may_die_at_any_step() {
    let mut schedules = 0;
    for seed in 0..CALM {
        let (_, steps) = run(seed, Plan::DiesAt { step: 0, durable: false });
        for step in 1..=steps {
            for durable in [false, true] {
                assert_eq!(run(seed, Plan::DiesAt { step, durable }).0.restarts, 1);
                schedules += 1;
            }
        }
    }
    eprintln!("{schedules} schedules");
}

#[test]
fn a_schedule_follows_from_its_seed() {
    assert_eq!(World::new(7, Plan::Storm).run(), World::new(7, Plan::Storm).run());
}
