//! What an appliance may be told: by flags, by one TOML file, by defaults, in this order.
//!
//! Each key of the file is a long flag with `_` for `-`; [`Settings`] is both. Nothing is read from elsewhere, and a
//! file that is not understood whole is refused with its line before anything is made on disk.

mod file;
mod host;
mod life;
mod routes;

pub use file::{ConfigError, ConfigFile, keys};
pub use host::{Host, HostError};
pub use life::{Life, LifeError, seconds};
pub use routes::{Overlap, overlap};

use crate::limits;
use serde::{Deserialize, Serialize};
use state::model::{Name, Prefix};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The keys, each of which may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of the fleet; only the first start uses it
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<Name>,
    /// Address or host name at which nodes reach this appliance; may be given several times
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<Vec<Host>>,
    /// Range of the mesh addresses, such as 10.90.0.0/16; only the first start uses it
    #[arg(long, value_name = "PREFIX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh_prefix: Option<Prefix>,
    /// Address that the listeners bind
    #[arg(long, value_name = "IP")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<IpAddr>,
    /// Address and port of the appliance's own resolver; none without it
    #[arg(long, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<SocketAddr>,
    /// How long a node's client certificate lasts
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_life: Option<Life>,
    /// This machine joins its own mesh
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<bool>,
    /// Sources that builders may fetch at a time, 1 to 64; 0 turns their delivery off
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_slots: Option<u8>,
    /// The listeners' ports.
    #[command(flatten)]
    #[serde(default)]
    pub ports: PortSettings,
}

/// The keys under `ports.`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct PortSettings {
    /// TCP port of the mesh API
    #[arg(long = "ports.mesh", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<u16>,
    /// TCP port of the gateway
    #[arg(long = "ports.gateway", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<u16>,
    /// TCP port that appliances replicate over
    #[arg(long = "ports.cluster", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<u16>,
    /// TCP port of the relay
    #[arg(long = "ports.relay", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<u16>,
    /// TCP port of /health, /ready and /metrics on 127.0.0.1
    #[arg(long = "ports.page", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<u16>,
}

/// The ports of an appliance's listeners, no two alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The mesh API.
    pub mesh: u16,
    /// The gateway.
    pub gateway: u16,
    /// Replication between appliances.
    pub cluster: u16,
    /// The relay.
    pub relay: u16,
    /// Status page, metrics and health on 127.0.0.1.
    pub page: u16,
}

/// What holds after flags, file and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The fleet's name, where one was given: what a store holds already must not differ from it.
    pub fleet: Option<Name>,
    /// Where nodes reach this appliance; empty means that no node can be added yet.
    pub advertise: Vec<Host>,
    /// The range of the mesh addresses, where one was given; likewise.
    pub mesh_prefix: Option<Prefix>,
    /// What the listeners bind.
    pub listen: IpAddr,
    /// Where the appliance's own resolver listens.
    pub dns: Option<SocketAddr>,
    /// How long a node's client certificate lasts.
    pub certificate_life: Duration,
    /// Whether this machine joins its own mesh.
    pub node: bool,
    /// How many sources may be fetched at a time; 0 where none is.
    pub source_slots: u8,
    /// The ports.
    pub ports: Ports,
}

/// The name of a fleet whose founder gave none.
pub const DEFAULT_FLEET: &str = "fleet";
/// The mesh range of a fleet whose founder gave none.
pub const DEFAULT_MESH_PREFIX: &str = "10.90.0.0/16";

/// The name of a fleet whose founder gave none.
pub fn default_fleet() -> Name {
    Name::new(DEFAULT_FLEET).expect("the default is a name")
}

/// The mesh range of a fleet whose founder gave none.
pub fn default_mesh_prefix() -> Prefix {
    DEFAULT_MESH_PREFIX.parse().expect("the default is a prefix")
}

impl Settings {
    /// What holds where nothing is said.
    pub fn defaults() -> Self {
        Self {
            fleet: Some(default_fleet()),
            advertise: Some(Vec::new()),
            mesh_prefix: Some(default_mesh_prefix()),
            listen: Some(Ipv4Addr::UNSPECIFIED.into()),
            dns: None,
            certificate_life: Some(Life::default()),
            node: Some(false),
            source_slots: Some(limits::SOURCE_SLOTS),
            ports: PortSettings {
                mesh: Some(4300),
                gateway: Some(4301),
                cluster: Some(4302),
                relay: Some(6464),
                page: Some(4380),
            },
        }
    }

