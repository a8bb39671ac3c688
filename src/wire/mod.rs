//! What crosses the network and what a node keeps of it, versioned, apart from the model.
//!
//! Everything signed is signed over the exact bytes sent, stored and sent again: a signed document travels as a JSON
//! string and is parsed only after its signature has been checked over that string.

pub mod dataplane;
pub mod enrol;
#[cfg(test)]
mod golden;
pub mod jobs;
pub mod operator;
pub mod peers;
pub mod problem;
pub mod roster;
pub mod signed;
pub mod token;
