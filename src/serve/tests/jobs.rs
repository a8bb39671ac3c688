//! Jobs from the operator's wish to the node's answer, over the real stack.

use super::rig::*;
use crate::clock;
use crate::wire::jobs::{Extended, Leased, Recorded};
use crate::wire::operator::{JobDetail, Jobs, NodeView, StatusView};
use serde_json::{Value, json};
use state::model::JobId;
use std::time::Duration;

pub(super) const LEASE: &str = "/v1/agent/lease";

impl Rig {
    /// Queues a check on a node.
    pub(super) async fn queue(&self, node: &str) -> JobId {
        let probe = json!({"kind": "service.check", "probe": {"tcp": "127.0.0.1:22"}, "timeout_s": 5});
        let body = json!({"spec": probe, "on": {"nodes": [node]}});
        let (status, said) = self.operator("POST", "/v1/jobs", &body, Some(&idempotency())).await;
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<Jobs>(&said).unwrap().jobs[0].id
    }

    pub(super) async fn lease(&self, http: &reqwest::Client) -> Leased {
        let (status, said) = self.ask(http, LEASE, b"{\"lane\":\"workload\"}".to_vec()).await;
        assert_eq!(status, 200, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    async fn job(&self, id: JobId) -> JobDetail {
        let (status, said) = self.operator("GET", &format!("/v1/jobs/{id}"), &(), None).await;
        assert_eq!(status, 200, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    async fn on_job(&self, http: &reqwest::Client, id: JobId, what: &str, body: &Value) -> Said {
        self.ask(http, &format!("/v1/agent/jobs/{id}/{what}"), body.to_string().into_bytes()).await
    }
}

fn completion(lease: &Leased, outcome: &str, result: Value) -> Value {
    json!({"lease_token": lease.lease_token, "attempt": lease.attempt, "outcome": outcome, "result": result})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_leased_kept_told_of_and_answered_for_once() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    assert_eq!(rig.ask(&http, LEASE, b"{}".to_vec()).await, (204, String::new()));
    let id = rig.queue("web-1").await;
    assert_eq!(rig.ask(&http, LEASE, b"{\"lane\":\"network\"}".to_vec()).await.0, 204, "another lane's");
    assert_eq!(code(&rig.ask(&http, LEASE, b"{\"lane\":\"fast\"}".to_vec()).await), (400, "invalid".into()));
    assert!(rig.job(id).await.explanation.contains("has not asked for it yet"));
    let lease = rig.lease(&http).await;
    assert_eq!((lease.job.id, lease.attempt, lease.expires_in_s), (id, 1, 45));
    assert_eq!(rig.ask(&http, LEASE, b"{}".to_vec()).await.0, 204, "nobody gets it twice");
    let held = json!({"lease_token": lease.lease_token});
    let before = rig.revision();
    let (status, said) = rig.on_job(&http, id, "heartbeat", &held).await;
    assert_eq!((status, serde_json::from_str::<Extended>(&said).unwrap().expires_in_s), (200, 45));
    let lines = json!({"lease_token": lease.lease_token, "lines": ["asking", "password=hunter2"]});
    assert_eq!(rig.on_job(&http, id, "log", &lines).await, (204, String::new()));
    assert_eq!(rig.revision(), before, "neither writes anything");
    let other = json!({"lease_token": "ab".repeat(32)});
    assert_eq!(code(&rig.on_job(&http, id, "heartbeat", &other).await), (409, "stale_lease".into()));

    for (result, wanted) in [
        (json!({"deep": [{"Db-Password": "x"}]}), (422, "refused_result")),
        (json!({"found": "hfj1_abc"}), (422, "refused_result")),
        (json!({"found": "x".repeat(crate::limits::RESULT)}), (413, "too_large")),
        (json!({"found": "x".repeat(crate::limits::GATEWAY_BODY)}), (413, "too_large")),
        (json!([1]), (400, "invalid")),
    ] {
        let said = rig.on_job(&http, id, "complete", &completion(&lease, "succeeded", result)).await;
        assert_eq!(code(&said), (wanted.0, wanted.1.to_owned()));
    }
    assert_eq!(rig.revision(), before, "refusals write nothing");

    let largest = "x".repeat(crate::limits::RESULT - "{\"found\":\"\"}".len());
    let done = completion(&lease, "succeeded", json!({ "found": largest }));
    let first = rig.on_job(&http, id, "complete", &done).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let recorded: Recorded = serde_json::from_str(&first.1).unwrap();
    assert_eq!((recorded.id, recorded.status.as_str(), recorded.attempt), (id, "succeeded", 1));
    assert_eq!(recorded.revision, rig.revision());
    rig.queue("web-1").await;
    let after = rig.revision();
    assert_eq!(rig.on_job(&http, id, "complete", &done).await, first, "a lost answer is given again, to the byte");
    let otherwise = completion(&lease, "failed", json!({}));
    assert_eq!(code(&rig.on_job(&http, id, "complete", &otherwise).await), (409, "stale_lease".into()));
    assert_eq!(code(&rig.on_job(&http, id, "heartbeat", &held).await), (409, "stale_lease".into()));
    assert_eq!(rig.revision(), after);
    let shown = rig.job(id).await;
    assert_eq!((shown.job.state.as_str(), shown.results.len()), ("succeeded", 1));
    assert_eq!(shown.results[0].result, Some(json!({ "found": largest })));
    let log: Vec<&str> = shown.log.iter().map(|line| line.line.as_str()).collect();
    assert_eq!(log, ["asking", "password=[redacted]"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_is_given_again_to_who_asks_with_the_same_key() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let key = idempotency();
    let ask = || rig.ask_with(&http, LEASE, b"{\"lane\":\"workload\"}".to_vec(), Some(&key));
    assert_eq!(ask().await.0, 204, "nothing came of it, so it may be asked again");
    rig.queue("web-1").await;
    let first = ask().await;
    assert_eq!(first.0, 200);
    let revision = rig.revision();
    assert_eq!(ask().await, first);
    assert_eq!(rig.revision(), revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_an_operator_about_jobs_can_be_had_again() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let run = json!({"spec": {"kind": "network.check"}, "on": "all"});
    let twice = async |path: &str, body: &Value| {
        let key = idempotency();
        let first = rig.operator("POST", path, body, Some(&key)).await;
        assert_eq!(first.0, 200, "{path}: {}", first.1);
        let revision = rig.revision();
        rig.queue("web-1").await;
        assert_eq!(rig.operator("POST", path, body, Some(&key)).await, first, "{path}");
        assert_eq!(rig.revision().0, revision.0 + 1, "{path}");
        first.1
    };
    let jobs: Jobs = serde_json::from_str(&twice("/v1/jobs", &run).await).unwrap();
    let id = jobs.jobs[0].id;
    twice(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
    twice(&format!("/v1/jobs/{id}/retry"), &json!({})).await;
    let drained: NodeView =
        serde_json::from_str(&twice("/v1/nodes/web-1/drain", &json!({"deadline_seconds": 600})).await).unwrap();
    assert!(drained.drain.is_some_and(|drain| drain.until.is_some()));
    assert_eq!(rig.ask(&http, LEASE, b"{}".to_vec()).await.0, 204, "a drained node is given nothing");
    assert!(rig.job(id).await.explanation.contains("is drained"));
    let back: NodeView = serde_json::from_str(&twice("/v1/nodes/web-1/undrain", &json!({})).await).unwrap();
    assert!(back.drain.is_none());
    assert_eq!(rig.ask(&http, LEASE, b"{\"lane\":\"network\"}".to_vec()).await.0, 200);
    let (_, said) = rig.operator("GET", "/v1/jobs?state=leased&node=web-1", &(), None).await;
    let leased: Jobs = serde_json::from_str(&said).unwrap();
    assert_eq!(leased.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
    for bad in ["/v1/jobs?state=x", "/v1/jobs?x=1", "/v1/jobs/x"] {
        assert_eq!(code(&rig.operator("GET", bad, &(), None).await), (400, "invalid".into()), "{bad}");
    }
    let nobody = "/v1/jobs/00000000-0000-0000-0000-000000000001";
    assert_eq!(code(&rig.operator("GET", nobody, &(), None).await), (404, "not_found".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_changes_its_mind_all_the_time_does_not_fill_the_journal() {
    let rig = Rig::new().await;
    let machine = rig.joined("web-1").await;
    let http = rig.gateway_client(&machine);
    let before = rig.revision().0;
    for n in 0..100 {
        let body = json!({"capabilities": {(if n % 2 == 0 { "build" } else { "cgroup" }): "present"}}).to_string();
        assert_eq!(rig.ask(&http, LEASE, body.into_bytes()).await.0, 204);
    }
    // What the bucket holds, and what comes back meanwhile.
    let changes = rig.revision().0 - before;
    assert!((16..=20).contains(&changes), "{changes}");
    rig.queue("web-1").await;
    assert_eq!(rig.ask(&http, LEASE, br#"{"capabilities":{"other":"present"}}"#.to_vec()).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_is_over_when_its_node_says_so() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let id = rig.queue("web-1").await;
    let lease = rig.lease(&http).await;
    assert_eq!(rig.operator("POST", &format!("/v1/jobs/{id}/cancel"), &json!({}), None).await.0, 200);
    let held = json!({"lease_token": lease.lease_token});
    assert_eq!(code(&rig.on_job(&http, id, "heartbeat", &held).await), (409, "cancelled".into()));
    assert!(rig.job(id).await.job.cancelling);
    let (status, said) = rig.on_job(&http, id, "complete", &completion(&lease, "failed", json!({}))).await;
    assert_eq!((status, serde_json::from_str::<Recorded>(&said).unwrap().status.as_str()), (200, "cancelled"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lease_counts_for_nothing_and_goes_back_to_the_queue() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let id = rig.queue("web-1").await;
    let stale = rig.lease(&http).await;
    // As if it had been granted longer ago than a lease lasts.
    let past = clock::boot().saturating_sub(crate::limits::LEASE);
    rig.appliance.authority.soft().leases.grant(id, stale.attempt, past);
    let held = json!({"lease_token": stale.lease_token});
    assert_eq!(code(&rig.on_job(&http, id, "heartbeat", &held).await), (409, "stale_lease".into()));
    let late = completion(&stale, "succeeded", json!({}));
    assert_eq!(code(&rig.on_job(&http, id, "complete", &late).await), (409, "stale_lease".into()));
    let deadline = clock::boot() + Duration::from_secs(10);
    let next = loop {
        assert!(clock::boot() < deadline, "reaped within a second, due again within two");
        let (status, said) = rig.ask(&http, LEASE, b"{\"lane\":\"workload\"}".to_vec()).await;
        if status == 200 {
            break serde_json::from_str::<Leased>(&said).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((next.job.id, next.attempt), (id, 2));
    assert_eq!(code(&rig.on_job(&http, id, "complete", &late).await), (409, "stale_lease".into()));
    assert!(rig.job(id).await.results.is_empty(), "nothing was inserted");
    assert_eq!(rig.on_job(&http, id, "complete", &completion(&next, "succeeded", json!({}))).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_job_says_so_wherever_one_looks_until_it_is_not() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let id = rig.queue("web-1").await;
    let lease = rig.lease(&http).await;
    let mut stuck = completion(&lease, "retryable", json!({}));
    stuck["stuck"] = json!(format!("process 7 does not end, token=abc\n{}", "x".repeat(5_000)));
    for outcome in ["succeeded", "failed"] {
        let mut wrong = completion(&lease, outcome, json!({}));
        wrong["stuck"] = json!("x");
        assert_eq!(code(&rig.on_job(&http, id, "complete", &wrong).await), (400, "invalid".into()));
    }
    let first = rig.on_job(&http, id, "complete", &stuck).await;
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(rig.on_job(&http, id, "complete", &stuck).await, first);
    let shown = rig.job(id).await;
    assert_eq!((shown.job.state.as_str(), shown.job.attempts), ("stuck", 6));
    assert_eq!(shown.job.why.as_deref(), Some("process 7 does not end, token=[redacted]"));
    for told in ["process 7", "restart the machine", "goes on by itself"] {
        assert!(shown.explanation.contains(told), "{}", shown.explanation);
    }
    let attention = async || {
        let (_, said) = rig.operator("GET", "/v1/status", &(), None).await;
        serde_json::from_str::<StatusView>(&said).unwrap().attention.join("\n")
    };
    assert!(attention().await.contains(&format!("job {id} is stuck on node `web-1`: process 7")));
    let listed = async |state: &str| {
        let (_, said) = rig.operator("GET", &format!("/v1/jobs?state={state}"), &(), None).await;
        serde_json::from_str::<Jobs>(&said).unwrap().jobs.len()
    };
    assert_eq!((listed("stuck").await, listed("queued").await), (1, 0));

    let cancelled = rig.operator("POST", &format!("/v1/jobs/{id}/cancel"), &json!({}), None).await;
    assert_eq!(cancelled.0, 200);
    let shown = rig.job(id).await;
    assert!(shown.job.cancelling && shown.job.completed_at.is_none() && shown.explanation.contains("it is over"));
    assert_eq!(rig.operator("POST", &format!("/v1/jobs/{id}/retry"), &json!({}), None).await.0, 200);
    let next = rig.lease(&http).await;
    assert!((next.attempt, next.job.cancelled) == (2, true), "its node is to look, and not to begin it");
    assert!(rig.job(id).await.explanation.contains("told to stop"));
    let done = rig.on_job(&http, id, "complete", &completion(&next, "failed", json!({"stopped": true}))).await;
    assert_eq!(serde_json::from_str::<Recorded>(&done.1).unwrap().status, "cancelled");
    assert!(!attention().await.contains("stuck"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_wanted_any_more_is_told_so_and_ends() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let ask = async |kind: &str| {
        let body = json!({"spec": {"kind": kind}, "on": {"nodes": ["web-1"]}});
        let (status, said) = rig.operator("POST", "/v1/jobs", &body, Some(&idempotency())).await;
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<Jobs>(&said).unwrap().jobs[0].id
    };
    let lease = async || -> Leased {
        let (status, said) = rig.ask(&http, LEASE, b"{\"lane\":\"network\"}".to_vec()).await;
        assert_eq!(status, 200, "{said}");
        assert!(!said.contains("credential_revision"), "it is the first: {said}");
        serde_json::from_str(&said).unwrap()
    };
    let (runs, waits) = (ask("network.ensure").await, ask("network.check").await);
    let first = lease().await;
    assert_eq!((first.job.id, first.job.binding.generation.0), (runs, 0));
    let newer = ask("network.withdraw").await;
    let turned = rig.revision();
    let before = rig.revision();
    let held = json!({"lease_token": first.lease_token});
    let lines = json!({"lease_token": first.lease_token, "lines": ["late"]});
    let done = completion(&first, "succeeded", json!({}));
    for (what, body) in [("heartbeat", &held), ("log", &lines), ("complete", &done)] {
        assert_eq!(code(&rig.on_job(&http, runs, what, body).await), (409, "superseded".into()), "{what}");
    }
    assert_eq!(rig.revision(), before);
    let shown = rig.job(runs).await;
    assert_eq!((shown.job.state.as_str(), shown.job.superseded_by), ("leased", Some(turned)));
    assert!(shown.log.is_empty() && shown.results.is_empty() && shown.explanation.contains("told to stop"));
    let waited = rig.job(waits).await;
    assert_eq!((waited.job.state.as_str(), waited.job.superseded_by), ("superseded", Some(turned)));
    assert!(waited.job.completed_at.is_some());
    // Drained besides, and late with it: it does not wait again for that.
    for (what, body) in [("drain", json!({"deadline_seconds": 0})), ("undrain", json!({}))] {
        let said = rig.operator("POST", &format!("/v1/nodes/web-1/{what}"), &body, None).await;
        assert_eq!(said.0, 200, "{}", said.1);
        assert!(rig.job(runs).await.explanation.starts_with("something newer is wanted"), "{what}");
    }

    let second = lease().await;
    assert_eq!((second.job.id, second.job.binding.generation), (newer, turned));
    let past = clock::boot().saturating_sub(crate::limits::LEASE);
    rig.appliance.authority.soft().leases.grant(runs, first.attempt, past);
    let deadline = clock::boot() + Duration::from_secs(10);
    while rig.job(runs).await.job.state != "superseded" {
        assert!(clock::boot() < deadline, "reaped within a second");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(rig.on_job(&http, newer, "heartbeat", &json!({"lease_token": second.lease_token})).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_a_log_that_is_told_twice_is_kept_once() {
    let rig = Rig::new().await;
    let http = rig.gateway_client(&rig.joined("web-1").await);
    let id = rig.queue("web-1").await;
    let lease = rig.lease(&http).await;
    for (from, lines) in [(0, ["a", "b"]), (0, ["a", "b"]), (1, ["b", "c"])] {
        let lines = json!({"lease_token": lease.lease_token, "from": from, "lines": lines});
        assert_eq!(rig.on_job(&http, id, "log", &lines).await, (204, String::new()));
    }
    let log: Vec<String> = rig.job(id).await.log.into_iter().map(|line| line.line).collect();
    assert_eq!(log, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_can_be_had_again_when_what_it_was_about_is_gone() {
    let rig = Rig::new().await;
    rig.joined("web-1").await;
    let run = json!({"spec": {"kind": "network.check"}, "on": {"nodes": ["web-1"]}});
    let keys = [idempotency(), idempotency()];
    let empty = json!({});
    let drain = || rig.operator("POST", "/v1/nodes/web-1/drain", &empty, Some(&keys[0]));
    let submit = || rig.operator("POST", "/v1/jobs", &run, Some(&keys[1]));
    let first = (drain().await, submit().await);
    assert_eq!((first.0.0, first.1.0), (200, 200));
    let gone = json!({"who": "web-1"});
    let (status, said) = rig.operator("POST", "/v1/admission/revoke", &gone, Some(&idempotency())).await;
    assert_eq!(status, 200, "{said}");
    assert_eq!((drain().await, submit().await), first);
}
