//! Bad input gets an error that names it, and nothing is half made.

use crate::tools::fleet;
use anyhow::Result;
use holdfast::lab::{Answer, Fleet, run};
use std::os::unix::fs::PermissionsExt;

/// The three lines of an error: what with its code, why, what to do.
fn explains(answer: &Answer, codes: &[i32], named: &str) {
    assert!(codes.contains(&answer.code), "{answer:?}");
    assert!(answer.err.contains("error["), "{answer:?}");
    assert!(answer.err.contains(named), "{named} is not named: {answer:?}");
    assert_eq!(answer.out, "", "nothing but a document goes to standard output");
}

fn init(fleet: &Fleet, flags: &[&str]) -> Result<(Answer, std::path::PathBuf)> {
    let state = fleet.lab.folder().join("tried");
    let mut line = fleet.holdfast("box", &["init", "--fleet", "x", "--advertise", "198.51.100.2"]);
    line.args(flags).arg("--recovery-file").arg(fleet.lab.folder().join("tried.recovery"));
    Ok((run(line.arg("--state").arg(&state))?, state))
}

#[test]
fn what_an_operator_mistypes_is_named() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;

    let (answer, state) = init(&fleet, &["--mesh-prefix", "10.90.5.0/16"])?;
    explains(&answer, &[1, 2], "10.90.5.0");
    assert!(!state.exists() && !fleet.lab.folder().join("tried.recovery").exists(), "something was made");

    let file = fleet.lab.folder().join("config.toml");
    holdfast::files::replace(&file, b"# a comment\nmesh_prefx = \"10.90.0.0/24\"\n")?;
    let mut line = fleet.holdfast("box", &["serve", "--config"]);
    let answer = run(line.arg(&file).arg("--state").arg(&state))?;
    explains(&answer, &[1, 2], "mesh_prefx");
    assert!(answer.err.contains("mesh_prefix"), "no nearest key: {answer:?}");
    assert!(answer.err.contains("config.toml:2"), "no file and line: {answer:?}");
    assert!(!state.exists(), "something was made");

    explains(&fleet.operator(&["node", "add", "Bad_Name"])?, &[1, 2], "Bad_Name");
    fleet.operator(&["node", "add", "till"])?.ok()?;
    explains(&fleet.operator(&["node", "add", "till"])?, &[5], "till");
    explains(&fleet.operator(&["node", "show", "nobody"])?, &[4], "nobody");
    assert_eq!(fleet.nodes()?.len(), 1);
    fleet.stop("box")?;
    explains(&fleet.operator(&["node", "ls"])?, &[3], "operator.sock");
    Ok(())
}

#[test]
fn a_full_pool_refuses_and_says_what_would_free_an_address() -> Result<()> {
    let fleet = fleet()?;
    // Five addresses for nodes: .1 is kept for the appliance's own machine.
    fleet.appliance_with("box", 2, &["--mesh-prefix", "10.90.0.0/29"])?;
    fleet.lab.host("a", 10)?;
    let mut refused = None;
    for number in 0..7 {
        let name = format!("n{number}");
        let token = fleet.token(&name, &[])?;
        let mut join = fleet.holdfast("a", &["join", &format!("@{}", token.display())]);
        let answer = run(join.arg("--state").arg(fleet.lab.folder().join(&name)))?;
        if answer.code != 0 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a /29 has no room for seven machines");
    explains(&refused, &[5], "address_pool_exhausted");
    assert!(refused.err.contains("10.90.0.0/29"), "{refused:?}");
    Ok(())
}

#[test]
fn a_key_that_others_can_read_stops_the_start() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    fleet.enrol("a", &["--endpoint", "198.51.100.10:51820"])?;
    fleet.stop("a")?;
    let key = fleet.state("a").join("signing.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640))?;
    explains(&fleet.node("a", &["agent", "run"])?, &[1], "signing.key");
    assert_eq!(key.metadata()?.permissions().mode() & 0o777, 0o640, "it was changed by us");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    fleet.agent("a")?;
    explains(&fleet.node("a", &["agent", "run"])?, &[5], "in use by process");
    Ok(())
}

#[test]
fn a_start_that_cannot_be_says_what_is_in_its_way() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    let other = fleet.lab.folder().join("other");
    let mut line = fleet.holdfast("box", &["serve", "--listen", "198.51.100.2"]);
    explains(&run(line.arg("--state").arg(&other))?, &[5], "198.51.100.2");
    assert!(!other.exists(), "something was made");
    let mut line = fleet.holdfast("box", &["agent", "run"]);
    explains(&run(line.arg("--state").arg(&other))?, &[4], "other");
    assert!(!other.exists(), "something was made");
    Ok(())
}
