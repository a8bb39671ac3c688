//! `holdfast join`: from a token to a node that knows who it is. Touches files and the network, no kernel object.

use crate::keys::{ClientKey, NodeKeys};
use crate::node::client::{Appliances, CallError, Client, Sequence, Signer};
use crate::node::directory::{Directory, NODE_FORMAT, NodeFile};
use crate::node::failure::Failure;
use crate::node::held::{Extent, Held};
use crate::node::kernel::Netlink;
use crate::node::kernel::names::{INTERFACE, INTERFACE_MAX, LISTEN_PORT, is_interface_name};
use crate::node::kernel::underlay::{self, Underlay};
use crate::node::trust::Trust;
use crate::wire::enrol::{EnrolRequest, Enrolled};
use crate::wire::token::{Purpose, Token, TokenAppliance};
use crate::{clock, files, limits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use state::model::{Endpoint, Name, NodeId, SigningKey, fingerprint_words};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

const WHAT: &str = "this machine did not join";

/// What `holdfast join` was given beside the token.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// The mesh interface; the one of an earlier `join`, else `hf0`.
    pub ifname: Option<String>,
    /// The UDP port of the tunnel; the one of an earlier `join`, else 51820.
    pub port: Option<u16>,
    /// With an admission token: the name to propose, else the machine's host name.
    pub name: Option<Name>,
    /// With an admission token: the site to propose.
    pub site: Option<Name>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The machine is a node.
    Member {
        /// The fleet's name.
        fleet: Name,
        /// The node's name.
        name: Name,
        /// Its mesh address.
        address: Ipv4Addr,
        /// The short form of its signing key, as the appliance shows it too.
        words: String,
    },
    /// The agent will ask to be admitted.
    Knocking {
        /// The fleet's name.
        fleet: Name,
        /// The name that it proposes.
        name: Name,
        /// The short form of its signing key, to compare before admitting it.
        words: String,
    },
}

/// Joins with a token's text. It is checked before anything is made or sent.
pub async fn join(token: &str, dir: &Path, wishes: Wishes) -> Result<Joined, Failure> {
    let token = Token::decode(token, clock::wall())?;
    let given = wishes.ifname.as_deref().map_or(Ok(()), ifname);
    given.map_err(|why| Failure::new("invalid", WHAT, why, "give another name with --ifname"))?;
    if wishes.port == Some(0) {
        return Err(Failure::new("invalid", WHAT, "0 is not a port", "give a port from 1 to 65535 with --port"));
    }
    let keys = NodeKeys::make(dir)?;
    let directory = Directory::new(dir);
    let _lock = files::lock(dir, "agent")?;
    let words = fingerprint_words(&keys.public().signing_key);
    let node = settle(&directory, &token, wishes)?;
    let fleet = token.fleet_name.clone();
    match &token.purpose {
        Purpose::Admission => {
            directory.keep_mesh_token(&token.secret.expose_hex())?;
            Ok(Joined::Knocking { fleet, name: node.name, words })
        }
        Purpose::Join(_) => {
            let request = request(&directory, &keys, &token, &node).await?;
            let key = idempotency_key(&token, &request.signing_key);
            let signer = Signer::new(keys.signing, None, Sequence::open(dir)?);
            let client = Client::new(Appliances::from(token.appliances.as_slice()), Arc::new(signer));
            let enrolled = client.enrol(&request, key).await.map_err(|error| refused(error, &words))?;
            let address = enrolled.address;
            let name = enrolled.name.clone();
            accept(&directory, node, &request.signing_key, &enrolled)?;
            Ok(Joined::Member { fleet, name, address, words })
        }
    }
}

/// Keeps what a machine was told when it was let in, after verifying all of it. `node.json` comes last: with it the
/// machine is a node.
pub fn accept(directory: &Directory, node: NodeFile, own: &SigningKey, enrolled: &Enrolled) -> Result<(), Failure> {
    let malformed = |why: String| {
        Failure::new("malformed", WHAT, why, "check that both ends run versions of holdfast that fit together")
    };
    let trust = Trust::new(node.root_key, node.fleet, enrolled.roster.clone()).map_err(|e| malformed(e.to_string()))?;
    let mut held = Held::default();
    let accepted = held.accept(&trust, &enrolled.peers, Extent::Full);
    for alarm in &accepted.alarms {
        tracing::warn!("{alarm}");
    }
    match held.record(enrolled.node) {
        Some(record) if record.signing_key == *own => {}
        Some(_) => return Err(malformed("the signed record of this node has another key".into())),
        None => return Err(malformed("the signed list does not have this node".into())),
    }
    NodeKeys::keep_id(directory.path(), enrolled.node)?;
    directory.keep_roster(&enrolled.roster)?;
    directory.keep_peers(&held.write())?;
    directory.keep_confirmed(clock::wall())?;
    directory.keep_certificate(&enrolled.client_certificate)?;
    directory.keep_mesh_token(&enrolled.mesh_token)?;
    directory.keep_node(&NodeFile { node: Some(enrolled.node), name: enrolled.name.clone(), ..node })?;
    Ok(())
}

