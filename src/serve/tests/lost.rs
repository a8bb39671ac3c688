//! An answer that gets lost, on every route that changes something: the same bytes again, on a new connection and also
//! to an appliance that has started again since, get the same answer to the byte, and what was asked for happens once.
//! A new route fails here until it is said whether it changes anything, and how it is asked.

use super::rig::*;
use crate::serve::{gateway, mesh, operator};
use crate::wire::jobs::Leased;
use crate::wire::operator::{JournalPage, Minted, Pending};
use crate::wire::peers::{CertificateBody, HEADER_IDEMPOTENCY, Knock, LeaveBody, RegisterBody, ServiceClaim};
use crate::wire::token::Token;
use crate::{clock, entropy};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer;
use serde_json::json;
use state::model::{JobId, Name};
use state::view::records::Protocol;
use std::time::Duration;

/// A request as its bytes, and who sends them.
struct Asked {
    by: By,
    method: String,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

enum By {
    Operator,
    /// Over the gateway, by its certificate.
    Node(Box<Machine>),
    /// Over the mesh listener.
    Anybody,
}

impl Asked {
    fn operator(method: &str, path: impl Into<String>, body: impl ToString) -> Self {
        let headers = vec![(HEADER_IDEMPOTENCY, idempotency())];
        Self { by: By::Operator, method: method.into(), path: path.into(), headers, body: body.to_string().into() }
    }

    /// A signed request, as [`Machine::begin`] makes it.
    fn signed(machine: &Machine, method: &str, path: impl Into<String>, body: Vec<u8>) -> Self {
        let (path, timestamp) = (path.into(), clock::wall().0.to_string());
        let lines = crate::wire::peers::signed_lines(method, &path, &timestamp, &body);
        let signature = hex::encode(machine.keys.signing.sign(lines.as_bytes()).to_bytes());
        let headers = vec![
            ("authorization", format!("Bearer {}", machine.bearer)),
            (crate::wire::peers::HEADER_KEY, machine.keys.public().signing_key.to_string()),
            (crate::wire::peers::HEADER_TIMESTAMP, timestamp),
            (crate::wire::peers::HEADER_SIGNATURE, signature),
            (HEADER_IDEMPOTENCY, idempotency()),
        ];
        Self { by: By::Anybody, method: method.into(), path, headers, body }
    }

    fn node(machine: Machine, path: impl Into<String>, body: impl ToString) -> Self {
        let headers = vec![(HEADER_IDEMPOTENCY, idempotency())];
        let by = By::Node(Box::new(machine));
        Self { by, method: "POST".into(), path: path.into(), headers, body: body.to_string().into() }
    }

