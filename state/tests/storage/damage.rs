//! Bits that flip and ends that are cut off: found when the store is opened, or in bytes that nothing uses.

use crate::medium::Recorder;
use crate::script::Life;

const FLIPS: usize = 3000;
const CUTS: usize = 400;

/// What came of opening a damaged image.
fn outcome(life: &Life, image: Vec<u8>, last: u64) -> &'static str {
    let opened = std::panic::catch_unwind(|| life.check(&Recorder::new(image), last, false));
    match opened {
        Err(_) => "panicked",
        Ok(Err(_)) => "refused",
        Ok(Ok(found)) if found == last => "unharmed",
        Ok(Ok(_)) => "silent",
    }
}

#[test]
fn a_flipped_bit_is_never_taken_for_the_truth() {
    let life = Life::lived();
    let last = life.steps.len() as u64 - 1;
    let mut crashed = life.base.clone();
    life.ops.iter().for_each(|op| op.apply(&mut crashed, None));
    for image in [&life.closed, &crashed] {
        let used: Vec<usize> =
            (0..image.len() / 4096).filter(|page| image[page * 4096..][..4096].iter().any(|byte| *byte != 0)).collect();
        let mut dice: u64 = 7;
        let mut refused = 0;
        for _ in 0..FLIPS {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let at = used[dice as usize % used.len()] * 4096 + (dice >> 20) as usize % 4096;
            let mut image = image.clone();
            image[at] ^= 1 << (dice >> 40 & 7);
            match outcome(&life, image, last) {
                "refused" => refused += 1,
                "unharmed" => {}
                other => panic!("{other}: byte {at}"),
            }
        }
        assert!(refused > FLIPS / 10, "only {refused} of {FLIPS} flips were found");
    }
}

#[test]
fn a_store_that_was_cut_short_is_refused() {
    let life = Life::lived();
    let last = life.steps.len() as u64 - 1;
    let mut refused = 0;
    for cut in 0..CUTS {
        let length = life.closed.len() * cut / CUTS;
        match outcome(&life, life.closed[..length].to_vec(), last) {
            "refused" => refused += 1,
            "unharmed" => {}
            other => panic!("{other}: cut at {length}"),
        }
    }
    assert!(refused > CUTS / 2, "only {refused} of {CUTS} cuts were found");
}
