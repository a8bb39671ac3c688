//! The difference of two values, in the order it must be made: what denies first, what leads traffic in last, and
//! adding before removing.

use super::{Desired, Foreign, Observed, Ruleset, Step, What, foreign};
use crate::limits;
use crate::node::kernel::foreign_forward::Family;
use crate::node::kernel::wireguard::{Backend, Device, DeviceStep, PeerChange, PeerSeen};
use crate::wire::dataplane::TunnelPeer;
use ipnet::IpNet;
use state::model::Millis;
use std::collections::BTreeSet;
use std::time::Duration;

/// What must be done, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes, in order.
    pub steps: Vec<Step>,
    /// Objects of others that stand in the way; what depends on them is left out of the steps.
    pub foreign: Vec<Foreign>,
    /// What somebody else of this machine must do first, in words.
    pub waiting: Vec<String>,
}

impl std::fmt::Display for Plan {
    /// One line for each.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        self.foreign.iter().try_for_each(|foreign| writeln!(f, "refused: {foreign}"))?;
        self.waiting.iter().try_for_each(|waiting| writeln!(f, "waiting: {waiting}"))
    }
}

/// Compares. A plan of a state that was applied is empty.
pub fn plan(desired: &Desired, seen: &Observed) -> Plan {
    let foreign = foreign(desired, seen);
    let taken = |what: fn(&What) -> bool| foreign.iter().any(|f| what(&f.what));
    let mut plan = Plan::default();
    if taken(|what| matches!(what, What::Interface(_) | What::Table)) {
        return Plan { foreign, ..plan };
    }
    firewall(desired, seen, &mut plan.steps);
    let stands = link(desired, seen, &mut plan);
    if stands {
        let mut late = Vec::new();
        addresses(desired, seen, &mut plan.steps, &mut late);
        device(desired, seen, taken(|what| matches!(what, What::Port(_))), &mut plan.steps, &mut late);
        routes(desired, seen, &mut plan.steps, &mut late);
        plan.steps.append(&mut late);
    }
    forwarding(desired, seen, stands, &mut plan.steps);
    plan.foreign = foreign;
    plan
}

fn firewall(desired: &Desired, seen: &Observed, steps: &mut Vec<Step>) {
    let wanted = Ruleset::wanted(desired, &seen.mark);
    match seen.table.as_ref().and_then(|table| table.ruleset.as_ref()) {
        Some(table) if table.skeleton == wanted.skeleton => {
            let close: BTreeSet<_> = table.elements.difference(&wanted.elements).copied().collect();
            let open: BTreeSet<_> = wanted.elements.difference(&table.elements).copied().collect();
            if !close.is_empty() || !open.is_empty() {
                steps.push(Step::ChangeOpenings { close, open });
            }
        }
        Some(_) | None => steps.push(Step::ReplaceTable),
    }
}

/// Plans the interface; false if it does not stand and cannot be made here.
fn link(desired: &Desired, seen: &Observed, plan: &mut Plan) -> bool {
    let delete = |link: &crate::node::kernel::Link| Step::DeleteLink { name: link.name.clone(), index: link.index };
    plan.steps.extend(seen.strays.iter().map(delete));
    let kind = match seen.backend {
        Backend::Kernel => "wireguard",
        Backend::Userspace => "tun",
    };
    let mut link = seen.link.as_ref().map(|seen| &seen.link);
    if let Some(other) = link.filter(|link| link.kind != kind) {
        plan.steps.push(delete(other));
        link = None;
    }
    if link.is_none() {
        match seen.backend {
            Backend::Kernel => plan.steps.push(Step::CreateLink),
            Backend::Userspace => {
                plan.waiting.push(format!("the data plane has not made the interface {} yet", desired.ifname));
                return false;
            }
        }
    }
    if link.is_none_or(|link| link.alias.as_deref() != Some(seen.mark.as_str())) {
        plan.steps.push(Step::MarkLink);
    }
    if link.is_none_or(|link| link.mtu != desired.mtu) {
        plan.steps.push(Step::SetMtu(desired.mtu));
    }
    if seen.backend == Backend::Userspace && seen.device.is_none() {
        plan.waiting.push("the data plane's WireGuard device does not answer".into());
    }
    true
}

fn addresses(desired: &Desired, seen: &Observed, steps: &mut Vec<Step>, late: &mut Vec<Step>) {
    let wanted: BTreeSet<IpNet> = desired.addresses().collect();
    let elsewhere = |net: &IpNet| seen.addresses_elsewhere.iter().any(|(ip, _)| *ip == net.addr());
    let missing = wanted.difference(&seen.addresses).filter(|net| !elsewhere(net));
    steps.extend(missing.copied().map(Step::AddAddress));
    late.extend(seen.addresses.difference(&wanted).copied().map(Step::RemoveAddress));
}

