//! What changes: once, answered alike when asked again, and told to whoever watches.

use super::rig::*;
use crate::wire::enrol::Enrolled;
use crate::wire::operator::{JournalCheck, JournalPage, Minted, NodeView, Nodes, StatusView};
use crate::wire::peers::{Knock, LeaveBody, RegisterAnswer, ServiceClaim};
use crate::wire::problem::Problem;
use crate::wire::signed::Kind;
use crate::wire::token::{Secret, Token};
use crate::{entropy, tasks};
use base64::Engine;
use state::model::{Name, Revision};
use state::view::records::{Gone, Head, NodeRecord, Protocol, Tombstone};
use std::sync::Arc;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_machines_with_one_token_one_gets_in_and_may_ask_again() {
    let rig = Arc::new(Rig::new().await);
    let token = Arc::new(rig.token("web-1").await);
    let before = rig.revision();
    let attempts: Vec<_> = (0..64)
        .map(|_| {
            let (rig, token) = (rig.clone(), token.clone());
            tasks::spawn("machine", async move {
                let machine = rig.machine();
                let said = machine.enrol(&token).await;
                (machine, said)
            })
        })
        .collect();
    let (mut winners, mut refusals) = (Vec::new(), std::collections::BTreeSet::new());
    for attempt in attempts {
        let (machine, (status, said)) = attempt.await.unwrap().unwrap();
        if status == 200 {
            winners.push((machine, said));
        } else {
            assert_eq!((status, code(&(status, said.clone())).1.as_str()), (401, "token_refused"));
            refusals.insert(said);
        }
    }
    assert_eq!((winners.len(), refusals.len()), (1, 1), "one winner, and one refusal to the byte");
    assert_eq!(rig.revision(), Revision(before.0 + 1));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let (machine, said) = winners.pop().unwrap();
    assert_eq!(machine.enrol(&token).await, (200, said.clone()), "a lost answer is given again");
    assert_eq!(rig.machine().enrol(&token).await.1, *refusals.first().unwrap(), "to its own keys alone");
    let unknown = Token { secret: Secret::new(entropy::secret()), ..rig.token("web-2").await };
    assert_eq!(rig.machine().enrol(&unknown).await.1, *refusals.first().unwrap());
    assert_eq!(rig.revision(), Revision(before.0 + 2), "refusals write nothing");
    let enrolled: Enrolled = serde_json::from_str(&said).unwrap();
    assert_eq!((enrolled.name, enrolled.address.to_string().as_str()), (name("web-1"), "10.90.0.2"));
    assert_eq!((enrolled.peers.heads.len(), enrolled.peers.records.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_token_is_refused_like_any_other() {
    let rig = Rig::new().await;
    let body = serde_json::json!({ "name": "web-1", "ttl_seconds": 1 });
    let (_, said) = rig.operator("POST", "/v1/nodes", &body, None).await;
    let minted: Minted = serde_json::from_str(&said).unwrap();
    let token = Token::decode(&minted.token, past(0)).ok().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let unknown = Token { secret: Secret::new(entropy::secret()), ..rig.token("web-2").await };
    let machine = rig.machine();
    assert_eq!(machine.enrol(&token).await, machine.enrol(&unknown).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_given_again_whatever_the_node_has_sent_since() {
    let rig = Rig::new().await;
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let mut machine = rig.joined("web-1").await;
    let mut body = machine.register_body(fleet);
    body.services = vec![ServiceClaim { space: name("shop"), name: name("web"), protocol: Protocol::Http, port: 80 }];
    let bytes = state::to_bytes(&body);
    let key = idempotency();
    let first = machine.send("POST", "/v1/peers/register", bytes.clone(), Some(&key)).await;
    let revision = rig.revision();
    let answer: RegisterAnswer = serde_json::from_str(&first.1).unwrap();
    assert_eq!((answer.services.len(), answer.revision), (1, revision));
    assert_eq!(machine.send("POST", "/v1/peers/register", bytes.clone(), Some(&key)).await, first);
    let later = state::to_bytes(&machine.register_body(fleet));
    assert_eq!(machine.send("POST", "/v1/peers/register", later, Some(&idempotency())).await.0, 200);
    let withdrawn = rig.revision();
    assert_eq!(
        machine.send("POST", "/v1/peers/register", bytes.clone(), Some(&key)).await,
        first,
        "an old request is answered by its receipt"
    );
    let other = machine.send("POST", "/v1/peers/register", bytes, Some(&idempotency())).await;
    assert_eq!(code(&other), (409, "replayed".into()), "and by nothing else");
    assert_eq!(rig.revision(), withdrawn);

    let id = rig.appliance.handle.state().nodes.by_name[&name("web-1")];
    let envelope = machine.register_body(fleet).envelope;
    let bytes = state::to_bytes(&LeaveBody { envelope, node: id });
    let (path, key) = (format!("/v1/peers/{id}"), idempotency());
    let first = machine.send("DELETE", &path, bytes.clone(), Some(&key)).await;
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(machine.send("DELETE", &path, bytes.clone(), Some(&key)).await, first);
    let refused = machine.send("DELETE", &path, bytes, Some(&idempotency())).await;
    assert_eq!(code(&refused), (403, "not_admitted".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_heartbeat_leaves_the_journal_still() {
    let rig = Rig::new().await;
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let mut machine = rig.joined("web-1").await;
    let before = rig.revision();
    for _ in 0..20 {
        let bytes = state::to_bytes(&machine.register_body(fleet));
        let said = machine.send("POST", "/v1/peers/register", bytes, Some(&idempotency())).await;
        assert_eq!(said.0, 200, "{}", said.1);
    }
    assert_eq!(rig.revision(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_reaches_a_watcher_and_a_revoked_one_is_told_last() {
    let rig = Rig::new().await;
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let key = rig.appliance.handle.state().appliances.all.values().next().unwrap().signing_key;
    let watcher = rig.joined("web-1").await;
    let mut stream = watcher.begin("GET", "/v1/peers/watch?after=0", Vec::new(), None).await;
    assert_eq!(stream.status().as_u16(), 200);
    assert_eq!(line(&mut stream).await.unwrap().records.len(), 1, "what it is behind by comes at once");
    let mut other = rig.joined("web-2").await;
    let joined = line(&mut stream).await.unwrap();
    assert_eq!((joined.heads.len(), joined.records.len()), (1, 1));
    let mut body = other.register_body(fleet);
    body.services = vec![ServiceClaim { space: name("shop"), name: name("web"), protocol: Protocol::Tcp, port: 80 }];
    assert_eq!(other.send("POST", "/v1/peers/register", state::to_bytes(&body), None).await.0, 200);
    let published = line(&mut stream).await.unwrap();
    let record: NodeRecord = published.records[0].open(&key, Kind::Peer).unwrap();
    let head: Head = published.heads[0].open(&key, Kind::Head).unwrap();
    assert_eq!((record.services.len(), head.count, head.revision), (1, 2, record.revision));

    let (status, said) =
        rig.operator("POST", "/v1/admission/revoke", &serde_json::json!({ "who": "web-1" }), None).await;
    assert_eq!(status, 200, "{said}");
    let last = line(&mut stream).await.unwrap();
    let tombstone: Tombstone = last.tombstones[0].open(&key, Kind::Tombstone).unwrap();
    assert_eq!((tombstone.reason, last.heads.len()), (Gone::Revoked, 0));
    assert!(line(&mut stream).await.is_none(), "then the stream ends");
    let (status, said) = watcher.send("GET", "/v1/peers", Vec::new(), None).await;
    let problem: Problem = serde_json::from_str(&said).unwrap();
    assert_eq!((status, problem.code.as_str()), (403, "not_admitted"));
    problem.tombstone.unwrap().open::<Tombstone>(&key, Kind::Tombstone).unwrap();
    let (status, said) = other.send("GET", &format!("/v1/peers?after={}", head.revision), Vec::new(), None).await;
    assert_eq!(status, 200);
    let delta: crate::wire::peers::PeerList = serde_json::from_str(&said).unwrap();
    assert_eq!((delta.heads.len(), delta.records.len(), delta.tombstones.len()), (1, 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_imaged_ahead_of_time_gets_in_when_admitted() {
    let rig = Rig::new().await;
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let (_, said) = rig.operator("POST", "/v1/admission/tokens", &serde_json::json!({}), None).await;
    let minted: Minted = serde_json::from_str(&said).unwrap();
    let token = Token::decode(&minted.token, past(0)).ok().unwrap();
    let mut machine = rig.machine();
    machine.bearer = token.secret.expose_hex().to_string();
    let knocking = |machine: &mut Machine| {
        let certificate_request = base64::engine::general_purpose::STANDARD.encode(machine.csr());
        let knock = Some(Knock { name: name("web-9"), site: None, certificate_request });
        state::to_bytes(&crate::wire::peers::RegisterBody { knock, ..machine.register_body(fleet) })
    };
    let bytes = knocking(&mut machine);
    let refused = machine.send("POST", "/v1/peers/register", bytes, Some(&idempotency())).await;
    assert_eq!(code(&refused), (403, "not_admitted".into()));
    let (_, said) = rig.operator("GET", "/v1/pending", &(), None).await;
    let pending: crate::wire::operator::Pending = serde_json::from_str(&said).unwrap();
    let key = pending.pending[0].signing_key;
    assert_eq!(key, machine.keys.public().signing_key);
    let (status, said) =
        rig.operator("POST", "/v1/admission/admit", &serde_json::json!({ "key": key.to_string() }), None).await;
    assert_eq!(status, 200, "{said}");
    assert_eq!(serde_json::from_str::<NodeView>(&said).unwrap().name, name("web-9"));
    let (bytes, idempotency) = (knocking(&mut machine), idempotency());
    let first = machine.send("POST", "/v1/peers/register", bytes.clone(), Some(&idempotency)).await;
    let answer: RegisterAnswer = serde_json::from_str(&first.1).unwrap();
    assert_eq!(machine.send("POST", "/v1/peers/register", bytes, Some(&idempotency)).await, first);
    machine.bearer = answer.enrolled.unwrap().mesh_token;
    let bytes = state::to_bytes(&machine.register_body(fleet));
    assert_eq!(machine.send("POST", "/v1/peers/register", bytes, None).await.0, 200);
    assert_eq!(machine.send("GET", "/v1/peers", Vec::new(), None).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_sees_the_fleet_and_its_journal() {
    let rig = Rig::new().await;
    rig.joined("web-1").await;
    let (_, said) = rig.operator("GET", "/v1/nodes", &(), None).await;
    let nodes: Nodes = serde_json::from_str(&said).unwrap();
    assert_eq!((nodes.nodes.len(), nodes.nodes[0].address), (1, Some("10.90.0.2".parse().unwrap())));
    assert!(nodes.nodes[0].last_seen.is_some());
    let (_, said) = rig.operator("GET", "/v1/status", &(), None).await;
    let status: StatusView = serde_json::from_str(&said).unwrap();
    assert_eq!((status.fleet, status.nodes.here, status.fingerprint), (name("lab"), 1, rig.appliance.pin));
    let (_, said) = rig.operator("GET", "/v1/journal?limit=2", &(), None).await;
    let page: JournalPage = serde_json::from_str(&said).unwrap();
    let kinds: Vec<&str> = page.changes.iter().map(|change| change.kind.as_str()).collect();
    assert_eq!(kinds, ["node.add", "node.join"]);
    assert!(!said.contains("secret"));
    let (_, said) = rig.operator("GET", "/v1/journal/verify", &(), None).await;
    let check: JournalCheck = serde_json::from_str(&said).unwrap();
    assert!(check.ok && check.changes == rig.revision().0, "{said}");
    let (_, said) = rig.operator("GET", "/v1/mesh", &(), None).await;
    assert!(said.contains("\"addresses_used\":1"), "{said}");
    for (method, path, wanted) in [
        ("GET", "/v1/nodes/web-7", (404, "not_found")),
        ("DELETE", "/v1/nodes/web-1", (409, "node_live")),
        ("GET", "/v1/nodes/Web", (400, "invalid")),
        ("GET", "/v1/nothing", (404, "not_found")),
        ("PUT", "/v1/nodes", (404, "not_found")),
    ] {
        let said = rig.operator(method, path, &(), None).await;
        assert_eq!(code(&said), (wanted.0, wanted.1.to_owned()), "{path}");
    }
    let again = rig.operator("POST", "/v1/nodes", &serde_json::json!({ "name": "web-1" }), None).await;
    assert_eq!(code(&again), (409, "held".into()));
}
