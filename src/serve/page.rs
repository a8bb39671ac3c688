//! The loopback port: whether the appliance lives and is ready, and its figures. Nothing secret, nothing that changes.

use crate::authority::refusal::problem;
use crate::listen::stop::Stop;
use crate::serve::accept::serve_plain;
use crate::serve::appliance::Appliance;
use crate::serve::http::{json, refuse};
use crate::serve::mesh::{health, no_route};
use crate::serve::metrics::{self, Figures};
use crate::tasks;
use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use http::header;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves until told to stop.
pub(super) async fn serve(listener: TcpListener, appliance: Arc<Appliance>, stop: Stop) {
    serve_plain(listener, router(appliance), stop).await;
}

/// The routes of the loopback port.
pub(super) fn router(appliance: Arc<Appliance>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(figures))
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        .layer(middleware::from_fn(meant))
        .with_state(appliance)
}

/// Lets through what was meant for this machine. A browser that a foreign name was made to lead to loopback (DNS
/// rebinding) says that name.
async fn meant(request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    if host.is_some_and(is_loopback) && hosts.next().is_none() {
        return next.run(request).await;
    }
    let detail = "its Host is not a loopback address";
    refuse(&problem(421, "misdirected", "the request was refused", detail, "ask for http://127.0.0.1 and the port"))
}

/// Whether a `Host` names loopback, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Ready while changes can be committed.
async fn ready(Shared(appliance): Shared<Arc<Appliance>>) -> Response {
    let revision = appliance.handle.state().revision;
    let (status, word) = if appliance.handle.takes_changes() { (200, "ready") } else { (503, "not_ready") };
    json(status, "application/json", format!("{{\"status\":\"{word}\",\"revision\":{revision}}}"))
}

async fn figures(Shared(appliance): Shared<Arc<Appliance>>) -> Response {
    let text = tasks::blocking(move || Figures::of(&appliance).exposition()).await;
    json(200, metrics::CONTENT_TYPE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_meant() {
        for host in ["127.0.0.1", "127.0.0.1:4380", "localhost:4380", "LOCALHOST", "[::1]:4380", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:4380", "127.0.0.1.evil.example", "198.51.100.2:4380", "localhost."]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
