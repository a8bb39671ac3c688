//! The source of a build, from an operator's directory to the node that holds the lease: handed over by the command line,
//! fetched from the gateway with the certificate and key that lie in a node's own directory, by no client of ours.

use crate::tools::fleet;
use anyhow::{Context, Result, ensure};
use holdfast::lab::{Fleet, until};
use holdfast::wire::operator::{JobDetail, Jobs};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const ABLE: &str = r#"{"lane":"workload","capabilities":{"build":"present"}}"#;

/// A status with headers and a body.
struct Said {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// What curl is told by the gateway, as a host's node.
fn ask(fleet: &Fleet, host: &str, path: &str, body: &str) -> Result<Said> {
    let (state, out) = (fleet.state(host), fleet.lab.folder().join(format!("{host}.out")));
    let file = |name: &str| state.join(name).display().to_string();
    let url = format!("https://198.51.100.2:4301{path}");
    let (cert, key, out_text) = (file("client.crt"), file("client.key"), out.display().to_string());
    let with = ["--cert", &cert, "--key", &key, "--data-binary", body, "-o", &out_text, &url];
    let head = fleet.lab.run(host, &[&["curl", "-sk", "-m20", "-D", "-"][..], &with].concat())?.ok()?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?.parse()?;
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let body = if out.exists() { std::fs::read(&out)? } else { Vec::new() };
    holdfast::files::remove(&out)?;
    Ok(Said { status, headers: lines.filter_map(header).collect(), body })
}

fn put(dir: &Path, name: &str, text: &str) -> Result<()> {
    let file = dir.join(name);
    std::fs::create_dir_all(file.parent().context("a folder")?)?;
    Ok(holdfast::files::replace(&file, text.as_bytes())?)
}

/// A directory that is built from.
fn source(fleet: &Fleet, name: &str) -> Result<PathBuf> {
    let dir = fleet.lab.folder().join(name);
    put(&dir, "module.toml", "name = \"zsh\"\n")?;
    put(&dir, "src/main.c", "int main(void) { return 0; }\n")?;
    put(&dir, ".git/config", "url = https://me:secret@example.org\n")?;
    Ok(dir)
}

fn run(fleet: &Fleet, node: &str, dir: &Path) -> Result<Jobs> {
    let dir = dir.display().to_string();
    let line = ["job", "run", "build.module", "--on", node, "--source", &dir, "-o", "json"];
    Ok(serde_json::from_str(&fleet.operator(&line)?.ok()?)?)
}

#[test]
fn a_builder_fetches_what_it_is_to_build_with_its_own_certificate() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    for (node, last) in [("a", 10), ("b", 11)] {
        fleet.lab.host(node, last)?;
        fleet.enrol(node, &[])?;
    }
    let dir = source(&fleet, "one")?;
    let queued = run(&fleet, "a", &dir)?;
    let id = queued.jobs[0].id.to_string();
    until(SOON, "it is said that the agent cannot build", || {
        let explained = fleet.operator(&["explain", &id]);
        explained.is_ok_and(|said| said.out.contains("does not report the capability `build`"))
    })?;
    // From here on, the agents' places are taken by something that could build.
    fleet.stop("a")?;
    fleet.stop("b")?;
    let leased = ask(&fleet, "a", "/v1/agent/lease", ABLE)?;
    ensure!(leased.status == 200, "{}: {}", leased.status, String::from_utf8_lossy(&leased.body));
    let lease: Value = serde_json::from_slice(&leased.body)?;
    assert_eq!(lease["job"]["id"], *id);
    let token = json!({ "lease_token": lease["lease_token"] }).to_string();
    let path = format!("/v1/agent/jobs/{id}/source");

    let sent = ask(&fleet, "a", &path, &token)?;
    assert_eq!((sent.status, &*sent.headers["content-type"]), (200, "application/vnd.holdfast.source+tar.zstd"));
    assert_eq!(sent.headers["content-length"], sent.body.len().to_string());
    assert_eq!(sent.headers["holdfast-source-sha256"], hex::encode(Sha256::digest(&sent.body)));
    let source_of_job = &lease["job"]["spec"]["source"];
    assert_eq!(source_of_job["snapshot"], sent.headers["holdfast-source-snapshot"]);
    assert_eq!(source_of_job["artifact"], sent.headers["holdfast-source-artifact-id"]);
    let tar = zstd::decode_all(sent.body.as_slice())?;
    assert_eq!(sent.headers["holdfast-source-snapshot"], hex::encode(Sha256::digest(&tar)));
    let mut archive = tar::Archive::new(tar.as_slice());
    let names = archive.entries()?.map(|entry| Ok(entry?.path()?.display().to_string()));
    assert_eq!(names.collect::<Result<Vec<_>>>()?, ["module.toml", "src", "src/main.c"]);

    let other = ask(&fleet, "b", "/v1/agent/lease", ABLE)?;
    assert_eq!(other.status, 204);
    let of_another = ask(&fleet, "b", &path, &token)?;
    let of_nobody = ask(&fleet, "b", "/v1/agent/jobs/00000000-0000-0000-0000-000000000001/source", &token)?;
    assert_eq!((of_another.status, of_another.body), (404, of_nobody.body));

    // The same source again, made elsewhere, is the same snapshot under the same id.
    let again = run(&fleet, "a", &source(&fleet, "two")?)?;
    assert_eq!(serde_json::to_value(&again.jobs[0].spec)?["source"], *source_of_job);
    let stored = std::fs::read_dir(fleet.state("box").join("sources"))?.count();
    assert_eq!(stored, 1);

    let done = json!({ "lease_token": lease["lease_token"], "attempt": 1, "outcome": "succeeded", "result": {} });
    let done = ask(&fleet, "a", &format!("/v1/agent/jobs/{id}/complete"), &done.to_string())?;
    assert_eq!(done.status, 200);
    assert_eq!(ask(&fleet, "a", &path, &token)?.status, 409);
    let shown: JobDetail = serde_json::from_str(&fleet.operator(&["job", "show", &id, "-o", "json"])?.ok()?)?;
    assert_eq!(shown.job.state, "succeeded");

    fleet.stop("box")?;
    fleet.serve_with(&["--source-slots", "0"])?;
    let leased = ask(&fleet, "a", "/v1/agent/lease", ABLE)?;
    let lease: Value = serde_json::from_slice(&leased.body)?;
    let path = format!("/v1/agent/jobs/{}/source", lease["job"]["id"].as_str().context("a job")?);
    let off = ask(&fleet, "a", &path, &json!({ "lease_token": lease["lease_token"] }).to_string())?;
    assert_eq!((off.status, &*off.headers["retry-after"]), (503, "1"));
    Ok(())
}

#[test]
fn a_directory_that_leads_out_is_handed_to_nobody() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    fleet.enrol("a", &[])?;
    let dir = source(&fleet, "one")?;
    std::os::unix::fs::symlink("/etc/shadow", dir.join("src/shadow"))?;
    let text = dir.display().to_string();
    let refused = fleet.operator(&["job", "run", "build.module", "--on", "a", "--source", &text])?;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("src/shadow: is a link that leads out of the directory"), "{refused:?}");
    assert_eq!(std::fs::read_dir(fleet.state("box").join("sources"))?.count(), 0);
    let jobs: Jobs = serde_json::from_str(&fleet.operator(&["job", "ls", "-o", "json"])?.ok()?)?;
    assert_eq!(jobs.jobs, []);
    Ok(())
}
