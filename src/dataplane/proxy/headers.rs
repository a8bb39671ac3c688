//! What is taken from and put into the head of a carried HTTP request. Pure.

use http::header::{CONNECTION, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use std::net::IpAddr;

/// Headers by which proxies tell a target who is asking. Whatever a client sends of them is a lie about itself.
const IDENTITY: &[&str] = &[
    "forwarded",
    "via",
    "x-real-ip",
    "client-ip",
    "true-client-ip",
    "remote-addr",
    "remote-host",
    "remote-user",
    "remote-email",
    "remote-groups",
    "remote-name",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-url",
    "x-rewrite-url",
    "x-envoy-external-address",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
    "fly-client-ip",
    "x-azure-clientip",
    "x-user",
    "x-username",
    "x-groups",
    "x-roles",
    "x-email",
];

/// Beginnings of such headers.
const IDENTITY_PREFIXES: &[&str] = &[
    "x-forwarded",
    "x-remote-",
    "x-auth-",
    "x-authenticated-",
    "x-webauth-",
    "x-user-",
    "x-client-cert",
    "x-client-verify",
    "x-client-dn",
    "x-ssl-",
    "ssl-client-",
    "x-amzn-oidc-",
    "x-goog-authenticated-",
    "x-goog-iap-",
    "x-ms-client-principal",
    "x-pomerium-",
    "x-authentik-",
    "x-vouch-",
    "x-token-",
    "tailscale-",
    "x-holdfast-",
];

/// Headers of one hop (RFC 9110, 7.6.1), beside those that `Connection` names.
const HOP: &[&str] =
    &["connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "upgrade"];

/// Whether a header claims an identity. Underscores count as hyphens, as they do where headers become variables.
fn claims_identity(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    IDENTITY.contains(&name.as_str()) || IDENTITY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes what concerns one hop alone. What `Upgrade` asked for is given back, to be passed on knowingly.
pub(super) fn strip_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let upgrade = headers.get(UPGRADE).cloned().filter(|_| named.iter().any(|name| name == "upgrade"));
    let kept = ["host", "content-length", "transfer-encoding", "forwarded", "x-forwarded-for"];
    for name in named.iter().map(String::as_str).filter(|name| !kept.contains(name)).chain(HOP.iter().copied()) {
        headers.remove(name);
    }
    upgrade
}

/// Removes every claim of the client about itself, and states what is known: its mesh address and the name it asked.
pub(super) fn set_forwarded(headers: &mut HeaderMap, peer: IpAddr) {
    let claims: Vec<HeaderName> = headers.keys().filter(|name| claims_identity(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
    let peer = peer.to_canonical();
    let node = if peer.is_ipv6() { format!("\"[{peer}]\"") } else { peer.to_string() };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).filter(|host| is_host(host));
    let host = host.map(|host| format!(";host=\"{host}\"")).unwrap_or_default();
    let value = |text: String| HeaderValue::from_str(&text).expect("addresses and checked hosts are plain text");
    headers.insert(FORWARDED, value(format!("for={node}{host};proto=http")));
    headers.insert(HeaderName::from_static("x-forwarded-for"), value(peer.to_string()));
}

/// Nothing that could end the quoted string that it is put in.
fn is_host(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_client_cannot_say_who_it_is() {
        let mut sent = headers(&[
            ("host", "web.shop.internal"),
            ("forwarded", "for=1.1.1.1"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x_forwarded_for", "1.1.1.1"),
            ("x-forwarded-host", "evil"),
            ("x-real-ip", "1.1.1.1"),
            ("remote-user", "root"),
            ("remote_user", "root"),
            ("x-remote-user", "root"),
            ("x-auth-request-email", "a@b"),
            ("authorization", "Bearer its-own"),
            ("cookie", "a=b"),
        ]);
        set_forwarded(&mut sent, "10.90.0.2".parse().unwrap());
        assert_eq!(
            sent,
            headers(&[
                ("host", "web.shop.internal"),
                ("authorization", "Bearer its-own"),
                ("cookie", "a=b"),
                ("forwarded", "for=10.90.0.2;host=\"web.shop.internal\";proto=http"),
                ("x-forwarded-for", "10.90.0.2"),
            ])
        );
        let mut sent = headers(&[("host", "a\";for=1.1.1.1")]);
        set_forwarded(&mut sent, "fd00::2".parse().unwrap());
        assert_eq!(sent["forwarded"], "for=\"[fd00::2]\";proto=http");
    }

    #[test]
    fn what_concerns_one_hop_stays_there_and_nothing_else_can_be_taken_away_by_naming_it() {
        let mut sent = headers(&[
            ("connection", "Upgrade, x-mine, host, x-forwarded-for"),
            ("upgrade", "websocket"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("host", "h"),
        ]);
        assert_eq!(strip_hop(&mut sent).unwrap(), "websocket");
        assert_eq!(sent, headers(&[("host", "h")]));
        let mut unasked = headers(&[("upgrade", "websocket")]);
        assert_eq!(strip_hop(&mut unasked), None);
        assert!(unasked.is_empty());
    }
}
