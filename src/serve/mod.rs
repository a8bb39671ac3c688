//! To be described by its first file.
