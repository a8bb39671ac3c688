//! The data path never waits for the control plane: appliance away, agent killed, both at once, and not a ping, stream,
//! name or route is lost.

use crate::tools::{Ping, fleet, page, pings, publish, publish_page, resolves};
use anyhow::{Context, Result};
use holdfast::lab::{Fleet, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const NAME: &str = "web.shop.internal";
/// Often enough that a gap of a fiftieth of a second shows.
const OFTEN: Duration = Duration::from_millis(20);

/// A hub with a page, and a machine behind NAT that fetches it.
fn shop_and_home() -> Result<Fleet> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("stall", 10)?;
    fleet.lab.nat("r", 20, 50)?;
    fleet.lab.behind("home", "r", 50, 5)?;
    fleet.enrol("stall", &["--site", "one", "--endpoint", "198.51.100.10:51820", "--hub"])?;
    fleet.enrol("home", &["--site", "two"])?;
    publish_page(&fleet, "stall", "shop/web", "a page")?.ok()?;
    let stall = fleet.address("stall")?;
    until(SOON, "the name at home", || resolves(&fleet, "home", NAME) == Some(stall))?;
    until(SOON, "the page at home", || page(&fleet.lab, "home", NAME).is_some())?;
    Ok(fleet)
}

/// How long the appliance stays away: longer than any freshness limit (30 s); a full run waits out more than a minute.
fn outage() -> Duration {
    Duration::from_secs(if std::env::var_os("HOLDFAST_FULL").is_some() { 70 } else { 35 })
}

#[test]
fn nobody_is_told_of_a_claim_that_the_disk_did_not_take() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("stall", 10)?;
    fleet.enrol("stall", &["--endpoint", "198.51.100.10:51820"])?;
    let kept = fleet.state("stall").join("claims.json");
    std::fs::create_dir(&kept)?;
    let answer = publish_page(&fleet, "stall", "shop/web", "a page")?;
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("claims.json"), "{answer:?}");
    assert_eq!(resolves(&fleet, "stall", NAME), None);
    std::fs::remove_dir(&kept)?;
    publish(&fleet, "stall", "shop/web")?.ok()?;
    fleet.murder("stall")?;
    fleet.agent("stall")?;
    until(SOON, "the page after a restart", || page(&fleet.lab, "stall", NAME).is_some())?;
    Ok(())
}

#[test]
fn an_absent_appliance_costs_no_name_and_no_route() -> Result<()> {
    let fleet = shop_and_home()?;
    let stall = fleet.address("stall")?;
    let whole = || {
        assert_eq!(resolves(&fleet, "home", NAME), Some(stall), "the name");
        assert_eq!(page(&fleet.lab, "home", NAME).as_deref(), Some("a page"), "the page");
    };
    let ping = Ping::start(&fleet.lab, "home", stall, OFTEN)?;
    fleet.murder("box")?;
    let back = holdfast::clock::boot() + outage();
    while holdfast::clock::boot() < back {
        whole();
        std::thread::sleep(Duration::from_millis(500));
    }
    // A machine that starts while the appliance is away comes up from what it was last told.
    fleet.stop("home")?;
    fleet.agent("home")?;
    whole();

    fleet.serve()?;
    // Everybody is heard again within the longest pause between two attempts; nothing may flicker meanwhile.
    let settled = holdfast::clock::boot() + Duration::from_secs(15);
    while holdfast::clock::boot() < settled {
        whole();
        std::thread::sleep(Duration::from_millis(250));
    }
    let loss = ping.stop()?;
    assert_eq!(loss.lost, Vec::<u32>::new(), "of {}", loss.answered);
    assert!(loss.answered > 500, "{loss:?}");

    // And the appliance is really back: it takes changes again.
    fleet.node("stall", &["service", "withdraw", "shop/web"])?.ok()?;
    until(SOON, "the name is withdrawn", || resolves(&fleet, "home", NAME).is_none())?;
    Ok(())
}

#[test]
fn a_killed_agent_costs_no_ping_and_no_stream() -> Result<()> {
    let fleet = shop_and_home()?;
    let stall = fleet.address("stall")?;
    let echo = fleet.lab.inside("stall", || TcpListener::bind("127.0.0.1:7000"))??;
    std::thread::spawn(move || echo_all(&echo));
    let line = ["service", "publish", "shop/echo", "--port", "7", "--protocol", "tcp", "--target", "127.0.0.1:7000"];
    fleet.node("stall", &line)?.ok()?;
    until(SOON, "the stream's name", || resolves(&fleet, "home", "echo.shop.internal") == Some(stall))?;

    let ping = Ping::start(&fleet.lab, "home", stall, OFTEN)?;
    let away = Ping::start(&fleet.lab, "stall", fleet.address("home")?, OFTEN)?;
    let done = AtomicBool::new(false);
    let echoed = std::thread::scope(|scope| -> Result<u64> {
        let stream = scope.spawn(|| fleet.lab.inside("home", || converse((stall, 7).into(), &done)));
        let murders = (|| {
            for host in ["home", "stall"] {
                fleet.murder(host)?;
                std::thread::sleep(Duration::from_millis(500));
                assert!(pings(&fleet.lab, "home", stall), "without the agent of {host}");
                assert_eq!(resolves(&fleet, host, NAME), Some(stall), "without the agent of {host}");
                fleet.agent(host)?;
                std::thread::sleep(Duration::from_millis(500));
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        let echoed = stream.join().expect("the stream's thread")?;
        murders.and(echoed)
    })?;
    assert!(echoed > 20, "{echoed}");
    for ping in [ping, away] {
        let loss = ping.stop()?;
        assert_eq!(loss.lost, Vec::<u32>::new(), "of {}", loss.answered);
        assert!(loss.answered > 50, "{loss:?}");
    }
    Ok(())
}

/// Sends numbers over one stream until told to stop, each after the last has come back. How many came back.
fn converse(to: SocketAddr, done: &AtomicBool) -> Result<u64> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut number = 0_u64;
    while !done.load(Ordering::Relaxed) {
        stream.write_all(&number.to_be_bytes())?;
        let mut back = [0; 8];
        stream.read_exact(&mut back).with_context(|| format!("number {number} did not come back"))?;
        assert_eq!(u64::from_be_bytes(back), number);
        number += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(number)
}

fn echo_all(listener: &TcpListener) {
    for visitor in listener.incoming().flatten() {
        std::thread::spawn(move || std::io::copy(&mut &visitor, &mut &visitor));
    }
}

#[test]
fn a_killed_appliance_gets_its_own_node_back() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.stop("box")?;
    fleet.serve_with(&["--node"])?;
    let node = fleet.state("box").join("node");
    let holder = || -> Option<u32> { std::fs::read_to_string(node.join("agent.lock")).ok()?.parse().ok() };
    let up = |what: &str| until(Duration::from_secs(20), what, || node.join("ready").exists());
    up("the own node is up")?;
    let first = holder();
    let plane = std::fs::read_to_string(node.join("dataplane.lock"))?;
    fleet.murder("box")?;
    fleet.serve_with(&["--node"])?;
    until(Duration::from_secs(10), "the agent is this appliance's own", || holder() != first)?;
    up("the own node is up again")?;
    assert_eq!(std::fs::read_to_string(node.join("dataplane.lock"))?, plane, "the mesh was taken down");
    let second = holder().expect("the agent's number");
    fleet.stop("box")?;
    assert!(!std::path::Path::new(&format!("/proc/{second}")).exists(), "an agent was left behind");
    Ok(())
}
