//! Calls to the appliances' gateway: pinned as all calls are, and proven by this node's client certificate instead of a
//! signature. Connections are kept. Decides nothing about what an answer means; the lanes and the agent do.

use crate::keys::TlsIdentity;
use crate::limits;
use crate::node::client::{CallError, body, chain, pin};
use crate::wire::jobs::{
    Completion, Extended, Held, LeaseRequest, Leased, LogLines, Presence, Recorded, Renewal, Renewed, Seen,
};
use crate::wire::peers::HEADER_IDEMPOTENCY;
use crate::wire::problem::Problem;
use crate::wire::roster::Roster;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use rustls::AlertDescription;
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::Code;
use state::model::{Endpoint, Fingerprint, JobId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Connections kept to one appliance: two lanes and the heartbeat. A node may have eight.
const KEPT: usize = 3;
/// The alerts with which a TLS server refuses a client's certificate (RFC 8446, section 6.2), also one it cannot read.
const REFUSALS: [AlertDescription; 10] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::DecodeError,
    AlertDescription::DecryptError,
    AlertDescription::CertificateRequired,
];

/// Where the appliances' gateways are, and how they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateways {
    /// Where they listen, the preferred one first.
    pub endpoints: Vec<Endpoint>,
    /// Their TLS certificates' pins, current and next.
    pub pins: Vec<Fingerprint>,
}

impl From<&Roster> for Gateways {
    fn from(roster: &Roster) -> Self {
        Self {
            endpoints: roster.appliances.iter().flat_map(|a| a.gateway.iter().cloned()).collect(),
            pins: roster.appliances.iter().flat_map(|a| a.pins.iter().copied()).collect(),
        }
    }
}

/// A client of the gateways, with one certificate of one node.
pub struct Gateway {
    http: reqwest::Client,
    endpoints: Vec<Endpoint>,
    /// The endpoint that answered last: the first to be tried.
    good: AtomicUsize,
    refused: Notify,
}

/// Why one endpoint gave no answer that can be used.
enum Missed {
    /// Another one may.
    Away(String),
    /// It refuses this node's certificate; another one may not.
    Uncertified(String),
    /// It did answer.
    Answered(CallError),
}

impl From<CallError> for Missed {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable(why) => Self::Away(why),
            CallError::Refused(problem) if problem.code == Code::CertificateRefused.as_str() => {
                Self::Uncertified(problem.detail)
            }
            error @ (CallError::Refused(_) | CallError::Malformed(_) | CallError::Disk(_)) => Self::Answered(error),
        }
    }
}

