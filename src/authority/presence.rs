//! Who has been heard, from where, and with which sequence numbers: soft state, lost with the process.
//!
//! An unchanged heartbeat ends here. Only a verdict that changes becomes a command.

use crate::limits;
use state::State;
use state::model::{Fingerprint, Millis, NodeId, Revision};
use state::view::records::Liveness;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use uuid::Uuid;

/// Earlier starts of an agent that are remembered, to know a clone by.
const STARTS: usize = 8;

/// What has been heard of all nodes.
#[derive(Debug)]
pub struct Presence {
    since: Duration,
    nodes: BTreeMap<NodeId, Heard>,
}

/// What has been heard of a node since this appliance started.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// When last, by the boot clock; none if only its sequence is known.
    pub last: Option<Duration>,
    /// The same by the wall clock, for people.
    pub last_wall: Millis,
    /// From where.
    pub source: Option<IpAddr>,
    /// Which revision of its peer list it holds.
    pub held: Revision,
    /// Whether an earlier start of it spoke again after a later one: two machines use one identity.
    pub duplicate: bool,
    /// What its last accepted register said, see [`RegisterBody::content`](crate::wire::peers::RegisterBody::content).
    pub registered: Option<Fingerprint>,
    starts: Vec<Uuid>,
    seq: u64,
    body: Option<Fingerprint>,
}

/// What a request's sequence number says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Above all before it.
    New,
    /// The same request again: answered alike, and nobody is heard by it.
    Again,
    /// At or below this floor.
    Replayed {
        /// What the next request must exceed.
        floor: u64,
    },
}

impl Presence {
    /// Nothing heard yet, listening since `now`.
    pub const fn new(now: Duration) -> Self {
        Self { since: now, nodes: BTreeMap::new() }
    }

    /// What is known of a node.
    pub fn of(&self, node: NodeId) -> Option<&Heard> {
        self.nodes.get(&node)
    }

    /// Judges a sequence number and remembers it. `journaled` is the floor that the node's last change left.
    pub fn sequence(&mut self, node: NodeId, seq: u64, body: Fingerprint, journaled: u64) -> Sequence {
        let heard = self.nodes.entry(node).or_default();
        if heard.seq < journaled {
            heard.seq = journaled;
            heard.body = None;
        }
        if seq < heard.seq || (seq == heard.seq && heard.body.is_some_and(|held| held != body)) {
            return Sequence::Replayed { floor: heard.seq };
        }
        let again = seq == heard.seq;
        heard.seq = seq;
        heard.body = Some(body);
        if again { Sequence::Again } else { Sequence::New }
    }

    /// A request of the node was accepted.
    pub fn hear(&mut self, node: NodeId, source: IpAddr, now: Duration, wall: Millis) {
        let heard = self.nodes.entry(node).or_default();
        heard.last = Some(now);
        heard.last_wall = wall;
        if !heard.duplicate {
            heard.source = Some(source);
        }
    }

    /// A register names its agent's start. True while two machines use the node's identity: an earlier start spoke
    /// again after a later one, and no new start has spoken since.
    pub fn start(&mut self, node: NodeId, instance: Uuid, held: Revision) -> bool {
        let heard = self.nodes.entry(node).or_default();
        heard.held = held;
        if heard.starts.last() != Some(&instance) {
            let earlier = heard.starts.iter().position(|start| *start == instance);
            heard.duplicate = earlier.is_some();
            if let Some(earlier) = earlier {
                heard.starts.remove(earlier);
            } else if heard.starts.len() == STARTS {
                heard.starts.remove(0);
            }
            heard.starts.push(instance);
        }
        heard.duplicate
    }

    /// A node says which revision of its peer list it holds.
    pub fn holds(&mut self, node: NodeId, held: Revision) {
        self.nodes.entry(node).or_default().held = held;
    }

    /// A register of the node was accepted that says this.
    pub fn registered(&mut self, node: NodeId, content: Fingerprint) {
        self.nodes.entry(node).or_default().registered = Some(content);
    }

    /// Whether the node is known as its bare heartbeat says: by this start of its agent, which registered so.
    pub fn knows(&self, node: NodeId, instance: Uuid, content: Fingerprint) -> bool {
        self.nodes.get(&node).is_some_and(|heard| {
            !heard.duplicate && heard.starts.last() == Some(&instance) && heard.registered == Some(content)
        })
    }

    /// Whether the node was heard within two minutes.
    pub fn is_live(&self, node: NodeId, now: Duration) -> bool {
        self.nodes
            .get(&node)
            .and_then(|heard| heard.last)
            .is_some_and(|last| now.saturating_sub(last) < limits::NODE_LIVE)
    }

    /// The verdicts that are not any more what the state says: nodes that fell silent. Nobody is out of touch before
    /// this appliance has listened long enough to know. What is heard again says so by its own register.
    pub fn fallen_silent(&self, state: &State, now: Duration, wall: Millis) -> Vec<(NodeId, Liveness)> {
        let here = state
            .nodes
            .all
            .values()
            .filter(|node| node.member.as_ref().is_some_and(|member| member.liveness == Liveness::Here));
        here.filter_map(|node| {
            let last = self.nodes.get(&node.id).and_then(|heard| heard.last);
            let silent = now.saturating_sub(last.unwrap_or(self.since));
            let ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            let since = Millis(wall.0.saturating_sub(ms));
            (silent >= limits::OUT_OF_TOUCH).then_some((node.id, Liveness::OutOfTouch { since }))
        })
        .collect()
    }

    /// Forgets a node that is gone.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(Uuid::from_u128(7));

    fn body(n: u8) -> Fingerprint {
        Fingerprint::from_bytes([n; 32])
    }

    #[test]
    fn a_sequence_never_goes_back() {
        let mut presence = Presence::new(Duration::ZERO);
        let mut judge = |seq, b, journaled| presence.sequence(NODE, seq, body(b), journaled);
        assert_eq!(judge(5, 1, 0), Sequence::New);
        assert_eq!(judge(5, 1, 0), Sequence::Again);
        assert_eq!(judge(5, 2, 0), Sequence::Replayed { floor: 5 });
        assert_eq!(judge(4, 1, 0), Sequence::Replayed { floor: 5 });
        assert_eq!(judge(6, 1, 5), Sequence::New);
        assert_eq!(judge(6, 1, 6), Sequence::Again, "its own change does not make it a replay");
        assert_eq!(judge(7, 1, 9), Sequence::Replayed { floor: 9 });
        assert_eq!(judge(9, 1, 9), Sequence::Again, "after a restart the floor's own request may come again");
        assert_eq!(judge(9, 2, 9), Sequence::Replayed { floor: 9 });
    }

    #[test]
    fn an_earlier_start_that_speaks_again_is_a_clone() {
        let mut presence = Presence::new(Duration::ZERO);
        let mut start = |n| presence.start(NODE, Uuid::from_u128(n), Revision(0));
        assert!(!start(1) && !start(1) && !start(2) && !start(2));
        assert!(start(1) && start(1) && start(2));
        assert!(!start(3), "a fresh start ends it");
        assert!(start(2));
    }

    #[test]
    fn only_who_was_heard_lately_is_live() {
        let mut presence = Presence::new(Duration::ZERO);
        let source = IpAddr::from([203, 0, 113, 1]);
        presence.hear(NODE, source, Duration::from_secs(10), Millis(1));
        assert!(presence.is_live(NODE, Duration::from_secs(129)));
        assert!(!presence.is_live(NODE, Duration::from_secs(130)));
        presence.forget(NODE);
        assert!(!presence.is_live(NODE, Duration::from_secs(11)));
    }
}
