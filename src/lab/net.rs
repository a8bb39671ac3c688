//! The hosts of a lab and the cables between them.

use super::Lab;
use super::process::{program, run, tool};
use anyhow::{Context, Result};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::Duration;

/// The namespace of the bridge that stands for the internet.
const WAN: &str = "wan";

impl Lab {
    pub(super) fn add_wan(&self) -> Result<()> {
        self.add_namespace(WAN)?;
        self.ip(WAN, &["link", "add", "br0", "type", "bridge"])?;
        self.ip(WAN, &["link", "set", "br0", "up"])
    }

    /// A host on the internet, with the address 198.51.100.`last` (a network for documentation, RFC 5737).
    ///
    /// # Errors
    /// If the kernel or a tool refuses.
    pub fn host(&self, name: &str, last: u8) -> Result<Ipv4Addr> {
        self.add_namespace(name)?;
        self.cable(WAN, &format!("w{last}"), "br0", name)?;
        let address = Ipv4Addr::new(198, 51, 100, last);
        self.ip(name, &["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        self.ip(name, &["link", "set", "eth0", "up"])?;
        Ok(address)
    }

    /// A router on the internet that hides 192.168.`lan`.0/24 behind its own address and, like the router at home, lets
    /// nothing new in from outside.
    ///
    /// # Errors
    /// If the kernel or a tool refuses.
    pub fn nat(&self, router: &str, last: u8, lan: u8) -> Result<Ipv4Addr> {
        let address = self.host(router, last)?;
        self.ip(router, &["link", "add", "lan", "type", "bridge"])?;
        self.ip(router, &["addr", "add", &format!("192.168.{lan}.1/24"), "dev", "lan"])?;
        self.ip(router, &["link", "set", "lan", "up"])?;
        self.run(router, &["sysctl", "-qw", "net.ipv4.ip_forward=1"])?.ok()?;
        let rules = "\
            table ip nat { chain post { type nat hook postrouting priority 100; oifname \"eth0\" masquerade; }; }
            table ip fw {
              chain in_wan { type filter hook input priority 0; iifname \"eth0\" ct state new drop; }
              chain forward_lan {
                type filter hook forward priority 0; policy drop;
                iifname \"lan\" accept
                ct state established,related accept
              }
            }";
        self.run(router, &["nft", rules])?.ok()?;
        Ok(address)
    }

    /// A host behind a router, with the address 192.168.`lan`.`last`.
    ///
    /// # Errors
    /// If the kernel or a tool refuses.
    pub fn behind(&self, name: &str, router: &str, lan: u8, last: u8) -> Result<Ipv4Addr> {
        self.add_namespace(name)?;
        self.cable(router, &format!("l{last}"), "lan", name)?;
        let address = Ipv4Addr::new(192, 168, lan, last);
        self.ip(name, &["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        self.ip(name, &["link", "set", "eth0", "up"])?;
        self.ip(name, &["route", "add", "default", "via", &format!("192.168.{lan}.1")])?;
        Ok(address)
    }

    /// An `ip` command on a host, which must succeed.
    ///
    /// # Errors
    /// If it does not.
    pub fn ip(&self, host: &str, arguments: &[&str]) -> Result<()> {
        let namespace = self.namespace(host);
        let mut line = vec!["ip", "-n", &namespace];
        line.extend(arguments);
        tool(&line).map(drop)
    }

    fn add_namespace(&self, host: &str) -> Result<()> {
        let namespace = self.namespace(host);
        // Its own resolver file, so that nobody asks the machine's: a node's resolver listens there.
        let folder = format!("/etc/netns/{namespace}");
        std::fs::create_dir_all(&folder).with_context(|| format!("making {folder}"))?;
        let file = format!("{folder}/resolv.conf");
        crate::files::replace(std::path::Path::new(&file), b"nameserver 127.0.0.90\noptions timeout:2 attempts:2\n")?;
        self.hosts().push(host.to_owned());
        tool(&["ip", "netns", "add", &namespace])?;
        self.ip(host, &["link", "set", "lo", "up"])
    }

    /// A cable from `port` on the bridge of one host to `eth0` of another, made inside the two namespaces at once: the
    /// machine's own never sees it.
    fn cable(&self, from: &str, port: &str, bridge: &str, to: &str) -> Result<()> {
        let to = self.namespace(to);
        self.ip(from, &["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", &to])?;
        self.ip(from, &["link", "set", port, "master", bridge])?;
        self.ip(from, &["link", "set", port, "up"])
    }
}

/// Moves the calling thread into a namespace for good.
pub(super) fn enter(namespace: &str) -> Result<()> {
    let path = format!("/run/netns/{namespace}");
    let file = std::fs::File::open(&path).with_context(|| format!("opening {path}"))?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(file.as_fd(), kind).with_context(|| format!("entering {namespace}"))
}

pub(super) fn namespaces() -> Result<Vec<String>> {
    let listed = tool(&["ip", "netns", "list"])?;
    Ok(listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// Removes a namespace of ours with every process in it (a data plane outlives its agent) and its resolver file. Goes as
/// far as it can: it runs in destructors.
pub(super) fn remove_namespace(namespace: &str) {
    let pids = || {
        let listed = run(program("ip").args(["netns", "pids", namespace])).map(|answer| answer.out).unwrap_or_default();
        listed.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<i32>>()
    };
    let _ = super::until(Duration::from_secs(5), "the end of a namespace's processes", || {
        let left = pids();
        for pid in left.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        left.is_empty()
    });
    let _ = tool(&["ip", "netns", "del", namespace]);
    let _ = std::fs::remove_dir_all(format!("/etc/netns/{namespace}"));
}
