//! Whether a mesh range collides with what this machine routes already.

use ipnet::{IpNet, Ipv4Net};
use state::model::Prefix;
use std::net::Ipv4Addr;

/// A route of this machine that shares addresses with a mesh range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// What is routed.
    pub route: Ipv4Net,
    /// Where to.
    pub interface: String,
}

/// The first route of this network namespace that shares addresses with `prefix`; the default route is none.
pub fn overlap(prefix: Prefix) -> Option<Overlap> {
    let table = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    overlap_in(prefix, &table)
}

/// The same in the text of `/proc/net/route` (Linux, `fib_route_seq_show`): interface, destination and, in the eighth
/// column, mask, both hexadecimal in the byte order of the machine.
fn overlap_in(prefix: Prefix, table: &str) -> Option<Overlap> {
    let address = |text: &str| u32::from_str_radix(text, 16).ok().map(|n| Ipv4Addr::from(n.to_ne_bytes()));
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let route = Ipv4Net::with_netmask(address(columns.get(1)?)?, address(columns.get(7)?)?).ok()?;
        let collides = route.prefix_len() > 0 && prefix.overlaps(&IpNet::V4(route));
        collides.then(|| Overlap { route, interface: columns[0].to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_into_the_range_is_named_and_the_default_route_is_not() {
        let row = |interface: &str, net: &str| {
            let net: Ipv4Net = net.parse().unwrap();
            let hex = |ip: Ipv4Addr| format!("{:08X}", u32::from_ne_bytes(ip.octets()));
            format!("{interface}\t{}\t00000000\t0001\t0\t0\t0\t{}\t0\t0\t0", hex(net.network()), hex(net.netmask()))
        };
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT";
        let table =
            [head.to_owned(), row("eth0", "0.0.0.0/0"), row("eth1", "192.0.2.0/24"), row("eth2", "10.90.7.0/24")]
                .join("\n");
        let found = overlap_in("10.90.0.0/16".parse().unwrap(), &table).unwrap();
        assert_eq!((found.interface.as_str(), found.route.to_string().as_str()), ("eth2", "10.90.7.0/24"));
        assert_eq!(overlap_in("10.91.0.0/16".parse().unwrap(), &table), None);
    }
}
