//! The loopback port.

use super::rig::Rig;
use crate::serve::page::router;
use http::{Request, header};
use tower::ServiceExt;

async fn asked(rig: &Rig, path: &str, host: &str) -> (u16, String, String) {
    let request = Request::get(path).header(header::HOST, host).body(axum::body::Body::empty()).unwrap();
    let answer = router(rig.appliance.clone()).oneshot(request).await.unwrap();
    let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_readiness_and_figures_are_for_this_machine_alone() {
    let rig = Rig::new().await;
    rig.joined("web-1").await;
    let host = "127.0.0.1:4380";
    assert_eq!(asked(&rig, "/health", host).await.0, 200);
    let (status, _, body) = asked(&rig, "/ready", host).await;
    assert!(status == 200 && body.contains("\"ready\""), "{body}");
    for path in ["/health", "/ready", "/metrics"] {
        let (status, _, body) = asked(&rig, path, "evil.example:4380").await;
        assert!(status == 421 && body.contains("\"misdirected\""), "{body}");
    }
    let (status, kind, text) = asked(&rig, "/metrics", host).await;
    assert_eq!((status, kind.starts_with("application/openmetrics-text")), (200, true));
    assert!(text.contains("holdfast_nodes{liveness=\"here\"} 1\n"), "{text}");
    assert!(text.contains("holdfast_refused_total{code=\"misdirected\"} "), "{text}");
    assert!(!text.contains("holdfast_commits_total 0\n") && text.contains("holdfast_store_bytes "), "{text}");
    assert!(text.contains("holdfast_certificate_age_seconds "), "{text}");
    for secret in ["web-1", &rig.appliance.pin.to_string(), "10.90."] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}
