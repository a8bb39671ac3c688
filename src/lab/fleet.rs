//! A fleet in a lab: one appliance and its nodes, each the real binary with a state directory in the lab's folder.

use super::process::{run, tail};
use super::{Answer, Lab, Process, until};
use crate::wire::operator::{NodeView, Nodes};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long anything may take to come up or go down, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(20);

/// An appliance and its nodes in a lab. Hosts are made by the lab; a host's name is its node's.
#[derive(Debug)]
pub struct Fleet {
    /// The network.
    pub lab: Lab,
    binary: PathBuf,
    appliance: Mutex<Option<(String, Ipv4Addr)>>,
    /// The process of each host: `serve` of the appliance, `agent run` of a node.
    running: Mutex<BTreeMap<String, u32>>,
    /// Mesh addresses, kept so that they can be asked for while the appliance is away.
    addresses: Mutex<BTreeMap<String, Ipv4Addr>>,
}

impl Fleet {
    /// No appliance and no node yet; `binary` is what all of them will run.
    pub fn new(lab: Lab, binary: impl Into<PathBuf>) -> Self {
        Self {
            lab,
            binary: binary.into(),
            appliance: Mutex::default(),
            running: Mutex::default(),
            addresses: Mutex::default(),
        }
    }

    /// A host's state directory.
    pub fn state(&self, host: &str) -> PathBuf {
        self.lab.folder().join(host)
    }

    /// The binary, on a host.
    pub fn holdfast(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = self.lab.command(host, &self.binary);
        command.args(arguments);
        command
    }

