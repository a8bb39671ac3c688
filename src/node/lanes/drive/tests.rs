//! Both lanes at work on real processes, against a gateway that answers by a function.

use super::*;
use crate::keys::ApplianceKeys;
use crate::listen::stop;
use crate::node::gateway::Gateways;
use crate::serve::{accept, gate, tls};
use axum::Router;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::Value;
use state::model::NodeId;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

/// A gateway, a machine's state directory, and lanes between them.
struct Rig {
    dir: tempfile::TempDir,
    node: NodeId,
    gateway: Arc<Gateway>,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    asks: mpsc::Receiver<Ask>,
    asking: mpsc::Sender<Ask>,
    _stopper: stop::Stopper,
}

fn job(number: u128) -> String {
    uuid::Uuid::from_u128(number).to_string()
}

fn lease(number: u128, lane: &str, spec: &Value, expires_in_s: u64) -> Response {
    let job = json!({ "id": job(number), "kind": spec["kind"], "lane": lane, "spec": spec });
    let token = "ab".repeat(32);
    axum::Json(json!({ "job": job, "lease_token": token, "attempt": 1, "expires_in_s": expires_in_s })).into_response()
}

fn check() -> Value {
    json!({ "kind": "service.check", "probe": { "tcp": "127.0.0.1:9" }, "timeout_s": 600 })
}

impl Rig {
    /// `answer` has the path, the body, and how often that path was asked with that lane before.
    async fn new(answer: impl Fn(&str, &Value, usize) -> Response + Clone + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Work is done as nobody, who must get at the program.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let keys = ApplianceKeys::make(&dir.path().join("appliance")).unwrap();
        std::fs::create_dir(dir.path().join("node")).unwrap();
        std::fs::set_permissions(dir.path().join("node"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let listener = accept::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let log = seen.clone();
        let router = Router::new().fallback(move |request: axum::extract::Request| async move {
            let path = request.uri().path().to_owned();
            let body = axum::body::to_bytes(request.into_body(), 100_000).await.unwrap_or_else(|_| Bytes::new());
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let before = {
                let mut log = log.lock().unwrap();
                let before = log.iter().filter(|(p, b)| *p == path && b["lane"] == body["lane"]).count();
                log.push((path.clone(), body.clone()));
                before
            };
            answer(&path, &body, before)
        });
        let (stopper, stop) = stop::pair();
        let config = tls::server_config(keys.tls.certificate.clone(), keys.tls.key.der()).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        let gate = Arc::new(gate::Gate::default());
        tasks::spawn("test gateway", accept::serve_tls(listener, acceptor, router, gate, |_, place| place, stop));
        let endpoints = vec![format!("localhost:{port}").parse().unwrap()];
        let gateway = Arc::new(Gateway::new(Gateways { endpoints, pins: vec![keys.pin()] }, &keys.tls));
        let (asking, asks) = mpsc::channel(4);
        let node = NodeId(entropy::uuid());
        Self { dir, node, gateway, seen, asks, asking, _stopper: stopper }
    }

    fn groups(&self) -> Groups {
        Groups::open(&self.dir.path().join("node"), self.node).unwrap()
    }

    /// Starts lanes whose work apart is this shell script.
    fn start(&self, script: &str) -> Lanes {
        let program = self.dir.path().join("work");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Lanes::start(Setting {
            gateway: watch::channel(Some(self.gateway.clone())).1,
            groups: self.groups(),
            fence: Fence::open(&self.dir.path().join("node")).unwrap().into(),
            asks: self.asking.clone(),
            program,
            capabilities: BTreeMap::new(),
        })
    }

    fn bodies(&self, end: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(path, _)| path.ends_with(end)).map(|(_, body)| body.clone()).collect()
    }

    /// The processes of work that live, by the environment that they have.
    fn alive(&self, number: u128) -> usize {
        let marker = format!("HOLDFAST_WORK={}-1", job(number));
        let environments = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            entry.file_name().to_str()?.parse::<u32>().ok()?;
            std::fs::read(entry.path().join("environ")).ok()
        });
        environments.filter(|all| all.split(|byte| *byte == 0).any(|one| one == marker.as_bytes())).count()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let groups = self.groups();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let _ = runtime.block_on(groups.sweep());
            });
        });
    }
}

async fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if true_now() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in 15 s: {what}");
}

fn none() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

fn recorded(path: &str) -> Response {
    let id = path.split('/').nth(4).unwrap();
    axum::Json(json!({ "id": id, "status": "succeeded", "attempt": 1, "revision": 3 })).into_response()
}

/// Work that never ends, with a child that has forked twice into a session of its own.
const STUBBORN: &str =
    "cat >/dev/null; (setsid sh -c 'sleep 600 & sleep 600') & trap '' TERM INT HUP; sleep 600; sleep 600";

