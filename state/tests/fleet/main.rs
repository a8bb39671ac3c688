//! The state as its users see it: commands in, events, refusals and views out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod certificates;
mod common;
mod endings;
mod golden;
mod jobs;
mod rules;
mod sources;
