//! A fleet in a test's hands: it signs rosters, records, heads and tombstones as an appliance does.

use crate::node::trust::Trust;
use crate::wire::peers::PeerList;
use crate::wire::roster::{Roster, RosterAppliance};
use crate::wire::signed::{Kind, Signed};
use ed25519_dalek::SigningKey as PrivateKey;
use state::model::{ApplianceId, Fingerprint, FleetId, Name, NodeId, Revision, SealingKey, SigningKey, WireguardKey};
use state::view::records::{
    Epoch, Gone, Head, Liveness, Mesh, NodeRecord, Protocol, Scope, ServiceRecord, Tombstone, Verdict, record_hash,
    set_digest,
};
use std::collections::BTreeMap;

pub(crate) struct Fleet {
    pub(crate) id: FleetId,
    pub(crate) root: PrivateKey,
    pub(crate) appliance: PrivateKey,
    pub(crate) appliance_id: ApplianceId,
    pub(crate) roster_revision: u64,
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) records: BTreeMap<NodeId, NodeRecord>,
    pub(crate) tombstones: Vec<Signed>,
}

pub(crate) fn public(key: &PrivateKey) -> SigningKey {
    SigningKey::from_bytes(key.verifying_key().to_bytes())
}

pub(crate) fn node(number: u8) -> NodeId {
    NodeId(uuid::Uuid::from_u128(u128::from(number) + 1))
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

impl Fleet {
    pub(crate) fn new() -> Self {
        Self {
            id: FleetId(uuid::Uuid::from_u128(500)),
            root: PrivateKey::from_bytes(&[1; 32]),
            appliance: PrivateKey::from_bytes(&[2; 32]),
            appliance_id: ApplianceId(uuid::Uuid::from_u128(600)),
            roster_revision: 1,
            epoch: 1,
            revision: 0,
            records: BTreeMap::new(),
            tombstones: Vec::new(),
        }
    }

    pub(crate) fn roster(&self) -> Signed {
        let roster = Roster {
            format: 1,
            fleet: self.id,
            fleet_name: name("lab"),
            revision: Revision(self.roster_revision),
            appliances: vec![RosterAppliance {
                id: self.appliance_id,
                signing_key: public(&self.appliance),
                ca: String::new(),
                pins: vec![Fingerprint::from_bytes([3; 32])],
                mesh: vec!["198.51.100.2:4300".parse().unwrap()],
                gateway: vec![],
                may_lead: true,
            }],
        };
        Signed::sign(&self.root, Kind::Roster, serde_json::to_string(&roster).unwrap())
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::new(public(&self.root), self.id, self.roster()).unwrap()
    }

    /// Adds node number `number`, named `n<number>`, or changes it by `change` under the next revision.
    pub(crate) fn set(&mut self, number: u8, change: impl FnOnce(&mut NodeRecord)) -> NodeId {
        self.revision += 1;
        let id = node(number);
        let revision = Revision(self.revision);
        let record = self.records.entry(id).or_insert_with(|| NodeRecord {
            format: 1,
            id,
            revision,
            name: name(&format!("n{number}")),
            org: None,
            site: None,
            hub: false,
            appliance: None,
            address: [10, 90, 0, number + 1].into(),
            address6: None,
            signing_key: SigningKey::from_bytes([number + 10; 32]),
            wireguard_key: WireguardKey::from_bytes([number + 10; 32]),
            sealing_key: SealingKey::from_bytes([number + 10; 32]),
            listen_port: 51820,
            endpoints: vec![format!("198.51.100.{}:51820", number + 10).parse().unwrap()],
            local_endpoints: vec![],
            liveness: Liveness::Here,
            services: vec![],
        });
        record.revision = revision;
        change(record);
        id
    }

    pub(crate) fn remove(&mut self, number: u8, reason: Gone) {
        self.revision += 1;
        let id = node(number);
        self.records.remove(&id);
        let tombstone = self.tombstone(id, reason);
        self.tombstones.push(tombstone);
    }

    pub(crate) fn tombstone(&self, id: NodeId, reason: Gone) -> Signed {
        let revision = Revision(self.revision);
        let tombstone = Tombstone { format: 1, id, scope: Scope::mesh(None), revision, reason };
        self.sign(Kind::Tombstone, &tombstone)
    }

    pub(crate) fn sign(&self, kind: Kind, document: &impl serde::Serialize) -> Signed {
        Signed::sign(&self.appliance, kind, serde_json::to_string(document).unwrap())
    }

    pub(crate) fn head(&self) -> Signed {
        self.head_over(&self.records())
    }

    /// A head over exactly these signed records.
    pub(crate) fn head_over(&self, records: &[Signed]) -> Signed {
        let set: BTreeMap<_, _> = records
            .iter()
            .map(|signed| {
                let brief: serde_json::Value = serde_json::from_str(&signed.document).unwrap();
                let id: NodeId = serde_json::from_value(brief["id"].clone()).unwrap();
                let revision = Revision(brief["revision"].as_u64().unwrap());
                (id, (revision, record_hash(signed.document.as_bytes())))
            })
            .collect();
        let head = Head {
            format: 1,
            fleet: self.id,
            signer: self.appliance_id,
            scope: Scope::mesh(None),
            epoch: Epoch { number: self.epoch, appliance: self.appliance_id },
            revision: Revision(self.revision),
            count: set.len() as u64,
            digest: set_digest(&set),
            mesh: Mesh {
                prefix: "10.90.0.0/16".parse().unwrap(),
                prefix6: None,
                suffix: name("internal"),
                appliances: vec!["198.51.100.2".parse().unwrap()],
            },
        };
        self.sign(Kind::Head, &head)
    }

    pub(crate) fn records(&self) -> Vec<Signed> {
        self.records.values().map(|record| self.sign(Kind::Peer, record)).collect()
    }

    pub(crate) fn full(&self) -> PeerList {
        PeerList { heads: vec![self.head()], records: self.records(), tombstones: self.tombstones.clone() }
    }

    /// What changed after a revision.
    pub(crate) fn delta(&self, after: u64) -> PeerList {
        let newer = |revision: Revision| revision.0 > after;
        let records = self.records.values().filter(|r| newer(r.revision)).map(|r| self.sign(Kind::Peer, r)).collect();
        let revision_of = |signed: &Signed| serde_json::from_str::<Tombstone>(&signed.document).unwrap().revision;
        let tombstones = self.tombstones.iter().filter(|t| newer(revision_of(t))).cloned().collect();
        PeerList { heads: vec![self.head()], records, tombstones }
    }
}

/// A service record of `shop/web`.
pub(crate) fn web(verdict: Verdict) -> ServiceRecord {
    ServiceRecord { space: name("shop"), name: name("web"), protocol: Protocol::Http, port: 80, verdict }
}
