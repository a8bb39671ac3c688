//! What each kind of job does on a node: a file a kind, registered in [`doing`]. Leases, fences and processes are the
//! lanes' affair.

mod build_module;
mod network;
mod service_check;

use crate::node::failure::Failure;
use crate::node::lanes::Finish;
use crate::node::upkeep::Ask;
use futures_util::future::BoxFuture;
use state::subject::jobs::{Outcome, Spec};
use std::io::Read;
use tokio::sync::{mpsc, oneshot};

/// A specification, or a result, is at most this long, bytes.
pub(super) const SPEC: u64 = 64 * 1024;

/// Where the work of a kind is done. Nothing is begun before the future is polled.
pub(super) enum Doing {
    /// In the agent, by its upkeep of this machine. Told to stop, it ends as soon as nothing of it goes on.
    Here(fn(mpsc::Sender<Ask>, oneshot::Receiver<()>) -> BoxFuture<'static, Finish>),
    /// In a process of its own, which is killed with all that it started when the lease is lost.
    Apart(BoxFuture<'static, Finish>),
}

/// The kinds that are done here; one that is only known, as there is nothing yet that does it, is not among them.
pub(super) const KINDS: [&str; 4] = ["network.ensure", "network.check", "network.withdraw", "service.check"];

/// The one place where kinds are registered.
pub(super) fn doing(spec: Spec) -> Doing {
    match spec {
        Spec::NetworkEnsure {} => Doing::Here(network::ensure),
        Spec::NetworkCheck {} => Doing::Here(network::check),
        Spec::NetworkWithdraw {} => Doing::Here(network::withdraw),
        Spec::BuildModule { source } => Doing::Apart(Box::pin(build_module::build(source))),
        Spec::ServiceCheck { probe, timeout_s } => Doing::Apart(Box::pin(service_check::check(probe, timeout_s))),
    }
}

/// The process of work that is done apart: reads the specification from standard input to its end, does it, and gives
/// the [`Finish`] as JSON.
pub fn apart(input: impl Read) -> Result<String, Failure> {
    const WHAT: &str = "the work was not done";
    let mut bytes = Vec::new();
    input.take(SPEC).read_to_end(&mut bytes).map_err(|error| Failure::local(WHAT, error))?;
    let spec: Spec = serde_json::from_slice(&bytes).map_err(|error| {
        let todo = "this command is for the agent alone; queue a job with `holdfast job run` instead";
        Failure::new("invalid", WHAT, format!("no job on standard input: {error}"), todo)
    })?;
    let kind = spec.kind();
    let Doing::Apart(work) = doing(spec) else {
        return Err(Failure::new("invalid", WHAT, format!("{kind} is done in the agent"), "queue it as a job instead"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::local(WHAT, error))?;
    let finish = runtime.block_on(work);
    // A look-up of a host name may still hang in the C library.
    runtime.shutdown_background();
    Ok(serde_json::to_string(&finish).expect("a finish is JSON"))
}

/// Work that could not be done; another attempt may.
pub(super) fn retryable(why: impl Into<String>) -> Finish {
    Finish { outcome: Outcome::Retryable, result: serde_json::json!({ "error": why.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// serde names all kinds when it meets one that it does not know.
    #[test]
    fn every_kind_that_is_done_here_is_reported() {
        let refusal = serde_json::from_str::<Spec>(r#"{"kind":"?"}"#).unwrap_err().to_string();
        let known: BTreeSet<_> = refusal.split('`').skip(3).step_by(2).collect();
        assert_eq!(known, KINDS.into_iter().chain(["build.module"]).collect());
    }
}
