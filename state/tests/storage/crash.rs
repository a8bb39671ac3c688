//! The power goes at every operation, whatever the disk makes of what it had not synced, and again while the store is
//! being repaired.

use crate::medium::{Op, Recorder};
use crate::script::Life;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A small generator: the images must be the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[derive(Default)]
struct Sweep {
    images: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Sweep {
    /// Opens one image; `deep` also loses power at every operation of the repair.
    fn image(&self, life: &Life, image: Vec<u8>, at: usize, what: &str, deep: bool) {
        let known = life.acknowledged_by(at);
        let medium = Recorder::new(image.clone());
        self.judge(life.check(&medium, known, deep), known, || format!("{what} at operation {at}"));
        if !deep {
            return;
        }
        let repair = medium.ops();
        let mut partly = image;
        for (n, op) in repair.iter().enumerate() {
            if let Some(length) = op.written() {
                let mut torn = partly.clone();
                op.apply(&mut torn, Some(length / 2));
                let found = life.check(&Recorder::new(torn), known, false);
                self.judge(found, known, || format!("{what} at operation {at}, torn at operation {n} of its repair"));
            }
            op.apply(&mut partly, None);
            if matches!(op, Op::Sync) {
                let found = life.check(&Recorder::new(partly.clone()), known, false);
                self.judge(found, known, || format!("{what} at operation {at}, again after {n} of its repair"));
            }
        }
    }

    fn judge(&self, found: Result<u64, String>, known: u64, what: impl Fn() -> String) {
        self.images.fetch_add(1, Ordering::Relaxed);
        let fault = match found {
            Ok(found) if found <= known + 1 => return,
            Ok(found) => format!("{}: has batch {found}, only {known} was acknowledged", what()),
            Err(error) => format!("{}: {error}", what()),
        };
        self.faults.lock().unwrap().push(fault);
    }

    /// Every operation `n` with `n % of == share`.
    fn run(&self, life: &Life, share: usize, of: usize, subsets: usize) {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        let mut durable = life.base.clone();
        let mut pending: Vec<&Op> = Vec::new();
        for at in 0..=life.ops.len() {
            if at % of == share {
                let whole = |torn: Option<usize>| {
                    let mut image = durable.clone();
                    for (n, op) in pending.iter().enumerate() {
                        op.apply(&mut image, torn.filter(|_| n + 1 == pending.len()));
                    }
                    image
                };
                self.image(life, whole(None), at, "everything written", true);
                self.image(life, durable.clone(), at, "nothing unsynced", false);
                if let Some(length) = pending.last().and_then(|op| op.written()) {
                    for torn in [1, 512, length / 2, length - 1] {
                        self.image(life, whole(Some(torn)), at, "the last write torn", false);
                    }
                }
                for _ in 0..if pending.len() > 1 { subsets } else { 0 } {
                    let mut image = durable.clone();
                    for op in &pending {
                        let roll = dice.roll();
                        let torn = op.written().filter(|_| roll.is_multiple_of(7));
                        let torn = torn.map(|length| (roll as usize / 7) % (length / 512 + 1) * 512);
                        if !roll.is_multiple_of(3) {
                            op.apply(&mut image, torn);
                        }
                    }
                    self.image(life, image, at, "some of what was unsynced", false);
                }
            }
            match life.ops.get(at) {
                Some(Op::Sync) => pending.drain(..).for_each(|op| op.apply(&mut durable, None)),
                Some(op) => pending.push(op),
                None => {}
            }
        }
    }
}

#[test]
fn no_crash_loses_what_was_acknowledged() {
    let life = Arc::new(Life::lived());
    let sweep = Arc::new(Sweep::default());
    let subsets = if std::env::var_os("HOLDFAST_FULL").is_some() { 200 } else { 12 };
    let threads: Vec<_> = (0..2)
        .map(|share| {
            let (life, sweep) = (Arc::clone(&life), Arc::clone(&sweep));
            std::thread::spawn(move || sweep.run(&life, share, 2, subsets))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let images = sweep.images.load(Ordering::Relaxed);
    let faults = sweep.faults.lock().unwrap();
    assert!(faults.is_empty(), "{} of {images} images; the first: {:#?}", faults.len(), &faults[..faults.len().min(5)]);
    assert!(images >= 10_000, "only {images} images");
}
