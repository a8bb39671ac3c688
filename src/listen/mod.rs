//! Serving HTTP/1.1 on a connection that somebody has accepted: deadlines, and an end in order. The appliance's listeners
//! and both local sockets go through here.
//!
//! `axum::serve` installs no timer, so its header deadline never fires; here every phase of a connection has one.

mod local;
pub mod stop;

pub use local::{LocalPeer, serve_local};

use crate::limits;
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::time::Duration;
use stop::Stop;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tower::ServiceExt;

/// Pause after an accept that failed (out of descriptors): busy looping would not free one.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The problem of a request that was not over in time.
const TIMED_OUT: &str = concat!(
    r#"{"type":"about:holdfast/timeout","title":"the request was refused","detail":"it took too long","#,
    r#""todo":"ask again","status":408,"code":"timeout"}"#
);

/// Serves one connection until it ends, or to the end of its request when told to stop. Each request carries `peer` as
/// an extension.
pub async fn serve_connection<S, P>(stream: S, router: Router, peer: P, mut stop: Stop)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    P: Clone + Send + Sync + 'static,
{
    let service =
        hyper::service::service_fn(move |request: Request<Incoming>| answer(router.clone(), peer.clone(), request));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::IDLE)
        .max_buf_size(limits::HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// One request, with a deadline for everything up to the head of its answer; a watch streams on after that.
async fn answer<P: Clone + Send + Sync + 'static>(
    router: Router,
    peer: P,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    Ok(match timeout(limits::REQUEST, router.oneshot(request)).await {
        Ok(Ok(response)) => response,
        Err(_) => {
            let headers = [(header::CONNECTION, "close"), (header::CONTENT_TYPE, "application/problem+json")];
            (StatusCode::REQUEST_TIMEOUT, headers, TIMED_OUT).into_response()
        }
    })
}
