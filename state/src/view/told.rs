//! From the state to the documents that nodes are told, and which of them a change has altered.

use crate::State;
use crate::model::{ApplianceId, Fingerprint, NodeId, Revision};
use crate::state::Touched;
use crate::subject::nodes::Node;
use crate::subject::services::verdict;
use crate::view::records::{Gone, Head, NodeRecord, Scope, ServiceRecord, Tombstone, record_hash, set_digest};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What nodes have been told, as far as the next telling depends on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Of each record.
    pub records: OrdMap<NodeId, ToldRecord>,
    /// Of each scope that has or had a member.
    pub scopes: OrdMap<Scope, ToldScope>,
}

/// Of one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldRecord {
    /// The change that last altered it.
    pub revision: Revision,
    /// The hash of its bytes but for the revision: what tells whether a change alters it.
    pub hash: Fingerprint,
    /// The scopes that it is in.
    pub scopes: BTreeSet<Scope>,
}

/// Of one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldScope {
    /// The change that last altered it.
    pub revision: Revision,
    /// What is gone from it, since which change and why.
    pub gone: OrdMap<NodeId, (Revision, Gone)>,
}

impl Told {
    /// Every head carries the mesh's facts, so all are new when those change.
    pub(crate) fn mesh_changed(&mut self, revision: Revision) {
        let scopes: Vec<Scope> = self.scopes.keys().cloned().collect();
        for scope in scopes {
            self.scopes.entry(scope).or_default().revision = revision;
        }
    }
}

/// Works out which records and scopes a change has altered, and gives those its number.
pub(crate) fn retell(state: &mut State, mut touched: Touched) {
    let own = |node: &Node| Scope::mesh(node.org.clone());
    let new: BTreeSet<Scope> =
        touched.nodes.iter().filter_map(|id| state.nodes.all.get(id)).filter(|n| n.member.is_some()).map(own).collect();
    for scope in new {
        if !state.told.scopes.contains_key(&scope) {
            state.told.scopes.insert(scope, ToldScope::default());
            let everywhere = state.nodes.all.values().filter(|node| forwards(node)).map(|node| node.id);
            touched.nodes.extend(everywhere);
        }
    }
    for id in &touched.nodes {
        let now = record(state, *id).map(|mut record| {
            record.revision = Revision(0);
            let scopes = state.nodes.all.get(id).map(|node| scopes_of(state, node)).unwrap_or_default();
            ToldRecord { revision: state.revision, hash: record_hash(&crate::to_bytes(&record)), scopes }
        });
        let before = state.told.records.get(id);
        let same = match (&now, before) {
            (Some(now), Some(before)) => now.hash == before.hash && now.scopes == before.scopes,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            continue;
        }
        let was = before.map(|r| r.scopes.clone()).unwrap_or_default();
        let is = now.as_ref().map(|r| r.scopes.clone()).unwrap_or_default();
        for scope in was.union(&is) {
            let told = state.told.scopes.entry(scope.clone()).or_default();
            told.revision = state.revision;
            if is.contains(scope) {
                told.gone.remove(id);
            } else {
                let reason = touched.gone.get(id).copied().unwrap_or(Gone::Moved);
                told.gone.insert(*id, (state.revision, reason));
            }
        }
        match now {
            Some(now) => state.told.records.insert(*id, now),
            None => state.told.records.remove(id),
        };
    }
}

/// Hubs and the appliances' own nodes are in every mesh scope, and hold every one.
fn forwards(node: &Node) -> bool {
    node.hub || node.appliance.is_some()
}

/// The scopes that a node is in, which are those that it is told.
pub fn scopes_of(state: &State, node: &Node) -> BTreeSet<Scope> {
    if forwards(node) {
        state.told.scopes.keys().cloned().collect()
    } else {
        BTreeSet::from([Scope::mesh(node.org.clone())])
    }
}

/// The ids in a scope.
pub fn members<'a>(state: &'a State, scope: &'a Scope) -> impl Iterator<Item = (NodeId, &'a ToldRecord)> {
    state.told.records.iter().filter(|(_, told)| told.scopes.contains(scope)).map(|(id, told)| (*id, told))
}

/// A node's record; none before it has joined.
pub fn record(state: &State, id: NodeId) -> Option<NodeRecord> {
    let node = state.nodes.all.get(&id)?;
    let member = node.member.as_ref()?;
    let claims = state.services.by_node.get(&id);
    let services = claims.into_iter().flatten().map(|(pair, port)| ServiceRecord {
        space: pair.space.clone(),
        name: pair.name.clone(),
        protocol: port.protocol,
        port: port.port,
        verdict: verdict(state, id, pair),
    });
    let mut endpoints = node.endpoints.clone();
    endpoints.extend(member.endpoints.iter().filter(|e| !node.endpoints.contains(e)).cloned());
    Some(NodeRecord {
        format: 1,
        id,
        revision: state.told.records.get(&id).map_or(Revision(0), |told| told.revision),
        name: node.name.clone(),
        org: node.org.clone(),
        site: node.site.clone(),
        hub: node.hub,
        appliance: node.appliance,
        address: member.address,
        address6: None,
        signing_key: member.signing_key,
        wireguard_key: member.wireguard_key,
        sealing_key: member.sealing_key,
        listen_port: member.listen_port,
        endpoints,
        local_endpoints: member.local_endpoints.clone(),
        liveness: member.liveness,
        services: services.collect(),
    })
}

/// A scope's head over the given set, signed afterwards by `signer`; none before the fleet is founded.
pub fn head(
    state: &State,
    scope: &Scope,
    signer: ApplianceId,
    set: &BTreeMap<NodeId, (Revision, Fingerprint)>,
) -> Option<Head> {
    Some(Head {
        format: 1,
        fleet: state.appliances.fleet.as_ref()?.id,
        signer,
        scope: scope.clone(),
        epoch: state.appliances.epoch?,
        revision: state.told.scopes.get(scope)?.revision,
        count: set.len() as u64,
        digest: set_digest(set),
        mesh: state.mesh()?,
    })
}

/// The tombstones of a scope above a revision.
pub fn tombstones(state: &State, scope: &Scope, after: Revision) -> Vec<Tombstone> {
    let gone = state.told.scopes.get(scope).into_iter().flat_map(|told| told.gone.iter());
    gone.filter(|(_, (revision, _))| *revision > after)
        .map(|(id, (revision, reason))| Tombstone {
            format: 1,
            id: *id,
            scope: scope.clone(),
            revision: *revision,
            reason: *reason,
        })
        .collect()
}
