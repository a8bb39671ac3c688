//! The node's one reconciler: observe, plan, apply, observe again. It keeps nothing but the ledger; every run begins
//! with what the kernel says.

mod apply;
mod observe;

use super::kernel::names::Mark;
use super::kernel::wireguard::{self, Backend, PeerSeen, PrivateKey, WireGuard};
use super::kernel::{KernelError, Netlink, underlay};
use super::ledger::{Key, Kind, Ledger};
use super::plan::{Desired, Foreign, Observed, Plan, Step, Unsound, check, foreign, plan};
use crate::files::FileError;
use crate::wire::dataplane::WIREGUARD_SOCKET;
use state::model::{NodeId, WireguardKey};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Why nothing was compared or changed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The wanted state may not be applied.
    #[error("the peer list is refused: {0}")]
    Unsound(#[from] Unsound),
    /// Something it needs belongs to somebody else.
    #[error(transparent)]
    Foreign(#[from] Foreign),
    /// The kernel or a tool refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The key file or the ledger.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a run did and what it read back.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The changes that were made, in order; none if nothing was to do.
    pub sent: Vec<Step>,
    /// The kernel afterwards.
    pub seen: Observed,
    /// What belongs to somebody else and stands in the way.
    pub foreign: Vec<Foreign>,
    /// What is still not as wanted, in words.
    pub open: Vec<String>,
}

/// Makes a node's mesh what it should be, in the network namespace it was made in.
#[derive(Debug)]
pub struct Reconciler {
    state_dir: PathBuf,
    mark: Mark,
    backend: Backend,
    netlink: Netlink,
    ledger: Ledger,
}

impl Reconciler {
    /// For one node and its state directory. Looks which WireGuard the machine has and changes nothing.
    pub async fn new(state_dir: &Path, node: NodeId) -> Result<Self, ReconcileError> {
        Ok(Self {
            state_dir: state_dir.to_owned(),
            mark: Mark::new(node),
            backend: wireguard::probe().await,
            netlink: Netlink::connect()?,
            ledger: Ledger::open(state_dir)?,
        })
    }

    /// Whether the data plane must make the tunnel ([`Backend::Userspace`]) or the kernel has WireGuard.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Refuses, before anything is made, a state that may not be applied or needs something of somebody else.
    pub async fn check_foreign(&self, desired: &Desired) -> Result<(), ReconcileError> {
        let seen = self.observe(desired).await?;
        match foreign(desired, &seen).into_iter().next() {
            Some(found) => Err(found.into()),
            None => Ok(()),
        }
    }

    /// What would be done now.
    pub async fn plan(&self, desired: &Desired) -> Result<Plan, ReconcileError> {
        Ok(plan(desired, &self.observe(desired).await?))
    }

    /// Makes the kernel what is wanted, as far as it is ours to. A change that fails is told in the evidence and tried
    /// again by the next run; after a failed gate ([`Step::is_gate`]) nothing more is changed.
    pub async fn converge(&mut self, desired: &Desired) -> Result<Evidence, ReconcileError> {
        let seen = self.observe(desired).await?;
        let todo = plan(desired, &seen);
        if todo.steps.is_empty() {
            self.ledger.settle([])?;
            return Ok(Evidence { sent: Vec::new(), seen, foreign: todo.foreign, open: todo.waiting });
        }
        self.intend(desired, &seen, &todo.steps)?;
        let (sent, mut open) = self.apply(desired, &todo.steps).await?;
        if todo.steps.contains(&Step::CreateLink) && !sent.contains(&Step::CreateLink) {
            // Whatever has that name now was not made here.
            self.ledger.settle([])?;
        }
        self.ledger.put_back(sent.iter().filter_map(|step| put_back(step, &desired.ifname)))?;
        let seen = self.observe(desired).await?;
        let left = plan(desired, &seen);
        let keys: BTreeSet<Key> = left.steps.iter().map(|step| step.key(&desired.ifname)).collect();
        self.ledger.settle(keys)?;
        open.extend(left.steps.iter().map(|step| format!("not done yet: {step}")));
        open.extend(left.waiting);
        Ok(Evidence { sent, seen, foreign: left.foreign, open })
    }

    /// Removes what is ours and nothing else: interface, table, our rule in iptables; kernel variables are set back. In
    /// userspace mode the data plane must have been told to stop before.
    pub async fn withdraw(&mut self) -> Result<(), ReconcileError> {
        self.withdraw_all().await?;
        Ok(self.ledger.clear()?)
    }

    /// All peers of the device as they are now; none without a device.
    pub async fn peers_seen(&self, desired: &Desired) -> Result<BTreeMap<WireguardKey, PeerSeen>, ReconcileError> {
        Ok(self.wireguard(desired).observe().await?.unwrap_or_default().peers)
    }

    /// Where this machine can be reached, and the MTU for the mesh.
    pub async fn underlay(&self, ifname: &str) -> Result<underlay::Underlay, ReconcileError> {
        Ok(underlay::observe(&self.netlink, ifname).await?)
    }

    fn wireguard(&self, desired: &Desired) -> WireGuard {
        match self.backend {
            Backend::Kernel => WireGuard::Kernel(desired.ifname.clone()),
            Backend::Userspace => WireGuard::Userspace(self.state_dir.join(WIREGUARD_SOCKET)),
        }
    }

    fn intend(&mut self, desired: &Desired, seen: &Observed, steps: &[Step]) -> Result<(), FileError> {
        let keys = steps.iter().map(|step| step.key(&desired.ifname));
        let before = steps.iter().filter_map(|step| match step {
            Step::SetSysctl { name, .. } => {
                let value = seen.sysctls.get(name).cloned().flatten().unwrap_or_else(|| "0".into());
                Some((step.key(&desired.ifname), value))
            }
            Step::AllowForward(..) => Some((step.key(&desired.ifname), "no rule of ours".into())),
            Step::ReplaceTable
            | Step::ChangeOpenings { .. }
            | Step::DeleteLink { .. }
            | Step::CreateLink
            | Step::MarkLink
            | Step::SetMtu(_)
            | Step::SetUp
            | Step::AddAddress(_)
            | Step::RemoveAddress(_)
            | Step::Device(_)
            | Step::AddRoute(_)
            | Step::RemoveRoute(_)
            | Step::RestoreSysctl { .. }
            | Step::WithdrawForward { .. } => None,
        });
        self.ledger.intend(keys, before.collect::<Vec<_>>())
    }
}

/// The object whose state of before is no longer needed, because this step put it back.
fn put_back(step: &Step, ifname: &str) -> Option<Key> {
    matches!(step, Step::RestoreSysctl { .. }).then(|| step.key(ifname))
}

#[cfg(test)]
mod lab;
#[cfg(test)]
mod tests;
