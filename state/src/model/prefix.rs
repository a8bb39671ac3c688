//! Address ranges without host bits.

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// An IPv4 range such as `10.90.0.0/16`, with no bit set below its length, 8 to 29 bits long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(Ipv4Net);

/// Why a text is not a [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not `a.b.c.d/len`.
    #[error("`{0}` is not an IPv4 prefix such as 10.90.0.0/16")]
    Syntax(String),
    /// Bits set below the length: probably a slip, so it is not cut off silently.
    #[error("`{given}` has host bits set: did you mean {meant}?")]
    HostBits {
        /// As given.
        given: String,
        /// The same with its host bits cleared.
        meant: String,
    },
    /// Too short or too long to number a fleet from.
    #[error("`{0}` must be between /8 and /29")]
    Length(String),
}

impl Prefix {
    /// The range as a value of the `ipnet` crate.
    pub const fn net(&self) -> Ipv4Net {
        self.0
    }

    /// Whether `address` lies inside.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.0.contains(&address)
    }

    /// Whether the two ranges share an address.
    pub fn overlaps(&self, other: &IpNet) -> bool {
        match other {
            IpNet::V4(other) => self.0.contains(&other.network()) || other.contains(&self.0.network()),
            IpNet::V6(_) => false,
        }
    }

    /// The addresses that a node may be given: all but the first (network) and the last (broadcast), lowest first.
    pub fn hosts(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.0.hosts()
    }

    /// How many addresses [`Prefix::hosts`] yields.
    pub fn host_count(&self) -> u64 {
        (1u64 << (32 - self.0.prefix_len())) - 2
    }
}

impl std::str::FromStr for Prefix {
    type Err = PrefixError;
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let net: Ipv4Net = text.parse().map_err(|_| PrefixError::Syntax(text.chars().take(64).collect()))?;
        if net.trunc() != net {
            return Err(PrefixError::HostBits { given: net.to_string(), meant: net.trunc().to_string() });
        }
        if !(8..=29).contains(&net.prefix_len()) {
            return Err(PrefixError::Length(net.to_string()));
        }
        Ok(Self(net))
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;
    fn try_from(text: String) -> Result<Self, PrefixError> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0.to_string()
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_refused_with_the_range_that_was_probably_meant() {
        assert_eq!(
            "10.90.5.0/16".parse::<Prefix>(),
            Err(PrefixError::HostBits { given: "10.90.5.0/16".into(), meant: "10.90.0.0/16".into() })
        );
        assert_eq!("10.0.0.0/30".parse::<Prefix>(), Err(PrefixError::Length("10.0.0.0/30".into())));
        assert_eq!("10.0.0.0".parse::<Prefix>(), Err(PrefixError::Syntax("10.0.0.0".into())));
        let prefix: Prefix = "10.90.0.0/29".parse().unwrap();
        assert_eq!(prefix.hosts().count() as u64, prefix.host_count());
        assert!(prefix.overlaps(&"10.0.0.0/8".parse().unwrap()));
        assert!(!prefix.overlaps(&"10.91.0.0/16".parse().unwrap()));
    }
}
