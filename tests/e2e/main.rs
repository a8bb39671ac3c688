//! The real binary in network namespaces: one file per promise.
