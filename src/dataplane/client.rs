//! How the agent speaks to the data plane of its state directory, and starts it where nothing else does.

use super::{LOG, SOCKET};
use crate::files;
use crate::limits;
use crate::wire::dataplane::{Order, Reply, Status, Told};
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The state, if a data plane answers; `None` when nothing does.
pub async fn status(state_dir: &Path) -> Result<Option<Status>> {
    let Ok(stream) = UnixStream::connect(state_dir.join(SOCKET)).await else { return Ok(None) };
    order(stream, &Order::Status).await.map(Some)
}

/// Tells it what to be, and gives what it then is. What could not be done is among [`Status::problems`].
pub async fn tell(state_dir: &Path, told: Told) -> Result<Status> {
    send(state_dir, &Order::Tell(Box::new(told))).await
}

/// Takes everything down. True if there was a data plane to do it.
pub async fn stop(state_dir: &Path) -> Result<bool> {
    let Ok(stream) = UnixStream::connect(state_dir.join(SOCKET)).await else { return Ok(false) };
    order(stream, &Order::Stop).await.map(|_| true)
}

async fn send(state_dir: &Path, what: &Order) -> Result<Status> {
    let path = state_dir.join(SOCKET);
    let stream =
        UnixStream::connect(&path).await.with_context(|| format!("no data plane answers on {}", path.display()))?;
    order(stream, what).await
}

async fn order(mut stream: UnixStream, what: &Order) -> Result<Status> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let answer = async {
        stream.write_all(&line).await?;
        let mut answer = Vec::new();
        BufReader::new(stream.take(limits::TOLD)).read_until(b'\n', &mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(limits::ORDER, answer).await.map_err(|_| anyhow!("the data plane takes too long"))??;
    match serde_json::from_slice(&answer).context("the data plane's answer")? {
        Reply::Ok(status) => Ok(status),
        Reply::Error(problem) => bail!("the data plane: {problem}"),
    }
}

/// Makes sure that a data plane answers: starts one, detached, if none does. Gives its state.
pub async fn ensure(state_dir: &Path) -> Result<Status> {
    if let Some(status) = status(state_dir).await? {
        return Ok(status);
    }
    let mut child = start(state_dir)?;
    for _ in 0..limits::START.as_millis() / 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Some(status) = status(state_dir).await? {
            return Ok(status);
        }
        if let Some(ended) = child.try_wait()? {
            bail!("the data plane ended at once ({ended}): see {}", state_dir.join(LOG).display());
        }
    }
    bail!("the data plane does not answer: see {}", state_dir.join(LOG).display())
}

/// Starts `holdfast dataplane` so that nothing that ends the agent ends it: it makes a session of its own as its first
/// act, has no terminal and no descriptor of ours, and is reaped if it ends before the agent.
fn start(state_dir: &Path) -> Result<tokio::process::Child> {
    let log = files::log(&state_dir.join(LOG), limits::LOG)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the data plane must outlive the agent, so it is a process of its own"
    )]
    let mut command = tokio::process::Command::new(executable()?);
    command.arg("dataplane").arg("--state").arg(state_dir);
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().context("starting the data plane")
}

/// This program's file: the new one where an upgrade has replaced it, else the very bytes that run.
fn executable() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program").map(present)
}

/// The kernel marks the path of a file that is no longer there.
fn present(running: PathBuf) -> PathBuf {
    let Some(path) = running.as_os_str().as_bytes().strip_suffix(b" (deleted)") else { return running };
    let replaced = PathBuf::from(OsString::from_vec(path.to_vec()));
    if replaced.is_file() { replaced } else { PathBuf::from("/proc/self/exe") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgraded_program_is_started_in_its_new_version() {
        let is = |path: &str| present(PathBuf::from(path));
        let own = std::env::current_exe().unwrap();
        assert_eq!(present(own.clone()), own);
        assert_eq!(is(&format!("{} (deleted)", own.display())), own);
        assert_eq!(is("/nowhere/holdfast (deleted)"), Path::new("/proc/self/exe"));
    }
}
