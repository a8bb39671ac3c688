//! Running the machine's own tools, where the kernel is best spoken to through them. A tool ends with whoever waits for
//! it, and never waits for long: another one may hold a lock.

use super::{KernelError, failed};
use crate::limits;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;

/// Runs a tool with this input to its end; none if it is not installed. Its own refusal is in the output.
pub(super) async fn run(line: &[&str], input: &str) -> Result<Option<Output>, KernelError> {
    let doing = line.join(" ");
    let Some((name, arguments)) = line.split_first() else { return Ok(None) };
    #[expect(clippy::disallowed_methods, reason = "nft and iptables write what they alone can read again")]
    let mut command = tokio::process::Command::new(name);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        spawned => spawned.map_err(failed(&doing))?,
    };
    let mut stdin = child.stdin.take();
    let work = async {
        if let Some(stdin) = &mut stdin {
            // A tool that does not read it all says why by its end.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        drop(stdin);
        child.wait_with_output().await
    };
    match tokio::time::timeout(limits::TOOL, work).await {
        Ok(output) => output.map(Some).map_err(failed(&doing)),
        Err(_) => Err(KernelError::new(doing, format!("not done in {} s, and ended", limits::TOOL.as_secs()))),
    }
}

/// What a tool said against it.
pub(super) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_tool_reads_and_says_comes_through_and_it_ends_with_whoever_waits() {
        let output = run(&["sh", "-c", "cat; echo no >&2; exit 3"], "in").await.unwrap().unwrap();
        assert_eq!((output.status.code(), &*output.stdout, said(&output)), (Some(3), &b"in"[..], "no".to_owned()));
        assert!(run(&["holdfast-no-such-tool"], "").await.unwrap().is_none());

        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 600", file.display());
        let line = ["sh", "-c", &script];
        let pid = async {
            loop {
                let told = std::fs::read_to_string(&file).ok();
                match told.and_then(|text| text.strip_suffix('\n')?.parse::<i32>().ok()) {
                    Some(pid) => break pid,
                    None => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                }
            }
        };
        let pid = tokio::select! {
            ended = run(&line, "") => panic!("it sleeps for ten minutes: {ended:?}"),
            pid = pid => pid,
        };
        for _ in 0..500 {
            if rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid).unwrap()).is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("the tool outlives its caller");
    }
}
