//! What a fleet is made of: one file a subject, with its commands, events, rules and part of the state.

pub mod appliances;
pub mod enrolment;
pub mod jobs;
pub mod nodes;
pub mod services;
pub mod sources;
