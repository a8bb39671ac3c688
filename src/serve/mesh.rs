//! The mesh API: enrolling, registering, certificates by signing key, leaving, and reading peers. What is asked is judged by
//! the authority.

use crate::authority::body;
use crate::authority::certificate::asked;
use crate::authority::receipt::{Answer, Claim};
use crate::authority::records::Records;
use crate::authority::refusal::{Refused, from_decision, invalid, problem};
use crate::authority::register::Registering;
use crate::authority::signature::{Caller, Examined};
use crate::listen::stop::Stop;
use crate::serve::appliance::{Appliance, Change, now};
use crate::serve::gate::Place;
use crate::serve::http::{Received, json, number, ok, refuse, respond};
use crate::serve::route::{self, Route};
use crate::serve::watch;
use crate::wire::peers::{CertificateBody, LeaveBody, RegisterBody};
use axum::Router;
use axum::extract::{Extension, Path, Request, State as Shared};
use axum::response::Response;
use state::model::{NodeId, Revision, SigningKey};
use state::{Actor, Role, State};
use std::sync::Arc;

/// What the routes share.
#[derive(Clone)]
pub struct Mesh {
    appliance: Arc<Appliance>,
    stop: Stop,
}

/// The routes of the mesh listener.
pub(super) fn routes() -> Vec<Route<Mesh>> {
    vec![
        Route::post("/v1/enroll", enrol),
        Route::post("/v1/peers/register", register),
        Route::get("/v1/peers", peers),
        Route::get("/v1/peers/watch", watching),
        Route::post("/v1/peers/certificate", certificate),
        Route::delete("/v1/peers/{id}", leave),
        Route::get("/health", health),
    ]
}

/// What serves them.
pub fn router(appliance: Arc<Appliance>, stop: Stop) -> Router {
    route::router(routes(), Mesh { appliance, stop })
}

/// Whether the process answers at all.
pub async fn health() -> Response {
    json(200, "application/json", "{\"status\":\"ok\"}")
}

/// The answer where nothing is served.
pub async fn no_route() -> Response {
    refuse(&problem(404, "not_found", "there is nothing here", "no route has this path and method", "see the API"))
}

async fn enrol(Shared(mesh): Shared<Mesh>, Extension(place): Extension<Arc<Place>>, request: Request) -> Response {
    let received = Received::read(request).await;
    respond(mesh.enrol(&received, &place).await)
}

async fn register(Shared(mesh): Shared<Mesh>, Extension(place): Extension<Arc<Place>>, request: Request) -> Response {
    let received = Received::read(request).await;
    respond(mesh.register(&received, &place).await)
}

async fn certificate(
    Shared(mesh): Shared<Mesh>,
    Extension(place): Extension<Arc<Place>>,
    request: Request,
) -> Response {
    let received = Received::read(request).await;
    respond(mesh.certificate(&received, &place).await)
}

async fn leave(
    Shared(mesh): Shared<Mesh>,
    Extension(place): Extension<Arc<Place>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let received = Received::read(request).await;
    respond(mesh.leave(&received, &place, &id).await)
}

async fn peers(Shared(mesh): Shared<Mesh>, Extension(place): Extension<Arc<Place>>, request: Request) -> Response {
    let received = Received::read(request).await;
    let list = mesh.reading(&received, &place).and_then(|(id, _, after)| {
        let state = mesh.appliance.handle.state();
        let (scopes, _) = Records::standing(&state, id).ok_or_else(nothing_told)?;
        Ok(mesh.appliance.authority.records.list(&state, &scopes, after))
    });
    match list {
        Ok(list) => json(200, "application/json", list),
        Err(refused) => refuse(&refused),
    }
}

async fn watching(Shared(mesh): Shared<Mesh>, Extension(place): Extension<Arc<Place>>, request: Request) -> Response {
    let received = Received::read(request).await;
    match mesh.reading(&received, &place) {
        Ok((id, key, after)) => watch::stream(mesh.appliance, id, key, after, mesh.stop, place),
        Err(refused) => refuse(&refused),
    }
}

fn nothing_told() -> Refused {
    problem(404, "not_found", "there is no list", "this node has no scope yet", "register first")
}

/// The refusal of a connection beyond those that a node may have.
pub fn crowded() -> Refused {
    let detail = format!("the node has {} connections already", crate::limits::CONNECTIONS_PER_NODE);
    problem(429, "too_many_requests", "the connection was refused", detail, "use the connections there are")
}

