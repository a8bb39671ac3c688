//! What a fleet is made of: one file a subject, with its commands, events, rules and part of the state.
