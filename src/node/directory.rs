//! The files of a node's state directory beside its keys: who it is, what it believes, what it holds and publishes.

use crate::files::{self, FileError};
use crate::wire::enrol::EnrolRequest;
use crate::wire::operator::Publish;
use crate::wire::signed::Signed;
use crate::wire::token::TokenAppliance;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use state::model::{Fingerprint, FleetId, Millis, Name, NodeId, SigningKey};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A file other than the list is far smaller than this, in bytes.
const SMALL: u64 = 1024 * 1024;

/// The format of `node.json` that this version writes and reads.
pub const NODE_FORMAT: u16 = 1;

/// `node.json`: what joining settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// [`NODE_FORMAT`].
    pub format: u16,
    /// The fleet.
    pub fleet: FleetId,
    /// Its name.
    pub fleet_name: Name,
    /// What its rosters are signed with.
    pub root_key: SigningKey,
    /// The mesh interface.
    pub ifname: String,
    /// The UDP port of the tunnel.
    pub listen_port: u16,
    /// Where to knock, until there is a roster.
    pub appliances: Vec<TokenAppliance>,
    /// The node, once it was let in.
    pub node: Option<NodeId>,
    /// The name it was given, or proposes until it is let in.
    pub name: Name,
    /// The site it proposes.
    pub site: Option<Name>,
}

#[derive(Serialize, Deserialize)]
struct KeptRequest {
    token: Fingerprint,
    request: EnrolRequest,
}

/// A node's state directory.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Names it; nothing is read or made.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Who the node is; none before `join`.
    pub fn node(&self) -> Result<Option<NodeFile>, FileError> {
        files::document(&self.file("node.json"), SMALL, NODE_FORMAT)
    }

    /// Keeps who the node is.
    pub fn keep_node(&self, node: &NodeFile) -> Result<(), FileError> {
        files::replace(&self.file("node.json"), &state::to_bytes(node))
    }

    /// The roster as it was signed; none before the node was let in.
    pub fn roster(&self) -> Result<Option<Signed>, FileError> {
        self.json("roster.json")
    }

    /// Keeps a roster.
    pub fn keep_roster(&self, roster: &Signed) -> Result<(), FileError> {
        files::replace(&self.file("roster.json"), &state::to_bytes(roster))
    }

    /// The last list as it was kept, not yet verified.
    pub fn peers(&self) -> Result<Option<Vec<u8>>, FileError> {
        absent(files::read(&self.file("peers.json"), crate::limits::LIST as u64))
    }

    /// Keeps the list.
    pub fn keep_peers(&self, bytes: &[u8]) -> Result<(), FileError> {
        files::replace(&self.file("peers.json"), bytes)
    }

    /// When an appliance last answered, to the minute; none if never, or if nothing readable says when.
    pub fn confirmed(&self) -> Result<Option<Millis>, FileError> {
        match self.json("confirmed.json") {
            Err(FileError::Damaged { .. }) => Ok(None),
            read => read,
        }
    }

    /// Keeps that an appliance answered.
    pub fn keep_confirmed(&self, at: Millis) -> Result<(), FileError> {
        files::replace(&self.file("confirmed.json"), &state::to_bytes(&at))
    }

    /// What the node publishes.
    pub fn claims(&self) -> Result<Vec<Publish>, FileError> {
        Ok(self.json("claims.json")?.unwrap_or_default())
    }

    /// Keeps what the node publishes.
    pub fn keep_claims(&self, claims: &[Publish]) -> Result<(), FileError> {
        files::replace(&self.file("claims.json"), &state::to_bytes(&claims))
    }

    /// The bearer secret of all calls, in hexadecimal digits.
    pub fn mesh_token(&self) -> Result<Zeroizing<String>, FileError> {
        let path = self.file("mesh.token");
        let bytes = files::read_secret(&path)?;
        let token =
            std::str::from_utf8(&bytes).ok().map(str::trim).filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()));
        token.map(|t| Zeroizing::new(t.to_owned())).ok_or_else(|| FileError::Unsafe {
            path,
            problem: "is not one line of hexadecimal digits; join again with a new token".into(),
        })
    }

    /// Keeps the bearer secret.
    pub fn keep_mesh_token(&self, token: &str) -> Result<(), FileError> {
        files::replace(&self.file("mesh.token"), Zeroizing::new(format!("{token}\n")).as_bytes())
    }

    /// The request of an earlier `join` with the token of this fingerprint, without the token's secret.
    pub fn request(&self, token: Fingerprint) -> Result<Option<EnrolRequest>, FileError> {
        let kept: Option<KeptRequest> = self.json("join.json")?;
        Ok(kept.filter(|kept| kept.token == token).map(|kept| kept.request))
    }

    /// Keeps a request before it is sent: an appliance gives a lost answer again to the very same bytes only.
    pub fn keep_request(&self, token: Fingerprint, request: &EnrolRequest) -> Result<(), FileError> {
        let request = EnrolRequest { secret: String::new(), ..request.clone() };
        files::replace(&self.file("join.json"), &state::to_bytes(&KeptRequest { token, request }))
    }

    /// Keeps the client certificate, PEM.
    pub fn keep_certificate(&self, pem: &str) -> Result<(), FileError> {
        files::replace(&self.file("client.crt"), pem.as_bytes())
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FileError> {
        let path = self.file(name);
        let Some(bytes) = absent(files::read(&path, SMALL))? else { return Ok(None) };
        let read = serde_json::from_slice(&bytes);
        read.map(Some).map_err(|e| FileError::Damaged { path, problem: e.to_string() })
    }
}

