//! What looks like a secret in what nodes say: results with one are refused, lines of logs lose it.
//!
//! This catches mistakes, not malice: a node that wants to send a secret out can.

use serde_json::Value;
use sha2::{Digest, Sha256};
use state::State;
use state::model::Fingerprint;

/// Parts of names that mean a secret, in lower case and without separators.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "signingkey",
    "sealingkey",
    "wireguardkey",
    "presharedkey",
    "sessionkey",
    "cookie",
    "bearer",
];
/// How tokens of ours and private keys begin.
const BEGINNINGS: &[&str] = &["hfj1_", "hfa1_", "-----BEGIN"];
/// What stands in a log where something was taken out.
const REDACTED: &str = "[redacted]";
/// Digits of a secret of ours.
const SECRET_DIGITS: usize = 64;

/// Whether a name means a secret, whatever its case and separators.
fn is_secret_name(name: &str) -> bool {
    let bare: String = name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    NAMES.iter().any(|part| bare.contains(part))
}

/// Whether a text holds a secret that this fleet knows the hash of, the token of the lease that it is said under, or one
/// of the fleet's tokens.
fn is_secret(state: &State, lease: &Fingerprint, text: &str) -> bool {
    if BEGINNINGS.iter().any(|beginning| text.contains(beginning)) {
        return true;
    }
    let part = &state.enrolment;
    let known = |hash: Fingerprint| {
        hash == *lease
            || part.mesh_tokens.contains_key(&hash)
            || part.tokens.contains_key(&hash)
            || part.admission_tokens.contains_key(&hash)
    };
    known(Fingerprint::from_bytes(Sha256::digest(text).into()))
        || hex_runs(text).any(|digits| super::request::secret_hash(digits).is_some_and(known))
}

/// Runs of exactly as many hexadecimal digits as a secret has.
fn hex_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_hexdigit()).filter(|run| run.len() == SECRET_DIGITS)
}

/// Where a result has something that looks like a secret, in words; the secret is not among them. `lease` is the hash of
/// the token of the lease that it is said under.
pub fn in_result(state: &State, lease: &Fingerprint, result: &Value) -> Option<String> {
    match result {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            if is_secret_name(name) || is_secret(state, lease, name) {
                return Some("a key that is named like a secret".to_owned());
            }
            in_result(state, lease, value)
        }),
        Value::Array(values) => values.iter().find_map(|value| in_result(state, lease, value)),
        Value::String(text) if is_secret(state, lease, text) => {
            Some("a value that is a secret of this fleet".to_owned())
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// A line of a log without what looks like a secret, and without characters that a terminal would act on. `lease` is as in
/// [`in_result`].
pub fn redacted(state: &State, lease: &Fingerprint, line: &str) -> String {
    let line: String = line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect();
    let kept = named_secret(&line).map_or(line.as_str(), |end| &line[..end]);
    let mut out = String::with_capacity(kept.len());
    for (n, word) in kept.split(' ').enumerate() {
        if n > 0 {
            out.push(' ');
        }
        match (is_secret(state, lease, word), without_userinfo(word)) {
            (true, _) => out.push_str(REDACTED),
            (false, Some(bare)) => out.push_str(&bare),
            (false, None) => out.push_str(word),
        }
    }
    if kept.len() < line.len() {
        out.push_str(REDACTED);
    }
    out
}

/// Where the value of a name that means a secret begins: `password=…`, `Authorization: …`, `Bearer …`.
fn named_secret(line: &str) -> Option<usize> {
    let named = line.char_indices().filter(|(_, c)| matches!(c, '=' | ':')).find_map(|(at, c)| {
        let before = line[..at].trim_end_matches(|c: char| !c.is_alphanumeric());
        let name = before.rsplit([' ', ',', ';', '&', '?', '{']).next().unwrap_or(before);
        is_secret_name(name).then_some(at + c.len_utf8())
    });
    let lower = line.to_ascii_lowercase();
    let scheme = ["bearer ", "basic "].iter().filter_map(|scheme| lower.find(scheme).map(|at| at + scheme.len())).min();
    named.into_iter().chain(scheme).min()
}

/// A URL whose user information has been taken out.
fn without_userinfo(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let (userinfo, _) = authority.rsplit_once('@')?;
    Some(format!("{scheme}://{REDACTED}{}", &rest[userinfo.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use state::model::NodeId;

    const LEASE: Fingerprint = Fingerprint::from_bytes([0; 32]);

    fn state() -> State {
        let mut state = State::default();
        let secret = Fingerprint::from_bytes(Sha256::digest([7; 32]).into());
        state.enrolment.mesh_tokens.insert(secret, NodeId(uuid::Uuid::nil()));
        state
    }

    #[test]
    fn a_key_like_a_secret_is_found_however_it_is_written_and_however_deep() {
        for name in [
            "password",
            "PassWord",
            "db_password",
            "pass-word",
            "PASSWD",
            "client secret",
            "accessToken",
            "api.key",
            "API_KEY",
            "private-key",
            "Authorization",
            "credentials",
            "x-auth-token",
            "Cookie",
            "pass\u{200b}word",
        ] {
            assert!(in_result(&state(), &LEASE, &json!({"a": [{"b": {name: 1}}]})).is_some(), "{name}");
        }
        for name in ["user", "port", "passes", "path", "status", "key_count", "took_ms"] {
            assert!(in_result(&state(), &LEASE, &json!({"a": [{name: "password"}]})).is_none(), "{name}");
        }
    }

    #[test]
    fn a_known_secret_is_found_whatever_its_key() {
        let secret = "07".repeat(32);
        for value in [secret.clone(), format!("got {secret}!")] {
            assert!(in_result(&state(), &LEASE, &json!({"seen": [value]})).is_some());
        }
        assert!(in_result(&state(), &LEASE, &json!({"token line": 1})).is_some());
        assert!(in_result(&state(), &LEASE, &json!({"seen": "hfj1_abc"})).is_some());
        assert!(in_result(&state(), &LEASE, &json!({ &secret: 1 })).is_some());
        assert!(in_result(&state(), &LEASE, &json!({"seen": "08".repeat(32)})).is_none(), "a digest is no secret");
    }

    #[test]
    fn lines_lose_secrets_and_nothing_else() {
        let redact = |line: &str| redacted(&state(), &LEASE, line);
        for (line, wanted) in [
            ("connected to 10.0.0.1:5432 in 3 ms", "connected to 10.0.0.1:5432 in 3 ms"),
            ("password=hunter2 user=x", "password=[redacted]"),
            ("{\"db_password\": \"hunter2\"}", "{\"db_password\":[redacted]"),
            ("sent Authorization: Bearer abc", "sent Authorization:[redacted]"),
            ("curl -H 'bearer abc'", "curl -H 'bearer [redacted]"),
            ("postgres://joe:hunter2@db:5432/x is up", "postgres://[redacted]@db:5432/x is up"),
            ("a \u{1b}[31mb", "a \u{fffd}[31mb"),
        ] {
            assert_eq!(redact(line), wanted);
        }
        assert_eq!(redact(&format!("got {} back", "07".repeat(32))), "got [redacted] back");
    }

    #[test]
    fn the_token_of_the_lease_it_is_said_under_is_found() {
        let token = "08".repeat(32);
        let lease = Fingerprint::from_bytes(Sha256::digest([8; 32]).into());
        assert!(in_result(&state(), &lease, &json!({"seen": [token]})).is_some());
        assert!(in_result(&state(), &lease, &json!({"seen": token.to_uppercase()})).is_some());
        assert_eq!(redacted(&state(), &lease, &format!("under {token} it ran")), "under [redacted] it ran");
    }
}
