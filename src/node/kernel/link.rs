//! Network interfaces.

use super::{KernelError, Netlink, failed};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkWireguard};

/// An interface as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number: another one for another interface of the same name.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `tun`, `wireguard`, `bridge`, …; `device` for hardware.
    pub kind: String,
    /// The free text that carries our mark.
    pub alias: Option<String>,
    /// Bytes of a packet.
    pub mtu: u32,
    /// Whether it is set up (administratively).
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            kind: "device".into(),
            alias: None,
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            loopback: flags.contains(LinkFlags::Loopback),
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        if let LinkInfo::Kind(kind) = info {
                            link.kind = kind.to_string();
                        }
                    }
                }
                _ => {}
            }
        }
        link
    }
}

impl Netlink {
    /// All interfaces of the namespace.
    pub async fn links(&self) -> Result<Vec<Link>, KernelError> {
        let found: Vec<LinkMessage> =
            self.0.link().get().execute().try_collect().await.map_err(failed("listing interfaces"))?;
        Ok(found.into_iter().map(Link::from).collect())
    }

    /// Makes a WireGuard interface, down and unmarked.
    pub async fn create_wireguard(&self, name: &str) -> Result<(), KernelError> {
        let message = LinkWireguard::new(name).build();
        self.0.link().add(message).execute().await.map_err(failed(format!("making the interface {name}")))
    }

    /// Gives an interface its mark.
    pub async fn set_alias(&self, index: u32, alias: &str) -> Result<(), KernelError> {
        self.change(LinkUnspec::new_with_index(index).alias(alias), "marking the mesh interface").await
    }

    /// Sets the size of the largest packet, bytes.
    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), KernelError> {
        self.change(LinkUnspec::new_with_index(index).mtu(mtu), "setting the mesh interface's MTU").await
    }

    /// Sets an interface up.
    pub async fn set_up(&self, index: u32) -> Result<(), KernelError> {
        self.change(LinkUnspec::new_with_index(index).up(), "setting the mesh interface up").await
    }

    /// Deletes an interface with its addresses and routes.
    pub async fn delete_link(&self, index: u32) -> Result<(), KernelError> {
        self.0.link().del(index).execute().await.map_err(failed("deleting the mesh interface"))
    }

    async fn change(&self, message: LinkMessageBuilder<LinkUnspec>, doing: &str) -> Result<(), KernelError> {
        self.0.link().change(message.build()).execute().await.map_err(failed(doing))
    }
}
