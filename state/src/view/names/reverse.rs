//! From addresses back to names: the reverse zones of the mesh prefixes (RFC 1035, 3.5 and RFC 3596, 2.5).
//!
//! Only the addresses are kept; which inner labels exist is read off their order. A prefix whose length is no whole
//! number of labels is several zones, one for each value of the label that it cuts.

use super::{Kind, Mesh, Outcome, apex};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The addresses of one prefix, as numbers of `width` bits.
pub(super) struct Reverse {
    /// The last two labels: `in-addr.arpa` or `ip6.arpa`.
    family: &'static str,
    /// Bits of an address.
    width: u32,
    /// Bits that one label stands for.
    step: u32,
    network: u128,
    length: u32,
    hosts: BTreeMap<u128, usize>,
}

/// What a reverse name stands for.
pub(super) enum Found {
    /// This host.
    Host(usize),
    /// No host.
    Other(Outcome<'static>),
}

impl Reverse {
    /// The trees of a mesh, without hosts.
    pub(super) fn of(mesh: &Mesh) -> Vec<Self> {
        let v4 = mesh.prefix.net();
        let mut trees = vec![Self {
            family: "in-addr.arpa",
            width: 32,
            step: 8,
            network: u128::from(u32::from(v4.network())),
            length: u32::from(v4.prefix_len()),
            hosts: BTreeMap::new(),
        }];
        trees.extend(mesh.prefix6.map(|v6| Self {
            family: "ip6.arpa",
            width: 128,
            step: 4,
            network: u128::from(v6.network()),
            length: u32::from(v6.prefix_len()),
            hosts: BTreeMap::new(),
        }));
        trees
    }

    /// Enters a host if the address is of this family and inside the prefix.
    pub(super) fn insert(&mut self, address: IpAddr, host: usize) {
        let (bits, width) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
            IpAddr::V6(v6) => (u128::from(v6), 128),
        };
        if width == self.width && self.covers(bits) {
            self.hosts.insert(bits, host);
        }
    }

    fn covers(&self, bits: u128) -> bool {
        let cut = |n: u128| n.checked_shr(self.width - self.length).unwrap_or(0);
        cut(bits) == cut(self.network)
    }

    /// Labels before the last two that a zone's name has.
    const fn depth(&self) -> u32 {
        self.length.div_ceil(self.step)
    }

    /// `None` when the name lies in no zone of this prefix; else the number of the zone's labels, and what was found.
    pub(super) fn ask(&self, labels: &[&[u8]], kind: Kind) -> Option<(usize, Found)> {
        let (inner, family) = labels.split_at_checked(labels.len().checked_sub(2)?)?;
        if family.join(&b'.') != self.family.as_bytes() {
            return None;
        }
        let depth = usize::try_from(self.depth()).ok()?;
        let (mut bits, mut left) = (0u128, self.width);
        let mut canonical = true;
        for (i, label) in inner.iter().rev().enumerate() {
            match self.digit(label) {
                Some(digit) if left > 0 => {
                    left -= self.step;
                    bits |= digit << left;
                }
                Some(_) | None if i < depth => return None,
                Some(_) | None => {
                    canonical = false;
                    break;
                }
            }
        }
        if inner.len() < depth || !self.covers(bits) {
            return None;
        }
        Some((depth + 2, self.find(bits, left, canonical, inner.len() == depth, kind)))
    }

    fn find(&self, bits: u128, left: u32, canonical: bool, at_apex: bool, kind: Kind) -> Found {
        if !canonical {
            return Found::Other(Outcome::NxDomain);
        }
        if at_apex && matches!(kind, Kind::Soa | Kind::Ns) {
            return Found::Other(apex(kind));
        }
        let below = 1u128.checked_shl(left).map_or(u128::MAX, |size| size - 1);
        match self.hosts.range(bits..=bits | below).next() {
            Some((_, host)) if left == 0 && kind == Kind::Ptr => Found::Host(*host),
            Some(_) => Found::Other(Outcome::NoData),
            None if at_apex => Found::Other(Outcome::NoData),
            None => Found::Other(Outcome::NxDomain),
        }
    }

    /// A label's number, only in the one spelling that is used.
    fn digit(&self, label: &[u8]) -> Option<u128> {
        let text = std::str::from_utf8(label).ok()?;
        let (radix, longest) = if self.step == 8 { (10, 3) } else { (16, 1) };
        let spelt = text.bytes().all(|b| b.is_ascii_digit() || (radix == 16 && (b'a'..=b'f').contains(&b)));
        if !spelt || text.len() > longest || (text.len() > 1 && text.starts_with('0')) {
            return None;
        }
        u128::from_str_radix(text, radix).ok().filter(|n| *n < 1 << self.step)
    }

    fn zones(&self) -> impl Iterator<Item = String> {
        let (depth, step, width) = (self.depth(), self.step, self.width);
        let (first, cut) = (self.network, depth * step - self.length);
        (0..1u128 << cut).map(move |i| {
            let bits = first | i.checked_shl(width - depth * step).unwrap_or(0);
            let mut name = String::new();
            for at in (0..depth).rev() {
                let digit = (bits >> (width - (at + 1) * step)) & ((1 << step) - 1);
                name += &if step == 8 { format!("{digit}.") } else { format!("{digit:x}.") };
            }
            name + self.family
        })
    }
}

/// The names of all reverse zones of a mesh, e.g. `90.10.in-addr.arpa`: what a machine's resolver hands to ours.
pub fn reverse_zones(mesh: &Mesh) -> Vec<String> {
    Reverse::of(mesh).iter().flat_map(Reverse::zones).collect()
}
