//! Media for the tests.
