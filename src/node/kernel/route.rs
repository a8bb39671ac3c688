//! Routes of the main table.

use super::names::ROUTE_PROTOCOL;
use super::{KernelError, Netlink, failed};
use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A unicast route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to; a length of 0 is the default route.
    pub to: IpNet,
    /// The number of the interface it leaves by; 0 with several next hops.
    pub index: u32,
    /// Whether it carries our protocol number.
    pub ours: bool,
}

impl Netlink {
    /// The main table.
    pub async fn routes(&self) -> Result<Vec<Route>, KernelError> {
        let mut all = Vec::new();
        let requests = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
        for (request, any) in requests.into_iter().zip([any(true), any(false)]) {
            let found: Vec<RouteMessage> =
                self.0.route().get(request).execute().try_collect().await.map_err(failed("listing routes"))?;
            all.extend(found.iter().filter_map(|message| read(message, any)));
        }
        Ok(all)
    }

    /// Routes a range to an interface. An equal route of somebody else makes this fail, it is never replaced.
    pub async fn add_route(&self, index: u32, to: IpNet) -> Result<(), KernelError> {
        let message = message(index, to);
        self.0.route().add(message).execute().await.map_err(failed(format!("adding the route to {to}")))
    }

    /// Takes our route away.
    pub async fn remove_route(&self, index: u32, to: IpNet) -> Result<(), KernelError> {
        let message = message(index, to);
        self.0.route().del(message).execute().await.map_err(failed(format!("removing the route to {to}")))
    }
}

fn any(v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn read(message: &RouteMessage, any: IpAddr) -> Option<Route> {
    if message.header.table != RouteHeader::RT_TABLE_MAIN || message.header.kind != RouteType::Unicast {
        return None;
    }
    let mut route = Route {
        to: IpNet::new(any, 0).ok()?,
        index: 0,
        ours: message.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => {
                route.to = IpNet::new((*ip).into(), message.header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => {
                route.to = IpNet::new((*ip).into(), message.header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Oif(index) => route.index = *index,
            _ => {}
        }
    }
    Some(route)
}

/// Without a preferred source: the interface's own address is taken anyhow, and a route with one would go with it when
/// the node's address changes.
fn message(index: u32, to: IpNet) -> RouteMessage {
    let protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    match to {
        IpNet::V4(to) => {
            let message = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.addr(), to.prefix_len());
            message.output_interface(index).scope(RouteScope::Link).protocol(protocol).build()
        }
        IpNet::V6(to) => {
            let message = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(to.addr(), to.prefix_len());
            message.output_interface(index).protocol(protocol).build()
        }
    }
}
