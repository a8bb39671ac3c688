//! The writer and the consensus engine that makes what it decides durable: here a cluster of one.
//!
//! [`start`] gives a [`Handle`], through which everything is read and every command is submitted. Behind it a supervisor
//! keeps one engine running: a store, the consensus engine on it, the writer. When the disk fails, that engine ends,
//! reads go on from the last state, and a new engine is started as soon as the store can be opened.

mod engine;
mod handle;
mod home;
mod log;
mod machine;
mod network;
mod raft;
mod receipts;
mod supervisor;
mod writer;

pub use handle::{Call, Decided, Finished, Handle, Outcome, SubmitError, Wish};
pub use home::{Home, Place};
pub use receipts::ReceiptKey;
pub use supervisor::start;

#[cfg(test)]
mod tests;
