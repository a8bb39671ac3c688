//! How many connections and attempts there may be: counted, never queued.
//!
//! A connection counts against its source until a request on it has been proven, then against its node. So strangers
//! can exhaust what strangers have, and an admitted node keeps its place. When strangers have taken all there is, the
//! oldest of them gives way to the newest: a node that comes now proves itself within a moment, and one that says
//! nothing has had its time.

use crate::bucket;
use crate::limits;
use state::model::NodeId;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The counts of one listener.
#[derive(Debug, Default)]
pub struct Gate(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Those that are not proven, in the order in which they came, and what tells each to go.
    unproven: BTreeMap<u64, Arc<Notify>>,
    next: u64,
    sources: BTreeMap<IpAddr, usize>,
    nodes: BTreeMap<NodeId, usize>,
}

/// One connection's place, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    gate: Arc<Gate>,
    number: u64,
    go: Arc<Notify>,
    cut: AtomicBool,
    source: IpAddr,
    node: Mutex<Option<NodeId>>,
}

impl Gate {
    /// A place for a new connection, or none while its source has used its own up. Where all strangers together have
    /// used theirs up, the oldest of them is told to go.
    pub fn admit(self: &Arc<Self>, source: IpAddr) -> Option<Arc<Place>> {
        let source = source.to_canonical();
        let counted = bucket::source(source);
        let mut counts = self.counts();
        let of_source = counts.sources.get(&counted).copied().unwrap_or(0);
        if of_source >= limits::CONNECTIONS_PER_SOURCE {
            return None;
        }
        if counts.unproven.len() >= limits::CONNECTIONS_UNPROVEN
            && let Some((_, oldest)) = counts.unproven.pop_first()
        {
            oldest.notify_one();
        }
        let (number, go) = (counts.next, Arc::new(Notify::new()));
        counts.next += 1;
        counts.unproven.insert(number, go.clone());
        counts.sources.insert(counted, of_source + 1);
        drop(counts);
        Some(Arc::new(Place {
            gate: self.clone(),
            number,
            go,
            cut: AtomicBool::new(false),
            source,
            node: Mutex::new(None),
        }))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn leave_source(&mut self, place: &Place) {
        self.unproven.remove(&place.number);
        release(&mut self.sources, &bucket::source(place.source));
    }
}

fn release<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Place {
    /// Where the connection comes from.
    pub const fn source(&self) -> IpAddr {
        self.source
    }

    /// Whether a request on this connection has been proven.
    pub fn is_proven(&self) -> bool {
        self.node().is_some()
    }

    /// A request was proven to be this node's: from now on the connection counts against the node. False if the node
    /// has all its connections already.
    pub fn prove(&self, id: NodeId) -> bool {
        let mut node = self.node();
        if *node == Some(id) {
            return true;
        }
        let mut counts = self.gate.counts();
        let held = counts.nodes.get(&id).copied().unwrap_or(0);
        if held >= limits::CONNECTIONS_PER_NODE {
            return false;
        }
        match *node {
            Some(former) => release(&mut counts.nodes, &former),
            None => counts.leave_source(self),
        }
        counts.nodes.insert(id, held + 1);
        *node = Some(id);
        true
    }

    /// Until this connection has to give way, which a proven one never has to, or is cut off.
    pub async fn told_to_go(&self) {
        loop {
            self.go.notified().await;
            if !self.is_proven() || self.cut.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Ends the connection, whatever is being said on it.
    pub fn cut_off(&self) {
        self.cut.store(true, Ordering::Relaxed);
        self.go.notify_one();
    }

    fn node(&self) -> MutexGuard<'_, Option<NodeId>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let node = *self.node();
        let mut counts = self.gate.counts();
        match node {
            Some(id) => release(&mut counts.nodes, &id),
            None => counts.leave_source(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, n])
    }

    #[test]
    fn a_source_cannot_take_the_places_of_others_nor_of_proven_nodes() {
        let gate = Arc::new(Gate::default());
        let mut held: Vec<_> = (0..limits::CONNECTIONS_PER_SOURCE).map(|_| gate.admit(source(1)).unwrap()).collect();
        assert!(gate.admit(source(1)).is_none());
        let other = gate.admit(source(2)).unwrap();
        let node = NodeId(uuid::Uuid::from_u128(1));
        assert!(held[0].prove(node) && held[0].prove(node));
        held.push(gate.admit(source(1)).unwrap());
        assert!(gate.admit(source(1)).is_none());
        assert!(held[1..limits::CONNECTIONS_PER_NODE].iter().all(|place| place.prove(node)));
        assert!(!other.prove(node), "a node has its own bound");
        drop(held);
        drop(other);
        let counts = gate.counts();
        assert_eq!((counts.unproven.len(), counts.sources.len(), counts.nodes.len()), (0, 0, 0));
    }

    #[test]
    fn a_subscriber_has_the_places_of_one_source() {
        let gate = Arc::new(Gate::default());
        let address = |n: usize| format!("2001:db8::{n:x}").parse().unwrap();
        let held: Vec<_> = (0..limits::CONNECTIONS_PER_SOURCE).map(|n| gate.admit(address(n)).unwrap()).collect();
        assert!(gate.admit(address(1 << 12)).is_none());
        assert_eq!(held[1].source(), address(1), "it is still known where each comes from");
        assert!(gate.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[tokio::test]
    async fn the_oldest_stranger_gives_way_and_a_proven_node_stays() {
        let gate = Arc::new(Gate::default());
        let node = NodeId(uuid::Uuid::from_u128(1));
        let mut places = (0..=u8::MAX).cycle().map(|n| gate.admit(source(n)).unwrap());
        let proven = places.next().unwrap();
        assert!(proven.prove(node));
        let strangers: Vec<_> = places.by_ref().take(limits::CONNECTIONS_UNPROVEN).collect();
        let newest = places.next().unwrap();
        let gone = |place: Arc<Place>| async move {
            tokio::time::timeout(std::time::Duration::from_millis(10), place.told_to_go()).await.is_ok()
        };
        assert!(gone(strangers[0].clone()).await);
        assert!(!gone(strangers[1].clone()).await && !gone(proven).await && !gone(newest.clone()).await);
        assert_eq!(gate.counts().unproven.len(), limits::CONNECTIONS_UNPROVEN);
    }
}
