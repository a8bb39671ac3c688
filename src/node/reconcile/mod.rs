//! Reconcile.
