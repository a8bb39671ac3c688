//! `network.ensure`, `network.check`, `network.withdraw`: the mesh of this node, by the one that keeps it. An attempt that
//! is given up drops its question, and the upkeep does nothing for a question that nobody waits for.

use super::retryable;
use crate::node::failure::Failure;
use crate::node::lanes::Finish;
use crate::node::upkeep::Ask;
use futures_util::future::BoxFuture;
use serde_json::json;
use state::subject::jobs::Outcome;
use tokio::sync::{mpsc, oneshot};

/// Makes the mesh as it should be and reads it back.
pub(super) fn ensure(asks: mpsc::Sender<Ask>) -> BoxFuture<'static, Finish> {
    Box::pin(async move {
        match ask(asks, Ask::Ensure).await {
            Ok(problems) if problems.is_empty() => {
                Finish { outcome: Outcome::Succeeded, result: json!({ "up": true }) }
            }
            Ok(problems) => {
                Finish { outcome: Outcome::Retryable, result: json!({ "up": false, "problems": problems }) }
            }
            Err(failure) => retryable(failure.to_string()),
        }
    })
}

/// Compares the mesh with what it should be and changes nothing.
pub(super) fn check(asks: mpsc::Sender<Ask>) -> BoxFuture<'static, Finish> {
    Box::pin(async move {
        match ask(asks, Ask::Check).await {
            Ok(steps) => {
                let outcome = if steps.is_empty() { Outcome::Succeeded } else { Outcome::Failed };
                Finish { outcome, result: json!({ "as_wanted": steps.is_empty(), "differences": steps }) }
            }
            Err(failure) => retryable(failure.to_string()),
        }
    })
}

/// Takes the mesh down until the agent starts again or is told to ensure it.
pub(super) fn withdraw(asks: mpsc::Sender<Ask>) -> BoxFuture<'static, Finish> {
    Box::pin(async move {
        match ask(asks, Ask::Withdraw).await {
            Ok(()) => Finish { outcome: Outcome::Succeeded, result: json!({ "down": true }) },
            Err(failure) => retryable(failure.to_string()),
        }
    })
}

async fn ask<T>(
    asks: mpsc::Sender<Ask>,
    question: fn(oneshot::Sender<Result<T, Failure>>) -> Ask,
) -> Result<T, Failure> {
    let (reply, answer) = oneshot::channel();
    let gone = || Failure::local("the mesh was not looked at", "nothing keeps this machine any more");
    asks.send(question(reply)).await.map_err(|_| gone())?;
    answer.await.unwrap_or_else(|_| Err(gone()))
}
