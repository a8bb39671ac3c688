//! How the state is kept.
