//! The keys of what operators and programs read and send, pinned: `-o json` is somebody's script, and the command line of
//! one version asks the appliance of another.
//!
//! A line is a document as some version wrote it. It must be read by this one, and what this one writes of it must have
//! every key with the same value; keys may be added, with a default for documents that lack them. Lines are never altered.

use super::*;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

const DOCUMENTS: &str = include_str!("../../../tests/golden/documents.jsonl");

#[derive(Deserialize)]
struct Line {
    document: String,
    is: Value,
}

/// What `made` lacks of `held`, or says differently.
fn missing(held: &Value, made: &Value, at: &str) -> Vec<String> {
    match (held, made) {
        (Value::Object(held), Value::Object(made)) => held
            .iter()
            .flat_map(|(key, value)| {
                let at = format!("{at}.{key}");
                made.get(key).map_or_else(|| vec![at.clone()], |made| missing(value, made, &at))
            })
            .collect(),
        (Value::Array(held), Value::Array(made)) if held.len() == made.len() => {
            held.iter().zip(made).flat_map(|(held, made)| missing(held, made, at)).collect()
        }
        (held, made) if held == made => Vec::new(),
        (held, made) => vec![format!("{at}: {held} has become {made}")],
    }
}

fn again<T: Serialize + DeserializeOwned>(line: &Line) -> Vec<String> {
    let read: T = serde_json::from_value(line.is.clone()).unwrap_or_else(|error| panic!("{}: {error}", line.document));
    missing(&line.is, &serde_json::to_value(&read).unwrap(), &line.document)
}

fn lines() -> Vec<Line> {
    DOCUMENTS.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn documents_keep_their_keys() {
    for line in lines() {
        let missing = match line.document.as_str() {
            "add_node" => again::<AddNode>(&line),
            "mint_token" => again::<MintToken>(&line),
            "replace_node" => again::<ReplaceNode>(&line),
            "admit" => again::<Admit>(&line),
            "revoke" => again::<Revoke>(&line),
            "drain_node" => again::<DrainNode>(&line),
            "run_job" => again::<RunJob>(&line),
            "stored_source" => again::<StoredSource>(&line),
            "nothing" => again::<Nothing>(&line),
            "publish" => again::<Publish>(&line),
            "minted" => again::<Minted>(&line),
            "removed" => again::<Removed>(&line),
            "nodes" => again::<Nodes>(&line),
            "pending" => again::<Pending>(&line),
            "mesh" => again::<MeshView>(&line),
            "status" => again::<StatusView>(&line),
            "journal" => again::<JournalPage>(&line),
            "journal_verify" => again::<JournalCheck>(&line),
            "jobs" => again::<Jobs>(&line),
            "job" => again::<JobDetail>(&line),
            "published" => again::<Published>(&line),
            "done" => again::<Done>(&line),
            "plan" => again::<PlanView>(&line),
            "agent" => again::<AgentView>(&line),
            other => panic!("{other} is not tested"),
        };
        assert_eq!(missing, Vec::<String>::new());
    }
}

#[test]
fn a_key_that_goes_is_noticed() {
    let held = serde_json::json!({ "a": [{ "b": 1, "c": null }] });
    assert_eq!(missing(&held, &serde_json::json!({ "a": [{ "b": 2 }] }), ""), [".a.b: 1 has become 2", ".a.c"]);
    assert_eq!(missing(&held, &serde_json::json!({ "a": [{ "b": 1, "c": null, "d": 1 }] }), ""), [""; 0]);
}

/// What scripts rely on, as the manual lists it.
#[test]
fn a_node_has_the_keys_of_the_manual_and_every_shown_document_its_schema() {
    let keys = "id name site hub address address6 endpoint liveness last_seen services spaces signing_key agent_version \
                declared_revision held_revision";
    let keys: BTreeSet<&str> = keys.split_whitespace().collect();
    for line in lines().iter().filter(|line| line.document == "nodes") {
        for node in line.is["nodes"].as_array().unwrap() {
            let found: BTreeSet<&str> = node.as_object().unwrap().keys().map(String::as_str).collect();
            assert!(found.is_superset(&keys), "{keys:?} {found:?}");
        }
    }
    let shown = ["nodes", "pending", "mesh", "status", "journal", "jobs", "job", "published", "done", "plan", "agent"];
    for line in lines().iter().filter(|line| shown.contains(&line.document.as_str())) {
        assert_eq!(line.is["schema"], SCHEMA, "{}", line.document);
    }
}