fn device(desired: &Desired, seen: &Observed, port_taken: bool, steps: &mut Vec<Step>, late: &mut Vec<Step>) {
    let absent = Device::default();
    let device = match (&seen.device, seen.backend) {
        (Some(device), _) => device,
        (None, Backend::Kernel) => &absent,
        (None, Backend::Userspace) => return,
    };
    let step = |step| Step::Device(step);
    if device.key != Some(seen.key) {
        steps.push(step(DeviceStep::Key));
    }
    if device.listen_port != desired.listen_port && !port_taken {
        steps.push(step(DeviceStep::Port(desired.listen_port)));
    }
    for peer in &desired.peers {
        let change = change(peer, device.peers.get(&peer.public_key), seen.at);
        steps.extend(change.map(DeviceStep::Set).map(step));
    }
    let wanted: BTreeSet<_> = desired.peers.iter().map(|peer| peer.public_key).collect();
    let gone = device.peers.keys().filter(|key| !wanted.contains(key));
    late.extend(gone.copied().map(DeviceStep::Remove).map(step));
}

fn change(wanted: &TunnelPeer, seen: Option<&PeerSeen>, now: Millis) -> Option<PeerChange> {
    let allowed: BTreeSet<IpNet> = wanted.allowed.iter().map(IpNet::trunc).collect();
    let key = wanted.public_key;
    let Some(seen) = seen else {
        let keepalive = Some(wanted.keepalive);
        return Some(PeerChange { key, allowed: Some(allowed), endpoint: wanted.endpoint, keepalive });
    };
    // A session that lives proves that the device has the better address, learnt by roaming.
    let fresh = seen.handshake.is_some_and(|at| Duration::from_millis(now.since(at)) < limits::SESSION);
    let endpoint = wanted.endpoint.filter(|wanted| match seen.endpoint {
        Some(present) => present != *wanted && !fresh,
        None => true,
    });
    let change = PeerChange {
        key,
        allowed: (allowed != seen.allowed).then_some(allowed),
        endpoint,
        keepalive: (wanted.keepalive != seen.keepalive).then_some(wanted.keepalive),
    };
    let same = change.allowed.is_none() && change.endpoint.is_none() && change.keepalive.is_none();
    (!same).then_some(change)
}

fn routes(desired: &Desired, seen: &Observed, steps: &mut Vec<Step>, late: &mut Vec<Step>) {
    if seen.link.as_ref().is_none_or(|link| !link.link.up) {
        steps.push(Step::SetUp);
    }
    let wanted: BTreeSet<IpNet> = desired.prefixes().collect();
    let elsewhere = |net: &IpNet| seen.routes_elsewhere.iter().any(|(to, _)| to == net);
    let missing = wanted.difference(&seen.routes).filter(|net| !elsewhere(net));
    steps.extend(missing.copied().map(Step::AddRoute));
    late.extend(seen.routes.difference(&wanted).copied().map(Step::RemoveRoute));
}

fn forwarding(desired: &Desired, seen: &Observed, stands: bool, steps: &mut Vec<Step>) {
    if desired.forward && stands {
        // One that has no value belongs to an interface that is made in this very plan.
        let off = seen.sysctls.iter().filter(|(_, value)| value.as_deref().is_none_or(|value| value == "0"));
        steps.extend(off.map(|(name, _)| Step::SetSysctl { name: name.clone(), value: "1".into() }));
    }
    let held = seen.sysctls_held.iter().filter(|(name, _)| !desired.forward || !seen.sysctls.contains_key(*name));
    steps.extend(held.map(|(name, value)| Step::RestoreSysctl { name: name.clone(), value: value.clone() }));
    for (family, forward) in &seen.forward {
        let needed = desired.forward && (*family == Family::V4 || desired.prefix6.is_some());
        let own = |(chain, ifname): &&(String, String)| *chain == forward.chain && *ifname == desired.ifname;
        if needed && forward.drops && !forward.ours.iter().any(|rule| own(&rule)) {
            steps.push(Step::AllowForward(*family, forward.chain.clone()));
        }
        let left = forward.ours.iter().filter(|rule| !needed || !own(rule));
        steps.extend(left.map(|(chain, ifname)| Step::WithdrawForward {
            family: *family,
            chain: chain.clone(),
            ifname: ifname.clone(),
        }));
    }
}
