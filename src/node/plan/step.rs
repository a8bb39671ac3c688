//! One change of the kernel, and how it is told to people.

use super::Element;
use crate::node::kernel::foreign_forward::Family;
use crate::node::kernel::names::MESH_TABLE;
use crate::node::kernel::wireguard::{DeviceStep, PeerChange};
use crate::node::ledger::{Key, Kind};
use ipnet::IpNet;
use std::collections::BTreeSet;

/// One change. The order of a plan's steps is the order they are made in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put the whole table in place, in one transaction.
    ReplaceTable,
    /// Take openings out of it, then put others in, in one transaction.
    ChangeOpenings {
        /// No longer.
        close: BTreeSet<Element>,
        /// From now on.
        open: BTreeSet<Element>,
    },
    /// Delete an interface of ours, by its number.
    DeleteLink {
        /// Its name.
        name: String,
        /// Its number.
        index: u32,
    },
    /// Make the WireGuard interface (the kernel's; a userspace one is made by the data plane).
    CreateLink,
    /// Put our mark on the interface.
    MarkLink,
    /// Set its MTU, bytes.
    SetMtu(u32),
    /// Set it up.
    SetUp,
    /// Give it an address.
    AddAddress(IpNet),
    /// Take one away.
    RemoveAddress(IpNet),
    /// Change the WireGuard device.
    Device(DeviceStep),
    /// Route a mesh prefix to it.
    AddRoute(IpNet),
    /// No longer.
    RemoveRoute(IpNet),
    /// Set a kernel variable, remembering what it was.
    SetSysctl {
        /// Its path below `/proc/sys`.
        name: String,
        /// The new value.
        value: String,
    },
    /// Set one back to what it was before.
    RestoreSysctl {
        /// Its path below `/proc/sys`.
        name: String,
        /// The value of before.
        value: String,
    },
    /// Put our rule into an iptables chain.
    AllowForward(Family, String),
    /// Take it out.
    WithdrawForward {
        /// Of which tool.
        family: Family,
        /// The chain it stands in.
        chain: String,
        /// The interface it is for.
        ifname: String,
    },
}

impl Step {
    /// Whether nothing may follow if this one fails: without the firewall no traffic may come in, without the marked
    /// interface nothing can be put on it.
    pub fn is_gate(&self) -> bool {
        match self {
            Self::ReplaceTable | Self::ChangeOpenings { .. } | Self::CreateLink | Self::MarkLink => true,
            Self::DeleteLink { .. }
            | Self::SetMtu(_)
            | Self::SetUp
            | Self::AddAddress(_)
            | Self::RemoveAddress(_)
            | Self::Device(_)
            | Self::AddRoute(_)
            | Self::RemoveRoute(_)
            | Self::SetSysctl { .. }
            | Self::RestoreSysctl { .. }
            | Self::AllowForward(..)
            | Self::WithdrawForward { .. } => false,
        }
    }

    /// The object that it changes.
    pub fn key(&self, ifname: &str) -> Key {
        match self {
            Self::ReplaceTable | Self::ChangeOpenings { .. } => Key::mesh(Kind::Table, MESH_TABLE),
            Self::DeleteLink { name, .. } => Key::mesh(Kind::Link, name),
            Self::CreateLink | Self::MarkLink | Self::SetMtu(_) | Self::SetUp => Key::mesh(Kind::Link, ifname),
            Self::AddAddress(net) | Self::RemoveAddress(net) => Key::mesh(Kind::Address, net),
            Self::Device(DeviceStep::Key | DeviceStep::Port(_)) => Key::mesh(Kind::Device, ifname),
            Self::Device(DeviceStep::Set(PeerChange { key, .. }) | DeviceStep::Remove(key)) => {
                Key::mesh(Kind::Peer, key)
            }
            Self::AddRoute(net) | Self::RemoveRoute(net) => Key::mesh(Kind::Route, net),
            Self::SetSysctl { name, .. } | Self::RestoreSysctl { name, .. } => Key::mesh(Kind::Sysctl, name),
            Self::AllowForward(family, _) | Self::WithdrawForward { family, .. } => Key::mesh(Kind::Forward, family),
        }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ReplaceTable => write!(f, "firewall: put the table {MESH_TABLE} in place"),
            Self::ChangeOpenings { close, open } => {
                f.write_str("firewall:")?;
                close.iter().try_for_each(|element| write!(f, " close {element}"))?;
                open.iter().try_for_each(|element| write!(f, " open {element}"))
            }
            Self::DeleteLink { name, .. } => write!(f, "interface: delete {name}"),
            Self::CreateLink => f.write_str("interface: make it"),
            Self::MarkLink => f.write_str("interface: mark it as this node's"),
            Self::SetMtu(mtu) => write!(f, "interface: set its MTU to {mtu}"),
            Self::SetUp => f.write_str("interface: set it up"),
            Self::AddAddress(net) => write!(f, "address: add {net}"),
            Self::RemoveAddress(net) => write!(f, "address: remove {net}"),
            Self::Device(step) => step.fmt(f),
            Self::AddRoute(net) => write!(f, "route: add {net}"),
            Self::RemoveRoute(net) => write!(f, "route: remove {net}"),
            Self::SetSysctl { name, value } => write!(f, "kernel: set {} to {value}", name.replace('/', ".")),
            Self::RestoreSysctl { name, value } => {
                write!(f, "kernel: set {} back to {value}", name.replace('/', "."))
            }
            Self::AllowForward(family, chain) => write!(f, "{family}: accept mesh traffic in {chain}"),
            Self::WithdrawForward { family, chain, .. } => write!(f, "{family}: remove our rule from {chain}"),
        }
    }
}

impl std::fmt::Display for DeviceStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key => f.write_str("tunnel: take the key of the key file"),
            Self::Port(port) => write!(f, "tunnel: listen on UDP port {port}"),
            Self::Remove(key) => write!(f, "peer {key}: remove"),
            Self::Set(change) => {
                write!(f, "peer {}:", change.key)?;
                if let Some(allowed) = &change.allowed {
                    f.write_str(" allow")?;
                    allowed.iter().try_for_each(|net| write!(f, " {net}"))?;
                }
                if let Some(endpoint) = change.endpoint {
                    write!(f, " at {endpoint}")?;
                }
                match change.keepalive {
                    Some(0) => f.write_str(" without keepalive"),
                    Some(seconds) => write!(f, " keepalive {seconds} s"),
                    None => Ok(()),
                }
            }
        }
    }
}
