//! The kernel's WireGuard by generic netlink (linux/wireguard.h).

use super::{Device, DeviceStep, PeerChange, PeerSeen, PrivateKey};
use crate::node::kernel::{KernelError, failed};
use futures_util::StreamExt;
use genetlink::GenetlinkHandle;
use ipnet::IpNet;
use netlink_packet_generic::GenlMessage;
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute, WireguardCmd,
    WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use state::model::{Millis, WireguardKey};
use std::collections::BTreeSet;
use std::net::IpAddr;

pub(super) async fn is_there() -> bool {
    match connect() {
        Ok(handle) => handle.resolve_family::<WireguardMessage>().await.is_ok(),
        Err(_) => false,
    }
}

pub(super) async fn observe(ifname: &str) -> Result<Option<Device>, KernelError> {
    let attributes = vec![WireguardAttribute::IfName(ifname.into())];
    let message = WireguardMessage { cmd: WireguardCmd::GetDevice, attributes };
    match exchange(message, NLM_F_DUMP, &format!("reading the WireGuard device {ifname}")).await? {
        Answer::Absent => Ok(None),
        Answer::Parts(parts) => Ok(Some(read(parts))),
    }
}

pub(super) async fn apply(ifname: &str, step: &DeviceStep, key: &PrivateKey) -> Result<(), KernelError> {
    let doing = format!("changing the WireGuard device {ifname}");
    match exchange(change(ifname, step, key), NLM_F_ACK, &doing).await? {
        Answer::Absent => Err(KernelError::new(doing, "there is no such device")),
        Answer::Parts(_) => Ok(()),
    }
}

fn connect() -> std::io::Result<GenetlinkHandle> {
    let (connection, handle, _) = genetlink::new_connection()?;
    crate::tasks::spawn("wireguard-netlink", connection);
    Ok(handle)
}

enum Answer {
    Absent,
    Parts(Vec<WireguardMessage>),
}

async fn exchange(message: WireguardMessage, flags: u16, doing: &str) -> Result<Answer, KernelError> {
    let mut handle = connect().map_err(failed(doing))?;
    let mut message = NetlinkMessage::from(GenlMessage::from_payload(message));
    message.header.flags = NLM_F_REQUEST | flags;
    let answers = handle.request(message).await.map_err(failed(doing))?;
    let mut answers = std::pin::pin!(answers);
    let mut parts = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.map_err(failed(doing))?.payload {
            NetlinkPayload::InnerMessage(part) => parts.push(part.payload),
            NetlinkPayload::Error(error) => match error.to_io() {
                _ if error.code.is_none() => {}
                // ENODEV: no interface of that name; EOPNOTSUPP: it is not a WireGuard interface.
                e if matches!(e.raw_os_error(), Some(19 | 95)) => return Ok(Answer::Absent),
                e => return Err(failed(doing)(e)),
            },
            _ => {}
        }
    }
    Ok(Answer::Parts(parts))
}

fn change(ifname: &str, step: &DeviceStep, key: &PrivateKey) -> WireguardMessage {
    let change = match step {
        DeviceStep::Key => WireguardAttribute::PrivateKey(*key.0),
        DeviceStep::Port(port) => WireguardAttribute::ListenPort(*port),
        DeviceStep::Set(change) => WireguardAttribute::Peers(vec![peer(change)]),
        DeviceStep::Remove(peer) => WireguardAttribute::Peers(vec![WireguardPeer(vec![
            WireguardPeerAttribute::PublicKey(*peer.as_bytes()),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
        ])]),
    };
    let attributes = vec![WireguardAttribute::IfName(ifname.into()), change];
    WireguardMessage { cmd: WireguardCmd::SetDevice, attributes }
}

fn peer(change: &PeerChange) -> WireguardPeer {
    let mut attributes = vec![WireguardPeerAttribute::PublicKey(*change.key.as_bytes())];
    attributes.extend(change.endpoint.map(WireguardPeerAttribute::Endpoint));
    attributes.extend(change.keepalive.map(WireguardPeerAttribute::PersistentKeepalive));
    if let Some(allowed) = &change.allowed {
        attributes.push(WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps));
        attributes.push(WireguardPeerAttribute::AllowedIps(allowed.iter().map(allowed_ip).collect()));
    }
    WireguardPeer(attributes)
}

