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
use serde_json::{Value, json};
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
    attempt(1, number, lane, spec, expires_in_s)
}

fn attempt(attempt: u32, number: u128, lane: &str, spec: &Value, expires_in_s: u64) -> Response {
    let job = json!({ "id": job(number), "kind": spec["kind"], "lane": lane, "spec": spec });
    leased(attempt, &job, expires_in_s)
}

fn leased(attempt: u32, job: &Value, expires_in_s: u64) -> Response {
    let token = "ab".repeat(32);
    axum::Json(json!({ "job": job, "lease_token": token, "attempt": attempt, "expires_in_s": expires_in_s }))
        .into_response()
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
            let answered = answer(&path, &body, before);
            if answered.status() == NEVER {
                std::future::pending::<()>().await;
            }
            answered
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

    /// How often a lane has asked for work.
    fn leases(&self, lane: &str) -> usize {
        self.bodies("/lease").iter().filter(|body| body["lane"] == lane).count()
    }

    /// Answers a check of the mesh as the upkeep does.
    async fn check(&mut self) {
        let Some(Ask::Check(question)) = self.asks.recv().await else { panic!("the network lane asks the upkeep") };
        question.answer(async { Ok(Vec::new()) }).await;
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

/// An answer that never comes.
const NEVER: StatusCode = StatusCode::GATEWAY_TIMEOUT;

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
    rig.check().await;
    until("the check is answered for", || !rig.bodies("/complete").is_empty()).await;
    assert!(rig.alive(101) >= 3, "the workload is still blocked");
    let told = rig.bodies("/complete");
    assert_eq!((&told[0]["outcome"], &told[0]["result"]["as_wanted"]), (&json!("succeeded"), &json!(true)));
    until("the work is gone", || rig.alive(101) == 0).await;
    assert!((3..8).contains(&(clock::boot() - begun).as_secs()), "before the lease ends");
    until("the workload lane goes on", || rig.leases("workload") > 1).await;
    assert_eq!(rig.bodies("/complete").len(), 1, "a lost attempt is not answered for");
    lanes.end().await;
}

#[tokio::test]
async fn a_blocked_workload_outlives_a_completion_that_fails_and_ends_with_its_agent() {
    let mut rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => lease(111, "workload", &check(), 45),
        (_, Some("network"), 0) => lease(112, "network", &json!({ "kind": "network.check" }), 45),
        (_, Some("network"), 1) => lease(113, "network", &json!({ "kind": "network.check" }), 45),
        (path, None, _) if path.ends_with(&format!("{}/complete", job(113))) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "injected").into_response()
        }
        (path, None, _) if path.ends_with("/complete") => recorded(path),
        (_, _, _) => none(),
    })
    .await;
    let lanes = rig.start(STUBBORN);
    until("the work runs with its descendants", || rig.alive(111) >= 3).await;
    rig.check().await;
    rig.check().await;
    until("both checks are answered for", || rig.bodies("/complete").len() == 2).await;
    until("the network lane goes on", || rig.leases("network") > 2).await;
    assert!(rig.alive(111) >= 3, "the workload is still blocked");
    let begun = clock::boot();
    lanes.end().await;
    assert!(clock::boot() - begun < limits::LANES_END, "not given up");
    assert_eq!(rig.alive(111), 0);
    assert_eq!(rig.bodies(&format!("{}/complete", job(113))).len(), 1, "left to its lease");
}

#[tokio::test]
async fn told_to_end_both_lanes_end_at_once_and_hand_back_what_they_had() {
    let mut rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => lease(201, "workload", &check(), 45),
        (_, Some("network"), 0) => lease(202, "network", &json!({ "kind": "network.withdraw" }), 45),
        (path, None, _) if path.ends_with("/complete") => recorded(path),
        (_, _, _) => none(),
    })
    .await;
    let lanes = rig.start(STUBBORN);
    until("the work runs", || rig.alive(201) >= 3).await;
    let Some(Ask::Withdraw(question)) = rig.asks.recv().await else { panic!("the network lane asks the upkeep") };
    let (held, mut gone) = oneshot::channel::<()>();
    let withdrawing = tasks::spawn(
        "upkeep",
        question.answer(async move {
            let _held = held;
            std::future::pending().await
        }),
    );
    let begun = clock::boot();
    lanes.end().await;
    assert!(clock::boot() - begun < limits::LANES_END, "not given up");
    assert_eq!(rig.alive(201), 0);
    assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Closed), "the upkeep has let go of it");
    withdrawing.await.unwrap();
    for number in [201, 202] {
        let told = rig.bodies(&format!("{}/complete", job(number)));
        assert_eq!((told.len(), &told[0]["outcome"]), (1, &json!("retryable")), "{told:?}");
        assert!(told[0]["result"]["error"].as_str().unwrap().contains("stopped"), "{told:?}");
    }
}

