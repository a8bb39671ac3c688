//! The local sockets, `operator.sock` and `agent.sock`: who is at the other end, the kernel says.

use super::stop::Stop;
use super::{ACCEPT_PAUSE, serve_connection};
use crate::tasks;
use axum::Router;
use tokio::net::UnixListener;

/// Who is at the other end of the operator socket, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub struct LocalPeer {
    /// The peer's effective user.
    pub uid: u32,
}

/// Serves a local socket until told to stop. Each request carries its [`LocalPeer`] as an extension; a peer
/// that is neither root nor this process's user is cut off at once.
pub async fn serve_local(listener: UnixListener, router: Router, mut stop: Stop) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.requested() => break,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(uid) = socket.peer_cred().map(|peer| peer.uid()) else { continue };
        if uid != 0 && uid != own {
            tracing::warn!(uid, "refused at the local socket: neither root nor this process's user");
            continue;
        }
        let (router, stop) = (router.clone(), stop.clone());
        tasks::spawn("local connection", serve_connection(socket, router, LocalPeer { uid }, stop));
    }
}
