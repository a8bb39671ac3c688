//! A node's client certificate with its key, `client.crt` and `client.key`, and how both are replaced together.
//!
//! Two names cannot change at once. The next pair is put beside the one in use, the key first: with its certificate it is
//! whole, and from then on it is the one in use, wherever a kill came in between. Reading moves it into place.

use super::KeyError;
use super::certificate::{P256Key, TlsIdentity, absent};
use crate::files;
use state::model::{Millis, NodeId};
use std::path::Path;

const CERTIFICATE: &str = "client.crt";
const KEY: &str = "client.key";
const NEXT_CERTIFICATE: &str = "client.next.crt";
const NEXT_KEY: &str = "client.next.key";

/// The key of the client certificate, `client.key` (PEM).
pub struct ClientKey(P256Key);

impl ClientKey {
    /// The key, made first where there is none: a repeated `join` asks with the same one.
    pub fn make(dir: &Path) -> Result<Self, KeyError> {
        settle(dir)?;
        P256Key::make(&dir.join(KEY)).map(Self)
    }

    /// The DER of a certificate request (PKCS #10) for it.
    pub fn request(&self) -> Vec<u8> {
        self.0.request()
    }
}

/// The client certificate in use.
pub struct ClientIdentity {
    /// With its key, as TLS presents it.
    pub tls: TlsIdentity,
    /// From when it holds.
    pub not_before: Millis,
    /// Until when it holds.
    pub not_after: Millis,
}

impl ClientIdentity {
    /// Whether it is this node's: it names its node, and with another's a machine would do that one's work.
    pub fn is_of(&self, node: NodeId) -> bool {
        let parsed = x509_parser::parse_x509_certificate(&self.tls.certificate);
        parsed.is_ok_and(|(_, parsed)| {
            let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
            name == Some(node.to_string().as_str())
        })
    }

    /// The certificate with its key; none before the node was let in.
    pub fn read(dir: &Path) -> Result<Option<Self>, KeyError> {
        settle(dir)?;
        let certificate = dir.join(CERTIFICATE);
        if absent(&certificate)? {
            return Ok(None);
        }
        let tls = TlsIdentity::read(&certificate, &dir.join(KEY))?;
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(&tls.certificate) else {
            return Err(KeyError::Malformed { path: certificate, problem: "holds a malformed certificate" });
        };
        let millis = |seconds: i64| Millis(u64::try_from(seconds).unwrap_or(0) * 1000);
        let validity = parsed.validity();
        let (not_before, not_after) = (millis(validity.not_before.timestamp()), millis(validity.not_after.timestamp()));
        Ok(Some(Self { tls, not_before, not_after }))
    }
}

/// A key made for the next certificate. It is in memory alone until the certificate is there.
pub struct NextClientKey(P256Key);

impl NextClientKey {
    /// A fresh one.
    pub fn generate() -> Self {
        Self(P256Key::generate())
    }

    /// The DER of a certificate request (PKCS #10) for it. Each is signed anew and differs.
    pub fn request(&self) -> Vec<u8> {
        self.0.request()
    }

    /// Puts it into use with its certificate, in PEM. One of another key is refused, and nothing is changed.
    pub fn adopt(&self, dir: &Path, certificate: &str) -> Result<(), KeyError> {
        settle(dir)?;
        let (next, key) = (dir.join(NEXT_CERTIFICATE), dir.join(NEXT_KEY));
        if !self.0.is_key_of(certificate) {
            return Err(KeyError::Malformed {
                path: next,
                problem: "would not be the certificate of the key made for it",
            });
        }
        files::replace(&key, self.0.pem().as_bytes())?;
        files::replace(&next, certificate.as_bytes())?;
        settle(dir)
    }
}

