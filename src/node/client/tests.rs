//! The client against real TLS listeners.

use super::*;
use crate::keys::ApplianceKeys;
use crate::listen::stop;
use crate::node::testing::Fleet;
use crate::serve::{accept, gate, tls};
use axum::Router;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, header};
use state::model::Millis;
use std::net::SocketAddr;
use std::sync::Mutex;

/// An appliance's listener that answers every request by a function of path and headers, and remembers both.
struct Server {
    endpoint: Endpoint,
    pin: Fingerprint,
    seen: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    _stopper: stop::Stopper,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start(answer: impl Fn(&str, &HeaderMap) -> Response + Clone + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = ApplianceKeys::make(&dir.path().join("ap")).unwrap();
        let listener = accept::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let router = Router::new().fallback(move |request: axum::extract::Request| async move {
            let path = request.uri().path_and_query().unwrap().to_string();
            let headers = request.headers().clone();
            let response = answer(&path, &headers);
            log.lock().unwrap().push((path, headers));
            response
        });
        let (stopper, stop) = stop::pair();
        let gate = Arc::new(gate::Gate::default());
        let config = tls::server_config(keys.tls.certificate.clone(), keys.tls.key.der()).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        crate::tasks::spawn("test server", accept::serve_tls(listener, acceptor, router, gate, accept::stranger, stop));
        let endpoint = format!("localhost:{port}").parse().unwrap();
        Self { endpoint, pin: keys.pin(), seen, _stopper: stopper, _dir: dir }
    }

    fn paths(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }

    fn header(&self, request: usize, name: &str) -> Option<String> {
        let seen = self.seen.lock().unwrap();
        seen[request].1.get(name).map(|value| value.to_str().unwrap().to_owned())
    }
}

fn client(endpoints: Vec<Endpoint>, pins: Vec<Fingerprint>) -> (Client, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let key = ed25519_dalek::SigningKey::from_bytes(&[5; 32]);
    let signer = Signer::new(key, Some(zeroize::Zeroizing::new("ab".into())), Sequence::open(dir.path()).unwrap());
    (Client::new(Appliances { endpoints, pins, keys: vec![] }, Arc::new(signer)), dir)
}

fn empty_list() -> Response {
    axum::Json(PeerList::default()).into_response()
}

fn problem(status: u16, change: impl FnOnce(&mut Problem)) -> Response {
    let mut problem = crate::node::failure::Failure::new("x", "what", "why", "todo").problem();
    change(&mut problem);
    let status = StatusCode::from_u16(status).unwrap();
    (status, state::to_bytes(&problem)).into_response()
}

#[tokio::test]
async fn an_appliance_is_known_by_its_pin_alone() {
    let server = Server::start(|_, _| empty_list()).await;
    let (good, _dir) = client(vec![server.endpoint.clone()], vec![server.pin]);
    assert_eq!(good.list().await.unwrap(), PeerList::default());
    assert_eq!(good.answered_last(), Some(server.endpoint.clone()));
    let (bad, _dir) = client(vec![server.endpoint.clone()], vec![Fingerprint::from_bytes([0; 32])]);
    let error = bad.list().await.unwrap_err().to_string();
    assert!(error.contains("another pin"), "{error}");
    assert_eq!(server.paths().len(), 1, "nothing is sent to whom is not known");
}

#[tokio::test]
async fn endpoints_are_tried_in_turn_and_the_good_one_first_next_time() {
    let server = Server::start(|_, _| empty_list()).await;
    let dead: Endpoint = "localhost:1".parse().unwrap();
    let (client, _dir) = client(vec![dead.clone(), server.endpoint.clone()], vec![server.pin]);
    client.list().await.unwrap();
    assert_eq!(client.answered_last(), Some(server.endpoint.clone()));
    drop(server);
    let error = client.list().await.unwrap_err().to_string();
    assert!(error.contains("localhost:1"), "{error}");
}

