//! The real stack on loopback: TLS, accept loop, routes, authority, writer and store.

mod changes;
mod gateway;
mod hostile;
mod jobs;
mod lost;
mod matrix;
mod page;
mod renewal;
mod rig;
mod scrub;
mod source;
