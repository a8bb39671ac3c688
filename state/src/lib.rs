//! What is true in a fleet, and what may become true.
//!
//! A **command** is *decided* against the [`State`] into **events** or a **refusal**; events are appended to the
//! journal, made durable, *applied*, and published as a new immutable state; everything anyone reads is a **view**, a
//! pure function of that state.
//!
//! This crate has no runtime, no socket, no clock and no source of randomness: time arrives in [`Context`], chance in the
//! commands. It is the only crate that names redb.
//!
//! Table of contents: [`subject`] lists what a fleet is made of; [`view`] what is shown of it; [`topology`] who peers
//! with whom; [`store`] how it is kept.

mod canonical;
mod command;
mod context;
mod event;
pub mod model;
mod refusal;
mod state;
pub mod store;
pub mod subject;
pub mod topology;
pub mod view;

pub use canonical::{Hash, hash_of, to_bytes, to_text};
pub use command::{Command, decide};
pub use context::{Actor, Context, Role};
pub use event::Event;
pub use refusal::{Code, Refusal};
pub use state::{Change, State};
