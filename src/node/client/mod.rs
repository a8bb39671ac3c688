//! Calls to the fleet's appliances: pinned, signed, tried at one endpoint after the other. Decides nothing about what an
//! answer means; the agent does.

pub(super) mod pin;
mod sequence;
mod signer;
mod watch;

pub use pin::config as tls;
pub use sequence::Sequence;
pub use signer::Signer;
pub use watch::Watch;

use crate::limits;
use crate::wire::enrol::{EnrolRequest, Enrolled};
use crate::wire::jobs::Renewed;
use crate::wire::peers::{CertificateBody, LeaveBody, PeerList, RegisterAnswer, RegisterBody};
use crate::wire::problem::{Clock, Problem};
use crate::wire::roster::Roster;
use crate::wire::signed::Kind;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use state::model::{Endpoint, Fingerprint, Revision, SigningKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Who is called, and how they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appliances {
    /// Where they listen, the preferred one first.
    pub endpoints: Vec<Endpoint>,
    /// Their TLS certificates' pins, current and next.
    pub pins: Vec<Fingerprint>,
    /// What they sign with; empty before the first roster, when the pin alone vouches for a clock.
    pub keys: Vec<SigningKey>,
}

impl From<&Roster> for Appliances {
    fn from(roster: &Roster) -> Self {
        Self {
            endpoints: roster.appliances.iter().flat_map(|a| a.mesh.iter().cloned()).collect(),
            pins: roster.appliances.iter().flat_map(|a| a.pins.iter().copied()).collect(),
            keys: roster.appliances.iter().map(|a| a.signing_key).collect(),
        }
    }
}

/// Why a call has no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No appliance answered: what happened at each endpoint.
    #[error("no appliance answers: {0}")]
    Unreachable(String),
    /// One answered no.
    #[error("{}: {} ({})", .0.title, .0.detail, .0.code)]
    Refused(Box<Problem>),
    /// One answered something that is not of this protocol.
    #[error("{0}")]
    Malformed(String),
    /// The number of the request could not be kept on this disk.
    #[error(transparent)]
    Disk(#[from] crate::files::FileError),
}

/// A client of the fleet's appliances for one node.
pub struct Client {
    http: reqwest::Client,
    appliances: Appliances,
    signer: Arc<Signer>,
    /// The endpoint that answered last: the first to be tried.
    good: AtomicUsize,
}

struct Call<'a> {
    method: Method,
    path: &'a str,
    body: Vec<u8>,
    idempotency: Option<String>,
    timeout: Option<Duration>,
}

