//! Every route of every listener × everybody who may knock × somebody else's object. A new route does not compile, or
//! fails, until it is classified here.

use super::jobs::LEASE;
use super::rig::*;
use crate::serve::gateway::Route;
use crate::serve::{mesh, operator};
use crate::tasks;
use crate::wire::peers::{CertificateBody, LeaveBody};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use state::model::{FleetId, JobId, Name, NodeId};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

/// What a route is about.
enum About {
    /// The caller alone: whoever is a node may.
    Caller { body: String },
    /// A job: the node that holds its lease may, and for all others there is no such job.
    Job { body: String, holder: u16 },
}

fn about(route: Route, token: &str) -> About {
    let held = json!({ "lease_token": token }).to_string();
    let content = "00".repeat(32);
    match route {
        Route::Lease => About::Caller { body: "{\"lane\":\"network\"}".into() },
        Route::Presence => About::Caller {
            body: json!({
                "instance": uuid::Uuid::nil(), "roster_revision": 1, "held_revision": 1, "registered": content,
            })
            .to_string(),
        },
        Route::Renew => About::Caller { body: json!({ "certificate_request": "" }).to_string() },
        Route::Heartbeat => About::Job { body: held, holder: 200 },
        Route::Log => About::Job { body: json!({ "lease_token": token, "lines": ["x"] }).to_string(), holder: 204 },
        Route::Source => About::Job { body: held, holder: 404 },
        Route::Complete => About::Job {
            body: json!({ "lease_token": token, "attempt": 1, "outcome": "succeeded", "result": {} }).to_string(),
            holder: 200,
        },
    }
}

