//! The held stream of new heads, changed records and tombstones: one JSON document a line.

use super::{CallError, chain};
use crate::limits;
use crate::wire::peers::PeerList;

/// A stream that is being held.
pub struct Watch {
    response: reqwest::Response,
    buffer: Vec<u8>,
    /// How much of the buffer has been searched for the end of its first line.
    searched: usize,
}

impl Watch {
    pub(super) const fn new(response: reqwest::Response) -> Self {
        Self { response, buffer: Vec::new(), searched: 0 }
    }

    /// The next change; none when the appliance ended the stream. Empty lines are its signs of life and are passed over.
    pub async fn next(&mut self) -> Result<Option<PeerList>, CallError> {
        loop {
            if let Some(line) = self.line() {
                if line.is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|e| CallError::Malformed(format!("a line of the stream of changes is malformed: {e}")));
            }
            let chunk = self.response.chunk().await;
            match chunk
                .map_err(|e| CallError::Unreachable(format!("the stream of changes broke off: {}", chain(&e))))?
            {
                Some(bytes) if self.buffer.len() + bytes.len() > limits::LIST => {
                    return Err(CallError::Malformed("a line of the stream of changes is too long".into()));
                }
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        let Some(end) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.searched + end + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        self.searched = 0;
        line.pop();
        Some(line)
    }
}