impl Gateway {
    /// A client that believes only these gateways and proves this identity.
    ///
    /// # Panics
    /// If reqwest refuses a configuration of constants.
    pub fn new(gateways: Gateways, identity: &TlsIdentity) -> Self {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(pin::config(gateways.pins, Some(identity)))
            .http1_only()
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits::HANDSHAKE)
            .timeout(limits::REQUEST)
            .pool_idle_timeout(limits::IDLE * 2 / 3)
            .pool_max_idle_per_host(KEPT)
            .tcp_keepalive(limits::HEARTBEAT * 2)
            .tcp_keepalive_interval(limits::HEARTBEAT)
            .tcp_keepalive_retries(2)
            .build()
            .expect("the settings are constants that reqwest accepts");
        Self { http, endpoints: gateways.endpoints, good: AtomicUsize::new(0), refused: Notify::new() }
    }

    /// Until no gateway takes the certificate any more, as any call has found. Callers are told that none answers: they
    /// go on with the next certificate.
    pub async fn refused(&self) {
        self.refused.notified().await;
    }

    /// Asks for a job. The same key is the same question: a lease whose answer got lost is answered again.
    pub async fn lease(&self, request: &LeaseRequest, key: u128) -> Result<Option<Leased>, CallError> {
        let key = format!("{key:032x}");
        match self.post("/v1/agent/lease", request, Some(&key)).await? {
            (StatusCode::NO_CONTENT, _) => Ok(None),
            (_, bytes) => parse("/v1/agent/lease", &bytes).map(Some),
        }
    }

    /// Extends a lease.
    pub async fn heartbeat(&self, job: JobId, held: &Held) -> Result<Extended, CallError> {
        self.json(&format!("/v1/agent/jobs/{job}/heartbeat"), held).await
    }

    /// Tells how far an attempt is.
    pub async fn log(&self, job: JobId, lines: &LogLines) -> Result<(), CallError> {
        self.post(&format!("/v1/agent/jobs/{job}/log"), lines, None).await.map(drop)
    }

    /// Answers for an attempt. The same completion gets the same answer.
    pub async fn complete(&self, job: JobId, completion: &Completion) -> Result<Recorded, CallError> {
        self.json(&format!("/v1/agent/jobs/{job}/complete"), completion).await
    }

    /// The unchanged heartbeat.
    pub async fn presence(&self, presence: &Presence) -> Result<Seen, CallError> {
        self.json("/v1/agent/presence", presence).await
    }

    /// Asks for the next certificate. The same request gets the same certificate.
    pub async fn renew(&self, renewal: &Renewal) -> Result<Renewed, CallError> {
        self.json("/v1/agent/certificate/renew", renewal).await
    }

    async fn json<T: DeserializeOwned>(&self, path: &str, document: &impl Serialize) -> Result<T, CallError> {
        let (_, bytes) = self.post(path, document, None).await?;
        parse(path, &bytes)
    }

    /// Tries every endpoint, the last good one first, until one answers as the primary does.
    async fn post(
        &self,
        path: &str,
        document: &impl Serialize,
        key: Option<&str>,
    ) -> Result<(StatusCode, Vec<u8>), CallError> {
        let bytes = state::to_bytes(document);
        let good = self.good.load(Ordering::Relaxed);
        let (mut failures, mut refused) = (Vec::new(), false);
        for index in (0..self.endpoints.len()).map(|i| (good + i) % self.endpoints.len()) {
            match self.attempt(&self.endpoints[index], path, &bytes, key).await {
                Ok(answer) => {
                    self.good.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Missed::Answered(error)) => {
                    self.good.store(index, Ordering::Relaxed);
                    return Err(error);
                }
                Err(Missed::Away(why)) => failures.push(why),
                Err(Missed::Uncertified(why)) => {
                    refused = true;
                    failures.push(format!("{}: it refuses this node's certificate: {why}", self.endpoints[index]));
                }
            }
        }
        if refused {
            self.refused.notify_one();
        }
        if failures.is_empty() {
            failures.push("the roster names no gateway".into());
        }
        Err(CallError::Unreachable(failures.join("; ")))
    }

    async fn attempt(
        &self,
        endpoint: &Endpoint,
        path: &str,
        document: &[u8],
        key: Option<&str>,
    ) -> Result<(StatusCode, Vec<u8>), Missed> {
        let mut request = self.http.post(format!("https://{endpoint}{path}"));
        request = request.header("content-type", "application/json").body(document.to_owned());
        if let Some(key) = key {
            request = request.header(HEADER_IDEMPOTENCY, key);
        }
        let response = request.send().await.map_err(|error| match refusal(&error) {
            Some(alert) => Missed::Uncertified(format!("{alert:?}")),
            None => Missed::Away(format!("{endpoint}: {}", chain(&error))),
        })?;
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let bytes = body(response, limits::PROBLEM * 2).await?;
        if status.is_success() {
            return Ok((status, bytes));
        }
        if status.is_redirection() {
            return Err(Missed::Away(format!("{endpoint}: it is not the primary")));
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(CallError::Refused(Box::new(Problem { retry_after, ..problem })).into()),
            Err(_) if status.is_server_error() => Err(Missed::Away(format!("{endpoint}: {status}"))),
            Err(error) => {
                let why = format!("{endpoint} answered {path} with {status} and a malformed reason: {error}");
                Err(Missed::Answered(CallError::Malformed(why)))
            }
        }
    }
}

/// `Retry-After` in seconds (RFC 9110, 10.2.3). Our appliances give no date, and another clock's would be no use.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn parse<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T, CallError> {
    let read = serde_json::from_slice(bytes);
    read.map_err(|error| CallError::Malformed(format!("the answer to {path} is malformed: {error}")))
}

/// The alert by which a server refused the certificate: a client has ended its own side of the handshake already then, and
/// learns it from the first read. Any other alert is a fault of the line.
fn refusal(error: &reqwest::Error) -> Option<AlertDescription> {
    let mut cause: &dyn std::error::Error = error;
    loop {
        let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()).or_else(|| cause.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = tls {
            return REFUSALS.contains(alert).then_some(*alert);
        }
        cause = cause.source()?;
    }
}