    /// Sends it on a connection of its own.
    async fn send(&self, rig: &Rig) -> reqwest::Result<Said> {
        let (http, url) = match &self.by {
            By::Operator => (rig.operator_client(), format!("http://appliance{}", self.path)),
            By::Node(machine) => (rig.gateway_client(machine), rig.gateway_url(&self.path)),
            By::Anybody => (rig.client(), rig.url(&self.path)),
        };
        let request = http.request(self.method.parse().unwrap(), url).body(self.body.clone());
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let response = request.send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }
}

/// What a route does to the journal.
enum Class {
    /// Nothing: it tells, or moves soft state alone.
    Still,
    /// It changes something: how it is asked, once everything for it is there.
    Changes(Box<Asked>),
}

fn changes(asked: Asked) -> Class {
    Class::Changes(Box::new(asked))
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A machine that knocks, and its knock.
async fn knocking(rig: &Rig, called: &str) -> (Machine, Vec<u8>) {
    let (_, said) = rig.operator("POST", "/v1/admission/tokens", &json!({}), None).await;
    let minted: Minted = serde_json::from_str(&said).unwrap();
    let token = Token::decode(&minted.token, clock::wall()).ok().unwrap();
    let mut machine = rig.machine();
    machine.bearer = token.secret.expose_hex().to_string();
    let knock = Some(Knock { name: name(called), site: None, certificate_request: STANDARD.encode(machine.csr()) });
    let body = state::to_bytes(&RegisterBody { knock, ..machine.register_body(token.fleet) });
    let said = machine.send("POST", "/v1/peers/register", body.clone(), Some(&idempotency())).await;
    assert_eq!(code(&said), (403, "not_admitted".into()));
    (machine, body)
}

async fn at_operator(rig: &Rig, method: &str, path: &str) -> Class {
    let fresh = format!("n-{}", hex::encode(entropy::bytes::<4>()));
    let of_node = || path.replace("{name}", &fresh);
    let of_job = |id: JobId| path.replace("{id}", &id.to_string());
    changes(match (method, path) {
        (
            "GET",
            "/v1/nodes" | "/v1/nodes/{name}" | "/v1/jobs" | "/v1/jobs/{id}" | "/v1/pending" | "/v1/mesh" | "/v1/status"
            | "/v1/journal" | "/v1/journal/verify",
        ) => return Class::Still,
        ("POST", "/v1/nodes") => Asked::operator(method, path, json!({ "name": fresh })),
        ("POST", "/v1/nodes/{name}/token" | "/v1/nodes/{name}/drain") => {
            rig.token(&fresh).await;
            Asked::operator(method, of_node(), json!({}))
        }
        ("DELETE", "/v1/nodes/{name}") => {
            rig.joined(&fresh).await;
            Asked::operator(method, of_node() + "?force=true", "")
        }
        ("POST", "/v1/nodes/{name}/replace") => {
            rig.token(&fresh).await;
            Asked::operator(method, of_node(), json!({ "key": hex::encode(entropy::bytes::<32>()) }))
        }
        ("POST", "/v1/nodes/{name}/undrain") => {
            rig.token(&fresh).await;
            let drain = format!("/v1/nodes/{fresh}/drain");
            assert_eq!(rig.operator("POST", &drain, &json!({}), None).await.0, 200);
            Asked::operator(method, of_node(), json!({}))
        }
        ("POST", "/v1/jobs") => {
            rig.joined(&fresh).await;
            Asked::operator(method, path, json!({ "spec": { "kind": "network.check" }, "on": { "nodes": [fresh] } }))
        }
        ("POST", "/v1/jobs/{id}/cancel") => {
            rig.joined(&fresh).await;
            Asked::operator(method, of_job(rig.queue(&fresh).await), json!({}))
        }
        ("POST", "/v1/jobs/{id}/retry") => {
            rig.joined(&fresh).await;
            let id = rig.queue(&fresh).await;
            assert_eq!(rig.operator("POST", &format!("/v1/jobs/{id}/cancel"), &json!({}), None).await.0, 200);
            Asked::operator(method, of_job(id), json!({}))
        }
        ("POST", "/v1/sources") => {
            let asked = Asked::operator(method, path, "");
            Asked { body: zstd::encode_all(&b"a source"[..], 1).unwrap(), ..asked }
        }
        ("POST", "/v1/admission/admit") => {
            knocking(rig, &fresh).await;
            let (_, said) = rig.operator("GET", "/v1/pending", &(), None).await;
            let pending: Pending = serde_json::from_str(&said).unwrap();
            // By its key alone: the name is the one that it knocked with.
            Asked::operator(method, path, json!({ "key": pending.pending[0].signing_key }))
        }
        ("POST", "/v1/admission/revoke") => {
            rig.joined(&fresh).await;
            Asked::operator(method, path, json!({ "who": fresh }))
        }
        ("POST", "/v1/admission/tokens") => Asked::operator(method, path, json!({})),
        other => panic!("{other:?} is not classified"),
    })
}

async fn at_mesh(rig: &Rig, method: &str, path: &str) -> Class {
    let fresh = format!("m-{}", hex::encode(entropy::bytes::<4>()));
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    changes(match (method, path) {
        ("GET", "/v1/peers" | "/v1/peers/watch" | "/health") => return Class::Still,
        ("POST", "/v1/enroll") => {
            let token = rig.token(&fresh).await;
            let machine = rig.machine();
            Asked::signed(&machine, method, path, machine.enrolment(&token))
        }
        ("POST", "/v1/peers/register") => {
            let mut machine = rig.joined(&fresh).await;
            let mut body = machine.register_body(fleet);
            let (space, protocol) = (name(&format!("of-{fresh}")), Protocol::Http);
            body.services = vec![ServiceClaim { space, name: name("web"), protocol, port: 80 }];
            Asked::signed(&machine, method, path, state::to_bytes(&body))
        }
        ("POST", "/v1/peers/certificate") => {
            let mut machine = rig.joined(&fresh).await;
            let envelope = machine.register_body(fleet).envelope;
            let certificate_request = STANDARD.encode(rig.machine().csr());
            let body = state::to_bytes(&CertificateBody { envelope, certificate_request });
            Asked::signed(&machine, method, path, body)
        }
        ("DELETE", "/v1/peers/{id}") => {
            let mut machine = rig.joined(&fresh).await;
            let node = rig.appliance.handle.state().nodes.by_name[&name(&fresh)];
            let body = LeaveBody { envelope: machine.register_body(fleet).envelope, node };
            let path = path.replace("{id}", &node.to_string());
            Asked::signed(&machine, method, path, state::to_bytes(&body))
        }
        other => panic!("{other:?} is not classified"),
    })
}

async fn at_gateway(rig: &Rig, route: gateway::Route) -> Class {
    let fresh = format!("g-{}", hex::encode(entropy::bytes::<4>()));
    let lane = json!({ "lane": "workload" });
    changes(match route {
        gateway::Route::Heartbeat | gateway::Route::Log | gateway::Route::Source | gateway::Route::Presence => {
            return Class::Still;
        }
        gateway::Route::Lease => {
            let machine = rig.joined(&fresh).await;
            rig.queue(&fresh).await;
            Asked::node(machine, route.path(), lane)
        }
        gateway::Route::Complete => {
            let machine = rig.joined(&fresh).await;
            let id = rig.queue(&fresh).await;
            let (http, asking) = (rig.gateway_client(&machine), gateway::Route::Lease.path());
            let (_, said) = rig.ask(&http, asking, lane.to_string().into()).await;
            let Leased { lease_token, attempt, .. } = serde_json::from_str(&said).unwrap();
            let result = json!({ "found": "it" });
            let body = json!({
                "lease_token": lease_token, "attempt": attempt, "outcome": "succeeded", "result": result,
            });
            Asked::node(machine, route.path().replace("{id}", &id.to_string()), body)
        }
        gateway::Route::Renew => {
            let machine = rig.joined(&fresh).await;
            let request = STANDARD.encode(rig.machine().csr());
            Asked::node(machine, route.path(), json!({ "certificate_request": request }))
        }
    })
}

/// The changes in the journal after one, less those that nobody asked for.
async fn changed(rig: &Rig, after: u64) -> Vec<String> {
    let (_, said) = rig.operator("GET", &format!("/v1/journal?after={after}"), &(), None).await;
    let page: JournalPage = serde_json::from_str(&said).unwrap();
    page.changes.into_iter().filter(|change| change.actor != "appliance").map(|change| change.kind).collect()
}

/// Has an answer lost, asks again and again, and gives the appliance as it runs in the end.
async fn lost(rig: Rig, asked: &Asked) -> Rig {
    let what = format!("{} {}", asked.method, asked.path);
    let before = rig.revision();
    let committed = async {
        while rig.revision() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // The connection ends with the request, at the latest when the change is there.
    tokio::select! {
        biased;
        () = committed => {}
        said = asked.send(&rig) => drop(said),
    }
    let again = asked.send(&rig).await.unwrap();
    assert!((200..300).contains(&again.0), "{what}: {}", again.1);
    assert_eq!(asked.send(&rig).await.unwrap(), again, "{what}: a second time");
    let rig = rig.started_again().await;
    assert_eq!(asked.send(&rig).await.unwrap(), again, "{what}: after a restart");
    assert_eq!(changed(&rig, before.0).await.len(), 1, "{what}: {:?}", changed(&rig, before.0).await);
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_whose_answer_got_lost_is_answered_again_and_made_once() {
    let mut rig = Rig::new().await;
    let mut routes = 0;
    for route in operator::routes() {
        if let Class::Changes(asked) = at_operator(&rig, route.method.as_str(), route.path).await {
            rig = lost(rig, &asked).await;
            routes += 1;
        }
    }
    for route in mesh::routes() {
        if let Class::Changes(asked) = at_mesh(&rig, route.method.as_str(), route.path).await {
            rig = lost(rig, &asked).await;
            routes += 1;
        }
    }
    for route in gateway::Route::ALL {
        if let Class::Changes(asked) = at_gateway(&rig, route).await {
            rig = lost(rig, &asked).await;
            routes += 1;
        }
    }
    assert!(routes >= 20, "{routes} routes");
}
