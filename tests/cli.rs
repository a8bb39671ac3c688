//! The binary as scripts see it: exit codes, what is on which stream, documents that parse, and nothing half made.

use holdfast::keys::{ApplianceKeys, NodeKeys};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn holdfast(arguments: &[&str]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "the binary is what is tested")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(arguments).stdin(Stdio::null()).env_remove("HOLDFAST_SOCKET").output().expect("the binary runs")
}

fn home(name: &str) -> (tempfile::TempDir, PathBuf) {
    let outer = tempfile::tempdir().expect("a temporary directory");
    let dir = outer.path().join(name);
    (outer, dir)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is UTF-8")
}

/// The three lines of a failure.
fn error(output: &Output) -> Vec<String> {
    let lines: Vec<String> = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("error[") && lines[0].contains("]: "), "{lines:?}");
    assert!(lines[1].starts_with("why: ") && lines[2].starts_with("todo: "), "{lines:?}");
    assert!(output.stdout.is_empty(), "nothing but a document goes to standard output");
    lines
}

fn document(arguments: &[&str]) -> Value {
    let output = holdfast(arguments);
    let text = out(&output);
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"));
    assert_eq!(document["schema"], 1, "{text}");
    document
}

#[test]
fn every_way_to_fail_has_its_exit_code_and_three_lines() {
    let (_outer, dir) = home("state");
    let none = text(&dir);
    let table: &[(&[&str], i32, &str)] = &[
        (&["nodes"], 2, "error[usage]"),
        (&["node", "add", "Bad_Name"], 2, "error[usage]"),
        (&["node", "ls", "--state"], 2, "error[usage]"),
        (&["fingerprint"], 2, "error[usage]"),
        (&["fingerprint", "--state", none, "--socket", "/x"], 2, "error[usage]"),
        (&["node", "rm", "web"], 2, "error[usage]"),
        (&["node", "ls", "--state", none], 3, "error[unreachable]"),
        (&["service", "publish", "shop/web", "--port", "80", "--state", none], 3, "error[unreachable]"),
        (&["agent", "status", "--state", none], 3, "error[unreachable]"),
        (&["fingerprint", "--state", none], 4, "error[not_set_up]"),
        (&["agent", "identity", "--state", none], 4, "error[not_set_up]"),
        (&["join", "hfj1_AAAA", "--state", none], 1, "error[token_malformed]"),
        (&["join", "tskey-abc", "--state", none], 1, "error[token_malformed]"),
        (&["join", "@/nonexistent", "--state", none], 1, "error[file]"),
    ];
    for (arguments, code, start) in table {
        let output = holdfast(arguments);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}");
        assert!(error(&output)[0].starts_with(start), "{arguments:?}: {:?}", error(&output));
    }
    assert!(!dir.exists(), "nothing of this makes a directory");
}

#[test]
fn a_bad_configuration_is_refused_by_file_line_and_nearest_key() {
    let (outer, _) = home("state");
    let file = outer.path().join("c.toml");
    holdfast::files::replace(&file, b"# mine\nmesh_prefx = \"10.90.0.0/24\"\n").unwrap();
    let output = holdfast(&["config", "check", "--config", text(&file)]);
    assert_eq!(output.status.code(), Some(2));
    let lines = error(&output);
    assert!(lines[1].contains("c.toml:2") && lines[1].contains("`mesh_prefx`") && lines[1].contains("`mesh_prefix`"));
}

#[test]
fn help_and_version_are_documents() {
    assert_eq!(out(&holdfast(&["--version"])), format!("holdfast {}\n", env!("CARGO_PKG_VERSION")));
    for arguments in [&["--help"][..], &["node", "add", "--help"]] {
        let output = holdfast(arguments);
        assert!(output.status.success() && output.stderr.is_empty() && out(&output).contains("Usage: holdfast"));
    }
    assert!(out(&holdfast(&["completions", "bash"])).contains("_holdfast"));
}

#[test]
fn the_fingerprint_is_64_digits_and_nothing_else() {
    let (_outer, dir) = home("state");
    let keys = ApplianceKeys::make(&dir).unwrap();
    assert_eq!(out(&holdfast(&["fingerprint", "--state", text(&dir)])), format!("{}\n", keys.pin()));
    assert_eq!(document(&["-o", "json", "fingerprint", "--state", text(&dir)])["fingerprint"], keys.pin().to_string());
}

#[test]
fn an_identity_is_three_public_halves() {
    let (_outer, dir) = home("node");
    let keys = NodeKeys::make(&dir).unwrap().public();
    let shown = out(&holdfast(&["agent", "identity", "--state", text(&dir)]));
    let expected = format!(
        "signing_key {}\nwireguard_key {}\nsealing_key {}\n",
        keys.signing_key, keys.wireguard_key, keys.sealing_key
    );
    assert_eq!(shown, expected);
    let json = document(&["agent", "identity", "-o", "json", "--state", text(&dir)]);
    assert_eq!(json["sealing_key"], keys.sealing_key.to_string());
}

#[test]
fn the_configuration_is_one_document() {
    let json = document(&["config", "show", "-o", "json", "--listen", "198.51.100.2"]);
    assert_eq!(json["settings"]["listen"], serde_json::json!({ "value": "198.51.100.2", "origin": "--listen" }));
    assert_eq!(document(&["config", "check", "-o", "json", "--node"])["keys_set"], 1);
}
