//! The gateway: what nodes ask by their client certificates. It shares neither port, authentication nor rights with any
//! other listener.
//!
//! A certificate is looked up at every request, in the state of that moment, so revoking a node is effective on the
//! next request of a connection that it holds. Commands carry what proves the caller, and the writer checks it again in
//! the same decision as their effect.

mod jobs;
mod source;
mod verifier;

use crate::authority::body;
use crate::authority::gateway::identify;
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, invalid, problem, too_large};
use crate::serve::appliance::{Appliance, Change, now};
use crate::serve::gate::Place;
use crate::serve::http::{Received, ok, refuse, respond};
use crate::serve::mesh::{crowded, no_route};
use crate::serve::tls;
use crate::wire::jobs::{Presence, Renewal};
use crate::{keys, limits};
use axum::Router;
use axum::extract::{Extension, RawPathParams, Request, State as Shared};
use axum::response::Response;
use axum::routing::post;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::de::DeserializeOwned;
use state::model::{Fingerprint, JobId, NodeId};
use state::subject::enrolment;
use state::{Actor, Role, State};
use std::sync::Arc;

/// What may be asked here. A route that is not in [`Route::ALL`] is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One job.
    Lease,
    /// A lease is to go on.
    Heartbeat,
    /// Progress of an attempt.
    Log,
    /// How an attempt ended.
    Complete,
    /// The source of a build.
    Source,
    /// The unchanged heartbeat of a node.
    Presence,
    /// The next client certificate.
    Renew,
}

impl Route {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Lease, Self::Heartbeat, Self::Log, Self::Complete, Self::Source, Self::Presence, Self::Renew];

    /// Its path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Lease => "/v1/agent/lease",
            Self::Heartbeat => "/v1/agent/jobs/{id}/heartbeat",
            Self::Log => "/v1/agent/jobs/{id}/log",
            Self::Complete => "/v1/agent/jobs/{id}/complete",
            Self::Source => "/v1/agent/jobs/{id}/source",
            Self::Presence => "/v1/agent/presence",
            Self::Renew => "/v1/agent/certificate/renew",
        }
    }
}

/// The other end of a connection: the certificate that it has proven to hold the key of, and its place.
#[derive(Clone)]
pub struct Client {
    certificate: Fingerprint,
    place: Arc<Place>,
}

impl Client {
    /// The client of a connection whose handshake is over.
    pub fn of(connection: &rustls::ServerConnection, place: Arc<Place>) -> Self {
        let leaf = connection.peer_certificates().and_then(|chain| chain.first());
        Self { certificate: keys::pin(leaf.expect("the handshake demands a certificate")), place }
    }
}

/// TLS of the gateway listener.
pub fn tls_config(
    appliance: Arc<Appliance>,
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
    tls::mutual_config(leaf, key, Arc::new(verifier::Verifier::new(appliance)))
}

/// The routes of the gateway listener.
pub fn router(appliance: Arc<Appliance>) -> Router {
    let serve = |router: Router<Arc<Appliance>>, route: Route| {
        let handler = move |Shared(appliance): Shared<Arc<Appliance>>,
                            Extension(client): Extension<Client>,
                            path: RawPathParams,
                            request: Request| async move {
            // What names no job is a job of nobody.
            let id = path.iter().find_map(|(_, id)| id.parse().ok());
            let received = Received::read_up_to(limits::GATEWAY_BODY, request).await;
            answer(route, appliance, &client, id, received).await.unwrap_or_else(|refused| refuse(&refused))
        };
        router.route(route.path(), post(handler))
    };
    let routes = Route::ALL.into_iter().fold(Router::new(), serve);
    routes.fallback(no_route).method_not_allowed_fallback(no_route).with_state(appliance)
}

async fn answer(
    route: Route,
    appliance: Arc<Appliance>,
    client: &Client,
    job: Option<JobId>,
    received: Received,
) -> Result<Response, Refused> {
    let node = admitted(&appliance, client).await?;
    let call = Call { appliance, node, client, received };
    let answer = match (route, job) {
        (Route::Presence, _) => return call.presence().map(|answer| respond(Ok(answer))),
        (Route::Source, Some(job)) => {
            let sent = call.source(job).await?;
            call.heard();
            return Ok(sent);
        }
        (Route::Renew, _) => call.renew().await,
        (Route::Lease, _) => call.lease().await,
        (Route::Heartbeat, Some(job)) => call.heartbeat(job),
        (Route::Log, Some(job)) => call.log(job),
        (Route::Complete, Some(job)) => call.complete(job).await,
        (Route::Heartbeat | Route::Log | Route::Complete | Route::Source, None) => Err(not_yours()),
    }?;
    call.heard();
    Ok(respond(Ok(answer)))
}

/// The node that calls. Its first use of a new certificate ends the former ones.
async fn admitted(appliance: &Arc<Appliance>, client: &Client) -> Result<NodeId, Refused> {
    let state = appliance.handle.state();
    let node = identify(&state, &client.certificate, now())?;
    if enrolment::is_successor(&state, &client.certificate) {
        let command = enrolment::Command::UseCertificate { certificate: client.certificate };
        let change = Change::new(command, Actor::Node { id: node }, Role::Node, None, axum::body::Bytes::new());
        appliance.change(change, |_| Ok(ok(&crate::wire::operator::Nothing {}))).await?;
    }
    if client.place.prove(node) { Ok(node) } else { Err(crowded()) }
}

/// One call of a node.
struct Call<'a> {
    appliance: Arc<Appliance>,
    node: NodeId,
    client: &'a Client,
    received: Received,
}

impl Call<'_> {
    fn state(&self) -> Arc<State> {
        self.appliance.handle.state()
    }

    fn body<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        body::parse(self.received.body.as_deref().ok_or_else(too_large)?).map_err(invalid)
    }

    fn heard(&self) {
        let now = now();
        let presence = &mut self.appliance.authority.soft().presence;
        presence.hear(self.node, self.client.place.source(), now.boot, now.wall);
    }

    fn presence(&self) -> Result<Answer, Refused> {
        let said: Presence = self.body()?;
        let source = self.client.place.source();
        let seen = self.appliance.authority.presence(&self.state(), self.node, source, &said, now());
        seen.map(|seen| ok(&seen)).ok_or_else(gone)
    }

    async fn renew(&self) -> Result<Answer, Refused> {
        let asked: Renewal = self.body()?;
        let authority = &self.appliance.authority;
        let issuing = authority.renewal(&self.state(), self.node, self.client.certificate, asked, now())?;
        self.appliance.certify(issuing).await
    }
}

/// The refusal of a job that is not the caller's, whether there is such a job or not.
fn not_yours() -> Refused {
    let todo = "stop what belongs to it";
    problem(404, "not_found", "there is no such job", "no job of that id is this node's", todo)
}

/// The node went while its request was being looked at.
fn gone() -> Refused {
    problem(503, "busy", "the request was not answered", "the node has just changed", "ask again in a moment")
}
