//! `holdfast demo`: a fleet at work in network namespaces of this machine, step by step, with the time each step took.
//! It runs this very binary as everybody would, and nothing outside its namespaces and its folder is changed.

use crate::lab::{self, Fleet, Lab, until};
use anyhow::{Context, Result, bail, ensure};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Shows an appliance and three nodes at work in network namespaces of this machine.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Leave everything up at the end, and say how to look round.
    #[arg(long)]
    keep: bool,
    /// Remove a demo that was left up.
    #[arg(long, value_name = "NAME", conflicts_with = "keep")]
    remove: Option<String>,
    /// Be the web server of a demo.
    #[arg(long, value_name = "IP:PORT", hide = true)]
    page: Option<SocketAddr>,
}

/// What the shop's web server says.
const PAGE: &str = "Hello from the shop.\n";
/// Where it listens: only on the server itself.
const TARGET: &str = "127.0.0.1:8080";
const NAME: &str = "web.shop.internal";
/// How long a step may take before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the demo. Each line of its story goes to `say`.
///
/// # Errors
/// If a step fails; everything is removed then too.
pub async fn run(demo: Demo, say: impl FnMut(&str) + Send + 'static) -> Result<()> {
    if let Some(address) = demo.page {
        let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
        return crate::tasks::blocking(move || {
            lab::answer_all(&listener, PAGE);
            Ok(())
        })
        .await;
    }
    if let Some(name) = &demo.remove {
        return lab::remove(name);
    }
    let binary = std::env::current_exe().context("finding this program's own file")?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let story = crate::tasks::blocking(move || Story { say, stop: told, steps: 0 }.tell(binary, demo.keep));
    tokio::pin!(story);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    // Told to end, it ends after the step in hand, so that the namespaces are removed as ever.
    tokio::select! {
        done = &mut story => return done,
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    stop.store(true, Ordering::Relaxed);
    story.await
}

struct Story<S> {
    say: S,
    stop: Arc<AtomicBool>,
    steps: u32,
}

impl<S: FnMut(&str)> Story<S> {
    fn tell(mut self, binary: PathBuf, keep: bool) -> Result<()> {
        let start = crate::clock::boot();
        let fleet = Fleet::new(Lab::new("demo")?, binary);
        self.say("A fleet in network namespaces of this machine. Nothing outside them is changed.\n");
        self.step("two sites: the shop on the internet, and home behind a NAT router", || {
            fleet.lab.host("server", 10)?;
            fleet.lab.host("till", 11)?;
            fleet.lab.nat("router", 20, 50)?;
            fleet.lab.behind("laptop", "router", 50, 5).map(drop)
        })?;
        self.step("an appliance: keys, certificate and journal are made, and it serves", || fleet.appliance("box", 2))?;
        self.step("the server in the shop joins with a token that works once", || {
            let flags = ["--site", "shop", "--endpoint", "198.51.100.10:51820", "--hub"];
            fleet.enrol("server", &flags)
        })?;
        self.step("the till in the shop joins", || {
            fleet.enrol("till", &["--site", "shop", "--endpoint", "198.51.100.11:51820"])
        })?;
        self.step("the laptop at home, which nobody can dial, joins", || fleet.enrol("laptop", &["--site", "home"]))?;
        for (from, to) in [("laptop", "server"), ("laptop", "till"), ("till", "laptop")] {
            let address = fleet.address(to)?.to_string();
            self.step(&format!("the {from} pings the {to} at {address}"), || {
                until(PATIENCE, "an answer to a ping", || {
                    let line = ["ping", "-c1", "-W1", &address];
                    fleet.lab.run(from, &line).is_ok_and(|answer| answer.code == 0)
                })
                .map(drop)
            })?;
        }
        self.step(&format!("the server publishes shop/web, which it serves at {TARGET}"), || {
            let mut web = fleet.holdfast("server", &["demo", "--page", TARGET]);
            fleet.lab.start("web.log", &mut web)?;
            until(PATIENCE, "the shop's web server", || curl(&fleet, "server", TARGET).is_ok())?;
            let line = ["service", "publish", "shop/web", "--port", "80", "--protocol", "http", "--target", TARGET];
            fleet.node("server", &line)?.ok().map(drop)
        })?;
        let address = fleet.address("server")?.to_string();
        self.step(&format!("the laptop resolves {NAME} to {address}"), || {
            until(PATIENCE, "the name on the laptop", || resolve(&fleet).is_ok_and(|answer| answer == address))
                .map(drop)
        })?;
        self.step(&format!("the laptop fetches http://{NAME}/ through the tunnel"), || fetch(&fleet, &address))?;
        self.step("the appliance is stopped", || fleet.stop("box"))?;
        self.step("the laptop resolves the name again, without the appliance", || {
            let answer = resolve(&fleet)?;
            ensure!(answer == address, "the name's answer is {answer:?}, not {address}");
            Ok(())
        })?;
        self.step("the laptop fetches the page again, without the appliance", || fetch(&fleet, &address))?;
        if keep {
            self.step("the appliance is started again", || fleet.serve())?;
            self.left_up(fleet);
        } else {
            self.step("everything is removed", || {
                drop(fleet);
                Ok(())
            })?;
        }
        let seconds = (crate::clock::boot() - start).as_secs_f32();
        self.say(&format!("\nDone in {seconds:.1} s."));
        Ok(())
    }

    fn step(&mut self, what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted; everything is removed");
        }
        self.steps += 1;
        let start = crate::clock::boot();
        work().with_context(|| format!("step {}: {what}", self.steps))?;
        let seconds = (crate::clock::boot() - start).as_secs_f32();
        let steps = self.steps;
        self.say(&format!("{steps:>2}. {what:<72} {seconds:>6.2} s"));
        Ok(())
    }

    fn left_up(&mut self, mut fleet: Fleet) {
        fleet.lab.keep();
        let program = std::env::current_exe().unwrap_or_else(|_| "holdfast".into());
        let (program, folder) = (program.display(), fleet.lab.folder().display());
        let on = |host: &str| format!("ip netns exec {}", fleet.lab.namespace(host));
        let lines = [
            "\nIt is left up. Look round, as root:".to_owned(),
            format!("  {} {program} --socket {folder}/box/operator.sock node ls", on("box")),
            format!("  {} {program} --socket {folder}/box/operator.sock journal ls", on("box")),
            format!("  {} {program} agent status --state {folder}/laptop", on("laptop")),
            format!("  {} dig {NAME}", on("laptop")),
            format!("  {} curl http://{NAME}/", on("laptop")),
            format!("Logs are in {folder}. Remove all of it with:"),
            format!("  {program} demo --remove {}", fleet.lab.name()),
        ];
        self.say(&lines.join("\n"));
    }

    fn say(&mut self, line: &str) {
        (self.say)(line);
    }
}

fn resolve(fleet: &Fleet) -> Result<String> {
    let answer = fleet.lab.run("laptop", &["dig", "+short", "+time=1", "+tries=1", NAME])?.ok()?;
    Ok(answer.trim().to_owned())
}

fn curl(fleet: &Fleet, host: &str, address: &str) -> Result<String> {
    fleet.lab.run(host, &["curl", "-sS", "--max-time", "5", &format!("http://{address}/")])?.ok()
}

/// The page by name, and proof that the way to it is the tunnel.
fn fetch(fleet: &Fleet, address: &str) -> Result<()> {
    let route = fleet.lab.run("laptop", &["ip", "route", "get", address])?.ok()?;
    ensure!(route.contains("dev hf0"), "the way to {address} is not the tunnel: {route}");
    let page = curl(fleet, "laptop", NAME)?;
    ensure!(page == PAGE, "the page is {page:?}");
    Ok(())
}
