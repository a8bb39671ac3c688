//! Holdfast: a private network for a small fleet. `ARCHITECTURE.md` is the map of this code.

pub mod authority;
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
pub mod node;
pub mod serve;
pub mod tasks;
pub mod wire;