    /// These, and `other` where these are silent.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            fleet: self.fleet.or(other.fleet),
            advertise: self.advertise.or(other.advertise),
            mesh_prefix: self.mesh_prefix.or(other.mesh_prefix),
            listen: self.listen.or(other.listen),
            dns: self.dns.or(other.dns),
            certificate_life: self.certificate_life.or(other.certificate_life),
            node: self.node.or(other.node),
            source_slots: self.source_slots.or(other.source_slots),
            ports: PortSettings {
                mesh: self.ports.mesh.or(other.ports.mesh),
                gateway: self.ports.gateway.or(other.ports.gateway),
                cluster: self.ports.cluster.or(other.ports.cluster),
                relay: self.ports.relay.or(other.ports.relay),
                page: self.ports.page.or(other.ports.page),
            },
        }
    }

    /// Every key that is set, with its value as text.
    pub fn listed(&self) -> Vec<(String, String)> {
        fn walk(prefix: &str, table: &toml::Table, out: &mut Vec<(String, String)>) {
            for (key, value) in table {
                match value {
                    toml::Value::Table(inner) => walk(&format!("{key}."), inner, out),
                    toml::Value::String(text) => out.push((format!("{prefix}{key}"), text.clone())),
                    other => out.push((format!("{prefix}{key}"), other.to_string())),
                }
            }
        }
        let table = toml::Table::try_from(self).expect("settings are a TOML table");
        let mut out = Vec::new();
        walk("", &table, &mut out);
        out
    }
}

/// Flags over file over defaults, or the first combination that cannot be.
pub fn resolve(flags: Settings, file: Option<&ConfigFile>) -> Result<Config, ConfigError> {
    let given = flags.or(file.map(|file| file.settings.clone()).unwrap_or_default());
    let (fleet, mesh_prefix) = (given.fleet.clone(), given.mesh_prefix);
    let all = given.or(Settings::defaults());
    let port = |port: Option<u16>| port.expect("the defaults have every port");
    let ports = Ports {
        mesh: port(all.ports.mesh),
        gateway: port(all.ports.gateway),
        cluster: port(all.ports.cluster),
        relay: port(all.ports.relay),
        page: port(all.ports.page),
    };
    let impossible = |keys: [&str; 2], why: String| Err(ConfigError::impossible(file, keys, why));
    let named = [
        ("ports.mesh", ports.mesh),
        ("ports.gateway", ports.gateway),
        ("ports.cluster", ports.cluster),
        ("ports.relay", ports.relay),
        ("ports.page", ports.page),
    ];
    for (i, (key, port)) in named.iter().enumerate() {
        if let Some((other, _)) = named[..i].iter().find(|(_, taken)| taken == port) {
            return impossible([key, other], format!("both are {port}, and each listener needs a port of its own"));
        }
    }
    let listen = all.listen.expect("the defaults have it");
    if listen.is_multicast() {
        return impossible(["listen", "listen"], format!("nothing can listen on the multicast address {listen}"));
    }
    if let Some(dns) = all.dns.filter(|dns| dns.port() == 0 || named.iter().any(|(_, port)| *port == dns.port())) {
        return impossible(["dns", "ports"], format!("{dns} has port 0 or the port of another listener"));
    }
    let source_slots = all.source_slots.unwrap_or_default();
    if source_slots > limits::SOURCE_SLOTS_MAX {
        let why = format!("there are {source_slots}, and 0 to {} can be had", limits::SOURCE_SLOTS_MAX);
        return impossible(["source_slots", "source_slots"], why);
    }
    Ok(Config {
        fleet,
        advertise: all.advertise.unwrap_or_default(),
        mesh_prefix,
        listen,
        dns: all.dns,
        certificate_life: all.certificate_life.unwrap_or_default().into(),
        node: all.node.unwrap_or_default(),
        source_slots,
        ports,
    })
}

#[cfg(test)]
mod tests;
