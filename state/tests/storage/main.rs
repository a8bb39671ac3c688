//! The store on media that lose power, tear writes, flip bits and lose their end.
//!
//! `HOLDFAST_FULL=1` runs many more images.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "shared with the tests of the rules, which use the rest of it")]
#[path = "../fleet/common.rs"]
mod common;
mod crash;
mod damage;
mod medium;
mod script;
