//! A machine's side: what it is told, what it makes of it, and what it reads back.

pub mod kernel;
pub mod plan;
pub mod reconcile;
