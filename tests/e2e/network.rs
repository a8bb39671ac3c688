//! The lab's own network, without the product: what the other tests lean on must be able to fail.

use crate::tools::{Ping, page, pings};
use anyhow::Result;
use holdfast::lab::{Lab, serve_page, until};
use std::time::Duration;

#[test]
fn the_lab_is_an_internet_with_closed_nat() -> Result<()> {
    let lab = Lab::new("e2e")?;
    let a = lab.host("a", 10)?;
    let b = lab.host("b", 11)?;
    let router = lab.nat("r", 20, 50)?;
    let c = lab.behind("c", "r", 50, 5)?;
    assert!(pings(&lab, "a", b), "two hosts of the internet");
    assert!(pings(&lab, "c", a), "out through the router");
    lab.ip("a", &["route", "add", "192.168.50.0/24", "via", &router.to_string()])?;
    assert!(!pings(&lab, "a", c), "the router lets nothing in");
    lab.run("r", &["nft", "delete table ip fw"])?.ok()?;
    assert!(pings(&lab, "a", c), "without its filter it would: the check above proves something");
    serve_page(&lab, "a", "198.51.100.10:80".parse()?, "hello")?;
    assert_eq!(page(&lab, "c", "198.51.100.10").as_deref(), Some("hello"));
    Ok(())
}

#[test]
fn a_lost_ping_is_counted() -> Result<()> {
    let lab = Lab::new("e2e")?;
    lab.host("a", 10)?;
    let b = lab.host("b", 11)?;
    let ping = Ping::start(&lab, "a", b, Duration::from_millis(20))?;
    let soon = Duration::from_secs(10);
    until(soon, "answers", || ping.told(" bytes from ") > 5)?;
    let rules = "table ip f { chain c { type filter hook input priority 0; icmp type echo-request drop; }; }";
    lab.run("b", &["nft", rules])?.ok()?;
    until(soon, "losses", || ping.told("no answer yet") > 5)?;
    lab.run("b", &["nft", "delete table ip f"])?.ok()?;
    let before = ping.told(" bytes from ");
    until(soon, "answers again", || ping.told(" bytes from ") > before + 5)?;
    let loss = ping.stop()?;
    assert!(loss.lost.len() > 4 && loss.answered > 10, "{loss:?}");
    Ok(())
}

#[test]
fn a_lab_leaves_nothing_behind() -> Result<()> {
    let lab = Lab::new("e2e")?;
    let (name, folder) = (lab.name().to_owned(), lab.folder().to_owned());
    lab.host("a", 10)?;
    let pid = lab.start("sleep.log", lab.command("a", "sleep").arg("60"))?;
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _kept_until_here = lab;
        std::panic::resume_unwind(Box::new("a test that failed"));
    }));
    assert!(unwound.is_err());
    assert!(!folder.exists());
    for folder in ["/run/netns", "/etc/netns"] {
        let left = std::fs::read_dir(folder)?.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(&name));
        assert_eq!(left.count(), 0, "{folder}");
    }
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}