impl Client {
    /// A client that believes only these appliances and signs with this node's key.
    ///
    /// # Panics
    /// If reqwest refuses a configuration of constants.
    pub fn new(appliances: Appliances, signer: Arc<Signer>) -> Self {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(pin::config(appliances.pins.clone(), None))
            .http1_only()
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits::HANDSHAKE)
            .pool_idle_timeout(limits::IDLE / 2)
            .pool_max_idle_per_host(1)
            .tcp_keepalive(limits::HEARTBEAT * 2)
            .tcp_keepalive_interval(limits::HEARTBEAT)
            .tcp_keepalive_retries(2)
            .build()
            .expect("the settings are constants that reqwest accepts");
        Self { http, appliances, signer, good: AtomicUsize::new(usize::MAX) }
    }

    /// The endpoint that answered last; none before the first answer.
    pub fn answered_last(&self) -> Option<Endpoint> {
        self.appliances.endpoints.get(self.good.load(Ordering::Relaxed)).cloned()
    }

    /// Redeems a token. The same `idempotency` key and request get the same answer.
    pub async fn enrol(&self, request: &EnrolRequest, idempotency: String) -> Result<Enrolled, CallError> {
        let body = state::to_bytes(request);
        self.json(&Call::write(Method::POST, "/v1/enroll", body, idempotency)).await
    }

    /// Registers. The body's `seq` is set here.
    pub async fn register(&self, mut body: RegisterBody) -> Result<RegisterAnswer, CallError> {
        self.numbered(Method::POST, "/v1/peers/register", |seq| {
            body.envelope.seq = seq;
            state::to_bytes(&body)
        })
        .await
    }

    /// Asks for a client certificate by the signing key. The body's `seq` is set here; the same certificate request gets
    /// the same certificate.
    pub async fn certificate(&self, mut body: CertificateBody) -> Result<Renewed, CallError> {
        self.numbered(Method::POST, "/v1/peers/certificate", |seq| {
            body.envelope.seq = seq;
            state::to_bytes(&body)
        })
        .await
    }

    /// Leaves the fleet. The body's `seq` is set here.
    pub async fn leave(&self, mut body: LeaveBody) -> Result<serde_json::Value, CallError> {
        let path = format!("/v1/peers/{}", body.node);
        self.numbered(Method::DELETE, &path, |seq| {
            body.envelope.seq = seq;
            state::to_bytes(&body)
        })
        .await
    }

    /// The full list of the node's scopes.
    pub async fn list(&self) -> Result<PeerList, CallError> {
        self.json(&Call::read("/v1/peers", Some(limits::REQUEST))).await
    }

    /// Begins to hold the stream of what changes after a revision.
    pub async fn watch(&self, after: Revision) -> Result<Watch, CallError> {
        let path = format!("/v1/peers/watch?after={after}");
        let response = tokio::time::timeout(limits::REQUEST, self.send(&Call::read(&path, None)))
            .await
            .map_err(|_| CallError::Unreachable("the stream of changes did not begin in time".into()))??;
        Ok(Watch::new(response))
    }

    /// Sends a body that carries a `seq`; told a floor, jumps past it once.
    async fn numbered<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        mut body: impl FnMut(u64) -> Vec<u8>,
    ) -> Result<T, CallError> {
        let mut call = Call::write(method, path, body(self.signer.seq()?), random_key());
        let first = self.json(&call).await;
        let floor = match &first {
            Err(CallError::Refused(problem)) if problem.code == "replayed" => problem.floor,
            Ok(_) | Err(_) => None,
        };
        let Some(floor) = floor else { return first };
        tracing::warn!(floor, "the appliance has seen higher request numbers of this node; going on after them");
        self.signer.jump(floor);
        call.body = body(self.signer.seq()?);
        call.idempotency = Some(random_key());
        self.json(&call).await
    }

    async fn json<T: DeserializeOwned>(&self, call: &Call<'_>) -> Result<T, CallError> {
        let response = self.send(call).await?;
        let bytes = body(response, limits::LIST).await?;
        serde_json::from_slice(&bytes)
            .map_err(|e| CallError::Malformed(format!("the answer to {} {} is malformed: {e}", call.method, call.path)))
    }

    /// Tries every endpoint, the last good one first, until one answers at all.
    async fn send(&self, call: &Call<'_>) -> Result<reqwest::Response, CallError> {
        let endpoints = &self.appliances.endpoints;
        let good = self.good.load(Ordering::Relaxed).min(endpoints.len());
        let mut failures = Vec::new();
        for index in (0..endpoints.len()).map(|i| (good + i) % endpoints.len()) {
            match self.send_to(index, call).await {
                Ok(response) => return Ok(response),
                Err(CallError::Unreachable(why)) => failures.push(why),
                Err(error) => return Err(error),
            }
        }
        if failures.is_empty() {
            failures.push("the roster names no endpoint".into());
        }
        Err(CallError::Unreachable(failures.join("; ")))
    }

    /// Asks one endpoint. Follows one redirect, to an endpoint of the roster only, and answers one `clock_skew` refusal.
    async fn send_to(&self, index: usize, call: &Call<'_>) -> Result<reqwest::Response, CallError> {
        let (mut index, mut nonce, mut redirected) = (index, None, false);
        loop {
            let endpoint = &self.appliances.endpoints[index];
            let response = self.attempt(endpoint, call, nonce.as_deref()).await?;
            let status = response.status();
            if status.is_success() {
                self.good.store(index, Ordering::Relaxed);
                return Ok(response);
            }
            if status == StatusCode::TEMPORARY_REDIRECT && !redirected {
                index = self.redirect(endpoint, &response)?;
                redirected = true;
                continue;
            }
            let bytes = body(response, limits::PROBLEM).await?;
            let problem: Problem = serde_json::from_slice(&bytes).map_err(|e| {
                CallError::Malformed(format!("{endpoint} answered {status} with a malformed reason: {e}"))
            })?;
            match self.clock(&problem) {
                Some(clock) if nonce.is_none() => {
                    tracing::warn!(
                        off_by_ms = clock.skew_ms,
                        "this machine's clock is off; going by the appliance's clock until it is set"
                    );
                    self.signer.correct_clock(clock.now);
                    nonce = Some(clock.nonce);
                }
                Some(_) | None => {
                    self.good.store(index, Ordering::Relaxed);
                    return Err(CallError::Refused(Box::new(problem)));
                }
            }
        }
    }

    async fn attempt(
        &self,
        endpoint: &Endpoint,
        call: &Call<'_>,
        nonce: Option<&str>,
    ) -> Result<reqwest::Response, CallError> {
        let mut request = self.http.request(call.method.clone(), format!("https://{endpoint}{}", call.path));
        for (name, value) in self.signer.headers(call.method.as_str(), call.path, &call.body) {
            request = request.header(name, value);
        }
        if let Some(nonce) = nonce {
            request = request.header(crate::wire::peers::HEADER_NONCE, nonce);
        }
        if let Some(key) = &call.idempotency {
            request = request.header(crate::wire::peers::HEADER_IDEMPOTENCY, key);
        }
        if !call.body.is_empty() {
            request = request.header("content-type", "application/json").body(call.body.clone());
        }
        if let Some(timeout) = call.timeout {
            request = request.timeout(timeout);
        }
        request.send().await.map_err(|e| CallError::Unreachable(format!("{endpoint}: {}", chain(&e))))
    }

    fn redirect(&self, from: &Endpoint, response: &reqwest::Response) -> Result<usize, CallError> {
        let location = response.headers().get("location").and_then(|l| l.to_str().ok()).unwrap_or_default();
        let target = location
            .strip_prefix("https://")
            .map(|rest| rest.split('/').next().unwrap_or_default())
            .and_then(|authority| authority.parse::<Endpoint>().ok());
        target.and_then(|t| self.appliances.endpoints.iter().position(|e| *e == t)).ok_or_else(|| {
            CallError::Malformed(format!("{from} points to `{location}`, which is not an endpoint of the roster"))
        })
    }

    /// The signed clock of a `clock_skew` refusal.
    fn clock(&self, problem: &Problem) -> Option<Clock> {
        let signed = problem.clock.as_ref().filter(|_| problem.code == "clock_skew")?;
        if self.appliances.keys.is_empty() {
            return serde_json::from_str(&signed.document).ok();
        }
        self.appliances.keys.iter().find_map(|key| signed.open(key, Kind::Clock).ok())
    }
}

impl<'a> Call<'a> {
    const fn write(method: Method, path: &'a str, body: Vec<u8>, idempotency: String) -> Self {
        Self { method, path, body, idempotency: Some(idempotency), timeout: Some(limits::REQUEST) }
    }

    const fn read(path: &'a str, timeout: Option<Duration>) -> Self {
        Self { method: Method::GET, path, body: Vec::new(), idempotency: None, timeout }
    }
}

fn random_key() -> String {
    hex::encode(crate::entropy::bytes::<16>())
}

/// A whole body of at most `limit` bytes.
pub(super) async fn body(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|e| CallError::Unreachable(format!("the answer broke off: {}", chain(&e))))?
    {
        if bytes.len() + chunk.len() > limit {
            return Err(CallError::Malformed(format!("the answer is longer than {limit} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// An error with its causes, which is where reqwest says what happened. The URL is left out: it is named already.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    if text.contains("ApplicationVerificationFailure") {
        return "its certificate has another pin than the one known for this fleet".into();
    }
    if error.is_timeout() { "no answer in time".into() } else { text }
}

#[cfg(test)]
mod tests;
