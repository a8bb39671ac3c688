//! From what is wanted and what was seen to what must be done: pure, comparable and printable.

mod check;
mod desired;
mod diff;
mod foreign;
mod observed;
mod ruleset;
mod step;

pub use check::{Unsound, check};
pub use desired::{Desired, Firewall, Opening};
pub use diff::{Plan, plan};
pub use foreign::{Foreign, What, foreign};
pub use observed::{ForwardSeen, LinkSeen, Observed, TableSeen};
pub use ruleset::{Element, Ruleset, Skeleton};
pub use step::Step;

#[cfg(test)]
mod law;
