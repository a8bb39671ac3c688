//! `agent.sock`: the operator's calls to the agent of this machine. The directory is private, so whoever reaches the
//! socket is the agent's own user or root.

use crate::clock;
use crate::listen::serve_local;
use crate::listen::stop;
use crate::node::agent::Outcome;
use crate::node::failure::Failure;
use crate::node::run::DOWN;
use crate::node::upkeep::Ask;
use crate::node::view::Snapshot;
use crate::wire::operator::{Done, Nothing, PlanView, Publish, Published, SCHEMA};
use crate::wire::peers::ClaimVerdict;
use crate::{files, limits, tasks};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use http::{StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::model::Name;
use std::os::unix::fs::PermissionsExt;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// The socket's name in the state directory.
pub(super) const NAME: &str = "agent.sock";

/// What the agent itself must answer.
pub(super) enum Call {
    /// What it is.
    View(oneshot::Sender<Snapshot>),
    /// Claim a service.
    Publish(Publish, oneshot::Sender<Outcome>),
    /// Take a claim back.
    Withdraw(Name, Name, oneshot::Sender<Outcome>),
    /// Take the mesh down and end.
    Down(oneshot::Sender<Result<(), Failure>>),
    /// Leave the fleet, take the mesh down and end.
    Leave(oneshot::Sender<Result<(), Failure>>),
}

#[derive(Clone)]
struct Agent {
    calls: mpsc::Sender<Call>,
    asks: mpsc::Sender<Ask>,
}

type Answer = Result<Response, Failure>;

/// Listens at `path` in the background, instead of whatever a dead agent left there.
pub(super) fn serve(path: &std::path::Path, calls: mpsc::Sender<Call>, asks: mpsc::Sender<Ask>) -> Result<(), Failure> {
    files::remove(path)?;
    let listen = || {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener = listen().map_err(|error: std::io::Error| {
        let why = format!("{} (a path of at most 107 bytes): {error}", path.display());
        Failure::new("file", "the agent did not start", why, "give a shorter --state")
    })?;
    let router = Router::new()
        .route("/v1/agent", get(view))
        .route("/v1/agent/plan", get(plan))
        .route("/v1/agent/down", post(down))
        .route("/v1/agent/leave", post(leave))
        .route("/v1/services", post(publish))
        .route("/v1/services/{space}/{name}", delete(withdraw))
        .with_state(Agent { calls, asks });
    let (stopper, stop) = stop::pair();
    tasks::spawn("agent socket", async move {
        serve_local(listener, router, stop).await;
        drop(stopper);
    });
    Ok(())
}

impl Agent {
    async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        let sent = self.calls.send(call(reply)).await.is_ok();
        answered(if sent { answer.await.ok() } else { None })
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        let sent = self.asks.send(ask(reply)).await.is_ok();
        answered(if sent { answer.await.ok() } else { None })
    }
}

fn answered<T>(answer: Option<T>) -> Result<T, Failure> {
    answer.ok_or_else(|| {
        let todo = "start it again with `holdfast agent run`";
        Failure::new("unreachable", "the agent did not answer", "it is ending", todo)
    })
}

async fn view(State(agent): State<Agent>) -> Answer {
    let snapshot = agent.call(Call::View).await?;
    let peers = agent.ask(Ask::Peers).await?;
    Ok(json(&snapshot.view(&peers, clock::wall())))
}

async fn plan(State(agent): State<Agent>) -> Answer {
    let steps = agent.ask(Ask::Plan).await??;
    Ok(json(&PlanView { schema: SCHEMA, steps }))
}

async fn down(State(agent): State<Agent>, body: Bytes) -> Answer {
    parse::<Nothing>(&body)?;
    agent.call(Call::Down).await??;
    Ok(done(DOWN))
}

async fn leave(State(agent): State<Agent>, body: Bytes) -> Answer {
    parse::<Nothing>(&body)?;
    agent.call(Call::Leave).await??;
    Ok(done("this node left the fleet, and the mesh is down on this machine"))
}

async fn publish(State(agent): State<Agent>, body: Bytes) -> Answer {
    let claim: Publish = parse(&body)?;
    let name = agent.call(Call::View).await?.service_name(&claim.space, &claim.name);
    let verdict = match settled(&agent, |reply| Call::Publish(claim, reply)).await? {
        Outcome::Judged(verdict) => Some(verdict),
        Outcome::Stored => None,
        // Withdrawn by another call in between.
        Outcome::Withdrawn => {
            let (code, why) = ("withdrawn".into(), "it was withdrawn before it was judged".into());
            Some(ClaimVerdict::Refused { code, why })
        }
        Outcome::Failed(failure) => return Err(failure),
    };
    Ok(json(&Published { schema: SCHEMA, name, verdict }))
}

async fn withdraw(State(agent): State<Agent>, Path((space, name)): Path<(String, String)>) -> Answer {
    let parsed = |text: &str| {
        Name::new(text).map_err(|error| {
            let todo = "give SPACE/NAME as `holdfast agent status` shows it";
            Failure::new("invalid", "nothing was withdrawn", error.to_string(), todo)
        })
    };
    let (space, name) = (parsed(&space)?, parsed(&name)?);
    let text = format!("{space}/{name} is withdrawn");
    match settled(&agent, |reply| Call::Withdraw(space, name, reply)).await? {
        Outcome::Withdrawn => Ok(done(&text)),
        Outcome::Stored => Ok(done(&format!("{text} here; the appliance is told when it answers again"))),
        // Published again by another call in between.
        Outcome::Judged(_) => Ok(done(&format!("{text}, and published again meanwhile"))),
        Outcome::Failed(failure) => Err(failure),
    }
}

/// Waits for the appliance's word, and no longer than two calls to it may take.
async fn settled(agent: &Agent, call: impl FnOnce(oneshot::Sender<Outcome>) -> Call) -> Result<Outcome, Failure> {
    timeout(limits::REQUEST * 2, agent.call(call)).await.unwrap_or(Ok(Outcome::Stored))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let todo = "use the command line of the same version as the agent";
        Failure::new("invalid", "the call is not understood", error.to_string(), todo)
    })
}

fn done(text: &str) -> Response {
    json(&Done { schema: SCHEMA, done: text.to_owned() })
}

fn json(document: &impl Serialize) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], state::to_bytes(document)).into_response()
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let problem = self.problem();
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, "application/problem+json")], state::to_bytes(&problem)).into_response()
    }
}
