//! What a resolver answers from: the published zone with its cache of answers, replaced as one; and who is answered.

use super::answer::{Circumstances, Transport, answer};
use crate::bucket::{Buckets, source};
use crate::limits;
use arc_swap::ArcSwap;
use ipnet::IpNet;
use state::model::{Millis, Revision};
use state::view::names::Zone;
use state::view::records::{Mesh, NodeRecord};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The names of a fleet as they are served now. Shared by all listeners; publishing disturbs none of them.
pub struct Names {
    published: ArcSwap<Published>,
    as_of: AtomicU64,
    rate: Mutex<Buckets<IpAddr>>,
}

struct Published {
    zone: Zone,
    /// Sources without a rate limit: loopback and the mesh.
    near: Vec<IpNet>,
    /// Further sources that are answered.
    allow: Vec<IpNet>,
    cache: Mutex<Cache>,
}

/// Answers over UDP by query bytes without their id. Dies with the zone that it was answered from.
#[derive(Default)]
struct Cache {
    old: bool,
    answers: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

impl Names {
    /// Names at a revision. `allow` are the sources beside loopback and the mesh that are answered.
    pub fn new(records: &[NodeRecord], mesh: &Mesh, revision: Revision, as_of: Millis, allow: Vec<IpNet>) -> Self {
        Self {
            published: ArcSwap::from_pointee(Published::new(records, mesh, revision, allow)),
            as_of: AtomicU64::new(as_of.0),
            rate: Mutex::new(Buckets::new(limits::DNS_BUCKET, limits::DNS_SOURCES)),
        }
    }

    /// Serves these names from now on.
    pub fn publish(&self, records: &[NodeRecord], mesh: &Mesh, revision: Revision, allow: Vec<IpNet>) {
        self.published.store(Published::new(records, mesh, revision, allow).into());
    }

    /// Notes when the list was last confirmed: older than [`limits::NAMES_OLD`] and answers say so.
    pub fn confirmed(&self, as_of: Millis) {
        self.as_of.store(as_of.0, Ordering::Relaxed);
    }

    /// Answers one message, or nothing. A panic in a library costs this message alone.
    pub(super) fn answer(&self, bytes: &[u8], from: IpAddr, transport: Transport) -> Option<Vec<u8>> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.try_answer(bytes, from, transport)))
            .ok()
            .flatten()
    }

    fn try_answer(&self, bytes: &[u8], from: IpAddr, transport: Transport) -> Option<Vec<u8>> {
        let published = self.published.load();
        let from = from.to_canonical();
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&from));
        let near = from.is_loopback() || within(&published.near);
        if !near && !self.rate.lock().unwrap_or_else(PoisonError::into_inner).take(source(from), crate::clock::boot()) {
            return None;
        }
        let age = crate::clock::wall().since(Millis(self.as_of.load(Ordering::Relaxed)));
        let old = u128::from(age) > limits::NAMES_OLD.as_millis();
        let how = Circumstances { transport, served: near || within(&published.allow), old };
        if transport == Transport::Tcp || !how.served {
            return answer(&published.zone, bytes, how);
        }
        published.cached(bytes, old, || answer(&published.zone, bytes, how))
    }
}

impl Published {
    fn new(records: &[NodeRecord], mesh: &Mesh, revision: Revision, allow: Vec<IpNet>) -> Self {
        let mut near = vec![IpNet::V4(mesh.prefix.net())];
        near.extend(mesh.prefix6.map(IpNet::V6));
        Self { zone: Zone::new(records, mesh, revision), near, allow, cache: Mutex::default() }
    }

    fn cached(&self, bytes: &[u8], old: bool, make: impl FnOnce() -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let (id, key) = bytes.split_at_checked(2)?;
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut cache = lock();
            if cache.old != old {
                *cache = Cache { old, ..Cache::default() };
            }
            if let Some(answer) = cache.answers.get(key) {
                return Some([id, answer].concat());
            }
        }
        let made = make()?;
        if key.len() <= limits::DNS_CACHED_QUERY {
            let mut cache = lock();
            if cache.answers.len() >= limits::DNS_CACHE {
                cache.answers.clear();
            }
            cache.answers.insert(key.into(), made.get(2..)?.into());
        }
        Some(made)
    }
}
