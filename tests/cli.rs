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

/// With what it prints going to a file.
fn printing_to(arguments: &[&str], file: std::fs::File) -> Output {
    #[expect(clippy::disallowed_methods, reason = "the binary is what is tested")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    let child = command.args(arguments).stdin(Stdio::null()).stdout(file).stderr(Stdio::piped()).spawn();
    child.and_then(std::process::Child::wait_with_output).expect("the binary runs")
}

#[test]
fn what_could_not_be_printed_is_no_success_unless_nobody_reads_it() {
    for arguments in [["completions", "bash"].as_slice(), &["--version"], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let output = printing_to(arguments, full);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(error(&output)[0].starts_with("error[output]"), "{arguments:?}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = printing_to(arguments, std::fs::File::from(std::os::fd::OwnedFd::from(writer)));
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
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
        (&["job", "run", "service.check", "--on", "all"], 2, "error[usage]"),
        (&["job", "run", "network.check", "--on", "all", "--tcp", "a:1"], 2, "error[usage]"),
        (&["job", "run", "network.check", "--on", "all", "--on", "web"], 2, "error[usage]"),
        (&["job", "run", "build.module", "--on", "web"], 2, "error[usage]"),
        (&["job", "run", "network.check", "--on", "web", "--source", "/"], 2, "error[usage]"),
        (&["job", "run", "build.module", "--on", "web", "--source", "/nonexistent", "--state", none], 1, "error[file]"),
        (&["job", "run", "shell", "--on", "all"], 2, "error[usage]"),
        (&["explain", "nothing"], 2, "error[usage]"),
        (&["job", "ls", "--state", none], 3, "error[unreachable]"),
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

/// An appliance on loopback, ended and waited for when dropped.
struct Appliance {
    process: std::process::Child,
    dir: PathBuf,
    _outer: tempfile::TempDir,
}

impl Appliance {
    /// Ports from `base` on, so that tests run side by side.
    fn start(base: u16) -> Self {
        let (outer, dir) = home("appliance");
        let recovery = outer.path().join("recovery");
        let init = ["init", "--fleet", "lab", "--advertise", "198.51.100.2", "--recovery-file", text(&recovery)];
        let made = holdfast(&[&init[..], &["--state", text(&dir)]].concat());
        assert!(made.status.success(), "{made:?}");
        let mut flags = vec!["serve".to_owned(), "--listen".into(), "127.0.0.1".into()];
        for (at, port) in ["mesh", "gateway", "cluster", "relay", "page"].iter().enumerate() {
            flags.extend([format!("--ports.{port}"), (usize::from(base) + at).to_string()]);
        }
        #[expect(clippy::disallowed_methods, reason = "the binary is what is tested")]
        let mut serve = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        serve.args(flags).arg("--state").arg(&dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = serve.spawn().expect("the binary runs");
        let appliance = Self { process, dir, _outer: outer };
        let start = holdfast::clock::boot();
        while !appliance.dir.join("ready").exists() {
            assert!((holdfast::clock::boot() - start).as_secs() < 20, "the appliance is not ready");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        appliance
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        holdfast(&[arguments, &["--state", text(&self.dir)]].concat())
    }

    fn document(&self, arguments: &[&str]) -> Value {
        document(&[arguments, &["-o", "json", "--state", text(&self.dir)]].concat())
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

#[test]
fn every_answer_of_an_appliance_is_one_line_or_one_document() {
    let appliance = Appliance::start(21_300);
    let added = appliance.ask(&["node", "add", "web-1", "--site", "one", "--endpoint", "198.51.100.10:51820"]);
    assert!(added.status.success(), "{added:?}");
    let line = out(&added);
    assert!(
        line.starts_with("hfj1_") && line.ends_with('\n') && line.lines().count() == 1,
        "the token and nothing else"
    );
    let Ok(token) = holdfast::wire::token::Token::decode(&line, holdfast::clock::wall()) else {
        panic!("the token is not one");
    };
    assert_eq!(token.purpose, holdfast::wire::token::Purpose::Join(state::model::Name::new("web-1").unwrap()));
    assert_eq!(token.appliances[0].mesh[0].to_string(), "198.51.100.2:21300");
    assert!(out(&appliance.ask(&["node", "token", "web-1"])).starts_with("hfj1_"));
    assert!(out(&appliance.ask(&["admission", "token"])).starts_with("hfa1_"));

    let nodes = appliance.document(&["node", "ls"]);
    let mut keys: Vec<&str> = nodes["nodes"][0].as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut contract = vec![
        "id",
        "name",
        "site",
        "hub",
        "address",
        "address6",
        "endpoint",
        "liveness",
        "last_seen",
        "services",
        "spaces",
        "signing_key",
        "agent_version",
        "declared_revision",
        "held_revision",
    ];
    contract.sort_unstable();
    assert_eq!(keys, contract);
    assert_eq!(nodes["nodes"][0]["liveness"], "never_spoken");
    assert_eq!(appliance.document(&["node", "show", "web-1"])["name"], "web-1");
    assert_eq!(appliance.document(&["node", "pending"])["pending"], serde_json::json!([]));
    assert_eq!(appliance.document(&["mesh", "ls"])["prefix"], "10.90.0.0/16");
    let status = appliance.document(&["status"]);
    assert_eq!(status["fleet"], "lab");
    assert_eq!(status["fingerprint"], appliance.document(&["fingerprint"])["fingerprint"]);
    assert_eq!(appliance.document(&["journal", "verify"])["ok"], true);
    let journal = appliance.document(&["journal", "ls", "--limit", "2"]);
    assert_eq!(journal["changes"].as_array().unwrap().len(), 2);
    assert!(!out(&appliance.ask(&["node", "ls"])).contains('{'), "a table where none asked for JSON");

    let run = ["job", "run", "service.check", "--tcp", "127.0.0.1:22", "--on", "web-1"];
    let id = appliance.document(&run)["jobs"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(appliance.document(&["job", "ls", "--only", "queued"])["jobs"][0]["id"], *id);
    assert!(out(&appliance.ask(&["explain", &id])).contains("node `web-1` has not joined yet"));
    let drained = appliance.document(&["node", "drain", "web-1", "--deadline", "10m"]);
    assert!(drained["drain"]["until"].is_string());
    assert!(appliance.document(&["node", "undrain", "web-1"])["drain"].is_null());
    assert_eq!(appliance.document(&["job", "cancel", &id])["state"], "cancelled");
    assert_eq!(appliance.document(&["job", "retry", &id])["state"], "queued");
    assert_eq!(appliance.document(&["job", "show", &id])["spec"]["probe"]["tcp"], "127.0.0.1:22");

    let second = ["serve", "--listen", "127.0.0.1", "--ports.mesh", "21390", "--ports.page", "21391"];
    let second = [&second[..], &["--ports.gateway", "21392"]].concat();
    for (arguments, code, start) in [
        (&["node", "add", "web-1"][..], 5, "error[held]"),
        (&["node", "show", "nobody"], 4, "error[not_found]"),
        (&["node", "revoke", "nobody"], 4, "error[not_found]"),
        (&["job", "run", "network.check", "--on", "all"], 5, "error[conflict]"),
        (&["job", "run", "network.check", "--on", "nobody"], 4, "error[not_found]"),
        (&["explain", "00000000-0000-0000-0000-000000000001"], 4, "error[not_found]"),
        (&second, 5, "error[in_use]"),
    ] {
        let output = appliance.ask(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(error(&output)[0].starts_with(start), "{arguments:?}");
    }
    let mut removed = appliance.document(&["node", "rm", "web-1", "--yes"]);
    assert_eq!(removed["name"].take(), "web-1");
    assert_eq!(appliance.document(&["node", "ls"])["nodes"], serde_json::json!([]));
}

#[test]
fn sixteen_inits_at_once_found_one_fleet() {
    let (outer, dir) = home("appliance");
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..16)
            .map(|n| {
                let (recovery, dir) = (outer.path().join(format!("recovery-{n}")), &dir);
                scope.spawn(move || {
                    let flags = ["init", "--fleet", "lab", "--recovery-file", text(&recovery), "--state", text(dir)];
                    holdfast(&flags)
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().expect("no panic")).collect()
    });
    let won: Vec<&Output> = outputs.iter().filter(|output| output.status.success()).collect();
    assert_eq!(won.len(), 1, "{outputs:?}");
    let refused = outputs.iter().filter(|output| !output.status.success());
    refused.for_each(|output| assert_eq!(output.status.code(), Some(5), "{output:?}"));
    let pin = holdfast(&["fingerprint", "--state", text(&dir)]);
    assert!(out(won[0]).contains(out(&pin).trim()));
    let recoveries = std::fs::read_dir(outer.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("recovery-"));
    assert_eq!(recoveries.count(), 1, "only the founder's recovery identity opens anything");
}

#[test]
fn a_refused_init_makes_nothing() {
    let (outer, dir) = home("appliance");
    let recovery = outer.path().join("no/such/recovery");
    for flags in [
        &["--fleet", "Lab"][..],
        &["--fleet", "x", "--mesh-prefix", "10.90.5.0/16"],
        &["--fleet", "x", "--mesh-prefix", "127.0.0.0/8", "--advertise", "a b"],
        &["--fleet", "x", "--recovery-file", text(&recovery)],
    ] {
        let output = holdfast(&[&["init", "--state", text(&dir)], flags].concat());
        assert!(matches!(output.status.code(), Some(1 | 2)), "{flags:?}: {output:?}");
        error(&output);
        assert!(!dir.exists(), "{flags:?}");
    }
}

/// Somebody at a terminal has stderr there, which changes how logs look.
#[test]
fn a_terminal_is_served_as_well_as_a_pipe() {
    let line = format!("{} completions bash", env!("CARGO_BIN_EXE_holdfast"));
    #[expect(clippy::disallowed_methods, reason = "a terminal for the binary is what is tested")]
    let mut command = Command::new("script");
    let output = command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().expect("script runs");
    let shown = out(&output);
    assert!(output.status.success() && shown.contains("complete -F"), "{shown}");
    assert!(!shown.contains("ansi"), "{shown}");
}
