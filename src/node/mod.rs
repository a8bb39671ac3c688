//! A machine's side: what it is told, what it makes of it, and what it reads back.

pub mod client;
pub mod held;
pub mod kernel;
pub mod ledger;
pub mod plan;
pub mod reconcile;
#[cfg(test)]
mod testing;
pub mod trust;
