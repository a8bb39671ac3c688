//! The appliance's listeners: what is asked over the network or the operator's socket, handed to [`crate::authority`].

pub mod accept;
pub mod appliance;
pub mod found;
pub mod gate;
pub mod gateway;
pub mod http;
mod leases;
pub mod mesh;
mod metrics;
mod names;
pub mod observed;
pub mod operator;
mod own_node;
mod page;
mod route;
mod run;
pub mod scrub;
pub mod sources;
pub mod tls;
mod verdicts;
mod watch;

pub use run::{Options, RECOVERY, init, run};

#[cfg(test)]
mod tests;