    /// Makes an appliance on a host and starts it.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn appliance(&self, host: &str, last: u8) -> Result<()> {
        self.appliance_with(host, last, &[])
    }

    /// As [`Self::appliance`], with further flags of `init`.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn appliance_with(&self, host: &str, last: u8, flags: &[&str]) -> Result<()> {
        let address = self.lab.host(host, last)?;
        let recovery = self.lab.folder().join(format!("{host}.recovery"));
        let mut init = self.holdfast(host, &["init", "--fleet", "lab", "--advertise", &address.to_string()]);
        init.args(flags).arg("--state").arg(self.state(host)).arg("--recovery-file").arg(recovery);
        run(&mut init)?.ok().context("holdfast init")?;
        *lock(&self.appliance) = Some((host.to_owned(), address));
        self.serve()
    }

    /// Starts the appliance and waits until it is ready.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn serve(&self) -> Result<()> {
        self.serve_with(&[])
    }

    /// As [`Self::serve`], with further flags.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn serve_with(&self, flags: &[&str]) -> Result<()> {
        let (host, address) = self.arranger()?;
        let mut serve = self.holdfast(&host, &["serve", "--listen", &address.to_string()]);
        serve.args(flags);
        self.start(&host, serve.arg("--state").arg(self.state(&host)))?;
        self.ready(&host)
    }

    /// An operator's command, at the appliance's socket.
    ///
    /// # Errors
    /// If the binary cannot be run; a refusal is in the answer.
    pub fn operator(&self, arguments: &[&str]) -> Result<Answer> {
        let (host, _) = self.arranger()?;
        let mut command = self.holdfast(&host, &["--socket"]);
        run(command.arg(self.state(&host).join("operator.sock")).args(arguments))
    }

    /// A command about a node, on its host: the arguments, and `--state`.
    ///
    /// # Errors
    /// If the binary cannot be run; a refusal is in the answer.
    pub fn node(&self, host: &str, arguments: &[&str]) -> Result<Answer> {
        run(self.holdfast(host, arguments).arg("--state").arg(self.state(host)))
    }

    /// What `node ls` knows of every node.
    ///
    /// # Errors
    /// If the appliance does not answer.
    pub fn nodes(&self) -> Result<Vec<NodeView>> {
        let listed = self.operator(&["node", "ls", "-o", "json"])?.ok()?;
        let document: Nodes = serde_json::from_str(&listed).with_context(|| format!("reading {listed}"))?;
        Ok(document.nodes)
    }

    /// Makes a token for a node and puts it in a file. `flags` are those of `node add`.
    ///
    /// # Errors
    /// If it is refused.
    pub fn token(&self, node: &str, flags: &[&str]) -> Result<PathBuf> {
        let mut line = vec!["node", "add", node];
        line.extend(flags);
        let token = self.operator(&line)?.ok().with_context(|| format!("node add {node}"))?;
        let file = self.lab.folder().join(format!("{node}.token"));
        crate::files::replace(&file, token.as_bytes())?;
        Ok(file)
    }

    /// Enrols a host by token, starts its agent and waits until it is up.
    ///
    /// # Errors
    /// If any of it fails.
    pub fn enrol(&self, host: &str, flags: &[&str]) -> Result<()> {
        let token = self.token(host, flags)?;
        self.node(host, &["join", &format!("@{}", token.display())])?
            .ok()
            .with_context(|| format!("join of {host}"))?;
        self.agent(host)
    }

    /// Starts the agent of a host that has joined, and waits until it is up.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn agent(&self, host: &str) -> Result<()> {
        self.start_agent(host)?;
        self.ready(host)
    }

    /// Starts the agent of a host, which may not be let in yet.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(&self, host: &str) -> Result<()> {
        let mut agent = self.holdfast(host, &["agent", "run"]);
        self.start(host, agent.arg("--state").arg(self.state(host)))
    }

    /// The mesh address of a node, remembered from the first time it was asked for.
    ///
    /// # Errors
    /// If the appliance knows none.
    pub fn address(&self, node: &str) -> Result<Ipv4Addr> {
        if let Some(address) = lock(&self.addresses).get(node) {
            return Ok(*address);
        }
        let nodes = self.nodes()?;
        let found = nodes.iter().find(|each| each.name.as_str() == node);
        let address = found.and_then(|each| each.address).with_context(|| format!("{node} has no mesh address"))?;
        lock(&self.addresses).insert(node.to_owned(), address);
        Ok(address)
    }

    /// Asks the appliance or the agent on a host to end (SIGTERM) and waits for it.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(&self, host: &str) -> Result<()> {
        self.end(host, Signal::TERM)
    }

    /// Kills the appliance or the agent on a host outright (SIGKILL).
    ///
    /// # Errors
    /// If nothing runs there.
    pub fn murder(&self, host: &str) -> Result<()> {
        self.end(host, Signal::KILL)
    }

    fn end(&self, host: &str, signal: Signal) -> Result<()> {
        let mut process = self.process(host)?;
        process.signal(signal);
        process.wait(PATIENCE).map(drop).with_context(|| format!("{host} was told to end"))
    }

    /// The running process of a host, taken out of the fleet's care.
    ///
    /// # Errors
    /// If nothing runs there.
    pub fn process(&self, host: &str) -> Result<Process> {
        let pid = lock(&self.running).remove(host).with_context(|| format!("nothing runs on {host}"))?;
        self.lab.take(pid).with_context(|| format!("nothing runs on {host}"))
    }

    fn start(&self, host: &str, command: &mut Command) -> Result<()> {
        let ready = self.state(host).join("ready");
        crate::files::remove(&ready)?;
        let pid = self.lab.start(&format!("{host}.log"), command)?;
        lock(&self.running).insert(host.to_owned(), pid);
        Ok(())
    }

    fn ready(&self, host: &str) -> Result<()> {
        let pid = lock(&self.running).get(host).copied().with_context(|| format!("nothing runs on {host}"))?;
        let ready = self.state(host).join("ready");
        let mut died = None;
        let waited = until(PATIENCE, &format!("{host} is ready"), || {
            died = self.lab.ended(pid);
            died.is_some() || ready.exists()
        });
        let log = || tail(&self.lab.folder().join(format!("{host}.log")));
        if let Some(code) = died {
            bail!("{host} ended with {code}: {}", log());
        }
        waited.map(drop).with_context(log)
    }

    fn arranger(&self) -> Result<(String, Ipv4Addr)> {
        lock(&self.appliance).clone().context("there is no appliance yet")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
