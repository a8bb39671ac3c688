//! Logs, on stderr: lines for people on a terminal, without colours; JSON elsewhere.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging at `HOLDFAST_LOG`, else `RUST_LOG`, else what the command asks for. The consensus engine and the
/// libraries below us are heard from `warn` up in either default, gotatun not at all: it has a line for every packet that
/// it cannot deliver, and its errors that matter reach the data plane as such.
pub(super) fn start(default: &str) {
    let asked = ["HOLDFAST_LOG", "RUST_LOG"].into_iter().find_map(|name| std::env::var(name).ok());
    let filter = asked.and_then(|text| text.parse::<EnvFilter>().ok());
    let filter =
        filter.unwrap_or_else(|| EnvFilter::new(format!("warn,gotatun=off,holdfast={default},state={default}")));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error here means that logging was started before.
    let _ = if std::io::stderr().is_terminal() {
        logs.with_ansi(false).with_target(false).try_init()
    } else {
        logs.json().flatten_event(true).with_ansi(false).with_current_span(false).with_span_list(false).try_init()
    };
}
