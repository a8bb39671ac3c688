//! The real binary in network namespaces: one file per promise, each test in a lab of its own so that they can run side
//! by side. The lab is `holdfast::lab`, which the demo uses too.

mod certificates;
mod input;
mod jobs;
mod join;
mod names;
mod network;
mod outage;
mod reach;
mod source;
mod steady;
mod tools;
