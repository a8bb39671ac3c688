//! Two TCP streams joined to one: the bytes go from socket to socket inside the kernel (splice(2)), each direction ends
//! by itself.

use super::sockets;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::io;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// The most that one splice moves, bytes: what a pipe holds unless told otherwise (pipe(7)).
const PIPE: usize = 64 * 1024;

/// Carries both directions until both have ended, or one of them breaks.
pub(super) async fn join(a: &TcpStream, b: &TcpStream) -> io::Result<()> {
    sockets::tune(a)?;
    tokio::try_join!(one_way(a, b), one_way(b, a))?;
    Ok(())
}

async fn one_way(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (drain, fill) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        // The pipe is empty here, so that "would block" can only mean that nothing has come.
        let mut held = from
            .async_io(Interest::READABLE, || splice(from, None, &fill, None, PIPE, flags).map_err(io::Error::from))
            .await?;
        if held == 0 {
            return shutdown(to);
        }
        while held > 0 {
            held -= to
                .async_io(Interest::WRITABLE, || splice(&drain, None, to, None, held, flags).map_err(io::Error::from))
                .await?;
        }
    }
}

/// Says that nothing more comes. A stream that is gone already has nobody to tell.
fn shutdown(to: &TcpStream) -> io::Result<()> {
    match rustix::net::shutdown(to, rustix::net::Shutdown::Write) {
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
