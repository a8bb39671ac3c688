//! `GET /v1/peers/watch`: one line of JSON for every published change that concerns a node's scopes.
//!
//! A watcher that is slow is told of several changes in one line; nothing is queued for it. It ends when the node is
//! gone, its last line being the tombstone.

use crate::authority::records::{Records, Scopes};
use crate::limits;
use crate::listen::stop::Stop;
use crate::serve::appliance::Appliance;
use crate::serve::gate::Place;
use crate::serve::http::json;
use crate::wire::peers::PeerList;
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream;
use state::State;
use state::model::{NodeId, Revision, SigningKey};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;

struct Watcher {
    appliance: Arc<Appliance>,
    published: Receiver<Arc<State>>,
    id: NodeId,
    key: SigningKey,
    told: Option<Scopes>,
    after: Revision,
    over: bool,
    stop: Stop,
    /// Counts the connection for as long as it is watched.
    _place: Arc<Place>,
}

/// The stream of a node's scopes above `after`.
pub(super) fn stream(
    appliance: Arc<Appliance>,
    id: NodeId,
    key: SigningKey,
    after: Revision,
    stop: Stop,
    place: Arc<Place>,
) -> Response {
    let published = appliance.handle.watch();
    let watcher = Watcher { appliance, published, id, key, told: None, after, over: false, stop, _place: place };
    let lines = stream::unfold(watcher, |mut watcher| async move {
        let line = watcher.next().await?;
        Some((Ok::<Bytes, Infallible>(line), watcher))
    });
    json(200, "application/x-ndjson", Body::from_stream(lines))
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            let state = Arc::clone(&self.published.borrow_and_update());
            if let Some(line) = self.line(&state) {
                return Some(line);
            }
            tokio::select! {
                changed = self.published.changed() => changed.ok()?,
                () = sleep(limits::KEEP_ALIVE) => return Some(Bytes::from_static(b"\n")),
                () = self.stop.requested() => return None,
            }
        }
    }

    /// What there is to tell by this state.
    fn line(&mut self, state: &State) -> Option<Bytes> {
        if state.nodes.by_key.get(&self.key) != Some(&self.id) {
            self.over = true;
            return state.nodes.departed.get(&self.key).map(|departed| {
                let tombstones = vec![self.appliance.authority.records.tombstone(departed)];
                let mut line = state::to_bytes(&PeerList { tombstones, ..PeerList::default() });
                line.push(b'\n');
                Bytes::from(line)
            });
        }
        let (scopes, newest) = Records::standing(state, self.id)?;
        // A delta says nothing of what was in a scope before the node was in it.
        if self.told.as_ref().is_some_and(|told| *told != scopes) {
            self.after = Revision(0);
        }
        let line = (newest > self.after).then(|| self.appliance.authority.records.list(state, &scopes, self.after));
        self.told = Some(scopes);
        self.after = self.after.max(newest);
        line
    }
}
