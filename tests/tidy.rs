//! What a machine can check of the house rules: layers, sizes, file headers, leftovers, clippy bans that bite, licences,
//! and documents that still describe the code. What it cannot check is in `CONTRIBUTING.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Lines of a file before its tests.
const LONGEST: usize = 600;

/// Who may name what. Read: in `folder`, except below `but`, none of `words` may stand; `home` says where it belongs.
struct Layer {
    folder: &'static str,
    but: &'static [&'static str],
    words: &'static [&'static str],
    home: &'static str,
}

const LAYERS: &[Layer] = &[
    Layer {
        folder: "state/src",
        but: &[],
        words: &[
            "tokio",
            "std::thread",
            "std::process",
            "std::env",
            "TcpStream",
            "TcpListener",
            "UdpSocket",
            "UnixStream",
            "SystemTime",
            "Instant",
            "getrandom",
            "OsRng",
            "rustix",
        ],
        home: "the state crate has no runtime, socket, clock or randomness: pass the value in, from src/",
    },
    Layer {
        folder: "state/src",
        but: &["state/src/store"],
        words: &["std::fs", "std::io", "redb"],
        home: "state/src/store is what touches the disk",
    },
    Layer {
        folder: "src",
        but: &["src/cluster"],
        words: &["openraft"],
        home: "src/cluster is the only one that knows of consensus",
    },
    Layer {
        folder: "src/authority",
        but: &[],
        words: &[
            "axum",
            "hyper",
            "tokio",
            "rustls",
            "std::fs",
            "TcpStream",
            "crate::serve",
            "crate::node",
            "crate::cli",
        ],
        home: "src/serve does the talking; the authority only answers, so that a simulator can call it",
    },
    Layer {
        folder: "src/wire",
        but: &[],
        words: &[
            "axum",
            "hyper",
            "tokio",
            "crate::serve",
            "crate::authority",
            "crate::node",
            "crate::cluster",
            "crate::cli",
        ],
        home: "src/wire is formats alone; who sends and who answers is elsewhere",
    },
    Layer {
        folder: "src/node/plan",
        but: &[],
        words: &["tokio", "rtnetlink", "genetlink", "std::fs", "crate::clock", "crate::node::reconcile"],
        home: "a plan is a pure difference; src/node/reconcile observes and applies",
    },
    Layer {
        folder: "src/node",
        but: &[],
        words: &["crate::serve", "crate::authority", "crate::cluster", "openraft"],
        home: "a node knows an appliance by src/wire alone",
    },
    Layer {
        folder: "src/dataplane",
        but: &[],
        words: &["crate::serve", "crate::authority", "crate::cluster", "crate::node::reconcile", "crate::node::run"],
        home: "the data plane outlives the agent and does what it was last told over its socket",
    },
    Layer {
        folder: "src/serve",
        but: &[],
        words: &["crate::node::reconcile", "crate::node::kernel", "crate::cli"],
        home: "the appliance needs no network privilege: its own node is a process of its own",
    },
    Layer {
        folder: "src",
        but: &["src/node/kernel", "src/dataplane/tunnel.rs", "src/lab"],
        words: &["rtnetlink", "genetlink", "\"nft\""],
        home: "src/node/kernel is what speaks netlink and nft; the data plane removes only the interface that it holds",
    },
    Layer {
        folder: "src",
        but: &["src/clock.rs"],
        words: &["SystemTime::now", "clock_gettime"],
        home: "src/clock.rs is the only home of clocks",
    },
    Layer {
        folder: "src",
        but: &["src/entropy.rs"],
        words: &["getrandom"],
        home: "src/entropy.rs is the home of randomness",
    },
    Layer {
        folder: "src",
        but: &["src/cli/output.rs"],
        words: &["println!", "eprintln!", "print!", "eprint!", "io::stdout"],
        home: "src/cli/output.rs is the only printer",
    },
];

