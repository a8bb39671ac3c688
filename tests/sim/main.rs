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
mod watch;
mod world;

/// Seeds that have failed once.
const KEPT: &[u64] = &[];
/// Schedules of an ordinary run.
const SCHEDULES: u64 = 2_048;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn no_schedule_breaks_the_promises_about_jobs() {
    let seeds: Vec<u64> = match number("HOLDFAST_SIM_SEED") {
        Some(seed) => vec![seed],
        None => KEPT.iter().copied().chain(0..number("HOLDFAST_SIM_COUNT").unwrap_or(SCHEDULES)).collect(),
    };
    let mut seen = watch::Seen::default();
    for seed in &seeds {
        match std::panic::catch_unwind(|| world::World::new(*seed).run()) {
            Ok(of) => seen.add(&of),
            Err(panic) => {
                eprintln!("seed {seed} fails: HOLDFAST_SIM_SEED={seed} cargo test --test sim");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{} schedules: {seen:?}", seeds.len());
    if seeds.len() > 1_000 {
        seen.everything_happened();
    }
}

#[test]
fn a_schedule_follows_from_its_seed() {
    assert_eq!(world::World::new(7).run(), world::World::new(7).run());
}
