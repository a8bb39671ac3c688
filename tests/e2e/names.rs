//! Names: what a node's resolver answers, asked by dig, and what happens to a name that two machines claim.

use crate::tools::{dig, fleet, publish, publish_page, resolves};
use anyhow::Result;
use holdfast::lab::{Fleet, until};
use std::net::Ipv4Addr;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const NAME: &str = "web.shop.internal";

fn two_nodes() -> Result<Fleet> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    for (host, last) in [("a", 10), ("b", 11)] {
        fleet.lab.host(host, last)?;
        fleet.enrol(host, &["--endpoint", &format!("198.51.100.{last}:51820")])?;
    }
    Ok(fleet)
}

fn is_dark(fleet: &Fleet, host: &str) -> bool {
    dig(fleet, host, &[NAME, "A"]).is_ok_and(|answer| answer.out.contains("status: NXDOMAIN"))
}

#[test]
fn a_contested_name_is_dark_until_a_claim_is_withdrawn() -> Result<()> {
    let fleet = two_nodes()?;
    publish_page(&fleet, "a", "shop/web", "a's page")?.ok()?;
    let a = fleet.address("a")?;
    for host in ["a", "b"] {
        until(SOON, "the name of one claim", || resolves(&fleet, host, NAME) == Some(a))?;
    }

    let contested = publish(&fleet, "b", "shop/web")?;
    assert_eq!(contested.code, 0, "{contested:?}");
    assert!(contested.err.contains("contested") && contested.err.contains('a'), "{contested:?}");
    for host in ["a", "b"] {
        until(SOON, &format!("the name is dark on {host}"), || is_dark(&fleet, host))?;
    }

    // Neither side's silence decides for the other. The machine goes dark whole: agent, data plane and all.
    fleet.lab.ip("a", &["link", "set", "eth0", "down"])?;
    until(Duration::from_secs(60), "the appliance misses a", || {
        fleet.nodes().is_ok_and(|nodes| nodes.iter().any(|node| node.last_seen.is_some() && is_out_of_touch(node)))
    })?;
    let held = std::time::Duration::from_secs(5);
    let flipped = until(held, "the name flips", || !is_dark(&fleet, "b"));
    assert!(flipped.is_err(), "the silence of one side gave the name to the other");
    fleet.lab.ip("a", &["link", "set", "eth0", "up"])?;
    until(Duration::from_secs(30), "a is back", || {
        fleet.nodes().is_ok_and(|nodes| nodes.iter().all(|node| !is_out_of_touch(node)))
    })?;
    assert!(is_dark(&fleet, "a") && is_dark(&fleet, "b"), "coming back decides nothing either");

    fleet.node("b", &["service", "withdraw", "shop/web"])?.ok()?;
    for host in ["a", "b"] {
        until(SOON, "the one claim left is answered", || resolves(&fleet, host, NAME) == Some(a))?;
    }
    Ok(())
}

fn is_out_of_touch(node: &holdfast::wire::operator::NodeView) -> bool {
    node.liveness == holdfast::wire::operator::LivenessWord::OutOfTouch
}

#[test]
fn the_resolver_answers_as_the_rfcs_have_it() -> Result<()> {
    let fleet = two_nodes()?;
    publish_page(&fleet, "a", "shop/web", "a's page")?.ok()?;
    let a = fleet.address("a")?;
    until(SOON, "the name on b", || resolves(&fleet, "b", NAME) == Some(a))?;
    let ask = |question: &[&str]| -> Result<String> { Ok(dig(&fleet, "b", question)?.out) };
    let has = |answer: &str, parts: &[&str]| {
        // dig aligns with tabs and spaces; one space each makes the lines comparable.
        let flat = answer.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(flat.contains(part), "no `{part}` in:\n{answer}");
        }
    };
    let [w, x, y, z] = a.octets();
    let reverse = format!("{z}.{y}.{x}.{w}.in-addr.arpa.");

    has(&ask(&[NAME, "A"])?, &["status: NOERROR", " aa ", &format!("{NAME}. 10 IN A {a}")]);
    has(&ask(&["a.internal", "A"])?, &[&format!("a.internal. 10 IN A {a}")]);
    has(&ask(&["b.internal", "A"])?, &[&format!("IN A {}", fleet.address("b")?)]);
    has(&ask(&["_web._tcp.shop.internal", "SRV"])?, &["IN SRV", " 80 "]);
    has(&ask(&["-x", &a.to_string()])?, &[&format!("{reverse} 10 IN PTR a.internal.")]);
    has(&ask(&["appliance.internal", "A"])?, &["IN A 198.51.100.2"]);
    has(&ask(&["internal", "SOA"])?, &["IN SOA appliance.internal."]);
    has(&ask(&["internal", "NS"])?, &["IN NS appliance.internal."]);

    // There is nothing, or nothing of that type: told apart, and both with the SOA and its five seconds.
    for name in ["nobody.internal", "nothing.shop.internal", "a.b.c.internal"] {
        has(&ask(&[name, "A"])?, &["status: NXDOMAIN", "internal. 5 IN SOA appliance.internal."]);
    }
    for (name, kind) in [(NAME, "AAAA"), ("shop.internal", "A"), ("_tcp.shop.internal", "SRV"), ("a.internal", "MX")] {
        has(&ask(&[name, kind])?, &["status: NOERROR", "ANSWER: 0", "5 IN SOA appliance.internal."]);
    }
    has(&ask(&["-x", "10.90.250.250"])?, &["status: NXDOMAIN"]);

    has(&ask(&[NAME, "ANY", "+notcp"])?, &["IN HINFO \"RFC8482\""]);
    has(&ask(&[NAME, "A", "+tcp"])?, &[&format!("IN A {a}"), "(TCP)"]);
    has(&ask(&["WeB.shOp.InTernal", "A"])?, &["WeB.shOp.InTernal. IN A", &format!("IN A {a}")]);
    has(&ask(&[NAME, "A", "+bufsize=4096"])?, &["EDNS: version: 0", "udp: 1232"]);
    has(&ask(&[NAME, "A", "+edns=1", "+noednsneg"])?, &["status: BADVERS"]);
    let plain = ask(&[NAME, "A", "+noedns"])?;
    assert!(!plain.contains("EDNS"), "an answer to a client without EDNS has none:\n{plain}");
    has(&ask(&["example.com", "A"])?, &["status: REFUSED"]);
    let loopback = fleet.lab.run("b", &["dig", "+short", "+time=1", "+tries=1", "@127.0.0.90", NAME])?.ok()?;
    assert_eq!(loopback.trim().parse::<Ipv4Addr>()?, a, "on loopback too");

    publish(&fleet, "b", "shop/web")?.ok()?;
    until(SOON, "the contest on b", || is_dark(&fleet, "b"))?;
    has(&ask(&[NAME, "A"])?, &["EDE: 0 (Other)", "contested"]);
    Ok(())
}