#[tokio::test]
async fn a_redirect_is_followed_to_an_endpoint_of_the_roster_only() {
    let primary = Server::start(|_, _| empty_list()).await;
    let to = |target: String| {
        move |path: &str, _: &HeaderMap| {
            let location = format!("https://{target}{path}");
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response()
        }
    };
    let standby = Server::start(to(primary.endpoint.to_string())).await;
    let stray = Server::start(to("evil.example:4300".into())).await;
    let (good, _dir) = client(vec![standby.endpoint.clone(), primary.endpoint.clone()], vec![standby.pin, primary.pin]);
    good.list().await.unwrap();
    assert_eq!((standby.paths().len(), primary.paths().len()), (1, 1));
    let (bad, _dir) = client(vec![stray.endpoint.clone()], vec![stray.pin]);
    let error = bad.list().await.unwrap_err().to_string();
    assert!(error.contains("not an endpoint of the roster"), "{error}");
}

#[tokio::test]
async fn a_clock_that_is_off_is_corrected_once_with_the_appliances_nonce() {
    let fleet = Fleet::new();
    let now = Millis(crate::clock::wall().0 + 3_600_000);
    let clock = Clock { fleet: fleet.id, now, skew_ms: -3_600_000, nonce: "n1".into() };
    let clock = fleet.sign(Kind::Clock, &clock);
    let server = Server::start(move |_, headers| {
        if headers.contains_key(crate::wire::peers::HEADER_NONCE) {
            return empty_list();
        }
        problem(401, |p| {
            p.code = "clock_skew".into();
            p.clock = Some(clock.clone());
        })
    })
    .await;
    let (client, _dir) = client(vec![server.endpoint.clone()], vec![server.pin]);
    client.list().await.unwrap();
    assert_eq!(server.header(1, "holdfast-nonce").as_deref(), Some("n1"));
    let sent: u64 = server.header(1, "holdfast-timestamp").unwrap().parse().unwrap();
    assert!(sent >= now.0, "the second attempt goes by the appliance's clock");
    assert_eq!(server.header(1, "authorization").as_deref(), Some("Bearer ab"));
    client.list().await.unwrap();
    assert_eq!(server.paths().len(), 4, "a nonce is good once");
}

#[tokio::test]
async fn a_node_told_a_floor_jumps_past_it_once() {
    let server = Server::start(|_, _| {
        problem(409, |p| {
            p.code = "replayed".into();
            p.floor = Some(7000);
        })
    })
    .await;
    let (client, dir) = client(vec![server.endpoint.clone()], vec![server.pin]);
    let fleet = Fleet::new();
    let envelope = crate::wire::peers::Envelope { seq: 0, audience: fleet.id, epoch: None };
    let body = LeaveBody { envelope, node: crate::node::testing::node(1) };
    let error = client.leave(body).await.unwrap_err();
    assert!(matches!(error, CallError::Refused(p) if p.code == "replayed"));
    assert_eq!(server.paths().len(), 2);
    assert_ne!(server.header(0, "idempotency-key"), server.header(1, "idempotency-key"));
    drop(client);
    assert!(Sequence::open(dir.path()).unwrap().next().unwrap() > 7001);
}

#[tokio::test]
async fn a_stream_is_read_line_by_line_with_signs_of_life_between() {
    let line = serde_json::to_string(&PeerList::default()).unwrap();
    let body = format!("\n{line}\n\n{line}\n");
    let server = Server::start(move |_, _| body.clone().into_response()).await;
    let (client, _dir) = client(vec![server.endpoint.clone()], vec![server.pin]);
    let mut watch = client.watch(Revision(7)).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), Some(PeerList::default()));
    assert_eq!(watch.next().await.unwrap(), Some(PeerList::default()));
    assert_eq!(watch.next().await.unwrap(), None);
    assert_eq!(server.paths(), ["/v1/peers/watch?after=7"]);
}

#[tokio::test]
async fn an_answer_of_another_protocol_is_named() {
    let server = Server::start(|_, _| (StatusCode::BAD_GATEWAY, "<html>").into_response()).await;
    let (client, _dir) = client(vec![server.endpoint.clone()], vec![server.pin]);
    assert!(matches!(client.list().await, Err(CallError::Malformed(why)) if why.contains("502")));
}