/// What this `join` is about, kept before anything is sent, so that a repeated one asks for the same.
fn settle(directory: &Directory, token: &Token, wishes: Wishes) -> Result<NodeFile, Failure> {
    let before = directory.node()?;
    let id: Option<NodeId> = NodeKeys::id(directory.path())?;
    if let Some(before) = before.as_ref().filter(|b| b.fleet != token.fleet && id.is_some()) {
        return Err(Failure::new(
            "conflict",
            WHAT,
            format!("{} is a node of the fleet {}", directory.path().display(), before.fleet_name),
            "give another directory with --state",
        ));
    }
    if id.is_some() && before.as_ref().is_some_and(|b| b.root_key != token.root_key) {
        return Err(Failure::new(
            "conflict",
            WHAT,
            "the token names another root key than the one this node believes",
            "compare it with the appliance's; a new node needs another directory with --state",
        ));
    }
    let name = match (&token.purpose, wishes.name) {
        (Purpose::Join(name), _) => name.clone(),
        (Purpose::Admission, Some(name)) => name,
        (Purpose::Admission, None) => host_name()?,
    };
    let node = NodeFile {
        format: NODE_FORMAT,
        fleet: token.fleet,
        fleet_name: token.fleet_name.clone(),
        root_key: token.root_key,
        ifname: wishes.ifname.or(before.as_ref().map(|b| b.ifname.clone())).unwrap_or_else(|| INTERFACE.into()),
        listen_port: wishes.port.or(before.map(|b| b.listen_port)).unwrap_or(LISTEN_PORT),
        appliances: token.appliances.clone(),
        node: id,
        name,
        site: wishes.site,
    };
    directory.keep_node(&node)?;
    Ok(node)
}

/// The request, the same bytes for every attempt with one token.
async fn request(
    directory: &Directory,
    keys: &NodeKeys,
    token: &Token,
    node: &NodeFile,
) -> Result<EnrolRequest, Failure> {
    let secret = token.secret.expose_hex().to_string();
    let fingerprint = token.secret.fingerprint();
    if let Some(kept) = directory.request(fingerprint)?.filter(|kept| kept.listen_port == node.listen_port) {
        return Ok(EnrolRequest { secret, ..kept });
    }
    let csr = ClientKey::make(directory.path())?.request();
    let public = keys.public();
    let underlay = underlay(&node.ifname).await?;
    let request = EnrolRequest {
        audience: token.fleet,
        secret,
        signing_key: public.signing_key,
        wireguard_key: public.wireguard_key,
        sealing_key: public.sealing_key,
        certificate_request: STANDARD.encode(csr),
        listen_port: node.listen_port,
        local_endpoints: local_endpoints(&underlay.addresses, node.listen_port),
        agent_version: env!("CARGO_PKG_VERSION").into(),
    };
    directory.keep_request(fingerprint, &request)?;
    Ok(request)
}

/// What this machine's networks are, the mesh's own aside.
pub async fn underlay(ifname: &str) -> Result<Underlay, Failure> {
    let seen = async { underlay::observe(&Netlink::connect()?, ifname).await };
    seen.await.map_err(|error| Failure::local("this machine's addresses are not known", error))
}

/// The machine's own addresses as others of its site dial them.
pub fn local_endpoints(addresses: &[IpAddr], port: u16) -> Vec<Endpoint> {
    let dialable = addresses.iter().filter_map(|ip| Endpoint::from_socket(SocketAddr::new(*ip, port)).ok());
    dialable.take(limits::ENDPOINTS).collect()
}

/// The same for every attempt of one machine with one token, so that a lost answer is given again.
fn idempotency_key(token: &Token, own: &SigningKey) -> String {
    state::hash_of(b"holdfast/enrol-attempt/v1", &[token.secret.expose(), own.as_bytes()]).to_string()
}

fn refused(error: CallError, words: &str) -> Failure {
    let mut failure = Failure::call(WHAT, error);
    if failure.code != "unreachable" {
        failure.why = format!("{} (this machine's key is {words})", failure.why);
    }
    failure
}

/// Refuses what the kernel does not take as an interface's name.
fn ifname(name: &str) -> Result<(), String> {
    if is_interface_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(format!("`{shown}` is not an interface name of 1 to {INTERFACE_MAX} characters"))
}

fn host_name() -> Result<Name, Failure> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let label = host.split('.').next().unwrap_or_default().to_ascii_lowercase();
    Name::new(&label).and_then(Name::unreserved).map_err(|error| {
        Failure::new(
            "invalid",
            WHAT,
            format!("the host name does not do as a node's name: {error}"),
            "give one with --name",
        )
    })
}

impl From<&[TokenAppliance]> for Appliances {
    fn from(appliances: &[TokenAppliance]) -> Self {
        Self {
            endpoints: appliances.iter().flat_map(|a| a.mesh.iter().cloned()).collect(),
            pins: appliances.iter().flat_map(|a| a.pins.iter().copied()).collect(),
            keys: Vec::new(),
        }
    }
}
