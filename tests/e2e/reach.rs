//! Machines reach each other by name through the tunnel, dialable or not, until one is revoked.

use crate::tools::{dig, fleet, page, peers, pings, publish_page, resolves};
use anyhow::Result;
use holdfast::lab::until;
use std::time::Duration;

/// One refresh: a register every five seconds, jitter, and a slow machine.
const REFRESH: Duration = Duration::from_secs(10);

#[test]
fn a_page_travels_by_name_between_machines_that_nobody_can_dial() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("hub", 10)?;
    fleet.lab.nat("r", 20, 50)?;
    fleet.lab.behind("c", "r", 50, 5)?;
    fleet.lab.nat("q", 21, 60)?;
    fleet.lab.behind("d", "q", 60, 5)?;
    fleet.enrol("hub", &["--site", "one", "--endpoint", "198.51.100.10:51820", "--hub"])?;
    fleet.enrol("c", &["--site", "two"])?;
    fleet.enrol("d", &["--site", "three"])?;
    let (hub, c, d) = (fleet.address("hub")?, fleet.address("c")?, fleet.address("d")?);
    for (from, to) in [("c", hub), ("d", hub), ("c", d), ("d", c), ("hub", c), ("hub", d)] {
        until(Duration::from_secs(10), &format!("{from} reaches {to}"), || pings(&fleet.lab, from, to))?;
    }

    publish_page(&fleet, "d", "shop/web", "hello from d")?.ok()?;
    let took =
        until(Duration::from_secs(5), "the name on c", || resolves(&fleet, "c", "web.shop.internal") == Some(d))?;
    assert!(took < Duration::from_secs(2), "a name took {took:?} to travel");
    assert_eq!(page(&fleet.lab, "c", "web.shop.internal").as_deref(), Some("hello from d"), "by the name itself");
    let route = fleet.lab.run("c", &["ip", "route", "get", &d.to_string()])?.ok()?;
    assert!(route.contains("dev hf0"), "{route}");

    fleet.node("d", &["service", "withdraw", "shop/web"])?.ok()?;
    until(Duration::from_secs(5), "the name is gone", || resolves(&fleet, "c", "web.shop.internal").is_none())?;
    assert_eq!(resolves(&fleet, "c", "d.internal"), Some(d), "the machine itself keeps its name");
    Ok(())
}

#[test]
fn a_revoked_machine_is_gone_from_everywhere_in_one_refresh() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    for (host, last) in [("a", 10), ("b", 11), ("c", 12)] {
        fleet.lab.host(host, last)?;
        fleet.enrol(host, &["--endpoint", &format!("198.51.100.{last}:51820")])?;
    }
    publish_page(&fleet, "c", "shop/web", "hello from c")?.ok()?;
    let c = fleet.address("c")?;
    for host in ["a", "b"] {
        until(REFRESH, "c is reached", || pings(&fleet.lab, host, c))?;
        until(REFRESH, "its service too", || page(&fleet.lab, host, "web.shop.internal").is_some())?;
    }

    fleet.operator(&["node", "revoke", "c", "--yes"])?.ok()?;
    for host in ["a", "b"] {
        until(REFRESH, &format!("c is no peer of {host}"), || {
            peers(&fleet, host).is_ok_and(|peers| !peers.contains(&"c".to_owned()))
        })?;
        assert!(!pings(&fleet.lab, host, c), "{host} still reaches c");
        for name in ["c.internal", "web.shop.internal"] {
            let answer = dig(&fleet, host, &[name, "A"])?.out;
            assert!(answer.contains("status: NXDOMAIN"), "{host}: {answer}");
        }
    }
    let a = fleet.address("a")?;
    assert!(!pings(&fleet.lab, "c", a), "c still reaches a");
    until(REFRESH, "c takes its mesh down", || fleet.lab.ip("c", &["link", "show", "hf0"]).is_err())?;
    until(REFRESH, "the fleet is whole without c", || pings(&fleet.lab, "b", a))?;
    Ok(())
}
