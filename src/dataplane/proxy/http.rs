//! HTTP/1.1 to a target: requests and answers stream through, the head is cleaned and says who asked.
//!
//! One connection of a client uses one connection to the target, which is kept between its requests.

use super::{dial, headers};
use crate::wire::dataplane::Proxy;
use crate::{limits, tasks};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self as client, SendRequest};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// The connection to the target, and which target that is.
type Upstream = Mutex<Option<(SocketAddr, SendRequest<Incoming>)>>;

/// Serves one connection of a client until it ends.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    now: Arc<ArcSwap<Proxy>>,
    withdrawn: watch::Receiver<()>,
) {
    let upstream = Arc::new(Upstream::default());
    let service = service_fn(move |request| {
        let (proxy, upstream, withdrawn) = (now.load_full(), upstream.clone(), withdrawn.clone());
        async move { Ok::<_, Infallible>(carry(request, peer, &proxy, &upstream, withdrawn).await) }
    });
    let connection = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::IDLE)
        .max_buf_size(limits::PROXY_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // A client that breaks off, or sends no HTTP, has been answered by hyper as far as it can be.
    let _ = connection.await;
}

async fn carry(
    mut request: Request<Incoming>,
    peer: SocketAddr,
    proxy: &Proxy,
    upstream: &Upstream,
    withdrawn: watch::Receiver<()>,
) -> Answer {
    if !proxy.serving {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "this service is contested: several nodes claim its name\n".into(),
        );
    }
    if let Err(refusal) = address(&mut request) {
        return refuse(StatusCode::BAD_REQUEST, refusal.into());
    }
    let upgrade = headers::strip_hop(request.headers_mut());
    headers::set_forwarded(request.headers_mut(), peer.ip());
    let upgraded = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    if let Some(protocol) = upgrade {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, protocol);
    }
    let mut response = match send(request, proxy.target, upstream).await {
        Ok(response) => response,
        Err(problem) => {
            let text = format!("the service's target {} does not answer: {problem}\n", proxy.target);
            return refuse(StatusCode::BAD_GATEWAY, text);
        }
    };
    *response.version_mut() = Version::HTTP_11;
    let switched = headers::strip_hop(response.headers_mut());
    match upgraded {
        Some(client) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let target = hyper::upgrade::on(&mut response);
            tasks::spawn("proxy-upgraded", switch(client, target, withdrawn));
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().extend(switched.map(|protocol| (UPGRADE, protocol)));
        }
        Some(_) | None => {}
    }
    response.map(Either::Left)
}

/// After an upgrade (a WebSocket, mostly) the two connections are one stream of bytes.
async fn switch(client: OnUpgrade, target: OnUpgrade, mut withdrawn: watch::Receiver<()>) {
    let (Ok(client), Ok(target)) = tokio::join!(client, target) else { return };
    let (mut client, mut target) = (TokioIo::new(client), TokioIo::new(target));
    tokio::select! {
        // Either end may break off; the other is closed with it.
        _ = tokio::io::copy_bidirectional(&mut client, &mut target) => {}
        _ = withdrawn.changed() => {}
    }
}

/// Turns the request's target into origin form with its host in `Host` (RFC 9112, 3.2).
fn address(request: &mut Request<Incoming>) -> Result<(), &'static str> {
    if request.method() == Method::CONNECT {
        return Err("CONNECT is not possible here: this is a service, not a proxy for others\n");
    }
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::from_str(authority.host()).map_err(|_| "the host is not a name\n")?;
        let host = authority.port().map_or(Ok(host), |_| HeaderValue::from_str(authority.as_str()));
        request.headers_mut().insert(HOST, host.map_err(|_| "the host is not a name\n")?);
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse::<Uri>().map_err(|_| "the path is not one\n")?;
    }
    if request.headers().get_all(HOST).iter().count() != 1 && request.version() == Version::HTTP_11 {
        return Err("there must be one Host header\n");
    }
    *request.version_mut() = Version::HTTP_11;
    Ok(())
}

/// Sends on the connection that is there, or on a new one if there is none or it has ended meanwhile.
async fn send(
    request: Request<Incoming>,
    target: SocketAddr,
    upstream: &Upstream,
) -> Result<Response<Incoming>, String> {
    let mut kept = upstream.lock().await;
    let mut request = request;
    if let Some((_, sender)) = kept.as_mut().filter(|(to, _)| *to == target)
        && sender.ready().await.is_ok()
    {
        match sender.try_send_request(request).await {
            Ok(response) => return Ok(response),
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => {
                    *kept = None;
                    return Err(error.into_error().to_string());
                }
            },
        }
    }
    *kept = None;
    let stream = dial(target).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = client::Builder::new()
        .max_buf_size(limits::PROXY_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    tasks::spawn("proxy-target", async move {
        // Its errors reach whoever waits for an answer.
        let _ = connection.with_upgrades().await;
    });
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    *kept = Some((target, sender));
    Ok(response)
}

fn refuse(status: StatusCode, text: String) -> Answer {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
