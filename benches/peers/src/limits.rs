//! What this machine can do at best.

use crate::{Outcome, print, quantile};
use ed25519_dalek::{Signer, SigningKey};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// 4 KiB written over and fdatasync'd, one at a time, in a file that has all its blocks: the rate of durable commits that
/// share nothing.
pub fn fsync(dir: &str, length: Duration) -> Outcome {
    const SPAN: u64 = 64 << 20;
    let path = format!("{dir}/fsync.dat");
    let file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    for offset in (0..SPAN).step_by(1 << 20) {
        file.write_all_at(&vec![0; 1 << 20], offset)?;
    }
    file.sync_all()?;
    let mut taken = Vec::new();
    let start = Instant::now();
    while start.elapsed() < length {
        let begun = Instant::now();
        file.write_all_at(&[0x5a; 4096], taken.len() as u64 * 4096 % SPAN)?;
        file.sync_data()?;
        taken.push(begun.elapsed());
    }
    print("fsync", taken.len() as f64 / start.elapsed().as_secs_f64(), "/s");
    print("fsync_p50_ms", quantile(&mut taken, 0.5), "ms");
    std::fs::remove_file(path)?;
    Ok(())
}

/// Strict Ed25519 verifications of a 400-byte message on one core.
pub fn ed25519(length: Duration) -> Outcome {
    let key = SigningKey::from_bytes(&[7; 32]);
    let message = [9u8; 400];
    let signature = key.sign(&message);
    let (start, mut count) = (Instant::now(), 0u32);
    while start.elapsed() < length {
        key.verifying_key().verify_strict(&message, &signature)?;
        count += 1;
    }
    print("ed25519_verify", f64::from(count) / start.elapsed().as_secs_f64(), "/cpu_s");
    Ok(())
}
