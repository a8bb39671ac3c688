//! The appliance's answers: who is asking, what they may, and what they are told. No sockets and no runtime, so that a
//! simulation can ask it directly.

pub mod body;
pub mod certificate;
pub mod enrol;
pub mod gateway;
pub mod leases;
pub mod logs;
pub mod nonces;
pub mod pending;
pub mod presence;
pub mod rates;
pub mod receipt;
pub mod records;
pub mod refusal;
pub mod register;
pub mod request;
pub mod secrets;
pub mod signature;

use crate::bucket::Buckets;
use crate::keys::CertificateAuthority;
use crate::limits;
use state::model::NodeId;
use std::sync::Mutex;
use std::time::Duration;

/// What answers for an appliance.
pub struct Authority {
    /// Signs and remembers what nodes are told.
    pub records: records::Records,
    ca: CertificateAuthority,
    certificate_life: Duration,
    soft: Mutex<Soft>,
}

/// What is known beside the state, and lost with the process.
pub struct Soft {
    /// Who has been heard.
    pub presence: presence::Presence,
    /// Who asked to be admitted.
    pub pending: pending::Pending,
    /// When leases on jobs end.
    pub leases: leases::Leases,
    /// What running jobs say.
    pub logs: logs::Logs,
    /// Who may say anew what its machine can do.
    pub reports: Buckets<NodeId>,
    nonces: nonces::Nonces,
    enrolments: rates::Rates,
    failures: rates::Rates,
}

impl Authority {
    /// An authority whose certificates live so long, and that starts listening at `now` by the boot clock.
    pub fn new(records: records::Records, ca: CertificateAuthority, certificate_life: Duration, now: Duration) -> Self {
        let soft = Soft {
            presence: presence::Presence::new(now),
            pending: pending::Pending::default(),
            leases: leases::Leases::default(),
            logs: logs::Logs::default(),
            reports: Buckets::new(limits::REPORTS, limits::REPORTERS),
            nonces: nonces::Nonces::default(),
            enrolments: rates::Rates::new(Some(limits::ENROL_TOTAL)),
            failures: rates::Rates::new(None),
        };
        Self { records, ca, certificate_life, soft: Mutex::new(soft) }
    }
}

#[cfg(test)]
mod tests;
