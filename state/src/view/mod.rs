//! What anyone reads: pure functions of the state, or of the records that a node holds.

pub mod names;
pub mod records;
pub mod status;
pub mod told;
