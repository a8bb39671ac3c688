//! `network.ensure`, `network.check`, `network.withdraw`: the mesh of this node, by the one that keeps it. An attempt that
//! is given up takes its question back, and ends when the upkeep has let go of it.

use super::retryable;
use crate::node::failure::Failure;
use crate::node::lanes::Finish;
use crate::node::upkeep::{Ask, Question, question};
use futures_util::future::BoxFuture;
use serde_json::json;
use state::subject::jobs::Outcome;
use tokio::sync::{mpsc, oneshot};

/// Makes the mesh as it should be and reads it back.
pub(super) fn ensure(asks: mpsc::Sender<Ask>, stop: oneshot::Receiver<()>) -> BoxFuture<'static, Finish> {
    Box::pin(async move {
        match ask(asks, stop, Ask::Ensure).await {
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
pub(super) fn check(asks: mpsc::Sender<Ask>, stop: oneshot::Receiver<()>) -> BoxFuture<'static, Finish> {
    Box::pin(async move {
        match ask(asks, stop, Ask::Check).await {
            Ok(steps) => {
                let outcome = if steps.is_empty() { Outcome::Succeeded } else { Outcome::Failed };
                Finish { outcome, result: json!({ "as_wanted": steps.is_empty(), "differences": steps }) }
            }
            Err(failure) => retryable(failure.to_string()),
        }
    })
}

/// Takes the mesh down until the agent starts again or is told to ensure it.
pub(super) fn withdraw(asks: mpsc::Sender<Ask>, stop: oneshot::Receiver<()>) -> BoxFuture<'static, Finish> {
    Box::pin(async move {
        match ask(asks, stop, Ask::Withdraw).await {
            Ok(()) => Finish { outcome: Outcome::Succeeded, result: json!({ "down": true }) },
            Err(failure) => retryable(failure.to_string()),
        }
    })
}

async fn ask<T>(
    asks: mpsc::Sender<Ask>,
    stop: oneshot::Receiver<()>,
    ask: fn(Question<T>) -> Ask,
) -> Result<T, Failure> {
    let (question, mut answer) = question();
    let asked = async {
        // Refused, or never answered, only when nothing keeps this machine any more.
        let _ = asks.send(ask(question)).await;
        answer.wait().await
    };
    tokio::select! {
        answered = asked => answered,
        _ = stop => {
            answer.take_back().await;
            Err(Failure::local("the mesh was not looked at to the end", "it was told to stop"))
        }
    }
}
