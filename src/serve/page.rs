//! The loopback port: whether the appliance lives and is ready.

use crate::listen::stop::Stop;
use crate::serve::accept::serve_plain;
use crate::serve::appliance::Appliance;
use crate::serve::http::json;
use crate::serve::mesh::{health, no_route};
use axum::Router;
use axum::extract::State as Shared;
use axum::response::Response;
use axum::routing::get;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves until told to stop.
pub(super) async fn serve(listener: TcpListener, appliance: Arc<Appliance>, stop: Stop) {
    let router = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        .with_state(appliance);
    serve_plain(listener, router, stop).await;
}

async fn ready(Shared(appliance): Shared<Arc<Appliance>>) -> Response {
    let revision = appliance.handle.state().revision;
    json(200, "application/json", format!("{{\"status\":\"ready\",\"revision\":{revision}}}"))
}