#[tokio::test]
async fn a_blocked_workload_delays_no_network_check_and_dies_whole_when_its_lease_is_lost() {
    let mut rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        // Good for 8 s, of which the last 5 are kept for ending it; it is never renewed.
        (_, Some("workload"), 0) => lease(101, "workload", &check(), 8),
        (_, Some("network"), 1) => lease(102, "network", &json!({ "kind": "network.check" }), 45),
        (_, Some(_), _) => none(),
        (path, None, _) if path.ends_with("/complete") => recorded(path),
        (_, None, _) => none(),
    })
    .await;
    let begun = clock::boot();
    let lanes = rig.start(STUBBORN);
    until("the work runs with its descendants", || rig.alive(101) >= 3).await;
    let Some(Ask::Check(reply)) = rig.asks.recv().await else { panic!("the network lane asks the upkeep") };
    assert!(reply.send(Ok(Vec::new())).is_ok());
    until("the check is answered for", || !rig.bodies("/complete").is_empty()).await;
    assert!(rig.alive(101) >= 3, "the workload is still blocked");
    let told = rig.bodies("/complete");
    assert_eq!((&told[0]["outcome"], &told[0]["result"]["as_wanted"]), (&json!("succeeded"), &json!(true)));
    until("the work is gone", || rig.alive(101) == 0).await;
    assert!((3..8).contains(&(clock::boot() - begun).as_secs()), "before the lease ends");
    until("the workload lane goes on", || rig.bodies("/lease").iter().filter(|b| b["lane"] == "workload").count() > 1)
        .await;
    assert_eq!(rig.bodies("/complete").len(), 1, "a lost attempt is not answered for");
    lanes.end().await;
}

#[tokio::test]
async fn told_to_end_both_lanes_end_at_once_with_all_their_work() {
    let mut rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => lease(201, "workload", &check(), 45),
        (_, Some("network"), 0) => lease(202, "network", &json!({ "kind": "network.withdraw" }), 45),
        (_, _, _) => none(),
    })
    .await;
    let lanes = rig.start(STUBBORN);
    until("the work runs", || rig.alive(201) >= 3).await;
    let Some(Ask::Withdraw(reply)) = rig.asks.recv().await else { panic!("the network lane asks the upkeep") };
    let begun = clock::boot();
    lanes.end().await;
    assert!((clock::boot() - begun).as_secs() < 2);
    assert_eq!(rig.alive(201), 0);
    assert!(reply.is_closed(), "a question of a job that was given up has no effect any more");
}

#[tokio::test]
async fn a_failed_completion_and_a_wrong_lease_stay_where_they_are() {
    let rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => lease(301, "workload", &check(), 45),
        (_, Some("workload"), 1) => lease(303, "workload", &check(), 45),
        (_, Some("network"), 0) => lease(302, "network", &check(), 45),
        (path, None, _) if path.ends_with(&format!("{}/complete", job(301))) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "injected").into_response()
        }
        (path, None, _) if path.ends_with("/complete") => recorded(path),
        (_, _, _) => none(),
    })
    .await;
    let lanes = rig.start(r#"cat >/dev/null; echo '{"outcome":"succeeded","result":{"ok":true}}'"#);
    until("the second job is answered for", || rig.bodies(&format!("{}/complete", job(303))).len() == 1).await;
    assert_eq!(rig.bodies(&format!("{}/complete", job(301))).len(), 1, "left to its lease");
    let asked = rig.bodies("/lease").iter().filter(|body| body["lane"] == "network").count();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let after = rig.bodies("/lease").iter().filter(|body| body["lane"] == "network").count();
    assert_eq!((asked, after), (1, 1), "the lane that was answered wrongly has stopped");
    assert!(rig.bodies("/lease").len() > 3, "the other goes on");
    lanes.end().await;
}

#[tokio::test]
async fn what_an_earlier_agent_left_is_ended_before_anything_begins() {
    let rig = Rig::new(|_, body, before| match (body["lane"].as_str(), before) {
        (Some("workload"), 0) => lease(404, "workload", &check(), 45),
        (_, _) => none(),
    })
    .await;
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", STUBBORN]);
    let mut orphan = rig.groups().start(uuid_job(401), 1, command).unwrap();
    drop(orphan.child.stdin.take());
    until("the orphan runs", || rig.alive(401) >= 3).await;
    // As after a kill -9 of the agent that started it.
    std::mem::forget(orphan);
    let lanes = rig.start(STUBBORN);
    until("the new work runs", || rig.alive(404) >= 1).await;
    assert_eq!(rig.alive(401), 0, "the orphan is gone before");
    lanes.end().await;
    assert_eq!(rig.alive(404), 0);
}

fn uuid_job(number: u128) -> state::model::JobId {
    state::model::JobId(uuid::Uuid::from_u128(number))
}
