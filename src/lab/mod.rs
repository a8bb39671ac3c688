//! A small internet inside this machine: hosts are network namespaces on one bridge, or behind a NAT router of their own.
//! The demo shows a fleet in it and the end-to-end tests prove one, both with the real binary and the real kernel.
//!
//! Everything is named after the lab, and all of it goes when the lab is dropped, also by a panic: its processes, its
//! namespaces, its folder. Nothing else on the machine is touched. Needs root, `ip`, `nft` and `sysctl`.

mod fleet;
mod net;
mod process;
mod web;

pub use fleet::Fleet;
pub use process::{Answer, Process, run};
pub use web::{answer_all, serve_page};

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A network of namespaces, its processes and its folder.
#[derive(Debug)]
pub struct Lab {
    name: String,
    folder: PathBuf,
    /// Namespaces, by host.
    hosts: Mutex<Vec<String>>,
    processes: Mutex<Vec<Process>>,
    keep: bool,
}

impl Lab {
    /// An empty lab with a bridge that stands for the internet. Its name is `prefix`, this process's id and a counter.
    ///
    /// # Errors
    /// Without root, or without the tools.
    pub fn new(prefix: &str) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces can be made by root only; run this with sudo");
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}{}n{number}", std::process::id());
        let folder = folder_of(&name);
        std::fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let lab = Self { name, folder, hosts: Mutex::new(Vec::new()), processes: Mutex::new(Vec::new()), keep: false };
        lab.add_wan()?;
        Ok(lab)
    }

    /// What all its namespaces' names begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where logs, tokens and state directories are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A host's namespace, as `ip netns` knows it.
    pub fn namespace(&self, host: &str) -> String {
        namespace_of(&self.name, host)
    }

    /// A program to be run on a host.
    pub fn command(&self, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = process::program("ip");
        command.args(["netns", "exec", &self.namespace(host)]).arg(program);
        command
    }

    /// Runs a program on a host to its end.
    ///
    /// # Errors
    /// If it cannot be run; its own failure is in the answer.
    pub fn run(&self, host: &str, line: &[&str]) -> Result<Answer> {
        let (program, arguments) = line.split_first().context("nothing to run")?;
        process::run(self.command(host, program).args(arguments))
    }

    /// Starts a command in the background, logging to `log` in the lab's folder. It is killed with the lab. Returns its
    /// process id.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, log: &str, command: &mut Command) -> Result<u32> {
        let process = Process::start(command, self.folder.join(log))?;
        let pid = process.id();
        self.processes().push(process);
        Ok(pid)
    }

    /// Takes a process out of the lab's care, to end it or to wait for it.
    pub fn take(&self, pid: u32) -> Option<Process> {
        let mut processes = self.processes();
        let index = processes.iter().position(|process| process.id() == pid)?;
        Some(processes.swap_remove(index))
    }

    /// The exit code of a process in the lab's care that has ended.
    pub fn ended(&self, pid: u32) -> Option<i32> {
        self.processes().iter_mut().find(|process| process.id() == pid)?.ended()
    }

    /// Runs a closure on a host: on a thread of its own that lives in the host's namespace, so that the sockets it opens
    /// are that host's.
    ///
    /// # Errors
    /// If the namespace is gone.
    ///
    /// # Panics
    /// If the closure does.
    pub fn inside<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = self.namespace(host);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                net::enter(&namespace)?;
                Ok(work())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Leaves everything as it is when the lab is dropped. [`remove`] takes it away by name.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hosts(&self) -> MutexGuard<'_, Vec<String>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.keep {
            self.processes().drain(..).for_each(Process::release);
            return;
        }
        self.processes().clear();
        let hosts = std::mem::take(&mut *self.hosts());
        for host in &hosts {
            net::remove_namespace(&self.namespace(host));
        }
        // Whoever looks for the cause of a failed test keeps the logs.
        if std::env::var_os("HOLDFAST_LAB_LOGS").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Removes a lab that was kept, by its name: every namespace of it with the processes in it, and its folder.
///
/// # Errors
/// If there is no lab of that name.
pub fn remove(name: &str) -> Result<()> {
    let folder = folder_of(name);
    let prefix = namespace_of(name, "");
    let namespaces: Vec<_> = net::namespaces()?.into_iter().filter(|each| each.starts_with(&prefix)).collect();
    if namespaces.is_empty() && !folder.exists() {
        bail!("there is no {name} on this machine");
    }
    for namespace in &namespaces {
        net::remove_namespace(namespace);
    }
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Asks again and again until it is so, and fails with `what` when `limit` has passed.
///
/// # Errors
/// When it never was so.
pub fn until(limit: Duration, what: &str, mut so: impl FnMut() -> bool) -> Result<Duration> {
    let start = crate::clock::boot();
    loop {
        if so() {
            return Ok(crate::clock::boot() - start);
        }
        let passed = crate::clock::boot() - start;
        if passed > limit {
            bail!("{what}: not within {} s", limit.as_secs_f32());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn folder_of(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

fn namespace_of(lab: &str, host: &str) -> String {
    format!("{lab}-{host}")
}