#[test]
fn layers_hold() {
    let mut faults = Vec::new();
    for layer in LAYERS {
        for file in rust_files(layer.folder) {
            if layer.but.iter().any(|but| file.starts_with(but)) || is_test_file(&file) {
                continue;
            }
            for (number, line) in code_lines(&read(&file)) {
                for word in layer.words.iter().filter(|word| has_word(line, word)) {
                    faults.push(format!("{}:{number}: `{word}` is out of place: {}", file.display(), layer.home));
                }
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The layer test must be able to fail: a planted line is seen, a comment and a longer word are not.
#[test]
fn a_planted_breach_of_a_layer_is_seen() {
    let planted =
        "//! Head.\nuse std::process::Command; // why\n// std::process in a comment\nlet xstd::processx = 1;\n";
    let seen: Vec<usize> =
        code_lines(planted).filter(|(_, line)| has_word(line, "std::process")).map(|(number, _)| number).collect();
    assert_eq!(seen, [2]);
}

#[test]
fn no_file_is_too_long() {
    let mut faults = Vec::new();
    for file in all_rust_files() {
        let lines = before_tests(&read(&file)).lines().count();
        if lines > LONGEST {
            faults.push(format!("{}: {lines} lines before its tests; split it by subject", file.display()));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<_> = all_rust_files().into_iter().filter(|file| !read(file).starts_with("//! ")).collect();
    assert!(silent.is_empty(), "these files do not open with `//!`: {silent:?}");
}

/// Things meant to be gone before a change lands, and words that mean something only where the code was written. Each
/// is spelt in two halves here so that this file passes its own test.
#[test]
fn nothing_is_left_lying_about() {
    const LEFTOVERS: &[(&str, &str)] = &[
        ("TO", "DO"),
        ("FIX", "ME"),
        ("dbg", "!("),
        ("#[ign", "ore"),
        ("allow(clippy::disal", "lowed"),
        ("/wo", "rk/"),
        ("/sha", "red/"),
        ("../sha", "red"),
        ("spec/", "97"),
        ("issue ", "2"),
        ("issue #", ""),
    ];
    let mut faults = Vec::new();
    for file in all_files() {
        for (number, line) in read(&file).lines().enumerate() {
            for (front, back) in LEFTOVERS {
                if line.contains(&format!("{front}{back}")) && !line.contains(&format!("\"{front}\", \"{back}\"")) {
                    faults.push(format!("{}:{}: {front}{back}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// A path in clippy.toml that names nothing bans nothing, and no flag makes that an error. So each ban is broken once in
/// `tests/bans`, and clippy must name it.
#[test]
fn every_ban_bites() {
    #[expect(clippy::disallowed_methods, reason = "the test runs the linter itself")]
    let output = std::process::Command::new(env!("CARGO"))
        .args(["clippy", "--package", "bans", "--message-format=json", "--", "--cfg", "planted"])
        .current_dir(root())
        .output()
        .expect("cargo clippy runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("does not refer to"), "a ban names nothing:\n{told}");
    let bans = bans("clippy.toml");
    assert!(bans.len() > 10, "clippy.toml was not understood: {bans:?}");
    let blunt: Vec<_> = bans
        .iter()
        .filter(|path| {
            !told.contains(&format!("disallowed method `{path}`"))
                && !told.contains(&format!("disallowed type `{path}`"))
        })
        .collect();
    assert!(blunt.is_empty(), "these bans do not bite (plant a violation of each in tests/bans): {blunt:?}\n{told}");
}

/// A package's own clippy.toml replaces the root's instead of adding to it.
#[test]
fn the_state_crate_has_the_same_bans() {
    let settings = |file: &str| {
        let text = read(Path::new(file));
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(settings("clippy.toml"), settings("state/clippy.toml"));
}

/// Licences that ask for no more than being named.
const FREE: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "WTFPL",
    "Zlib",
];

/// Licences that ask for more, accepted one package at a time: MPL-2.0 binds changes to their own files, and we change
/// none of them.
const ACCEPTED: &[(&str, &str)] = &[("gotatun", "MPL-2.0"), ("imbl", "MPL-2.0+"), ("imbl-sized-chunks", "MPL-2.0+")];

#[test]
fn every_licence_is_accepted() {
    #[expect(clippy::disallowed_methods, reason = "only cargo knows every dependency")]
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 50);
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_free(licence) && !ACCEPTED.contains(&(name, licence)) {
            faults.push(format!("{name}: {licence}"));
        }
    }
    assert!(faults.is_empty(), "licences that nobody has accepted:\n{}", faults.join("\n"));
}

/// Whether an SPDX expression can be met with free licences alone. `AND` binds tighter than `OR`; a slash is an old `OR`.
fn is_free(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    // The one shape with parentheses that is in use: (A OR B) AND C.
    if let Some((inner, rest)) = expression.strip_prefix('(').and_then(|rest| rest.split_once(") AND ")) {
        return is_free(inner) && is_free(rest);
    }
    expression.split(" OR ").any(|choice| choice.split(" AND ").all(|licence| FREE.contains(&licence.trim())))
}

#[test]
fn licence_expressions_are_understood() {
    assert!(is_free("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(is_free("MIT OR Apache-2.0 OR LGPL-2.1-or-later"));
    assert!(is_free("GPL-3.0/MIT"));
    assert!(!is_free("(MIT OR Apache-2.0) AND GPL-3.0"));
    assert!(!is_free("MIT AND GPL-3.0"));
    assert!(!is_free("none"));
}

/// `ARCHITECTURE.md` is the map: every folder and file directly under the two source folders is on it, and every path it
/// names exists.
#[test]
fn the_map_shows_the_land() {
    let map = read(Path::new("ARCHITECTURE.md"));
    let mut faults = Vec::new();
    for folder in ["src", "state/src"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a source folder") {
            let entry = entry.expect("an entry");
            let mut name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                name.push('/');
            }
            if !map.contains(&format!("`{name}`")) {
                faults.push(format!("ARCHITECTURE.md does not name `{name}`"));
            }
        }
    }
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "tests/CHECKED.md"] {
        for path in named_paths(&read(Path::new(document))) {
            if !root().join(&path).exists() {
                faults.push(format!("{document} names `{path}`, which does not exist"));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// What stands in backquotes and begins with one of our folders, without a line number, a test's name or a placeholder.
fn named_paths(text: &str) -> BTreeSet<String> {
    let ours = ["src/", "state/", "tests/", "scripts/", "benches/", "systemd/"];
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|quoted| ours.iter().any(|folder| quoted.starts_with(folder)))
        .map(|quoted| quoted.split([' ', ':']).next().unwrap_or_default().to_owned())
        .filter(|path| !path.contains(['<', '*', '…', '{']) && path.chars().any(|c| c.is_lowercase()))
        .collect()
}

/// The scripts stop at the first failure, can be run, and say what they are for.
#[test]
fn scripts_are_strict() {
    use std::os::unix::fs::PermissionsExt;
    let mut faults = Vec::new();
    for script in ["scripts/setup", "scripts/test", "scripts/demo", "scripts/bench", ".ci/run"] {
        let text = read(Path::new(script));
        let mode = root().join(script).metadata().expect("a script").permissions().mode();
        if mode & 0o111 == 0 {
            faults.push(format!("{script} cannot be run"));
        }
        if !text.starts_with("#!/usr/bin/env bash\n# ") {
            faults.push(format!("{script} does not open with what it is for"));
        }
        if !text.contains("\nset -euo pipefail\n") {
            faults.push(format!("{script} is not strict"));
        }
    }
    let readme = read(Path::new("README.md"));
    for command in ["./scripts/demo", "./scripts/test"] {
        if !readme.contains(&format!("\n{command}\n")) {
            faults.push(format!("README.md does not show {command}"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Every file under a folder of the project, as paths relative to its root.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root()).expect("below the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn rust_files(folder: &str) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn all_rust_files() -> Vec<PathBuf> {
    ["src", "state", "tests", "benches"].into_iter().flat_map(rust_files).collect()
}

/// What people read: code, scripts, documents and settings.
fn all_files() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = ["src", "state", "tests", "benches", "scripts", "systemd", ".ci", ".config"]
        .into_iter()
        .flat_map(files)
        .filter(|file| std::fs::read_to_string(root().join(file)).is_ok())
        .collect();
    all.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Cargo.toml", "clippy.toml"]
            .map(PathBuf::from),
    );
    all
}

/// A file that holds tests only: `tests.rs`, or a folder `tests`, beside the code.
fn is_test_file(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

fn before_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or_default()
}

/// The numbered lines before the tests, without what follows `//`.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = before_tests(text).lines().enumerate();
    lines.map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
}

/// Whether the word stands in the line and is not part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(|c| part(c) && word.ends_with(part))
    })
}

/// The paths banned in a clippy.toml.
fn bans(file: &str) -> Vec<String> {
    let table: toml::Table = read(Path::new(file)).parse().expect("clippy.toml is TOML");
    ["disallowed-methods", "disallowed-types"]
        .into_iter()
        .flat_map(|list| table[list].as_array().expect("a list"))
        .map(|ban| ban["path"].as_str().expect("a path").to_owned())
        .collect()
}
