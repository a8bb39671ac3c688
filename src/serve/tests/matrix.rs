//! Every route of the gateway × everybody who may knock × somebody else's job. A new route does not compile until it is
//! classified here.

use super::jobs::LEASE;
use super::rig::*;
use crate::serve::gateway::Route;
use serde_json::json;
use state::model::JobId;
use std::collections::BTreeSet;

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
            assert!(matches!(said.status().as_u16(), 404 | 405), "{method} {route:?}");
        }
    }
}
