//! Programs that a lab runs: to their end, or in the background and never longer than the lab.

use anyhow::{Context, Result, bail};
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What a program said when it had ended.
#[derive(Debug)]
pub struct Answer {
    /// Its exit code; 128 and the signal if one ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Answer {
    /// The standard output of a program that must have succeeded.
    ///
    /// # Errors
    /// If it did not, with what it said.
    pub fn ok(self) -> Result<String> {
        if self.code != 0 {
            bail!("exit {}: {}", self.code, if self.err.is_empty() { self.out.trim() } else { self.err.trim() });
        }
        Ok(self.out)
    }
}

/// A program of this machine. Children of a lab are started nowhere else.
#[expect(clippy::disallowed_methods, reason = "a lab is made of the machine's own tools and of real processes")]
pub(super) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(name)
}

/// Runs a command to its end.
///
/// # Errors
/// If it cannot be run; its own failure is in the answer.
pub fn run(command: &mut Command) -> Result<Answer> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {command:?}"))?;
    Ok(Answer {
        code: exit_code(output.status),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs one of the machine's tools, which must succeed.
pub(super) fn tool(line: &[&str]) -> Result<String> {
    let (name, arguments) = line.split_first().context("nothing to run")?;
    run(program(name).args(arguments))?.ok().with_context(|| line.join(" "))
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// A program in the background. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Option<Child>,
    pid: u32,
    log: PathBuf,
}

impl Process {
    pub(super) fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let out = open().with_context(|| format!("opening {}", log.display()))?;
        let err = open().with_context(|| format!("opening {}", log.display()))?;
        // A group of its own: what the terminal sends to ours (Ctrl-C) is for us to act upon.
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let pid = child.id();
        Ok(Self { child: Some(child), pid, log })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Where it logs.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw) {
            // One that has ended already cannot be told, and need not be.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Its exit code once it has ended.
    pub fn ended(&mut self) -> Option<i32> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(exit_code(status))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it goes on for longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<i32> {
        let mut code = None;
        super::until(limit, &format!("the end of process {}", self.pid), || {
            code = self.ended();
            code.is_some()
        })?;
        code.context("an ended process has a code")
    }

    /// Leaves it running, and never looks after it again.
    pub(super) fn release(mut self) {
        self.child = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The last lines of a log, for an error that explains itself.
pub(super) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