fn absent(read: Result<Vec<u8>, FileError>) -> Result<Option<Vec<u8>>, FileError> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if files::is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{name, node};
    use state::model::{SealingKey, WireguardKey};

    #[test]
    fn an_unreadable_note_of_the_last_contact_is_none_and_an_unreadable_roster_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path());
        directory.keep_confirmed(Millis(7)).unwrap();
        assert_eq!(directory.confirmed().unwrap(), Some(Millis(7)));
        for name in ["confirmed.json", "roster.json"] {
            files::replace(&directory.file(name), b"{").unwrap();
        }
        assert_eq!(directory.confirmed().unwrap(), None);
        let error = directory.roster().unwrap_err();
        assert!(error.to_string().contains("roster.json: is damaged"), "{error}");
    }

    #[test]
    fn who_a_node_is_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path());
        let file = NodeFile {
            format: 1,
            fleet: FleetId(uuid::Uuid::nil()),
            fleet_name: name("lab"),
            root_key: SigningKey::from_bytes([1; 32]),
            ifname: "hf0".into(),
            listen_port: 51820,
            appliances: vec![TokenAppliance {
                mesh: vec!["198.51.100.2:4300".parse().unwrap()],
                pins: vec![Fingerprint::from_bytes([2; 32])],
            }],
            node: Some(node(0)),
            name: name("web"),
            site: None,
        };
        directory.keep_node(&file).unwrap();
        let text = format!(
            "{{\"format\":1,\"fleet\":\"00000000-0000-0000-0000-000000000000\",\"fleet_name\":\"lab\",\"root_key\":\"{}\",\
             \"ifname\":\"hf0\",\"listen_port\":51820,\"appliances\":[{{\"mesh\":[\"198.51.100.2:4300\"],\"pins\":[\"{}\"]}}],\
             \"node\":\"00000000-0000-0000-0000-000000000001\",\"name\":\"web\",\"site\":null}}",
            "01".repeat(32),
            "02".repeat(32),
        );
        assert_eq!(std::fs::read_to_string(directory.file("node.json")).unwrap(), text);
        assert_eq!(directory.node().unwrap(), Some(file));
    }

    #[test]
    fn who_a_node_is_in_a_newer_format_is_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path());
        let newer = r#"{"format":2,"whatever":"comes"}"#;
        files::replace(&directory.file("node.json"), newer.as_bytes()).unwrap();
        let error = directory.node().unwrap_err();
        let shown = error.to_string();
        assert!(shown.ends_with("node.json: is of format 2, and this version of holdfast reads 1"), "{shown}");
        let failure = crate::node::failure::Failure::from(error);
        assert_eq!((failure.code.as_str(), failure.todo.contains("version")), ("file_newer", true));
        assert_eq!(std::fs::read_to_string(directory.file("node.json")).unwrap(), newer);
    }

    #[test]
    fn what_was_asked_and_when_an_appliance_answered_keep_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path());
        let request = EnrolRequest {
            audience: FleetId(uuid::Uuid::nil()),
            secret: "5e".into(),
            signing_key: SigningKey::from_bytes([1; 32]),
            wireguard_key: WireguardKey::from_bytes([2; 32]),
            sealing_key: SealingKey::from_bytes([3; 32]),
            certificate_request: "AAAA".into(),
            listen_port: 51820,
            local_endpoints: vec!["192.168.0.2:51820".parse().unwrap()],
            agent_version: "0.1.0".into(),
        };
        let token = Fingerprint::from_bytes([4; 32]);
        directory.keep_request(token, &request).unwrap();
        let text = format!(
            "{{\"token\":\"{}\",\"request\":{{\"audience\":\"00000000-0000-0000-0000-000000000000\",\"secret\":\"\",\
             \"signing_key\":\"{}\",\"wireguard_key\":\"{}\",\"sealing_key\":\"{}\",\"certificate_request\":\"AAAA\",\
             \"listen_port\":51820,\"local_endpoints\":[\"192.168.0.2:51820\"],\"agent_version\":\"0.1.0\"}}}}",
            "04".repeat(32),
            "01".repeat(32),
            "02".repeat(32),
            "03".repeat(32),
        );
        assert_eq!(std::fs::read_to_string(directory.file("join.json")).unwrap(), text);
        let kept = directory.request(token).unwrap().unwrap();
        assert_eq!(kept, EnrolRequest { secret: String::new(), ..request });
        assert_eq!(directory.request(Fingerprint::from_bytes([5; 32])).unwrap(), None);

        directory.keep_confirmed(Millis(1000)).unwrap();
        assert_eq!(std::fs::read_to_string(directory.file("confirmed.json")).unwrap(), "1000");
        assert_eq!(directory.confirmed().unwrap(), Some(Millis(1000)));
    }
}
