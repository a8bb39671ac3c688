//! A disk that fails.
