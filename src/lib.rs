//! Holdfast: a private network for a small fleet. `ARCHITECTURE.md` is the map of this code.

// The build without tests is what the bans are for: it sees every line that ships.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests plant files by hand"))]

pub mod authority;
pub mod bucket;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod dataplane;
pub mod entropy;
pub mod files;
pub mod keys;
pub mod lab;
pub mod limits;
pub mod listen;
pub mod node;
pub mod serve;
pub mod source;
pub mod tasks;
pub mod wire;
