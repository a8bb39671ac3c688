//! Durable work at the engine, without any network: workers that each wait for their answer before they ask again. Prints
//! lines `name value unit`.
//!
//! Usage: `engine commit|lease DIR SECONDS WORKERS`. The store is made in a directory of its own in DIR, which must lie on
//! the disk that is to be measured, and is left there.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program, not the product")]

mod commit;
mod fleet;
mod lease;

use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [what, dir, seconds, workers] = arguments.as_slice() else {
        bail!("usage: engine commit|lease DIR SECONDS WORKERS");
    };
    let (length, workers): (Duration, usize) = (Duration::from_secs_f64(seconds.parse()?), workers.parse()?);
    let dir = Path::new(dir).join(format!("engine-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let (rate, mut waits) = match what.as_str() {
        "commit" => commit::measure(&dir, length, workers).await?,
        "lease" => lease::measure(&dir, length, workers).await?,
        other => bail!("the engine is not measured by `{other}`"),
    };
    waits.sort_unstable();
    let quantile = |q: f64| waits[((waits.len() - 1) as f64 * q) as usize].as_secs_f64() * 1000.0;
    println!("{what}_w{workers} {rate:.0} /s");
    println!("{what}_w{workers}_p50_ms {:.3} ms", quantile(0.5));
    println!("{what}_w{workers}_p99_ms {:.3} ms", quantile(0.99));
    Ok(())
}
