//! The kernel is left alone: by a second apply, by changes that concern others, and where something is not ours.

use crate::tools::{Ping, dig, fleet, page, peers, pings, publish_page};
use anyhow::{Context, Result};
use holdfast::lab::{Fleet, until};
use holdfast::wire::operator::PlanView;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
/// What something else changes is put right within this.
const REPAIR: Duration = Duration::from_secs(5);
/// Machines that come and go.
const CROWD: usize = 50;

fn two_nodes() -> Result<Fleet> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    for (host, last) in [("a", 10), ("b", 11)] {
        fleet.lab.host(host, last)?;
        fleet.enrol(host, &["--endpoint", &format!("198.51.100.{last}:51820")])?;
    }
    let b = fleet.address("b")?;
    until(SOON, "a reaches b", || pings(&fleet.lab, "a", b))?;
    Ok(fleet)
}

#[test]
fn a_second_apply_sends_nothing() -> Result<()> {
    let fleet = two_nodes()?;
    publish_page(&fleet, "a", "shop/web", "a page")?.ok()?;
    until(SOON, "the page on b", || page(&fleet.lab, "b", "web.shop.internal").is_some())?;
    let plan = || -> Result<PlanView> {
        let shown = fleet.node("a", &["agent", "plan", "-o", "json"])?.ok()?;
        serde_json::from_str(&shown).with_context(|| format!("reading {shown}"))
    };
    until(SOON, "nothing is left to do", || plan().is_ok_and(|plan| plan.steps.is_empty()))?;

    let settled = || fleet.lab.run("a", &["ip", "-6", "address", "show", "tentative"]).is_ok_and(|a| a.out.is_empty());
    until(SOON, "the lab's own addresses are settled", settled)?;

    // Three refreshes under the eyes of the kernel's own monitors.
    let mut links = fleet.lab.command("a", "ip");
    let links = fleet.lab.start("a.ip-monitor.log", links.args(["monitor", "link", "address", "route", "rule"]))?;
    let rules = fleet.lab.start("a.nft-monitor.log", fleet.lab.command("a", "nft").arg("monitor"))?;
    std::thread::sleep(Duration::from_secs(1));
    fleet.stop("a")?;
    fleet.agent("a")?;
    std::thread::sleep(Duration::from_secs(14));
    for (pid, log) in [(links, "a.ip-monitor.log"), (rules, "a.nft-monitor.log")] {
        drop(fleet.lab.take(pid).context("the monitor was just started")?);
        let seen = std::fs::read_to_string(fleet.lab.folder().join(log))?;
        assert_eq!(seen, "", "{log}: the kernel was told something");
    }

    // The monitors do see what is sent: the check above proves something.
    let links = fleet.lab.start("seen.log", fleet.lab.command("a", "ip").args(["monitor", "link", "address"]))?;
    std::thread::sleep(Duration::from_millis(500));
    // Ten times, because now and then the former device still has the port when the next one asks for it.
    for _ in 0..10 {
        fleet.lab.ip("a", &["link", "del", "hf0"])?;
        until(REPAIR, "a is repaired", || {
            fleet.address("b").is_ok_and(|b| pings(&fleet.lab, "a", b))
                && plan().is_ok_and(|plan| plan.steps.is_empty())
        })?;
    }
    drop(fleet.lab.take(links));
    assert!(std::fs::read_to_string(fleet.lab.folder().join("seen.log"))?.contains("hf0"));
    Ok(())
}

#[test]
fn fifty_machines_come_and_go_without_a_lost_ping() -> Result<()> {
    let fleet = two_nodes()?;
    fleet.lab.host("crowd", 12)?;
    let b = fleet.address("b")?;
    let there = Ping::start(&fleet.lab, "a", b, Duration::from_millis(10))?;
    let back = Ping::start(&fleet.lab, "b", fleet.address("a")?, Duration::from_millis(10))?;
    for number in 0..CROWD {
        let name = format!("crowd-{number}");
        let port = (52000 + number).to_string();
        let token = fleet.token(&name, &["--endpoint", &format!("198.51.100.12:{port}")])?;
        let state = fleet.lab.folder().join(&name);
        let mut join = fleet.holdfast("crowd", &["join", &format!("@{}", token.display()), "--port", &port]);
        holdfast::lab::run(join.arg("--state").arg(state))?.ok().with_context(|| name)?;
    }
    for host in ["a", "b"] {
        until(SOON, &format!("{host} holds them all"), || {
            peers(&fleet, host).is_ok_and(|peers| peers.len() == CROWD + 1)
        })?;
    }
    for number in 0..CROWD {
        fleet.operator(&["node", "rm", &format!("crowd-{number}"), "--force", "--yes"])?.ok()?;
    }
    for host in ["a", "b"] {
        until(SOON, &format!("{host} holds none of them"), || peers(&fleet, host).is_ok_and(|peers| peers.len() == 1))?;
        assert!(dig(&fleet, host, &["crowd-7.internal"])?.out.contains("status: NXDOMAIN"));
    }
    for ping in [there, back] {
        let loss = ping.stop()?;
        assert_eq!(loss.lost, Vec::<u32>::new(), "of {}", loss.answered);
        assert!(loss.answered > 200, "{loss:?}");
    }
    Ok(())
}

#[test]
fn what_is_not_ours_is_refused_by_name_and_left_alone() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    let token = fleet.token("a", &[])?;
    fleet.node("a", &["join", &format!("@{}", token.display())])?.ok()?;

    fleet.lab.ip("a", &["link", "add", "hf0", "type", "bridge"])?;
    let before = fleet.lab.run("a", &["ip", "-d", "addr", "show"])?.ok()?;
    let refused = fleet.node("a", &["agent", "run"])?;
    assert!(refused.code == 1 && refused.err.contains("hf0"), "{refused:?}");
    assert_eq!(before, fleet.lab.run("a", &["ip", "-d", "addr", "show"])?.ok()?, "the foreign link was changed");
    assert_eq!(fleet.lab.run("a", &["nft", "list", "tables"])?.ok()?, "", "something was made before the refusal");
    fleet.lab.ip("a", &["link", "del", "hf0"])?;

    let taken = fleet.lab.inside("a", || std::net::UdpSocket::bind("0.0.0.0:51820"))??;
    let refused = fleet.node("a", &["agent", "run"])?;
    assert!(refused.code == 1 && refused.err.contains("51820"), "{refused:?}");
    assert!(fleet.lab.ip("a", &["link", "show", "hf0"]).is_err(), "a link was made before the refusal");
    drop(taken);

    fleet.agent("a").context("once both are gone it comes up")
}
