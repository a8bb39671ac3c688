//! How `service.check` asks, and which of it is refused before anything is queued: a check that no node could make would
//! only be found out on the node, as if the service were at fault.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Bytes of a URL: no service is asked for more, and 65,536 jobs with one are kept in 64 MiB.
const URL: usize = 1_024;
/// Bytes of a name (RFC 1035, section 2.3.4), and of each of its labels.
const NAME: (usize, usize) = (253, 63);

/// How a service is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
    /// A TCP connection to `host:port` is accepted.
    Tcp(String),
    /// `GET` of an `http://` URL answers with a status below 400.
    Http(String),
    /// A name has an address, asked at `server` (`address:port`) or at the node's own resolver.
    Dns {
        /// The name.
        name: String,
        /// Where to ask.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<String>,
    },
    /// A PostgreSQL server at `host:port` answers a start-up message.
    Postgres(String),
}

impl Probe {
    /// Why no node can ask like this.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Tcp(target) | Self::Postgres(target) => check_target(target),
            Self::Http(url) => check_url(url),
            Self::Dns { name, server } => {
                if !is_name(name) {
                    return Err(format!("`{}` is not a name", shown(name)));
                }
                let socket = server.as_ref().map(|server| server.parse::<SocketAddr>());
                match (server, socket) {
                    (Some(server), Some(parsed)) if parsed.as_ref().map_or(0, SocketAddr::port) == 0 => {
                        Err(format!("`{}` is not ADDRESS:PORT, such as 10.0.0.1:53", shown(server)))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

fn check_target(target: &str) -> Result<(), String> {
    let port = |text: &str| text.parse::<u16>().is_ok_and(|port| port != 0);
    match target.rsplit_once(':') {
        Some((host, text)) if is_host(host) && port(text) => Ok(()),
        Some(_) | None => Err(format!("`{}` is not HOST:PORT, such as 10.0.0.1:22", shown(target))),
    }
}

/// No message shows a URL that may have a password in it.
fn check_url(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err("the URL does not begin with http://".into());
    };
    if url.len() > URL {
        return Err(format!("the URL has {} bytes, and {URL} can be given", url.len()));
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the URL has a character that must be written as %XX".into());
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    if authority.contains('@') {
        return Err("the URL has a user or a password in it, and jobs are shown to whoever may see them".into());
    }
    if is_host(authority) || check_target(authority).is_ok() {
        return Ok(());
    }
    Err(format!("the URL has no host that can be asked: `{}`", shown(authority)))
}

/// An address, in brackets if it is of IPv6, or a name.
fn is_host(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bracketed.map_or_else(|| is_name(text), |address| address.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()))
}

/// Whether the resolver can be asked for it. Underscores are in names of services, and addresses look like names.
fn is_name(text: &str) -> bool {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=NAME.1).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    bare.len() <= NAME.0 && bare.split('.').all(label)
}

fn shown(text: &str) -> String {
    text.chars().take(NAME.0).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_can_ask_is_let_through() {
        for target in ["127.0.0.1:22", "[::1]:5432", "db:5432", "db.shop.internal.:1", "_x._tcp.example.org:65535"] {
            for probe in [Probe::Tcp(target.into()), Probe::Postgres(target.into())] {
                assert_eq!(probe.check(), Ok(()), "{target}");
            }
        }
        for url in ["http://10.0.0.1", "http://[::1]:8080/a?b=c@d#e", "http://web.shop.internal/", "http://x:1?q"] {
            assert_eq!(Probe::Http(url.into()).check(), Ok(()), "{url}");
        }
        for server in [None, Some("10.0.0.1:53".to_owned()), Some("[::1]:53".to_owned())] {
            assert_eq!(Probe::Dns { name: "web.internal".into(), server }.check(), Ok(()));
        }
    }

    #[test]
    fn what_no_node_can_ask_is_refused_with_the_reason() {
        let long = "a".repeat(64);
        for target in ["", "x", ":1", "x:", "x:0", "x:65536", "x:-1", "::1:22", "[x]:1", "a b:1", "a\nb:1", "é:1"] {
            let why = Probe::Tcp(target.into()).check().unwrap_err();
            assert!(why.contains("is not HOST:PORT") && !why.contains('\n'), "{target:?}: {why}");
        }
        assert!(Probe::Postgres(format!("{long}:1")).check().is_err());
        for (url, why) in [
            ("ftp://x", "begin with http://"),
            ("https://x", "begin with http://"),
            ("http://", "no host"),
            ("http:///x", "no host"),
            ("http://x:0/", "no host"),
            ("http://a b/", "%XX"),
            ("http://x/\r\ny", "%XX"),
            ("http://u:hunter2@x/", "a user or a password"),
        ] {
            let told = Probe::Http(url.into()).check().unwrap_err();
            assert!(told.contains(why) && !told.contains("hunter2"), "{url}: {told}");
        }
        assert!(Probe::Http(format!("http://x/{}", "a".repeat(URL))).check().unwrap_err().contains("bytes"));
        let dns = |name: &str, server: Option<&str>| Probe::Dns { name: name.into(), server: server.map(Into::into) };
        for name in ["", ".", "a..b", "bad name", &long] {
            assert!(dns(name, None).check().unwrap_err().contains("is not a name"), "{name}");
        }
        for server in ["x", "10.0.0.1", "10.0.0.1:0", "resolver:53"] {
            assert!(dns("x", Some(server)).check().unwrap_err().contains("is not ADDRESS:PORT"), "{server}");
        }
    }
}
