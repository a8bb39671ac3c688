//! Calls over a Unix socket to the appliance or the agent of this machine.

use super::failure::{Exit, Failure};
use super::globals::{Globals, Listener, Socket};
use super::output;
use crate::wire::peers::HEADER_IDEMPOTENCY;
use crate::wire::problem::Problem;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// Longer than anything behind the sockets takes, a verdict on a service included.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of one socket.
pub(super) struct Client {
    http: reqwest::Client,
    socket: Socket,
    /// Who is at the other end.
    pub listener: Listener,
}

impl Client {
    /// The agent's socket.
    pub(super) fn agent(globals: &Globals) -> Self {
        Self::at(globals.socket(Listener::Agent), Listener::Agent)
    }

    /// The operator socket; where there is none by convention and an agent's is, that one, with a note.
    pub(super) fn operator(globals: &Globals) -> Self {
        let socket = globals.socket(Listener::Operator);
        let agent = globals.socket(Listener::Agent);
        if !socket.named && !socket.path.exists() && agent.path.exists() {
            output::note("note: no appliance runs here; asking this machine's agent");
            return Self::at(agent, Listener::Agent);
        }
        Self::at(socket, Listener::Operator)
    }

    fn at(socket: Socket, listener: Listener) -> Self {
        let http = reqwest::Client::builder()
            .unix_socket(socket.path.as_path())
            .http1_only()
            .timeout(TIMEOUT)
            .build()
            .expect("the settings are constants that reqwest accepts");
        Self { http, socket, listener }
    }

    /// Reads.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.call(Method::GET, path, None).await
    }

    /// Changes something.
    pub(super) async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, Failure> {
        self.call(Method::POST, path, Some(("application/json", state::to_bytes(body)))).await
    }

    /// Hands bytes over.
    pub(super) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &'static str,
        bytes: Vec<u8>,
    ) -> Result<T, Failure> {
        self.call(Method::POST, path, Some((kind, bytes))).await
    }

    /// Takes something away.
    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.call(Method::DELETE, path, None).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<T, Failure> {
        let mut request = self.http.request(method.clone(), format!("http://localhost{path}"));
        if method != Method::GET {
            request = request.header(HEADER_IDEMPOTENCY, hex::encode(crate::entropy::bytes::<16>()));
        }
        if let Some((kind, body)) = body {
            request = request.header(http::header::CONTENT_TYPE, kind).body(body);
        }
        let response = request.send().await.map_err(|error| self.unanswered(&error))?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|error| self.unanswered(&error))?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| self.misunderstood(&error.to_string()));
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(problem.into()),
            Err(_) if status == http::StatusCode::NOT_FOUND && self.listener == Listener::Agent => Err(Failure::new(
                Exit::NotFound,
                "not_found",
                "an agent does not answer this",
                "no appliance runs on this machine, and only an appliance knows",
                "run it on the appliance, or give its socket with --socket",
            )),
            Err(_) => Err(self.misunderstood(&format!("status {status} without a reason"))),
        }
    }

    fn misunderstood(&self, why: &str) -> Failure {
        let why = format!("{}: {why}", self.socket.path.display());
        let todo = "restart the running holdfast with the version of this command";
        Failure::new(Exit::Failed, "malformed", "the answer is not understood", why, todo)
    }

    fn unanswered(&self, error: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let who = match self.listener {
            Listener::Operator => ("the appliance", "start it with `holdfast serve --state DIR`"),
            Listener::Agent => ("the agent", "start it with `holdfast agent run --state DIR`"),
        };
        let why = match (error.is_timeout(), exists(&self.socket.path)) {
            (true, _) => format!("no answer within {} s", TIMEOUT.as_secs()),
            (false, true) => format!("{}: {cause}", self.socket.path.display()),
            (false, false) => format!("there is no socket at {}", self.socket.path.display()),
        };
        let todo = format!("{}, or name its directory with --state or its socket with --socket", who.1);
        Failure::new(Exit::Unreachable, "unreachable", format!("{} was not reached", who.0), why, todo)
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
