//! The source of a build, over mutual TLS: who is sent it, who is not, and what bounds the sending.

use super::jobs::LEASE;
use super::rig::*;
use crate::serve::appliance::Change;
use crate::serve::sources::{self, Sources};
use crate::wire::jobs::{HEADER_SOURCE_ARTIFACT, HEADER_SOURCE_SHA256, HEADER_SOURCE_SNAPSHOT, Leased, MEDIA_SOURCE};
use crate::wire::operator::{JobDetail, Jobs, StoredSource};
use crate::{clock, entropy, files, limits, source, tasks};
use axum::body::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};
use state::model::{JobId, Millis};
use state::subject::jobs;
use state::subject::sources::{Command, Source};
use state::{Actor, Role};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const ABLE: &str = r#"{"lane":"workload","capabilities":{"build":"present"}}"#;
const UNABLE: &str = r#"{"lane":"workload","capabilities":{"build":"absent"}}"#;

/// An archive of about so many bytes.
fn noise(length: u64) -> Vec<u8> {
    let random = std::fs::File::open("/dev/urandom").unwrap().take(length);
    zstd::encode_all(random, 1).unwrap()
}

async fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = clock::boot() + Duration::from_secs(20);
    while !holds() {
        assert!(clock::boot() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A build, leased to a node that can.
struct Building {
    http: reqwest::Client,
    job: JobId,
    token: String,
}

impl Rig {
    async fn hand_over(&self, archive: Vec<u8>) -> Source {
        let (status, said) = self.upload("/v1/sources", archive).await;
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<StoredSource>(&said).unwrap().source
    }

    async fn queue_build(&self, node: &str, source: &Source) -> Said {
        let body = json!({"spec": {"kind": "build.module", "source": source}, "on": {"nodes": [node]}});
        self.operator("POST", "/v1/jobs", &body, None).await
    }

    async fn building(&self, node: &str, source: &Source) -> Building {
        let http = self.gateway_client(&self.joined(node).await);
        let (status, said) = self.queue_build(node, source).await;
        assert_eq!(status, 200, "{said}");
        let job = serde_json::from_str::<Jobs>(&said).unwrap().jobs[0].id;
        let (status, said) = self.ask(&http, LEASE, ABLE.into()).await;
        assert_eq!(status, 200, "{said}");
        let leased: Leased = serde_json::from_str(&said).unwrap();
        assert_eq!((leased.job.id, leased.job.kind.as_str()), (job, "build.module"));
        Building { http, job, token: leased.lease_token }
    }

    fn stored(&self, source: &Source) -> PathBuf {
        self.state_dir().join("sources").join(source.sha256.to_string())
    }

    fn free(&self) -> usize {
        self.appliance.sources.free()
    }
}

impl Building {
    fn request(&self, rig: &Rig) -> reqwest::RequestBuilder {
        let url = format!("https://appliance.test:{}/v1/agent/jobs/{}/source", rig.gateway.port(), self.job);
        self.http.post(url).body(json!({"lease_token": self.token}).to_string())
    }

    async fn fetch(&self, rig: &Rig) -> Said {
        let response = self.request(rig).send().await.unwrap();
        if response.status() == 503 {
            assert_eq!(response.headers()["retry-after"], "1");
        }
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn say(&self, rig: &Rig, what: &str, body: serde_json::Value) -> Said {
        rig.ask(&self.http, &format!("/v1/agent/jobs/{}/{what}", self.job), body.to_string().into_bytes()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_is_sent_its_source_and_nobody_else_is() {
    let rig = Rig::new().await;
    let dir = tempfile::tempdir().unwrap();
    files::replace(&dir.path().join("module.toml"), b"name = 'zsh'\n").unwrap();
    let archive = source::archive(dir.path()).unwrap();
    let held = rig.hand_over(archive.clone()).await;
    assert_eq!(rig.hand_over(source::archive(dir.path()).unwrap()).await, held, "the same source, the same id");
    assert_eq!(held.sha256.as_bytes(), Sha256::digest(&archive).as_slice());
    let mode = std::fs::metadata(rig.stored(&held)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);

    let unable = rig.gateway_client(&rig.joined("web-0").await);
    assert_eq!(rig.ask(&unable, LEASE, UNABLE.into()).await.0, 204);
    let (_, said) = rig.queue_build("web-0", &held).await;
    let waiting = serde_json::from_str::<Jobs>(&said).unwrap().jobs[0].id;
    assert_eq!(rig.ask(&unable, LEASE, UNABLE.into()).await.0, 204, "it cannot");
    let (_, said) = rig.operator("GET", &format!("/v1/jobs/{waiting}"), &(), None).await;
    let why = serde_json::from_str::<JobDetail>(&said).unwrap().explanation;
    assert!(why.contains("does not report the capability `build`"), "{why}");

    let build = rig.building("web-1", &held).await;
    for _ in 0..2 {
        let response = build.request(&rig).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), MEDIA_SOURCE);
        assert_eq!(header("content-length"), archive.len().to_string());
        assert_eq!(header(HEADER_SOURCE_SHA256), held.sha256.to_string());
        assert_eq!(header(HEADER_SOURCE_SNAPSHOT), held.snapshot.to_string());
        assert_eq!(header(HEADER_SOURCE_ARTIFACT), held.artifact.to_string());
        assert_eq!(response.bytes().await.unwrap(), archive);
    }
    soon("the slots are free", || rig.free() == 2).await;

    let mut refused = std::collections::BTreeSet::new();
    let other = rig.building("web-2", &held).await;
    let of_another = Building { job: build.job, token: build.token.clone(), http: other.http.clone() };
    refused.insert(of_another.fetch(&rig).await);
    refused.insert(Building { job: JobId(uuid::Uuid::nil()), ..of_another }.fetch(&rig).await);
    // The lease of a job of another kind.
    let http = rig.gateway_client(&rig.joined("web-3").await);
    let job = rig.queue("web-3").await;
    let token = rig.lease(&http).await.lease_token;
    assert_eq!(rig.ask(&http, LEASE, ABLE.into()).await.0, 204);
    refused.insert(Building { http, job, token }.fetch(&rig).await);
    // It could, and does no longer.
    assert_eq!(rig.ask(&build.http, LEASE, UNABLE.into()).await.0, 204);
    refused.insert(build.fetch(&rig).await);
    assert_eq!(refused.len(), 1, "byte for byte the same: {refused:?}");
    assert_eq!(code(refused.first().unwrap()), (404, "not_found".into()));
    assert_eq!(rig.ask(&build.http, LEASE, ABLE.into()).await.0, 204);
    assert_eq!(build.request(&rig).send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_held_is_not_built_and_what_is_no_archive_is_not_held() {
    let rig = Rig::new().await;
    rig.joined("web-1").await;
    let held = rig.hand_over(noise(100)).await;
    for wrong in [Source { length: 1, ..held }, Source { artifact: state::model::ArtifactId(entropy::uuid()), ..held }]
    {
        let said = rig.queue_build("web-1", &wrong).await;
        assert_eq!(code(&said), (404, "not_found".into()), "{wrong:?}");
    }
    for bad in [b"no archive".to_vec(), noise(100)[..50].to_vec(), Vec::new()] {
        assert_eq!(code(&rig.upload("/v1/sources", bad).await), (400, "invalid".into()));
    }
    let said = rig.upload("/v1/sources", vec![0; limits::SOURCE + 1]).await;
    assert_eq!(code(&said), (413, "too_large".into()));
    assert_eq!(files::names(&rig.state_dir().join("sources")).unwrap(), [held.sha256.to_string()]);
    std::fs::set_permissions(rig.stored(&held), std::fs::Permissions::from_mode(0o640)).unwrap();
    let archive = std::fs::read(rig.stored(&held)).unwrap();
    assert_eq!(code(&rig.upload("/v1/sources", archive).await), (500, "source_damaged".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_not_current_is_sent_nothing() {
    let rig = Rig::new().await;
    let held = rig.hand_over(noise(100)).await;
    let stale = (409, "stale_lease".to_owned());
    let build = rig.building("web-1", &held).await;
    let other_token = Building { token: "ab".repeat(32), http: build.http.clone(), job: build.job };
    assert_eq!(code(&other_token.fetch(&rig).await), stale);
    assert_eq!(code(&Building { token: "ab".into(), ..other_token }.fetch(&rig).await), (400, "invalid".into()));
    let done = json!({"lease_token": build.token, "attempt": 1, "outcome": "succeeded", "result": {}});
    assert_eq!(build.say(&rig, "complete", done).await.0, 200);
    assert_eq!(code(&build.fetch(&rig).await), stale);

    let build = rig.building("web-2", &held).await;
    let cancelled = rig.operator("POST", &format!("/v1/jobs/{}/cancel", build.job), &json!({}), None).await;
    assert_eq!(cancelled.0, 200);
    assert_eq!(code(&build.fetch(&rig).await), (409, "cancelled".into()));

    let build = rig.building("web-3", &held).await;
    let past = clock::boot().saturating_sub(limits::LEASE);
    rig.appliance.authority.soft().leases.grant(build.job, 1, past);
    assert_eq!(code(&build.fetch(&rig).await), stale);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_delivery_is_off_every_build_is_told_so_and_others_are_told_nothing() {
    let rig = Rig::with_sources(|state| Sources::open(state, 0).unwrap()).await;
    let held = rig.hand_over(noise(100)).await;
    let build = rig.building("web-1", &held).await;
    let other = rig.building("web-2", &held).await;
    assert_eq!(code(&build.fetch(&rig).await), (503, "source_off".into()));
    assert_eq!(code(&Building { http: other.http, ..build }.fetch(&rig).await), (404, "not_found".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_source_that_is_not_as_it_was_is_not_sent() {
    let rig = Rig::new().await;
    let archive = noise(100_000);
    let held = rig.hand_over(archive.clone()).await;
    let build = rig.building("web-1", &held).await;
    let file = rig.stored(&held);
    let aside = rig.state_dir().join("aside");
    let put = |bytes: &[u8]| files::replace(&file, bytes).unwrap();
    let mut flipped = archive.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let longer = [archive.as_slice(), b"x"].concat();
    let damages: [(&str, &dyn Fn()); 8] = [
        ("missing", &|| std::fs::remove_file(&file).unwrap()),
        ("truncated", &|| put(&archive[..archive.len() - 1])),
        ("longer", &|| put(&longer)),
        ("other bytes", &|| put(&flipped)),
        ("read by others", &|| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap()),
        ("another name", &|| std::fs::hard_link(&file, &aside).unwrap()),
        ("a link", &|| {
            std::fs::rename(&file, &aside).unwrap();
            symlink(&aside, &file).unwrap();
        }),
        ("no file", &|| {
            std::fs::remove_file(&file).unwrap();
            std::fs::create_dir(&file).unwrap();
        }),
    ];
    for (what, damage) in damages {
        damage();
        let response = build.request(&rig).send().await.unwrap();
        assert_eq!(response.status(), 500, "{what}");
        assert!(response.headers().get(HEADER_SOURCE_SHA256).is_none(), "{what}");
        let said = (500, response.text().await.unwrap());
        assert_eq!(code(&said), (500, "source_damaged".into()), "{what}");
        assert!(!said.1.contains("sources/"), "a node is not told where: {}", said.1);
        let _ = std::fs::remove_dir(&file);
        files::remove(&file).unwrap();
        files::remove(&aside).unwrap();
        put(&archive);
        assert_eq!(build.request(&rig).send().await.unwrap().bytes().await.unwrap(), archive, "{what}: whole again");
    }
    soon("the slots are free", || rig.free() == 2).await;
}

/// A runtime with one thread for blocking work: while that is taken, whatever is to be read waits.
fn held_up<F: Future<Output = ()>>(test: impl FnOnce(Arc<Rig>) -> F) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { test(Arc::new(Rig::new().await)).await });
}

/// Has the thread for blocking work. Dropped to let the reads go on.
struct HeldUp(#[expect(dead_code, reason = "held until it is dropped")] std::sync::mpsc::Sender<()>);

impl HeldUp {
    async fn new() -> Self {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let taken = move || begun.send(()).is_ok() && receiver.recv().is_ok();
        drop(tasks::spawn("held up", tasks::blocking(taken)));
        begins.await.unwrap();
        Self(sender)
    }
}

#[test]
fn who_may_no_longer_have_it_when_it_has_been_read_is_sent_nothing() {
    held_up(|rig| async move {
        let held = rig.hand_over(noise(100)).await;
        for (node, wanted) in
            [("web-1", (401, "certificate_refused")), ("web-2", (409, "cancelled")), ("web-3", (409, "stale_lease"))]
        {
            let build = rig.building(node, &held).await;
            let job = build.job;
            let holding = HeldUp::new().await;
            let fetching = tasks::spawn("fetch", {
                let rig = rig.clone();
                async move { build.fetch(&rig).await }
            });
            soon("it has a slot, and waits for its bytes", || rig.free() == 1).await;
            match node {
                "web-1" => {
                    let said = rig.operator("POST", "/v1/admission/revoke", &json!({"who": node}), None).await;
                    assert_eq!(said.0, 200, "{}", said.1);
                }
                "web-2" => {
                    // Not by the operator socket, whose answer has the job's results: they are read as the archive is.
                    let cancel = jobs::Command::Cancel { job };
                    let change = Change::new(cancel, Actor::Appliance, Role::Admin, None, Bytes::new());
                    rig.appliance.change(change, |_| Ok(crate::serve::http::nothing())).await.unwrap();
                }
                _ => {
                    let past = clock::boot().saturating_sub(limits::LEASE);
                    rig.appliance.authority.soft().leases.grant(job, 1, past);
                }
            }
            assert!(!fetching.is_finished());
            drop(holding);
            let said = fetching.await.unwrap().unwrap();
            assert_eq!(code(&said), (wanted.0, wanted.1.to_owned()), "{node}");
            soon("the slot is free", || rig.free() == 2).await;
        }
    });
}

#[test]
fn a_slot_is_held_until_the_read_is_over_also_for_who_hung_up() {
    held_up(|rig| async move {
        let held = rig.hand_over(noise(100)).await;
        let build = rig.building("web-1", &held).await;
        let holding = HeldUp::new().await;
        let fetching = [(); 2].map(|()| {
            let request = build.request(&rig);
            tasks::spawn("fetch", async move { request.send().await.unwrap().status() })
        });
        soon("both slots are taken", || rig.free() == 0).await;
        assert_eq!(code(&build.fetch(&rig).await), (503, "busy".into()));
        fetching.iter().for_each(|fetch| fetch.abort());
        for fetch in fetching {
            assert!(fetch.await.unwrap_err().is_cancelled(), "it hung up without an answer");
        }
        assert_eq!(code(&build.fetch(&rig).await), (503, "busy".into()), "their reads are not over");
        assert_eq!(rig.free(), 0);
        drop(holding);
        soon("the slots are free", || rig.free() == 2).await;
        assert_eq!(build.fetch(&rig).await.0, 200);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_held_until_the_body_is_over() {
    let rig = Rig::with_sources(|state| Sources::open(state, 1).unwrap()).await;
    // More than the buffers on the way hold.
    let held = rig.hand_over(noise(24 << 20)).await;
    let build = rig.building("web-1", &held).await;
    let idle = build.request(&rig).send().await.unwrap();
    assert_eq!((idle.status().as_u16(), rig.free()), (200, 0));
    assert_eq!(code(&build.fetch(&rig).await), (503, "busy".into()));
    drop(idle);
    soon("who hangs up gives its slot back", || rig.free() == 1).await;
    assert_eq!(build.request(&rig).send().await.unwrap().bytes().await.unwrap().len() as u64, held.length);
    soon("who has it all gives its slot back", || rig.free() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_take_its_source_in_time_is_cut_off() {
    let deadline = Duration::from_secs(2);
    let rig = Rig::with_sources(|state| Sources::open(state, 1).unwrap().with_deadline(deadline)).await;
    let held = rig.hand_over(noise(24 << 20)).await;
    let build = rig.building("web-1", &held).await;
    let mut dribbling = build.request(&rig).send().await.unwrap();
    let begun = clock::boot();
    let mut taken = 0;
    let ended = loop {
        match dribbling.chunk().await {
            Ok(Some(chunk)) => taken += chunk.len(),
            ended => break ended,
        }
        assert!(clock::boot() - begun < deadline * 10, "{taken} bytes taken");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(ended.is_err(), "cut off, not complete: {taken} bytes");
    soon("its slot is free", || rig.free() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_build_needs_any_more_is_removed_and_what_is_not_held_too() {
    let rig = Rig::new().await;
    let (needed, idle) = (rig.hand_over(noise(100)).await, rig.hand_over(noise(100)).await);
    let build = rig.building("web-1", &needed).await;
    files::replace(&rig.state_dir().join("sources/left"), b"by a kill").unwrap();
    let names = || files::names(&rig.state_dir().join("sources")).unwrap().len();
    assert_eq!(names(), 3);
    sources::care(&rig.appliance).await;
    assert_eq!(names(), 2, "kept for a day");
    let collect = Command::Collect { before: Millis(u64::MAX) };
    let change = Change::new(collect, Actor::Appliance, Role::System, None, Bytes::new());
    rig.appliance.change(change, |_| Ok(crate::serve::http::nothing())).await.unwrap();
    sources::care(&rig.appliance).await;
    assert_eq!(names(), 1);
    assert!(!rig.stored(&idle).exists());
    assert_eq!(code(&rig.queue_build("web-1", &idle).await), (404, "not_found".into()));
    assert_eq!(build.fetch(&rig).await.0, 200);
}
