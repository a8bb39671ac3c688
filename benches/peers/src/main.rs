//! Measures what Holdfast is compared with, on the same machine in the same run. Prints lines `name value unit`.

mod etcd;
mod fanout;
mod limits;
mod tls;

use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "usage: peers fsync DIR SECONDS | ed25519 SECONDS | etcd-put URL SECONDS CLIENTS | \
                     fanout DIR STREAMS EVENTS | tls-server ADDRESS";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["fsync", dir, seconds] => limits::fsync(dir, duration(seconds)?),
        ["ed25519", seconds] => limits::ed25519(duration(seconds)?),
        ["etcd-put", url, seconds, clients] => etcd::put(url, duration(seconds)?, clients.parse()?).await,
        ["fanout", dir, streams, events] => fanout::run(dir, streams.parse()?, events.parse()?).await,
        ["tls-server", address] => tls::serve(address).await,
        _ => Err(USAGE.into()),
    }
}

fn duration(seconds: &str) -> Outcome<Duration> {
    Ok(Duration::from_secs_f64(seconds.parse()?))
}

fn print(name: &str, value: f64, unit: &str) {
    println!("{name} {value:.3} {unit}");
}

/// The given quantile of some durations, in milliseconds.
fn quantile(durations: &mut [Duration], q: f64) -> f64 {
    durations.sort_unstable();
    let index = ((durations.len().max(1) - 1) as f64 * q) as usize;
    durations.get(index).map_or(0.0, |d| d.as_secs_f64() * 1e3)
}
