//! The operator socket: what people ask of the appliance they stand on. Who they are, the kernel says.

mod admission;
mod fleet;
mod jobs;
mod journal;
mod nodes;
mod sources;
mod token;
mod views;

use crate::authority::body;
use crate::authority::receipt::{Answer, Claim};
use crate::authority::refusal::{Refused, from_decision, invalid, too_large};
use crate::cluster::Wish;
use crate::listen::LocalPeer;
use crate::serve::appliance::{Appliance, Change};
use crate::serve::http::{Received, respond};
use crate::serve::route::{self, Route};
use axum::Router;
use axum::extract::{Extension, Path, Request, State as Shared};
use serde::de::DeserializeOwned;
use state::model::{JobId, Name};
use state::{Actor, Context, Role, State};
use std::future::Future;
use std::sync::Arc;

pub use token::{Fresh, line, mint};

/// A handler of a route without parameters.
macro_rules! plain {
    ($handler:path) => {
        |Shared(appliance): Shared<Arc<Appliance>>, Extension(peer): Extension<LocalPeer>, request: Request| async move {
            respond(Call::read(appliance, peer, request).await.once(|call| $handler(call)).await)
        }
    };
}

/// A handler of a route with a node's name in it.
macro_rules! named {
    ($handler:path) => {
        |Shared(appliance): Shared<Arc<Appliance>>,
         Extension(peer): Extension<LocalPeer>,
         Path(name): Path<String>,
         request: Request| async move {
            let call = Call::read(appliance, peer, request).await;
            match Name::new(&name) {
                Ok(name) => respond(call.once(|call| $handler(call, name)).await),
                Err(error) => respond(Err(invalid(error.to_string()))),
            }
        }
    };
}

/// A handler of a route with a job's id in it.
macro_rules! of_job {
    ($handler:path) => {
        |Shared(appliance): Shared<Arc<Appliance>>,
         Extension(peer): Extension<LocalPeer>,
         Path(id): Path<String>,
         request: Request| async move {
            let call = Call::read(appliance, peer, request).await;
            match id.parse::<JobId>() {
                Ok(id) => respond(call.once(|call| $handler(call, id)).await),
                Err(_) => respond(Err(invalid(format!("`{id}` is not the id of a job")))),
            }
        }
    };
}

/// One call of an operator.
struct Call {
    appliance: Arc<Appliance>,
    peer: LocalPeer,
    received: Received,
}

/// The routes of the operator socket.
pub(super) fn routes() -> Vec<Route<Arc<Appliance>>> {
    vec![
        Route::get("/v1/nodes", plain!(nodes::list)),
        Route::post("/v1/nodes", plain!(nodes::add)),
        Route::get("/v1/nodes/{name}", named!(nodes::show)),
        Route::delete("/v1/nodes/{name}", named!(nodes::remove)),
        Route::post("/v1/nodes/{name}/token", named!(nodes::token)),
        Route::post("/v1/nodes/{name}/replace", named!(nodes::replace)),
        Route::post("/v1/nodes/{name}/drain", named!(jobs::drain)),
        Route::post("/v1/nodes/{name}/undrain", named!(jobs::undrain)),
        Route::get("/v1/jobs", plain!(jobs::list)),
        Route::post("/v1/jobs", plain!(jobs::run)),
        Route::get("/v1/jobs/{id}", of_job!(jobs::show)),
        Route::post("/v1/jobs/{id}/cancel", of_job!(jobs::cancel)),
        Route::post("/v1/jobs/{id}/retry", of_job!(jobs::retry)),
        Route::post("/v1/sources", sources::store),
        Route::get("/v1/pending", plain!(admission::pending)),
        Route::post("/v1/admission/admit", plain!(admission::admit)),
        Route::post("/v1/admission/revoke", plain!(admission::revoke)),
        Route::post("/v1/admission/tokens", plain!(admission::token)),
        Route::get("/v1/mesh", plain!(fleet::mesh)),
        Route::get("/v1/status", plain!(fleet::status)),
        Route::get("/v1/journal", plain!(journal::page)),
        Route::get("/v1/journal/verify", plain!(journal::verify)),
    ]
}

/// What serves them.
pub fn router(appliance: Arc<Appliance>) -> Router {
    route::router(routes(), appliance)
}

impl Call {
    async fn read(appliance: Arc<Appliance>, peer: LocalPeer, request: Request) -> Self {
        Self { appliance, peer, received: Received::read(request).await }
    }

    /// Answers. A change that was made before gets the answer it had, whatever became since then of what it was about.
    async fn once<F>(self, handler: impl FnOnce(Self) -> F) -> Result<Answer, Refused>
    where
        F: Future<Output = Result<Answer, Refused>>,
    {
        if let (Some(claim), Some(body)) = (self.claim()?, &self.received.body)
            && let Some(answer) = self.appliance.repeated(&claim, body).await?
        {
            return Ok(answer);
        }
        handler(self).await
    }

    /// Where the answer is kept, if the caller wants that.
    fn claim(&self) -> Result<Option<Claim>, Refused> {
        let value = self.received.idempotency();
        value.map(|value| Claim::by_header(value, format!("uid {}", self.peer.uid), self.received.route())).transpose()
    }

    fn state(&self) -> Arc<State> {
        self.appliance.handle.state()
    }

    fn actor(&self) -> Actor {
        Actor::Operator { user: format!("uid {}", self.peer.uid) }
    }

    fn context(&self, state: &State) -> Context {
        self.appliance.context(self.actor(), Role::Admin, state)
    }

    fn body<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        let bytes = self.received.body.as_deref().ok_or_else(too_large)?;
        body::parse(bytes).map_err(invalid)
    }

    /// Has a change decided once, see [`Appliance::change`].
    async fn change(
        &self,
        wish: impl Into<Wish>,
        answer: impl FnOnce(&State) -> Result<Answer, Refused> + Send + 'static,
    ) -> Result<Answer, Refused> {
        let claim = self.claim()?;
        let bytes = self.received.body.clone().unwrap_or_default();
        self.appliance.change(Change::new(wish, self.actor(), Role::Admin, claim, bytes), answer).await
    }
}

fn no_node(state: &State, name: &Name, context: &Context) -> Refused {
    match state::subject::nodes::find(state, name, context) {
        Err(refusal) => from_decision(&refusal),
        Ok(_) => invalid("the node changed meanwhile; ask again"),
    }
}
