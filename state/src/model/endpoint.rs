//! Where a WireGuard socket or an appliance's listener can be reached: `host:port`.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The host part of an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A literal address.
    Address(IpAddr),
    /// A DNS name of the outside world; resolved again when no handshake comes.
    Name(String),
}

/// A host and a port other than 0, written `203.0.113.7:51820`, `[2001:db8::7]:51820` or `vpn.example.org:51820`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    host: Host,
    port: u16,
}

/// Why a text is not an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not `host:port`.
    #[error("`{0}` is not HOST:PORT, such as 203.0.113.7:51820")]
    Syntax(String),
    /// Nobody else can dial a loopback, link-local, multicast or unspecified address.
    #[error("`{0}` cannot be reached from another machine")]
    Unreachable(String),
}

impl Endpoint {
    /// Reads `host:port`; `[..]` around an IPv6 literal.
    pub fn new(text: &str) -> Result<Self, EndpointError> {
        let shown = || text.chars().take(300).collect::<String>();
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Self::from_socket(socket).map_err(|_| EndpointError::Unreachable(shown()));
        }
        let syntax = || EndpointError::Syntax(shown());
        let (host, port) = text.rsplit_once(':').ok_or_else(syntax)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(syntax)?;
        let label = |l: &str| {
            (1..=63).contains(&l.len())
                && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !l.starts_with('-')
                && !l.ends_with('-')
        };
        let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if host.len() > 253 || numeric || !host.split('.').all(label) {
            return Err(syntax());
        }
        Ok(Self { host: Host::Name(host.to_ascii_lowercase()), port })
    }

    /// From a socket address that others can dial.
    pub fn from_socket(socket: SocketAddr) -> Result<Self, EndpointError> {
        if socket.port() == 0 || !dialable(socket.ip()) {
            return Err(EndpointError::Unreachable(socket.to_string()));
        }
        Ok(Self { host: Host::Address(socket.ip()), port: socket.port() })
    }

    /// The host part.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The socket address, if the host is a literal.
    pub const fn socket(&self) -> Option<SocketAddr> {
        match &self.host {
            Host::Address(ip) => Some(SocketAddr::new(*ip, self.port)),
            Host::Name(_) => None,
        }
    }
}

/// Neither loopback, link-local, multicast, unspecified nor broadcast.
fn dialable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_unspecified() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified()),
    }
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;
    fn try_from(text: String) -> Result<Self, EndpointError> {
        Self::new(&text)
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            Host::Address(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_what_another_machine_can_dial() {
        for good in ["203.0.113.7:51820", "[2001:db8::7]:1", "vpn.example.org:51820"] {
            assert_eq!(Endpoint::new(good).unwrap().to_string(), good);
        }
        for bad in ["127.0.0.1:1", "169.254.1.1:5", "[fe80::1]:5", "0.0.0.0:1", "203.0.113.7:0"] {
            assert_eq!(Endpoint::new(bad), Err(EndpointError::Unreachable(bad.into())));
        }
        for bad in ["203.0.113.7", "a b:1", "1.2.3:4", "x:0", ":4", "-a:4", "http://x:1"] {
            assert_eq!(Endpoint::new(bad), Err(EndpointError::Syntax(bad.into())));
        }
    }
}
