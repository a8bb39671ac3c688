//! What must hold of a desired state before any of it is applied, whoever it came from.

use super::Desired;
use crate::node::kernel::names::is_interface_name;
use ipnet::IpNet;
use state::model::WireguardKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Why a desired state is not applied. Nothing of it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// Not a name the kernel takes.
    #[error(
        "`{0}` is not an interface name: 1 to 15 characters without `/`, white space or `:`, other than `.` and `..`"
    )]
    Ifname(String),
    /// The node's own address is no address of the mesh.
    #[error("the node's address {0} lies outside the mesh prefix")]
    Address(IpAddr),
    /// A peer may not take traffic of the outside world.
    #[error("{net} of the peer {peer} lies outside the mesh prefixes")]
    Outside {
        /// The allowed address.
        net: IpNet,
        /// The peer's key.
        peer: WireguardKey,
    },
    /// Two peers claim an address: either could read the other's traffic.
    #[error("{net} belongs to two peers, {one} and {other}")]
    Shared {
        /// The address of the second.
        net: IpNet,
        /// One peer.
        one: WireguardKey,
        /// The other.
        other: WireguardKey,
    },
    /// A peer claims the node's own address.
    #[error("the peer {0} claims this node's own address")]
    Own(WireguardKey),
    /// WireGuard takes one entry for each key.
    #[error("the peer {0} is listed twice")]
    Twice(WireguardKey),
}

/// Proves that allowed addresses are disjoint, inside the mesh prefixes and not the node's own.
pub fn check(desired: &Desired) -> Result<(), Unsound> {
    if !is_interface_name(&desired.ifname) {
        return Err(Unsound::Ifname(desired.ifname.chars().take(64).collect()));
    }
    for address in desired.addresses() {
        if !desired.prefixes().any(|prefix| prefix.contains(&address)) {
            return Err(Unsound::Address(address.addr()));
        }
    }
    let mut keys = BTreeSet::new();
    let mut taken: BTreeMap<IpAddr, (IpNet, WireguardKey)> = BTreeMap::new();
    for peer in &desired.peers {
        if !keys.insert(peer.public_key) {
            return Err(Unsound::Twice(peer.public_key));
        }
        for net in &peer.allowed {
            let net = net.trunc();
            if !desired.prefixes().any(|prefix| prefix.contains(&net)) {
                return Err(Unsound::Outside { net, peer: peer.public_key });
            }
            if desired.addresses().any(|own| net.contains(&own)) {
                return Err(Unsound::Own(peer.public_key));
            }
            // Ranges are nested or disjoint, so a clash is with the last one that begins at or before this one's end.
            if let Some((_, (held, one))) = taken.range(..=net.broadcast()).next_back()
                && (held.contains(&net) || net.contains(held))
            {
                return Err(Unsound::Shared { net, one: *one, other: peer.public_key });
            }
            taken.insert(net.network(), (net, peer.public_key));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::plan::law::{desired, key, peer};

    #[test]
    fn allowed_addresses_are_disjoint_and_inside_the_mesh() {
        let with = |peers: &[(u8, &[&str])]| {
            let mut wanted = desired();
            wanted.peers = peers.iter().map(|(n, allowed)| peer(*n, allowed)).collect();
            check(&wanted)
        };
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(with(&[(1, &["10.90.0.1/32", "10.90.0.3/32"]), (2, &["10.90.0.2/32", "fd90::2/128"])]), Ok(()));
        assert_eq!(with(&[(1, &["0.0.0.0/0"])]), Err(Unsound::Outside { net: net("0.0.0.0/0"), peer: key(1) }));
        assert_eq!(with(&[(1, &["::/0"])]), Err(Unsound::Outside { net: net("::/0"), peer: key(1) }));
        assert_eq!(with(&[(1, &["10.0.0.0/8"])]), Err(Unsound::Outside { net: net("10.0.0.0/8"), peer: key(1) }));
        assert_eq!(with(&[(1, &["10.90.0.9/32"])]), Err(Unsound::Own(key(1))));
        assert_eq!(with(&[(1, &[]), (1, &[])]), Err(Unsound::Twice(key(1))));
        let shared = |net: &str| Err(Unsound::Shared { net: net.parse().unwrap(), one: key(1), other: key(2) });
        assert_eq!(with(&[(1, &["10.90.0.1/32"]), (2, &["10.90.0.1/32"])]), shared("10.90.0.1/32"));
        assert_eq!(with(&[(1, &["10.90.4.0/24"]), (2, &["10.90.4.77/32"])]), shared("10.90.4.77/32"));
        assert_eq!(with(&[(1, &["10.90.4.77/32"]), (2, &["10.90.4.0/24"])]), shared("10.90.4.0/24"));
    }

    #[test]
    fn an_interface_name_is_one_the_kernel_takes() {
        for bad in ["", "a/b", "a b", "..", "sixteen-letters-"] {
            let wanted = Desired { ifname: bad.into(), ..desired() };
            assert_eq!(check(&wanted), Err(Unsound::Ifname(bad.into())));
        }
    }
}