/// Ends a replacement wherever it was left.
fn settle(dir: &Path) -> Result<(), KeyError> {
    let (next, key) = (dir.join(NEXT_CERTIFICATE), dir.join(NEXT_KEY));
    if absent(&next)? {
        return Ok(files::remove(&key)?);
    }
    if !absent(&key)? {
        files::rename(&key, &dir.join(KEY))?;
    }
    Ok(files::rename(&next, &dir.join(CERTIFICATE))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{ApplianceKeys, NodeKeys};

    const DAY: u64 = 24 * 3600 * 1000;

    struct Case {
        _outer: tempfile::TempDir,
        dir: std::path::PathBuf,
        appliance: ApplianceKeys,
    }

    impl Case {
        fn new() -> Self {
            let outer = tempfile::tempdir().unwrap();
            let appliance = ApplianceKeys::make(&outer.path().join("appliance")).unwrap();
            let dir = outer.path().join("node");
            NodeKeys::make(&dir).unwrap();
            let case = Self { _outer: outer, dir, appliance };
            let request = ClientKey::make(&case.dir).unwrap().request();
            files::replace(&case.dir.join(CERTIFICATE), case.issue(&request, 1).as_bytes()).unwrap();
            case
        }

        fn issue(&self, request: &[u8], days: u64) -> String {
            let node = NodeId(uuid::Uuid::from_u128(1));
            self.appliance.ca.issue(request, node, Millis(DAY), Millis(DAY * (days + 1))).unwrap().pem
        }

        fn life(&self) -> u64 {
            let read = ClientIdentity::read(&self.dir).unwrap().unwrap();
            assert_eq!(read.not_before, Millis(DAY));
            (read.not_after.0 - read.not_before.0) / DAY
        }

        fn files(&self) -> Vec<String> {
            let names = std::fs::read_dir(&self.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.filter(|name| name.starts_with("client")).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_pair_is_replaced_whole() {
        let case = Case::new();
        assert_eq!(case.life(), 1);
        let next = NextClientKey::generate();
        next.adopt(&case.dir, &case.issue(&next.request(), 7)).unwrap();
        assert_eq!((case.life(), case.files()), (7, vec![CERTIFICATE.to_owned(), KEY.to_owned()]));
        let stranger = case.issue(&NextClientKey::generate().request(), 9);
        let refused = next.adopt(&case.dir, &stranger).unwrap_err().to_string();
        assert!(refused.contains("would not be the certificate of the key"), "{refused}");
        assert_eq!(case.life(), 7);
    }

    #[test]
    fn a_pair_of_another_node_is_told_apart() {
        let case = Case::new();
        let identity = ClientIdentity::read(&case.dir).unwrap().unwrap();
        let [own, other] = [1, 2].map(|n| NodeId(uuid::Uuid::from_u128(n)));
        assert!(identity.is_of(own) && !identity.is_of(other));
    }

    #[test]
    fn a_kill_at_any_point_leaves_one_pair_in_use() {
        let case = Case::new();
        let next = NextClientKey::generate();
        let certificate = case.issue(&next.request(), 7);
        let at = |name| case.dir.join(name);
        let old = [CERTIFICATE, KEY].map(|name| (name, std::fs::read(at(name)).unwrap()));
        let after = |done: usize| {
            old.iter().for_each(|(name, bytes)| files::replace(&at(name), bytes).unwrap());
            [NEXT_CERTIFICATE, NEXT_KEY].iter().for_each(|name| files::remove(&at(name)).unwrap());
            let steps: [&dyn Fn(); 4] = [
                &|| files::replace(&at(NEXT_KEY), next.0.pem().as_bytes()).unwrap(),
                &|| files::replace(&at(NEXT_CERTIFICATE), certificate.as_bytes()).unwrap(),
                &|| files::rename(&at(NEXT_KEY), &at(KEY)).unwrap(),
                &|| files::rename(&at(NEXT_CERTIFICATE), &at(CERTIFICATE)).unwrap(),
            ];
            steps[..done].iter().for_each(|step| step());
            let life = case.life();
            assert_eq!(case.files(), [CERTIFICATE, KEY], "after {done} steps");
            life
        };
        assert_eq!((0..=4).map(after).collect::<Vec<_>>(), [1, 1, 7, 7, 7]);
    }
}
