//! Drivers: one thin file for each kind of kernel object. They read and write, and decide nothing.

mod address;
pub mod events;
pub mod firewall;
pub mod foreign_forward;
mod link;
pub mod names;
mod port;
mod route;
pub mod sysctl;
mod tool;
pub mod underlay;
pub mod wireguard;

pub use link::Link;
pub use port::holder as port_holder;
pub use route::Route;

use std::fmt::Display;

/// What the kernel or a tool of its refused, in words.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {said}")]
pub struct KernelError {
    /// What was tried, naming the object.
    pub doing: String,
    /// The answer, and where it is known, what to do.
    pub said: String,
}

impl KernelError {
    fn new(doing: impl Into<String>, said: impl Display) -> Self {
        Self { doing: doing.into(), said: said.to_string() }
    }
}

/// For `map_err`: what was tried, to be joined with what was answered.
fn failed<E: Display>(doing: impl Into<String>) -> impl FnOnce(E) -> KernelError {
    move |said| KernelError::new(doing, said)
}

/// A route netlink socket of the network namespace it was opened in.
#[derive(Clone, Debug)]
pub struct Netlink(rtnetlink::Handle);

impl Netlink {
    /// Opens one; its task ends when the last clone is dropped.
    pub fn connect() -> Result<Self, KernelError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(failed("opening a route netlink socket"))?;
        crate::tasks::spawn("netlink", connection);
        Ok(Self(handle))
    }
}
