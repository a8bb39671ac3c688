//! From what is wanted and what was seen to what must be done: pure, comparable and printable.

mod desired;

pub use desired::{Desired, Firewall, Opening};
