//! `service.check`: asks a service for an answer, from this node. A service that does not answer is a finding, so the
//! attempt fails for good; nobody is asked twice for one job.

use crate::clock;
use crate::node::lanes::Finish;
use crate::node::wanted::RESOLVER_LOOPBACK;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use serde_json::json;
use state::subject::jobs::{Outcome, Probe};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Asks, for at most so many seconds.
pub(super) async fn check(probe: Probe, timeout_s: u16) -> Finish {
    let begun = clock::boot();
    let limit = Duration::from_secs(timeout_s.max(1).into());
    let asked = async {
        match &probe {
            Probe::Tcp(target) => connect(target).await.map(|_| "the connection was accepted".into()),
            Probe::Http(url) => http(url).await,
            Probe::Dns { name, server } => dns(name, server.as_deref()).await,
            Probe::Postgres(target) => postgres(target).await,
        }
    };
    let told = tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(format!("no answer in {timeout_s} s")));
    let took = clock::boot().saturating_sub(begun).as_millis();
    match told {
        Ok(answer) => {
            let result = json!({ "ok": true, "answer": answer, "took_ms": u64::try_from(took).unwrap_or(u64::MAX) });
            Finish { outcome: Outcome::Succeeded, result }
        }
        Err(why) => Finish { outcome: Outcome::Failed, result: json!({ "ok": false, "why": why }) },
    }
}

async fn connect(target: &str) -> Result<TcpStream, String> {
    TcpStream::connect(target).await.map_err(|error| format!("connecting to {target}: {error}"))
}

async fn http(url: &str) -> Result<String, String> {
    if !url.starts_with("http://") {
        return Err("the URL does not begin with http://".into());
    }
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
    let client = client.map_err(|error| error.to_string())?;
    let answer = client.get(url).send().await.map_err(|error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        format!("GET {url}: {cause}")
    })?;
    let status = answer.status();
    if status.as_u16() < 400 { Ok(status.to_string()) } else { Err(format!("GET {url}: {status}")) }
}

async fn dns(name: &str, server: Option<&str>) -> Result<String, String> {
    let own = SocketAddr::from((RESOLVER_LOOPBACK, 53));
    let server = match server {
        None => own,
        Some(text) => text.parse().map_err(|_| format!("`{text}` is not address:port"))?,
    };
    let name = Name::from_ascii(name).map_err(|error| format!("`{name}` is not a name: {error}"))?;
    for kind in [RecordType::A, RecordType::AAAA] {
        let answer = lookup(&name, kind, server).await?;
        let found = answer.answers.iter().find_map(|record| match &record.data {
            RData::A(address) => Some(address.0.to_string()),
            RData::AAAA(address) => Some(address.0.to_string()),
            _ => None,
        });
        match (answer.response_code, found) {
            (ResponseCode::NoError, Some(address)) => return Ok(address),
            (ResponseCode::NoError, None) => {}
            (code, _) => return Err(format!("{server} answers {code} for {name}")),
        }
    }
    Err(format!("{server} knows no address of {name}"))
}

async fn lookup(name: &Name, kind: RecordType, server: SocketAddr) -> Result<Message, String> {
    let asking = |error: std::io::Error| format!("asking {server}: {error}");
    let any: SocketAddr =
        if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await.map_err(asking)?;
    socket.connect(server).await.map_err(asking)?;
    let id = u16::from_ne_bytes(crate::entropy::bytes());
    let mut question = Message::new(id, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name.clone(), kind));
    let question = question.to_vec().map_err(|error| error.to_string())?;
    let mut bytes = vec![0; 4096];
    loop {
        socket.send(&question).await.map_err(asking)?;
        // A datagram may get lost; the whole check has a limit of its own.
        let Ok(received) = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut bytes)).await else {
            continue;
        };
        let length = received.map_err(asking)?;
        match Message::from_vec(&bytes[..length]) {
            Ok(answer) if answer.id == id => return Ok(answer),
            Ok(_) => {}
            Err(error) => return Err(format!("{server} answers no DNS: {error}")),
        }
    }
}

/// The start-up message of protocol 3.0 and the first message of its answer (PostgreSQL documentation, "Message
/// Formats"): a request to authenticate, or an error, both of which only a server of that protocol sends.
async fn postgres(target: &str) -> Result<String, String> {
    let asking = |error: std::io::Error| format!("asking {target}: {error}");
    let mut stream = connect(target).await?;
    stream.write_all(&startup()).await.map_err(asking)?;
    let mut head = [0; 5];
    stream.read_exact(&mut head).await.map_err(asking)?;
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length);
    match kind {
        b'R' if (8..=8192).contains(&length) => Ok("it asks to authenticate".into()),
        b'E' if (5..=30_000).contains(&length) => {
            let mut fields = vec![0; usize::try_from(length - 4).map_err(|_| "too long")?];
            stream.read_exact(&mut fields).await.map_err(asking)?;
            let code = fields.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"C"));
            let code = String::from_utf8_lossy(code.unwrap_or_default()).into_owned();
            // Class 57P: it starts, stops or recovers, and takes no connection.
            if code.starts_with("57P") {
                return Err(format!("{target} takes no connections at present (SQLSTATE {code})"));
            }
            Ok(format!("it refuses this caller (SQLSTATE {code})"))
        }
        _ => Err(format!("{target} does not answer as PostgreSQL does")),
    }
}

fn startup() -> Vec<u8> {
    let parameters = b"user\0holdfast\0database\0postgres\0application_name\0holdfast\0\0";
    let length = u32::try_from(8 + parameters.len()).expect("a short message");
    [&length.to_be_bytes(), &196_608u32.to_be_bytes(), parameters.as_slice()].concat()
}

#[cfg(test)]
mod tests;
