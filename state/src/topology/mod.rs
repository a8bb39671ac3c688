//! Who peers with whom: a pure function from all records to one node's peers.