#[tokio::test]
async fn the_pause_that_a_gateway_asks_for_reaches_the_lane() {
    let rig = Rig::new(|_, _, _| {
        let problem = crate::node::failure::Failure::new("busy", "what", "why", "todo").problem();
        (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "7")], state::to_bytes(&problem)).into_response()
    })
    .await;
    let request = LeaseRequest { lane: Some(Which::Workload), capabilities: BTreeMap::new() };
    let Err(CallError::Refused(problem)) = rig.gateway.lease(&request, 1).await else { panic!("it is refused") };
    assert_eq!(problem.retry_after, Some(Duration::from_secs(7)));
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_delays_no_end() {
    let rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => lease(211, "workload", &check(), 45),
        (path, None, _) if path.ends_with("/complete") => NEVER.into_response(),
        (_, _, _) => none(),
    })
    .await;
    let lanes = rig.start(STUBBORN);
    until("the work runs", || rig.alive(211) >= 3).await;
    let begun = clock::boot();
    lanes.end().await;
    assert!(clock::boot() - begun < limits::LANES_END, "not given up");
    assert_eq!((rig.alive(211), rig.bodies("/complete").len()), (0, 1), "asked once");
}

#[tokio::test]
async fn a_failed_completion_and_a_wrong_lease_stay_where_they_are() {
    let misrouted = || lease(302, "network", &check(), 45);
    let malformed = || axum::Json(json!({ "job": { "id": job(302) }, "attempt": 1 })).into_response();
    for wrong in [misrouted as fn() -> Response, malformed] {
        let rig = Rig::new(move |path, body, before| match (path, body["lane"].as_str(), before) {
            (_, Some("workload"), 0) => lease(301, "workload", &check(), 45),
            (_, Some("workload"), 1) => lease(303, "workload", &check(), 45),
            (_, Some("network"), 0) => wrong(),
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
        let halted = lanes.halted();
        assert!(halted.len() == 1 && halted[0].starts_with("the network lane stopped: "), "{halted:?}");
        let (asked, others) = (rig.leases("network"), rig.leases("workload"));
        until("the other lane goes on", || rig.leases("workload") > others).await;
        assert_eq!((asked, rig.leases("network")), (1, 1), "the lane that was answered wrongly has stopped");
        lanes.end().await;
    }
}

#[tokio::test]
async fn what_was_cancelled_or_superseded_before_does_not_begin() {
    let network = |number, generation: u64| {
        let spec = json!({ "kind": "network.check" });
        let job = json!({ "id": job(number), "kind": spec["kind"], "lane": "network", "spec": spec, "generation": generation });
        leased(1, &job, 45)
    };
    let mut rig = Rig::new(move |path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => {
            let job = json!({
                "id": job(601), "kind": "service.check", "lane": "workload", "spec": check(), "cancelled": true
            });
            leased(2, &job, 45)
        }
        (_, Some("network"), 0) => network(602, 7),
        (_, Some("network"), 1) => network(603, 6),
        (_, Some("network"), 2) => network(604, 7),
        (path, None, _) if path.ends_with("/complete") => recorded(path),
        (_, _, _) => none(),
    })
    .await;
    let lanes = rig.start(r#"cat >/dev/null; echo '{"outcome":"succeeded","result":{"ok":true}}'"#);
    rig.check().await;
    rig.check().await;
    until("three are answered for", || rig.bodies("/complete").len() == 3).await;
    let told = rig.bodies(&format!("{}/complete", job(601)));
    assert_eq!((&told[0]["outcome"], &told[0]["result"]), (&json!("failed"), &json!({ "stopped": true })));
    assert_eq!(rig.bodies(&format!("{}/complete", job(603))), Vec::<Value>::new(), "an older wish counts for nothing");
    lanes.end().await;
}

/// The next attempt looks for what the one before it started: what has forked twice and has a session of its own, and,
/// where there are cgroups, what has emptied its environment besides.
#[tokio::test]
async fn all_descendants_are_gone_before_the_next_attempt_begins() {
    let rig = Rig::new(|path, body, before| match (path, body["lane"].as_str(), before) {
        (_, Some("workload"), 0) => lease(501, "workload", &check(), 7),
        (_, Some("workload"), 1) => attempt(2, 501, "workload", &check(), 45),
        (path, None, _) if path.ends_with("/complete") => recorded(path),
        (_, _, _) => none(),
    })
    .await;
    let mark = format!("600.{}", std::process::id());
    // Which does not find itself.
    let pattern = format!("60[0].{}", std::process::id());
    let bare = if rig.groups().are_tight() {
        format!("env -i setsid sh -c 'sleep {mark} & sleep {mark}' &")
    } else {
        String::new()
    };
    let script = format!(
        r#"cat >/dev/null
if [ "$HOLDFAST_WORK" = {job}-2 ]; then
  known=$(grep -lz HOLDFAST_WORK={job}-1 /proc/[0-9]*/environ 2>/dev/null | wc -l)
  bare=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\000' '\n' | grep -cx {pattern})
  echo '{{"outcome":"succeeded","result":{{"known":'$known',"bare":'$bare'}}}}'
  exit
fi
(setsid sh -c 'sleep 600 & sleep 600') & {bare}
sleep 600"#,
        job = job(501)
    );
    let lanes = rig.start(&script);
    until("the first attempt runs with its descendants", || rig.alive(501) >= 3).await;
    until("the second is answered for", || rig.bodies("/complete").len() == 1).await;
    assert_eq!(rig.bodies("/complete")[0]["result"], json!({ "known": 0, "bare": 0 }));
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