fn path(route: Route, job: &str) -> String {
    route.path().replace("{id}", job)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_its_own_and_tells_others_nothing() {
    let rig = Rig::new().await;
    let owner = rig.gateway_client(&rig.joined("web-1").await);
    let other = rig.gateway_client(&rig.joined("web-2").await);
    let revoked = rig.gateway_client(&rig.joined("web-3").await);
    assert_eq!(rig.ask(&revoked, LEASE, b"{}".to_vec()).await.0, 204, "its connection is held from before");
    let said = rig.operator("POST", "/v1/admission/revoke", &json!({"who": "web-3"}), None).await;
    assert_eq!(said.0, 200);
    let job = rig.queue("web-1").await;
    let lease = rig.lease(&owner).await;
    assert_eq!(lease.job.id, job);
    let no_job = JobId(uuid::Uuid::nil()).to_string();
    let (mut refused, mut not_found) = (BTreeSet::new(), BTreeSet::new());
    let job = job.to_string();
    for route in Route::ALL {
        let said = match about(route, &lease.lease_token) {
            About::Caller { body } => {
                assert!(rig.ask(&other, &path(route, &job), body.clone().into_bytes()).await.0 <= 400, "{route:?}");
                rig.ask(&revoked, &path(route, &job), body.into_bytes()).await
            }
            About::Job { body, .. } => {
                for id in [job.as_str(), no_job.as_str(), "nonsense"] {
                    let said = rig.ask(&other, &path(route, id), body.clone().into_bytes()).await;
                    assert_eq!(code(&said), (404, "not_found".into()), "{route:?} {id}");
                    not_found.insert(said.1);
                }
                rig.ask(&revoked, &path(route, &job), body.into_bytes()).await
            }
        };
        assert_eq!(code(&said), (401, "certificate_refused".into()), "{route:?}");
        refused.insert(said.1);
        let stranger = format!("https://127.0.0.1:{}{}", rig.gateway.port(), path(route, &job));
        rig.client().post(stranger).send().await.expect_err("no certificate, no answer");
    }
    assert_eq!((refused.len(), not_found.len()), (1, 1), "each refusal is the same to the byte");
    // Completing comes last: it ends the lease that the others need.
    let in_order = Route::ALL.into_iter().filter(|route| *route != Route::Complete).chain([Route::Complete]);
    for route in in_order {
        if let About::Job { body, holder } = about(route, &lease.lease_token) {
            let said = rig.ask(&owner, &path(route, &job), body.into_bytes()).await;
            assert_eq!(said.0, holder, "{route:?}: {}", said.1);
        }
    }
    let paths: BTreeSet<&str> = Route::ALL.iter().map(|route| route.path()).collect();
    assert_eq!(paths.len(), Route::ALL.len());
    for method in ["GET", "PUT", "DELETE"] {
        for route in Route::ALL {
            let url = format!("https://appliance.test:{}{}", rig.gateway.port(), path(route, &job));
            let said = owner.request(method.parse().unwrap(), url).send().await.unwrap();
            assert_eq!(said.status().as_u16(), 404, "{method} {route:?}");
            assert_eq!(said.headers()["content-type"], "application/problem+json", "{method} {route:?}");
        }
    }
}

/// What a route of the mesh listener is about.
enum Asks {
    /// Whoever knocks may ask; enrolling takes a token.
    Open,
    /// The node that signs, and nobody but it.
    Node,
}

fn asks(method: &str, path: &str) -> Asks {
    match (method, path) {
        ("GET", "/health") | ("POST", "/v1/enroll") => Asks::Open,
        ("GET", "/v1/peers" | "/v1/peers/watch")
        | ("POST", "/v1/peers/register" | "/v1/peers/certificate")
        | ("DELETE", "/v1/peers/{id}") => Asks::Node,
        other => panic!("{other:?} is not classified"),
    }
}

/// A good body for a route of the mesh listener, about this node.
fn mesh_body(machine: &mut Machine, path: &str, fleet: FleetId, node: NodeId) -> Vec<u8> {
    let body = machine.register_body(fleet);
    match path {
        "/v1/peers/register" => state::to_bytes(&body),
        "/v1/peers/certificate" => {
            let certificate_request = STANDARD.encode(machine.csr());
            state::to_bytes(&CertificateBody { envelope: body.envelope, certificate_request })
        }
        "/v1/peers/{id}" => state::to_bytes(&LeaveBody { envelope: body.envelope, node }),
        _ => Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_route_of_the_mesh_does_anything_for_who_is_not_its_node() {
    let rig = Rig::new().await;
    let (owner, mut other, revoked) = (rig.joined("web-1").await, rig.joined("web-2").await, rig.joined("web-3").await);
    let state = rig.appliance.handle.state();
    let (fleet, node) = (state.fleet().unwrap().id, state.nodes.by_name[&Name::new("web-1").unwrap()]);
    assert_eq!(rig.operator("POST", "/v1/admission/revoke", &json!({"who": "web-3"}), None).await.0, 200);
    let before = rig.revision();
    // A key that nobody knows, without a bearer and with a stolen one; a node with another's bearer; one that was revoked.
    let (stranger, mut thief) = (rig.machine(), rig.machine());
    thief.bearer.clone_from(&owner.bearer);
    let mut borrower = rig.joined("web-4").await;
    borrower.bearer.clone_from(&owner.bearer);
    let after = rig.revision();
    let mut knocking = [stranger, thief, borrower, revoked];
    for route in mesh::routes() {
        let Asks::Node = asks(route.method.as_str(), route.path) else { continue };
        let path = route.path.replace("{id}", &node.to_string());
        for (n, machine) in knocking.iter_mut().enumerate() {
            let body = mesh_body(machine, route.path, fleet, node);
            let said = machine.send(route.method.as_str(), &path, body, Some(&idempotency())).await;
            assert!(matches!(said.0, 401 | 403), "{path} for {n}: {said:?}");
        }
        // Unsigned, and with nothing at all.
        let bare = rig.client().request(route.method.clone(), rig.url(&path)).send().await.unwrap();
        assert_eq!(bare.status().as_u16(), 401, "{path}");
    }
    // Somebody else's, whether there is such a node or not.
    let mut told = BTreeSet::new();
    for whose in [node, NodeId(uuid::Uuid::from_u128(77))] {
        let body = mesh_body(&mut other, "/v1/peers/{id}", fleet, whose);
        let said = other.send("DELETE", &format!("/v1/peers/{whose}"), body, Some(&idempotency())).await;
        assert_eq!(code(&said), (403, "wrong_key".into()));
        told.insert(said);
    }
    assert_eq!(told.len(), 1, "the refusal says nothing about the node");
    assert_eq!(rig.revision(), after, "refusals write nothing");
    assert_eq!(after.0, before.0 + 2, "a token and a joining in between");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_listener_answers_for_another() {
    let rig = Rig::new().await;
    let node = rig.joined("web-1").await;
    let gateway = rig.gateway_client(&node);
    let before = rig.revision();
    let of_operator: Vec<_> = operator::routes().into_iter().map(|route| (route.method, route.path)).collect();
    let of_mesh: Vec<_> = mesh::routes().into_iter().map(|route| (route.method, route.path)).collect();
    let of_gateway: Vec<_> = Route::ALL.into_iter().map(|route| (http::Method::POST, route.path())).collect();
    let filled = |path: &str| path.replace("{id}", &uuid::Uuid::nil().to_string()).replace("{name}", "web-1");
    for (method, path) in of_operator.iter().chain(&of_mesh) {
        let said = gateway.request(method.clone(), rig.gateway_url(&filled(path))).body("{}").send().await.unwrap();
        assert_eq!(said.status().as_u16(), 404, "{method} {path} at the gateway");
    }
    for (method, path) in of_operator.iter().chain(&of_gateway) {
        let said = node.send(method.as_str(), &filled(path), b"{}".to_vec(), Some(&idempotency())).await;
        assert_eq!(code(&said), (404, "not_found".into()), "{method} {path} at the mesh listener");
    }
    for (method, path) in of_mesh.iter().chain(&of_gateway) {
        let said = rig.operator(method.as_str(), &filled(path), &json!({}), None).await;
        assert_eq!(code(&said), (404, "not_found".into()), "{method} {path} at the operator's socket");
    }
    assert_eq!(rig.revision(), before);
}

/// Neither root nor the appliance's own user: whatever it asks, the socket says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_socket_says_nothing_to_other_users() {
    let rig = Rig::new().await;
    rig.joined("web-1").await;
    let (socket, before) = (rig.state_dir().join("operator.sock"), rig.revision());
    for open in socket.ancestors().take(3) {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let own = rustix::process::geteuid();
    assert!(own.is_root(), "this test becomes another user, for which it must be root");
    for route in operator::routes() {
        let (method, socket) = (route.method.to_string(), socket.clone());
        let path = route.path.replace("{name}", "web-1").replace("{id}", &uuid::Uuid::nil().to_string());
        let said = tasks::blocking(move || {
            // This thread alone becomes somebody else, and ends.
            let asking = std::thread::scope(|scope| {
                let nobody = scope.spawn(|| -> std::io::Result<Vec<u8>> {
                    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534))?;
                    let mut stream = UnixStream::connect(&socket)?;
                    let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}");
                    // The other end may be gone already.
                    let _ = stream.write_all(head.as_bytes());
                    let mut said = Vec::new();
                    match stream.read_to_end(&mut said) {
                        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => Err(error),
                        Ok(_) | Err(_) => Ok(said),
                    }
                });
                nobody.join()
            });
            asking.expect("the thread ends").expect("the socket takes the connection")
        });
        assert_eq!(said.await, b"", "{} {}", route.method, route.path);
    }
    assert_eq!(rig.revision(), before);
}