/// Whether a refused request may be the repetition of a change that was made: its sender is not any more what it was,
/// or its sequence has gone on.
fn may_be_repetition(refused: &Refused) -> bool {
    matches!(refused.code.as_str(), "not_admitted" | "wrong_key" | "replayed")
}

impl Mesh {
    async fn enrol(&self, received: &Received, place: &Place) -> Result<Answer, Refused> {
        let app = &self.appliance;
        let state = app.handle.state();
        let presented = app.authority.examine_enrolment(&state, &received.as_seen(place), now())?;
        let (keys, key) = (presented.keys(), presented.body.signing_key);
        let refused = || from_decision(&state::subject::enrolment::token_refused());
        match app.repeated(&presented.claim, &keys).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(_) => {
                tracing::info!(%key, reason = "spent by another key", "a token was refused");
                return Err(refused());
            }
        }
        let joining = app.authority.enrol(&state, &presented, now())?;
        let mut change = Change::new(
            joining.command.clone(),
            Actor::Stranger { key },
            Role::Node,
            Some(presented.claim),
            keys.into(),
        );
        change.expires = presented.expires;
        let answering = app.clone();
        let answer = app
            .change(change, move |state| {
                answering.authority.enrolled(state, &joining).map(|told| ok(&told)).ok_or_else(nothing_told)
            })
            .await
            .map_err(|error| if error.code == "conflict" { refused() } else { error })?;
        self.joined(key, place);
        Ok(answer)
    }

    /// A machine that has just joined has been heard.
    fn joined(&self, key: SigningKey, place: &Place) {
        if let Some(id) = self.appliance.handle.state().nodes.by_key.get(&key) {
            let now = now();
            self.appliance.authority.soft().presence.hear(*id, place.source(), now.boot, now.wall);
            place.prove(*id);
        }
    }

    async fn register(&self, received: &Received, place: &Place) -> Result<Answer, Refused> {
        let app = &self.appliance;
        let state = app.handle.state();
        let now = now();
        let request = received.as_seen(place);
        let examined: Result<Examined<RegisterBody>, Refused> = app.authority.examine(&state, &request, now);
        let (examined, claim) = match self.repeated(received, examined).await? {
            Repeated::Answer(answer) => return Ok(answer),
            Repeated::No(examined, claim) => (*examined, claim),
        };
        let context = app.context(examined.actor(), Role::Node, &state);
        let body = examined.body.clone();
        let bytes = received.body.clone().unwrap_or_default();
        match app.authority.register(&state, &examined, place.source(), &context, now)? {
            Registering::Unchanged(id) => {
                prove(place, id)?;
                app.authority.register_answer(&state, id, &body, now).map(|told| ok(&told)).ok_or_else(nothing_told)
            }
            Registering::Change(id, command) => {
                prove(place, id)?;
                let answering = app.clone();
                let change = Change::new(*command, examined.actor(), Role::Node, claim, bytes);
                app.change(change, move |state| {
                    let told = answering.authority.register_answer(state, id, &body, now);
                    told.map(|told| ok(&told)).ok_or_else(nothing_told)
                })
                .await
            }
            Registering::Joins => self.join_admitted(examined, claim, bytes, place).await,
        }
    }

    /// The first register of an admitted key: it joins, and is told so in the answer.
    async fn join_admitted(
        &self,
        examined: Examined<RegisterBody>,
        claim: Option<Claim>,
        bytes: axum::body::Bytes,
        place: &Place,
    ) -> Result<Answer, Refused> {
        let app = &self.appliance;
        let (actor, now) = (examined.actor(), now());
        let Examined { body, key, caller, .. } = examined;
        let (Caller::Admitted(admitted), Some(knock)) = (&caller, &body.knock) else { return Err(nothing_told()) };
        let joining = app.authority.join_admitted(&app.handle.state(), admitted, key, &body, knock, now)?;
        let change = Change::new(joining.command.clone(), actor, Role::Node, claim, bytes);
        let answering = app.clone();
        let answer = app
            .change(change, move |state| {
                let id = *state.nodes.by_key.get(&key).ok_or_else(nothing_told)?;
                let mut told = answering.authority.register_answer(state, id, &body, now).ok_or_else(nothing_told)?;
                told.enrolled = answering.authority.enrolled(state, &joining);
                Ok(ok(&told))
            })
            .await?;
        app.authority.soft().pending.remove(&key);
        self.joined(key, place);
        Ok(answer)
    }

    /// A certificate for a node that has none that is good. The same certificate request gets the same answer, whatever
    /// number it comes under.
    async fn certificate(&self, received: &Received, place: &Place) -> Result<Answer, Refused> {
        let app = &self.appliance;
        let (state, now) = (app.handle.state(), now());
        let examined: Result<Examined<CertificateBody>, Refused> =
            app.authority.examine(&state, &received.as_seen(place), now);
        let examined = match examined {
            Err(refused) if refused.code == "replayed" => return self.certified(&state, received).await.ok_or(refused),
            examined => examined?,
        };
        if let Caller::Node(id) = examined.caller {
            prove(place, id)?;
            if !examined.again {
                app.authority.soft().presence.hear(id, place.source(), now.boot, now.wall);
            }
        }
        app.certify(app.authority.certificate(&state, examined, now)?).await
    }

    /// The answer of the first time, where the very bytes of a request come again after later ones.
    async fn certified(&self, state: &State, received: &Received) -> Option<Answer> {
        let body: CertificateBody = body::parse(received.body.as_deref()?).ok()?;
        let claim = asked(*state.nodes.by_key.get(&received.key()?)?, &body);
        self.appliance.repeated(&claim, body.certificate_request.as_bytes()).await.ok()?
    }

    async fn leave(&self, received: &Received, place: &Place, path_id: &str) -> Result<Answer, Refused> {
        let app = &self.appliance;
        let state = app.handle.state();
        let examined: Result<Examined<LeaveBody>, Refused> =
            app.authority.examine(&state, &received.as_seen(place), now());
        let (examined, claim) = match self.repeated(received, examined).await? {
            Repeated::Answer(answer) => return Ok(answer),
            Repeated::No(examined, claim) => (*examined, claim),
        };
        let path_id: NodeId = path_id.parse().map_err(|_| invalid("the path does not end in a node's id"))?;
        let command = app.authority.leave(&examined, path_id)?;
        let bytes = received.body.clone().unwrap_or_default();
        let change = Change::new(command, examined.actor(), Role::Node, claim, bytes);
        let answer = app.change(change, |_| Ok(ok(&crate::wire::operator::Nothing {}))).await?;
        app.authority.soft().presence.forget(path_id);
        Ok(answer)
    }

    /// The answer of the first time, where a request repeats one whose answer was kept.
    async fn repeated<B>(
        &self,
        received: &Received,
        examined: Result<Examined<B>, Refused>,
    ) -> Result<Repeated<B>, Refused> {
        let worth_a_look = match &examined {
            Ok(examined) => examined.again,
            Err(refused) => may_be_repetition(refused),
        };
        let claim = match (received.idempotency(), received.key()) {
            (Some(value), Some(key)) => Claim::by_header(value, format!("key {key}"), received.route()),
            (Some(_), None) | (None, _) => return examined.map(|examined| Repeated::No(Box::new(examined), None)),
        };
        let claim = match (claim, &examined) {
            (Ok(claim), _) => claim,
            (Err(bad), Ok(_)) => return Err(bad),
            (Err(_), Err(_)) => return examined.map(|examined| Repeated::No(Box::new(examined), None)),
        };
        if worth_a_look {
            let body = received.body.as_deref().unwrap_or_default();
            if let Ok(Some(answer)) = self.appliance.repeated(&claim, body).await {
                return Ok(Repeated::Answer(answer));
            }
        }
        examined.map(|examined| Repeated::No(Box::new(examined), Some(claim)))
    }

    /// A read that passed its checks: who asks, with which key, and above which revision.
    fn reading(&self, received: &Received, place: &Place) -> Result<(NodeId, SigningKey, Revision), Refused> {
        let state = self.appliance.handle.state();
        let now = now();
        let id = self.appliance.authority.examine_read(&state, &received.as_seen(place), now)?;
        let after = number(received.query(), "after")?.unwrap_or(0);
        prove(place, id)?;
        self.appliance.authority.soft().presence.hear(id, place.source(), now.boot, now.wall);
        let key = received.key().ok_or_else(nothing_told)?;
        Ok((id, key, Revision(after)))
    }
}

enum Repeated<B> {
    Answer(Answer),
    No(Box<Examined<B>>, Option<Claim>),
}

fn prove(place: &Place, id: NodeId) -> Result<(), Refused> {
    if place.prove(id) { Ok(()) } else { Err(crowded()) }
}
