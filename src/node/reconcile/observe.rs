//! Reading everything a plan depends on.

use super::*;
use crate::node::kernel::foreign_forward::{self, Family};
use crate::node::kernel::{Link, Route, firewall, port_holder, sysctl};
use crate::node::plan::{LinkSeen, TableSeen};
use ipnet::IpNet;
use std::net::IpAddr;

impl Reconciler {
    /// Reads the mesh's part of the machine.
    pub async fn observe(&self, desired: &Desired) -> Result<Observed, ReconcileError> {
        check(desired)?;
        let key = PrivateKey::read(&desired.private_key_file)?.public();
        let links = self.netlink.links().await?;
        let device = self.wireguard(desired).observe().await?;
        let link = links
            .iter()
            .find(|link| link.name == desired.ifname)
            .map(|link| LinkSeen { ours: self.made(link, device.is_some()), link: link.clone() });
        let index = link.as_ref().map_or(0, |link| link.link.index);
        let name_of = |index: u32| {
            let link = links.iter().find(|link| link.index == index);
            link.map_or_else(|| "another interface".to_owned(), |link| link.name.clone())
        };
        let strays: Vec<Link> = links.iter().filter(|l| self.marked(l) && l.name != desired.ifname).cloned().collect();
        let elsewhere = |other: u32| other != index && !strays.iter().any(|stray| stray.index == other);

        let all = self.netlink.addresses().await?;
        let own: BTreeSet<IpAddr> = desired.addresses().map(|net| net.addr()).collect();
        let addresses = all.iter().filter(|(on, net)| *on == index && !is_link_local(net)).map(|(_, net)| *net);
        let away = all.iter().filter(|(on, net)| elsewhere(*on) && own.contains(&net.addr()));

        let routes = self.netlink.routes().await?;
        let here = |route: &&Route| route.ours && route.index == index;
        let prefixes: BTreeSet<IpNet> = desired.prefixes().collect();
        let astray = routes.iter().filter(|route| elsewhere(route.index) && prefixes.contains(&route.to));

        let holds_port = device.as_ref().is_some_and(|device| device.listen_port == desired.listen_port);
        Ok(Observed {
            at: crate::clock::wall(),
            mark: self.mark.clone(),
            backend: self.backend,
            key,
            addresses: addresses.collect(),
            addresses_elsewhere: away.map(|(on, net)| (net.addr(), name_of(*on))).collect(),
            routes: routes.iter().filter(here).map(|route| route.to).collect(),
            routes_elsewhere: astray.map(|route| (route.to, name_of(route.index))).collect(),
            port_holder: if holds_port { None } else { port_holder(desired.listen_port) },
            table: firewall::observe().await?.as_ref().map(TableSeen::read),
            sysctls: forward_variables(desired).map(|name| (name.clone(), sysctl::read(&name))).collect(),
            sysctls_held: self.ledger.before(Kind::Sysctl),
            forward: self.forward(desired).await?,
            link,
            strays,
            device,
        })
    }

    /// Whether this node made the interface: it has our mark, or was being made when we were stopped, or it is a TUN and
    /// our own data plane's device answers (only one process can hold it).
    fn made(&self, link: &Link, device: bool) -> bool {
        let held = self.backend == Backend::Userspace && link.kind == "tun" && device;
        self.marked(link) || self.ledger.intends(&Key::mesh(Kind::Link, &link.name)) || held
    }

    /// Whether the interface carries our mark.
    pub(super) fn marked(&self, link: &Link) -> bool {
        link.alias.as_deref() == Some(self.mark.as_str())
    }

    async fn forward(&self, desired: &Desired) -> Result<BTreeMap<Family, foreign_forward::Seen>, KernelError> {
        let mut seen = BTreeMap::new();
        if desired.forward || self.ledger.knows(Kind::Forward) {
            for family in [Family::V4, Family::V6] {
                seen.extend(foreign_forward::observe(family).await?.map(|found| (family, found)));
            }
        }
        Ok(seen)
    }
}

fn forward_variables(desired: &Desired) -> impl Iterator<Item = String> {
    let v4 = desired.forward.then(|| sysctl::forward4(&desired.ifname));
    let v6 = (desired.forward && desired.prefix6.is_some()).then(|| sysctl::forward6(&desired.ifname));
    v4.into_iter().chain(v6)
}

fn is_link_local(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local())
}
