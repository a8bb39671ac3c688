//! What strangers may try: other protocols, other pins, slowness, size and malformed bodies.

use super::rig::*;
use crate::clock;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

async fn connect(rig: &Rig, config: rustls::ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(rig.address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("appliance.test").unwrap(), socket).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_tls_1_3_and_http_1_1_with_the_right_pin() {
    let rig = Rig::new().await;
    let response = rig.client().get(rig.url("/health")).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_11));
    let wrong = state::model::Fingerprint::from_bytes([0; 32]);
    assert!(connect(&rig, client_config(wrong)).await.unwrap_err().to_string().contains("another pin"));

    let with_alpn = |protocols: &[&[u8]]| {
        let mut config = client_config(rig.appliance.pin);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    };
    let both = connect(&rig, with_alpn(&[b"h2", b"http/1.1"])).await.unwrap();
    assert_eq!(both.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
    assert!(connect(&rig, with_alpn(&[b"h2"])).await.is_err());

    // A hello of TLS 1.2 without extensions: suites ECDHE-ECDSA-AES128-GCM and -CHACHA20, no compression.
    let mut hello = vec![0x03, 0x03];
    hello.extend([7; 32]);
    hello.extend([0, 0, 4, 0xc0, 0x2b, 0xcc, 0xa9, 1, 0]);
    let mut record = vec![0x16, 0x03, 0x01, 0, u8::try_from(hello.len() + 4).unwrap(), 1, 0, 0];
    record.push(u8::try_from(hello.len()).unwrap());
    record.extend(hello);
    let mut socket = TcpStream::connect(rig.address).await.unwrap();
    socket.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    assert_eq!((answer[0], answer.len()), (0x15, 7), "an alert, and the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slow_are_cut_off_and_keep_nobody_out() {
    let rig = Arc::new(Rig::new().await);
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let mut node = rig.joined("web-1").await;
    let (begin, patience) = (clock::boot(), Duration::from_secs(20));
    let mut silent = Vec::new();
    for _ in 0..60 {
        silent.push(TcpStream::connect(rig.address).await.unwrap());
    }
    let mut dribbling = connect(&rig, client_config(rig.appliance.pin)).await.unwrap();
    let (mut dribble_read, mut dribble_write) = tokio::io::split(&mut dribbling);
    let dribble = async {
        dribble_write.write_all(b"GET /health HTTP/1.1\r\n").await?;
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            dribble_write.write_all(b"x").await?;
            dribble_write.flush().await?;
        }
        std::io::Result::Ok(())
    };
    let cut = async {
        let mut answer = Vec::new();
        // An end without TLS's goodbye is an error here, and as good.
        let _ = dribble_read.read_to_end(&mut answer).await;
        clock::boot() - begin
    };
    let beating = async {
        loop {
            let bytes = state::to_bytes(&node.register_body(fleet));
            assert_eq!(node.send("POST", "/v1/peers/register", bytes, None).await.0, 200);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let first_silent = async {
        let mut byte = [0];
        for socket in &mut silent {
            assert_eq!(socket.read(&mut byte).await.unwrap_or(0), 0);
        }
        clock::boot() - begin
    };
    let ended = async { tokio::join!(cut, first_silent) };
    let (cut, silent_ended) = tokio::select! {
        ended = tokio::time::timeout(patience, ended) => ended.unwrap(),
        () = beating => unreachable!("the heart beats on"),
        done = async { let _ = dribble.await; std::future::pending::<()>().await } => { let () = done; unreachable!() }
    };
    assert!(cut < Duration::from_secs(18), "{cut:?}");
    assert!(silent_ended < Duration::from_secs(8), "{silent_ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_and_oversize_requests_are_refused_by_their_kind() {
    let rig = Rig::new().await;
    let fleet = rig.appliance.handle.state().fleet().unwrap().id;
    let mut node = rig.joined("web-1").await;
    let before = rig.revision();
    let good = String::from_utf8(state::to_bytes(&node.register_body(fleet))).unwrap();
    for (body, wanted) in [
        (vec![b' '; crate::limits::BODY + 1], (413, "too_large")),
        (good.replacen('{', "{\"x\":1,", 1).into_bytes(), (400, "invalid")),
        (
            good.replacen("\"listen_port\":51820", "\"listen_port\":51820,\"listen_port\":1", 1).into_bytes(),
            (400, "invalid"),
        ),
        ((good.clone() + "{}").into_bytes(), (400, "invalid")),
        (Vec::new(), (400, "invalid")),
    ] {
        let said = node.send("POST", "/v1/peers/register", body, None).await;
        assert_eq!(code(&said), (wanted.0, wanted.1.to_owned()));
    }
    let said = node.send("POST", "/v1/peers/register", good.into_bytes(), Some("short")).await;
    assert_eq!(code(&said), (400, "invalid".into()));
    let bare = rig.client().get(rig.url("/v1/peers")).send().await.unwrap();
    assert_eq!(bare.headers()["content-type"], "application/problem+json");
    assert_eq!(code(&(bare.status().as_u16(), bare.text().await.unwrap())), (401, "bearer".into()));
    assert_eq!(rig.revision(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_has_eight_connections() {
    let rig = Rig::new().await;
    let mut node = rig.joined("web-1").await;
    let first = node.http.clone();
    let mut streams = Vec::new();
    for _ in 1..crate::limits::CONNECTIONS_PER_NODE {
        node.http = rig.client();
        let stream = node.begin("GET", "/v1/peers/watch", Vec::new(), None).await;
        assert_eq!(stream.status().as_u16(), 200);
        streams.push((node.http.clone(), stream));
    }
    node.http = rig.client();
    assert_eq!(code(&node.send("GET", "/v1/peers", Vec::new(), None).await), (429, "too_many_requests".into()));
    drop((first, streams));
}
