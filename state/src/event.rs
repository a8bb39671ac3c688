//! What happened, as the journal keeps it: every id, time and random value is inside, so that applying needs nothing else.

use serde::{Deserialize, Serialize};

/// One fact. Kinds are only ever added; a reader that does not know one stops before it applies anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "subject", content = "event")]
pub enum Event {}
