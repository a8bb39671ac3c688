//! Making the changes of a plan, and taking everything away again.

use super::*;
use crate::node::kernel::foreign_forward::{self, Family};
use crate::node::kernel::wireguard::DeviceStep;
use crate::node::kernel::{firewall, sysctl};
use crate::node::plan::{Ruleset, TableSeen};

impl Reconciler {
    /// Makes the changes in order. Gives those that were made, and in words those that failed.
    pub(super) async fn apply(
        &self,
        desired: &Desired,
        steps: &[Step],
    ) -> Result<(Vec<Step>, Vec<String>), ReconcileError> {
        let key = PrivateKey::read(&desired.private_key_file)?;
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for step in steps {
            match self.make(desired, step, &key).await {
                Ok(()) => made.push(step.clone()),
                Err(error) => {
                    failed.push(error.to_string());
                    if step.is_gate() {
                        break;
                    }
                }
            }
        }
        Ok((made, failed))
    }

    async fn make(&self, desired: &Desired, step: &Step, key: &PrivateKey) -> Result<(), KernelError> {
        let net = &self.netlink;
        match step {
            Step::ReplaceTable => firewall::apply(&Ruleset::wanted(desired, &self.mark).replace()).await,
            Step::ChangeOpenings { close, open } => firewall::apply(&Ruleset::change(close, open)).await,
            Step::DeleteLink { index, .. } => net.delete_link(*index).await,
            Step::CreateLink => net.create_wireguard(&desired.ifname).await,
            Step::MarkLink => net.set_alias(self.index(desired).await?, self.mark.as_str()).await,
            Step::SetMtu(mtu) => net.set_mtu(self.index(desired).await?, *mtu).await,
            Step::SetUp => net.set_up(self.index(desired).await?).await,
            Step::AddAddress(address) => net.add_address(self.index(desired).await?, *address).await,
            Step::RemoveAddress(address) => net.remove_address(self.index(desired).await?, *address).await,
            Step::Device(step) => self.device(desired, step, key).await,
            Step::AddRoute(to) => net.add_route(self.index(desired).await?, *to).await,
            Step::RemoveRoute(to) => net.remove_route(self.index(desired).await?, *to).await,
            Step::SetSysctl { name, value } => sysctl::write(name, value),
            Step::RestoreSysctl { name, value } => restore(name, value),
            Step::AllowForward(family, chain) => foreign_forward::allow(*family, chain, &desired.ifname).await,
            Step::WithdrawForward { family, chain, ifname } => foreign_forward::withdraw(*family, chain, ifname).await,
        }
    }

    async fn device(&self, desired: &Desired, step: &DeviceStep, key: &PrivateKey) -> Result<(), KernelError> {
        self.wireguard(desired).apply(step, key).await
    }

    async fn index(&self, desired: &Desired) -> Result<u32, KernelError> {
        let links = self.netlink.links().await?;
        let found = links.iter().find(|link| link.name == desired.ifname);
        found.map(|link| link.index).ok_or_else(|| KernelError {
            doing: format!("looking for the interface {}", desired.ifname),
            said: "it is not there".into(),
        })
    }

    /// Removes what carries our mark or is in the ledger. Traffic stops first, the table that guarded it goes last.
    pub(super) async fn withdraw_all(&self) -> Result<(), KernelError> {
        for link in self.netlink.links().await? {
            if self.marked(&link) || self.ledger.intends(&Key::mesh(Kind::Link, &link.name)) {
                self.netlink.delete_link(link.index).await?;
            }
        }
        for (name, value) in self.ledger.before(Kind::Sysctl) {
            restore(&name, &value)?;
        }
        if self.ledger.knows(Kind::Forward) {
            for family in [Family::V4, Family::V6] {
                for (chain, ifname) in foreign_forward::observe(family).await?.unwrap_or_default().ours {
                    foreign_forward::withdraw(family, &chain, &ifname).await?;
                }
            }
        }
        let table = firewall::observe().await?;
        if table.is_some_and(|listing| TableSeen::read(&listing).is_of(&self.mark)) {
            firewall::apply(&Ruleset::delete()).await?;
        }
        Ok(())
    }
}

/// Sets a variable back; one that went with its interface needs nothing.
fn restore(name: &str, value: &str) -> Result<(), KernelError> {
    match sysctl::read(name) {
        Some(present) if present != value => sysctl::write(name, value),
        Some(_) | None => Ok(()),
    }
}
