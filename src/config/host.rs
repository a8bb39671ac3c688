//! A host that nodes are told to dial.

use serde::{Deserialize, Serialize};
use state::model::Endpoint;
use std::net::IpAddr;

/// An address or a DNS name, without a port. Loopback is allowed, for trying things out on one machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Host(String);

/// Why a text is not a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address or a host name, such as 203.0.113.7 or fleet.example.org; it takes no port")]
pub struct HostError(String);

impl Host {
    /// The address, where it is a literal one.
    pub fn address(&self) -> Option<IpAddr> {
        self.0.parse().ok()
    }

    /// Where others dial it at this port; none where only this machine could.
    pub fn endpoint(&self, port: u16) -> Option<Endpoint> {
        endpoint(&self.0, port)
    }
}

fn endpoint(host: &str, port: u16) -> Option<Endpoint> {
    let text = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) => format!("[{v6}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    };
    if host == "localhost" { None } else { Endpoint::new(&text).ok() }
}

impl std::str::FromStr for Host {
    type Err = HostError;
    fn from_str(text: &str) -> Result<Self, HostError> {
        let loopback = text == "localhost" || text.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if loopback || endpoint(text, 1).is_some() {
            return Ok(Self(text.to_owned()));
        }
        Err(HostError(text.chars().take(300).collect()))
    }
}

impl TryFrom<String> for Host {
    type Error = HostError;
    fn try_from(text: String) -> Result<Self, HostError> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.0
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_dialled_at_a_port_unless_it_is_this_machine() {
        let at = |host: &str| host.parse::<Host>().unwrap().endpoint(4300).map(|e| e.to_string());
        assert_eq!(at("203.0.113.7").as_deref(), Some("203.0.113.7:4300"));
        assert_eq!(at("2001:db8::7").as_deref(), Some("[2001:db8::7]:4300"));
        assert_eq!(at("fleet.example.org").as_deref(), Some("fleet.example.org:4300"));
        assert_eq!(at("127.0.0.1"), None);
        assert_eq!(at("localhost"), None);
        for bad in ["", "203.0.113.7:4300", "a b", "0.0.0.0", "[::1]", "https://x"] {
            assert!(bad.parse::<Host>().unwrap_err().to_string().contains(&format!("`{bad}`")));
        }
    }
}
