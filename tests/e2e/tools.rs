//! What the tests look through: the ping, dig and curl that people use, on a host of a lab.

use anyhow::{Context, Result};
use holdfast::lab::{Answer, Fleet, Lab, Process, serve_page};
use holdfast::wire::operator::AgentView;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// A fleet without anybody in it, and the binary that was just built.
pub(crate) fn fleet() -> Result<Fleet> {
    Ok(Fleet::new(Lab::new("e2e")?, env!("CARGO_BIN_EXE_holdfast")))
}

/// Whether one ping from a host is answered within a second.
pub(crate) fn pings(lab: &Lab, from: &str, to: impl Into<IpAddr>) -> bool {
    lab.run(from, &["ping", "-c1", "-W1", &to.into().to_string()]).is_ok_and(|answer| answer.code == 0)
}

/// A ping that runs until it is asked what was lost.
pub(crate) struct Ping(Process);

/// What became of a running ping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Sequence numbers that were never answered.
    pub(crate) lost: Vec<u32>,
    /// How many were answered.
    pub(crate) answered: usize,
}

impl Ping {
    /// Pings every `interval` from a host.
    pub(crate) fn start(lab: &Lab, from: &str, to: impl Into<IpAddr>, interval: Duration) -> Result<Self> {
        let to = to.into();
        let mut command = lab.command(from, "ping");
        command.args(["-O", "-i", &format!("{:.3}", interval.as_secs_f32()), &to.to_string()]);
        let log = format!("{from}.ping.{to}.log");
        let pid = lab.start(&log, &mut command)?;
        Ok(Self(lab.take(pid).context("the ping was just started")?))
    }

    /// How many lines of its log say so: ` bytes from ` of an answer, `no answer yet` of a loss.
    pub(crate) fn told(&self, what: &str) -> usize {
        let log = std::fs::read_to_string(self.0.log()).unwrap_or_default();
        log.lines().filter(|line| line.contains(what)).count()
    }

    /// Ends it. The last one sent does not count: its answer may have been under way.
    pub(crate) fn stop(mut self) -> Result<Loss> {
        self.0.signal(rustix::process::Signal::INT);
        self.0.wait(Duration::from_secs(5))?;
        let log = std::fs::read_to_string(self.0.log())?;
        let sent: u32 = log
            .lines()
            .find_map(|line| line.split(" packets transmitted").next().filter(|number| *number != line))
            .and_then(|number| number.parse().ok())
            .with_context(|| format!("ping printed no summary: {log}"))?;
        let answered: std::collections::BTreeSet<u32> = log
            .lines()
            .filter(|line| line.contains(" bytes from "))
            .filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok())
            .collect();
        let lost = (1..sent).filter(|number| !answered.contains(number)).collect();
        Ok(Loss { lost, answered: answered.len() })
    }
}

/// Asks a host's own resolver with dig. `question` is the name and, if need be, type and flags.
pub(crate) fn dig(fleet: &Fleet, host: &str, question: &[&str]) -> Result<Answer> {
    let server = format!("@{}", fleet.address(host)?);
    let mut line = vec!["dig", "+time=1", "+tries=1", &server];
    line.extend(question);
    fleet.lab.run(host, &line)
}

/// The one address that a host's own resolver has for a name.
pub(crate) fn resolves(fleet: &Fleet, host: &str, name: &str) -> Option<Ipv4Addr> {
    let answer = dig(fleet, host, &["+short", name, "A"]).ok()?;
    let mut addresses = answer.out.lines().filter_map(|line| line.parse().ok());
    addresses.next().filter(|_| addresses.next().is_none())
}

/// The page that a host gets from an address within three seconds.
pub(crate) fn page(lab: &Lab, host: &str, address: &str) -> Option<String> {
    let answer = lab.run(host, &["curl", "-s", "-m3", &format!("http://{address}/")]).ok()?;
    (answer.code == 0).then_some(answer.out)
}

/// What a node's agent says of itself.
pub(crate) fn agent_view(fleet: &Fleet, host: &str) -> Result<AgentView> {
    let shown = fleet.node(host, &["agent", "status", "-o", "json"])?.ok()?;
    serde_json::from_str(&shown).with_context(|| format!("reading {shown}"))
}

/// The names of the peers that a node's tunnel holds.
pub(crate) fn peers(fleet: &Fleet, host: &str) -> Result<Vec<String>> {
    let view = agent_view(fleet, host)?;
    Ok(view.peers.into_iter().filter_map(|peer| peer.name).map(|name| name.to_string()).collect())
}

/// Publishes `space/name` on port 80 of a host, which sends it to a web server of ours there that says `page`.
pub(crate) fn publish_page(fleet: &Fleet, host: &str, service: &str, page: &str) -> Result<Answer> {
    serve_page(&fleet.lab, host, "127.0.0.1:8080".parse()?, page)?;
    publish(fleet, host, service)
}

/// Publishes `space/name` on port 80 of a host.
pub(crate) fn publish(fleet: &Fleet, host: &str, service: &str) -> Result<Answer> {
    let target = ["--port", "80", "--protocol", "http", "--target", "127.0.0.1:8080"];
    fleet.node(host, &[&["service", "publish", service], &target[..]].concat())
}
