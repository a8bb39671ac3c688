//! A kept HTTP/1.1 connection that costs next to nothing: both ends of what is measured run on the same two cores, so the
//! asking side must not be what is measured.

use anyhow::{Context, Result, bail};
use holdfast::keys::ClientIdentity;
use rustls::pki_types::ServerName;
use state::model::{Endpoint, Fingerprint};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) struct Kept<S> {
    stream: S,
    read: Vec<u8>,
    asked: Vec<u8>,
}

/// TLS towards one appliance, with the client certificate of the node in `dir` or without any.
pub(crate) fn tls(pin: Fingerprint, dir: Option<&Path>) -> Result<Arc<rustls::ClientConfig>> {
    let identity = dir.map(|dir| ClientIdentity::read(dir)?.context("the node has no client certificate"));
    let identity = identity.transpose()?;
    Ok(Arc::new(holdfast::node::client::tls(vec![pin], identity.as_ref().map(|identity| &identity.tls))))
}

impl Kept<TlsStream<TcpStream>> {
    pub(crate) async fn over_tls(to: &Endpoint, config: Arc<rustls::ClientConfig>) -> Result<Self> {
        let tcp = TcpStream::connect(to.to_string()).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("holdfast").expect("a name");
        Ok(Self::on(TlsConnector::from(config).connect(name, tcp).await?))
    }
}

impl Kept<UnixStream> {
    pub(crate) async fn over_socket(path: &str) -> Result<Self> {
        Ok(Self::on(UnixStream::connect(path).await?))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Kept<S> {
    fn on(stream: S) -> Self {
        Self { stream, read: Vec::new(), asked: Vec::new() }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<(u16, &[u8])> {
        self.ask("GET", path, "", b"").await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, &[u8])> {
        self.ask("POST", path, "", body).await
    }

    /// The status and the body of the answer. `headers` are whole lines.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<(u16, &[u8])> {
        use std::io::Write;
        self.asked.clear();
        let length = body.len();
        write!(
            self.asked,
            "{method} {path} HTTP/1.1\r\nhost: holdfast\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n"
        )?;
        self.asked.extend_from_slice(body);
        self.stream.write_all(&self.asked).await?;
        self.stream.flush().await?;
        self.read.clear();
        let (status, head, length) = loop {
            if let Some(read) = head(&self.read)? {
                break read;
            }
            self.more().await?;
        };
        while self.read.len() < head + length {
            self.more().await?;
        }
        Ok((status, &self.read[head..head + length]))
    }

    async fn more(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            bail!("the connection was closed");
        }
        Ok(())
    }
}

/// The status, the length of the head and that of the body, once the head is there.
fn head(read: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&read[..end])?;
    let status = text.get(9..12).context("a status")?.parse()?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    Ok(Some((status, end + 4, length.map_or(Ok(0), str::parse)?)))
}
