//! Interface addresses.

use super::{KernelError, Netlink, failed};
use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use std::net::IpAddr;

impl Netlink {
    /// All addresses, with the number of the interface that has them.
    pub async fn addresses(&self) -> Result<Vec<(u32, IpNet)>, KernelError> {
        let found: Vec<AddressMessage> =
            self.0.address().get().execute().try_collect().await.map_err(failed("listing addresses"))?;
        Ok(found.iter().filter_map(|message| Some((message.header.index, own(message)?))).collect())
    }

    /// Gives an interface an address.
    pub async fn add_address(&self, index: u32, address: IpNet) -> Result<(), KernelError> {
        let mut request = self.0.address().add(index, address.addr(), address.prefix_len());
        if address.addr().is_ipv6() {
            // A tunnel has no neighbours to ask, and until that was done nothing could bind or be routed from it.
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        request.execute().await.map_err(failed(format!("adding the address {address}")))
    }

    /// Takes one away.
    pub async fn remove_address(&self, index: u32, address: IpNet) -> Result<(), KernelError> {
        let mut request = self.0.address().add(index, address.addr(), address.prefix_len());
        let message = request.message_mut().clone();
        self.0.address().del(message).execute().await.map_err(failed(format!("removing the address {address}")))
    }
}

/// On a point-to-point interface `Address` is the other end's and `Local` our own; elsewhere they are the same.
fn own(message: &AddressMessage) -> Option<IpNet> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    let local = find(|a| if let AddressAttribute::Local(ip) = a { Some(*ip) } else { None });
    let plain = find(|a| if let AddressAttribute::Address(ip) = a { Some(*ip) } else { None });
    IpNet::new(local.or(plain)?, message.header.prefix_len).ok()
}