fn allowed_ip(net: &IpNet) -> WireguardAllowedIp {
    let family = match net {
        IpNet::V4(_) => WireguardAddressFamily::Ipv4,
        IpNet::V6(_) => WireguardAddressFamily::Ipv6,
    };
    WireguardAllowedIp(vec![
        WireguardAllowedIpAttr::Family(family),
        WireguardAllowedIpAttr::IpAddr(net.addr()),
        WireguardAllowedIpAttr::Cidr(net.prefix_len()),
    ])
}

/// Joins the parts of a dump; a peer with many allowed addresses goes on in the next part under the same key.
fn read(parts: Vec<WireguardMessage>) -> Device {
    let mut device = Device::default();
    for attribute in parts.into_iter().flat_map(|part| part.attributes) {
        match attribute {
            WireguardAttribute::PublicKey(key) => device.key = Some(WireguardKey::from_bytes(key)),
            WireguardAttribute::ListenPort(port) => device.listen_port = port,
            WireguardAttribute::Peers(peers) => peers.into_iter().for_each(|peer| read_peer(&mut device, peer)),
            _ => {}
        }
    }
    device
}

fn read_peer(device: &mut Device, peer: WireguardPeer) {
    let key = peer.0.iter().find_map(|a| match a {
        WireguardPeerAttribute::PublicKey(key) => Some(WireguardKey::from_bytes(*key)),
        _ => None,
    });
    let Some(key) = key else { return };
    let seen: &mut PeerSeen = device.peers.entry(key).or_default();
    for attribute in peer.0 {
        match attribute {
            WireguardPeerAttribute::Endpoint(endpoint) => seen.endpoint = Some(endpoint),
            WireguardPeerAttribute::PersistentKeepalive(seconds) => seen.keepalive = seconds,
            WireguardPeerAttribute::LastHandshake(at) => {
                let seconds = u64::try_from(at.seconds).unwrap_or(0);
                seen.handshake = (seconds > 0).then_some(Millis(seconds * 1000));
            }
            WireguardPeerAttribute::RxBytes(bytes) => seen.received = bytes,
            WireguardPeerAttribute::TxBytes(bytes) => seen.sent = bytes,
            WireguardPeerAttribute::AllowedIps(allowed) => {
                seen.allowed.extend(allowed.iter().filter_map(read_allowed).collect::<BTreeSet<_>>());
            }
            _ => {}
        }
    }
}

fn read_allowed(allowed: &WireguardAllowedIp) -> Option<IpNet> {
    let (mut address, mut length): (Option<IpAddr>, Option<u8>) = (None, None);
    for attribute in &allowed.0 {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(ip) => address = Some(*ip),
            WireguardAllowedIpAttr::Cidr(bits) => length = Some(*bits),
            _ => {}
        }
    }
    IpNet::new(address?, length?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    #[test]
    fn a_change_touches_one_peer_and_never_replaces_all() {
        let key = PrivateKey(Zeroizing::new([7; 32]));
        let change_of = PeerChange {
            key: WireguardKey::from_bytes([1; 32]),
            allowed: Some(BTreeSet::from(["10.90.0.2/32".parse().unwrap()])),
            endpoint: Some("192.0.2.1:51820".parse().unwrap()),
            keepalive: Some(25),
        };
        let message = change("hf0", &DeviceStep::Set(change_of), &key);
        assert!(!message.attributes.iter().any(|a| matches!(a, WireguardAttribute::Flags(_))));
        let device = read(vec![message.clone(), message]);
        let peer = &device.peers[&WireguardKey::from_bytes([1; 32])];
        assert_eq!(device.peers.len(), 1);
        assert_eq!(peer.allowed, BTreeSet::from(["10.90.0.2/32".parse().unwrap()]));
        assert_eq!((peer.keepalive, peer.endpoint), (25, Some("192.0.2.1:51820".parse().unwrap())));
    }
}
