//! The appliance's listeners: what is asked over the network or the operator's socket, handed to [`crate::authority`].

pub mod accept;
pub mod appliance;
pub mod gate;
pub mod http;
pub mod mesh;
pub mod operator;
pub mod stop;
pub mod tls;
mod watch;
