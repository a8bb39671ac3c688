//! The text protocol of userspace WireGuard devices (<https://www.wireguard.com/xplatform/#configuration-protocol>) on a
//! Unix socket of ours.

use super::{Device, DeviceStep, PeerChange, PeerSeen, PrivateKey};
use crate::node::kernel::{KernelError, failed};
use state::model::{Millis, WireguardKey};
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use zeroize::Zeroizing;

/// The longest answer read, bytes: 10,000 peers with four addresses each.
const ANSWER: u64 = 8 << 20;
/// For one request and its answer, which a live device gives in milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn observe(socket: &Path) -> Result<Option<Device>, KernelError> {
    let stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(e) => return Err(failed(doing(socket))(e)),
    };
    let answer = exchange(stream, "get=1\n\n", socket).await?;
    if answer.is_empty() {
        return Ok(None);
    }
    parse(&answer).map(Some).map_err(failed(doing(socket)))
}

pub(super) async fn apply(socket: &Path, step: &DeviceStep, key: &PrivateKey) -> Result<(), KernelError> {
    let stream = UnixStream::connect(socket).await.map_err(failed(doing(socket)))?;
    let answer = exchange(stream, &request(step, key), socket).await?;
    if answer.is_empty() {
        return Err(KernelError::new(doing(socket), "it closed the connection without an answer"));
    }
    parse(&answer).map(drop).map_err(failed(doing(socket)))
}

fn doing(socket: &Path) -> String {
    format!("asking the WireGuard device at {}", socket.display())
}

/// Sends a request and reads its answer up to the empty line; nothing from a device that is going away. It may hold the private key, so it is wiped.
async fn exchange(stream: UnixStream, request: &str, socket: &Path) -> Result<Zeroizing<String>, KernelError> {
    let talk = async {
        let (read, mut write) = stream.into_split();
        write.write_all(request.as_bytes()).await?;
        let mut lines = BufReader::new(read.take(ANSWER));
        let mut answer = Zeroizing::new(String::new());
        while lines.read_line(&mut answer).await? > 0 {
            if answer.ends_with("\n\n") {
                return Ok(answer);
            }
        }
        match answer.is_empty() {
            true => Ok(answer),
            false => Err(std::io::Error::new(ErrorKind::UnexpectedEof, "its answer ends in the middle")),
        }
    };
    match tokio::time::timeout(PATIENCE, talk).await {
        Ok(answer) => answer.map_err(failed(doing(socket))),
        Err(_) => Err(KernelError::new(doing(socket), "no answer within 5 s")),
    }
}

fn request(step: &DeviceStep, key: &PrivateKey) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::from("set=1\n"));
    let written = match step {
        DeviceStep::Key => {
            let digits = Zeroizing::new(hex::encode(*key.0));
            writeln!(text, "private_key={}", *digits)
        }
        DeviceStep::Port(port) => writeln!(text, "listen_port={port}"),
        DeviceStep::Remove(peer) => writeln!(text, "public_key={peer}\nremove=true"),
        DeviceStep::Set(change) => peer(&mut text, change),
    };
    written.expect("a string takes what is written");
    text.push('\n');
    text
}

fn peer(text: &mut String, change: &PeerChange) -> std::fmt::Result {
    writeln!(text, "public_key={}", change.key)?;
    if let Some(endpoint) = change.endpoint {
        writeln!(text, "endpoint={endpoint}")?;
    }
    if let Some(seconds) = change.keepalive {
        writeln!(text, "persistent_keepalive_interval={seconds}")?;
    }
    if let Some(allowed) = &change.allowed {
        writeln!(text, "replace_allowed_ips=true")?;
        for net in allowed {
            writeln!(text, "allowed_ip={net}")?;
        }
    }
    Ok(())
}

