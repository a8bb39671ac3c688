//! A machine's side: what it is told, what it makes of it, and what it reads back.

pub mod agent;
mod capabilities;
pub mod certificate;
pub mod claims;
pub mod client;
pub mod directory;
pub mod failure;
pub mod gateway;
pub mod held;
pub mod jobs;
pub mod join;
pub mod kernel;
mod knock;
pub mod lanes;
pub mod ledger;
pub mod plan;
pub mod reconcile;
pub mod run;
mod socket;
#[cfg(test)]
pub(crate) mod testing;
pub mod trust;
mod upkeep;
mod view;
pub mod wanted;
