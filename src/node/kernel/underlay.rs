//! The networks the mesh runs over: where this machine can be reached, and how large a packet may be.

use super::{KernelError, Link, Netlink, Route};
use ipnet::IpNet;
use std::net::IpAddr;

/// What WireGuard adds to an inner packet at most: IPv6 40, UDP 8, message header 16, tag 16 bytes.
const OVERHEAD: u32 = 80;
/// The least MTU of IPv6 (RFC 8200, section 5).
const LEAST: u32 = 1280;
/// Ethernet's, where no interface tells.
const ETHERNET: u32 = 1500;

/// What the mesh needs to know of its underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Own addresses that another machine might dial, in order.
    pub addresses: Vec<IpAddr>,
    /// The MTU of the mesh interface, bytes.
    pub mesh_mtu: u32,
}

/// Looks at all interfaces but the mesh's own.
pub async fn observe(netlink: &Netlink, ifname: &str) -> Result<Underlay, KernelError> {
    let (links, addresses) = (netlink.links().await?, netlink.addresses().await?);
    Ok(read(&links, &addresses, &netlink.routes().await?, ifname))
}

fn read(links: &[Link], addresses: &[(u32, IpNet)], routes: &[Route], ifname: &str) -> Underlay {
    let carries = |index: u32| links.iter().find(|l| l.index == index && l.up && !l.loopback && l.name != ifname);
    let mut dialable: Vec<(IpAddr, u32)> = addresses
        .iter()
        .filter(|(_, net)| !is_local(net.addr()))
        .filter_map(|(index, net)| Some((net.addr(), carries(*index)?.mtu)))
        .collect();
    dialable.sort();
    let default = routes.iter().filter(|r| r.to.prefix_len() == 0).filter_map(|r| Some(carries(r.index)?.mtu)).min();
    let underlay = default.or(dialable.iter().map(|(_, mtu)| *mtu).min()).unwrap_or(ETHERNET);
    Underlay {
        addresses: dialable.into_iter().map(|(ip, _)| ip).collect(),
        mesh_mtu: underlay.saturating_sub(OVERHEAD).max(LEAST),
    }
}

fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        Link { index, name: name.into(), kind: "device".into(), alias: None, mtu, up: true, loopback: name == "lo" }
    }

    #[test]
    fn candidates_are_addresses_that_others_might_dial() {
        let links = [link(1, "lo", 65536), link(2, "eth0", 1500), link(3, "hf0", 1420), link(4, "eth1", 9000)];
        let nets = ["127.0.0.1/8", "192.0.2.2/24", "10.90.0.1/32", "169.254.7.7/16", "fe80::1/64", "2001:db8::2/64"];
        let on = [1, 2, 3, 2, 2, 4];
        let addresses: Vec<_> = on.into_iter().zip(nets.iter().map(|n| n.parse().unwrap())).collect();
        let default = Route { to: "0.0.0.0/0".parse().unwrap(), index: 4, ours: false };
        let seen = read(&links, &addresses, &[default], "hf0");
        assert_eq!(seen.addresses, ["192.0.2.2".parse::<IpAddr>().unwrap(), "2001:db8::2".parse().unwrap()]);
        assert_eq!(seen.mesh_mtu, 8920);
        assert_eq!(read(&links, &addresses, &[], "hf0").mesh_mtu, 1420);
        assert_eq!(read(&[], &[], &[], "hf0").mesh_mtu, 1420);
        assert_eq!(read(&[link(2, "eth0", 1300)], &addresses, &[], "hf0").mesh_mtu, 1280);
    }
}