/// Reads `key=value` lines; keys that are unknown here are another implementation's and left out.
fn parse(answer: &str) -> Result<Device, String> {
    let mut device = Device::default();
    let mut current: Option<(WireguardKey, PeerSeen)> = None;
    for line in answer.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').ok_or("a line without `=`")?;
        let wrong = || format!("the value of {key} cannot be read");
        match (key, &mut current) {
            ("errno", _) if value != "0" => return Err(format!("it refused with error {value}")),
            ("public_key", _) => {
                device.peers.extend(current.take());
                current = Some((value.parse().map_err(|_| wrong())?, PeerSeen::default()));
            }
            ("private_key", None) => {
                let mut bytes = Zeroizing::new([0; 32]);
                hex::decode_to_slice(value, bytes.as_mut_slice()).map_err(|_| wrong())?;
                device.key = bytes.iter().any(|byte| *byte != 0).then(|| PrivateKey(bytes).public());
            }
            ("listen_port", None) => device.listen_port = value.parse().map_err(|_| wrong())?,
            ("endpoint", Some((_, peer))) => peer.endpoint = Some(value.parse().map_err(|_| wrong())?),
            ("persistent_keepalive_interval", Some((_, peer))) => {
                peer.keepalive = value.parse().map_err(|_| wrong())?;
            }
            ("allowed_ip", Some((_, peer))) => {
                peer.allowed.insert(value.parse().map_err(|_| wrong())?);
            }
            ("last_handshake_time_sec", Some((_, peer))) => {
                let seconds: u64 = value.parse().map_err(|_| wrong())?;
                peer.handshake = (seconds > 0).then(|| Millis(seconds * 1000));
            }
            ("rx_bytes", Some((_, peer))) => peer.received = value.parse().map_err(|_| wrong())?,
            ("tx_bytes", Some((_, peer))) => peer.sent = value.parse().map_err(|_| wrong())?,
            _ => {}
        }
    }
    device.peers.extend(current);
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn key() -> PrivateKey {
        PrivateKey(Zeroizing::new([7; 32]))
    }

    #[test]
    fn requests_are_the_published_text() {
        let peer = WireguardKey::from_bytes([0xab; 32]);
        let hex = "ab".repeat(32);
        let text = |step| request(&step, &key()).to_string();
        assert_eq!(text(DeviceStep::Key), format!("set=1\nprivate_key={}\n\n", "07".repeat(32)));
        assert_eq!(text(DeviceStep::Port(51820)), "set=1\nlisten_port=51820\n\n");
        assert_eq!(text(DeviceStep::Remove(peer)), format!("set=1\npublic_key={hex}\nremove=true\n\n"));
        let change = PeerChange {
            key: peer,
            allowed: Some(BTreeSet::from(["10.90.0.2/32".parse().unwrap(), "fd00::2/128".parse().unwrap()])),
            endpoint: Some("[2001:db8::7]:51820".parse().unwrap()),
            keepalive: Some(25),
        };
        assert_eq!(
            text(DeviceStep::Set(change)),
            format!(
                "set=1\npublic_key={hex}\nendpoint=[2001:db8::7]:51820\npersistent_keepalive_interval=25\n\
                 replace_allowed_ips=true\nallowed_ip=10.90.0.2/32\nallowed_ip=fd00::2/128\n\n"
            )
        );
    }

    #[test]
    fn answers_are_read_whole() {
        let (a, b) = ("aa".repeat(32), "bb".repeat(32));
        let answer = format!(
            "private_key={}\nlisten_port=51820\nfwmark=1\npublic_key={a}\nendpoint=192.0.2.1:5\nlast_handshake_time_sec=9\n\
             last_handshake_time_nsec=1\nrx_bytes=3\ntx_bytes=4\npersistent_keepalive_interval=25\nallowed_ip=10.90.0.2/32\n\
             allowed_ip=10.90.0.3/32\npublic_key={b}\nlast_handshake_time_sec=0\nerrno=0\n\n",
            "07".repeat(32)
        );
        let device = parse(&answer).unwrap();
        assert_eq!(device.key, Some(key().public()));
        assert_eq!(device.listen_port, 51820);
        let peer = &device.peers[&a.parse().unwrap()];
        assert_eq!(peer.endpoint, Some("192.0.2.1:5".parse().unwrap()));
        assert_eq!((peer.handshake, peer.received, peer.sent, peer.keepalive), (Some(Millis(9000)), 3, 4, 25));
        assert_eq!(peer.allowed.len(), 2);
        assert_eq!(device.peers[&b.parse().unwrap()], PeerSeen::default());
        assert_eq!(parse("errno=22\n\n"), Err("it refused with error 22".into()));
        assert!(parse("listen_port=x\n\n").is_err());
        assert!(parse("nonsense\n\n").is_err());
    }
}
