//! The data plane's sockets for its own machine: one for the agent's orders, one for its WireGuard device.

use super::Plane;
use crate::wire::dataplane::{Order, Reply};
use crate::{limits, tasks};
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

/// Listens on a path for this user alone, instead of whatever a dead process left there. The directory is private, so
/// nobody comes between.
pub(super) fn bind(path: &Path) -> Result<UnixListener> {
    let shown = || format!("the socket {} (a path of at most 107 bytes)", path.display());
    crate::files::remove(path)?;
    let listener = UnixListener::bind(path).with_context(shown)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(shown)?;
    Ok(listener)
}

/// Takes orders until one of them is to stop.
pub(super) async fn serve(listener: UnixListener, plane: Arc<Mutex<Plane>>) {
    let stopped = Arc::new(tokio::sync::Notify::new());
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped.notified() => return,
        };
        match stream {
            Ok((stream, _)) => {
                let (plane, stopped) = (plane.clone(), stopped.clone());
                tasks::spawn("orders", async move {
                    // A client that goes away in between is not answered; what it ordered is done.
                    let _ = converse(stream, &plane, &stopped).await;
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn converse(stream: UnixStream, plane: &Mutex<Plane>, stopped: &tokio::sync::Notify) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut read).take(limits::TOLD).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let order = serde_json::from_slice(&line);
        let stop = matches!(order, Ok(Order::Stop));
        let reply = match order {
            Ok(order) => plane.lock().await.obey(order).await,
            Err(error) => Reply::Error(format!("this is no order: {error}")),
        };
        let stop = stop && matches!(reply, Reply::Ok(_));
        let mut answer = serde_json::to_vec(&reply)?;
        answer.push(b'\n');
        let written = write.write_all(&answer).await;
        if stop {
            stopped.notify_one();
        }
        written?;
    }
}
