//! The state as its users see it: commands in, events, refusals and views out.

mod common;
mod golden;
mod rules;
