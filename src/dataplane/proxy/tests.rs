//! Proxies on loopback addresses, before real servers.
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "tests start curl and state figures")]

use super::*;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

/// A server that keeps the head of every request and answers it in full, with the head as the body; it answers an
/// upgrade by echoing.
async fn target() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let heads = connections.clone();
    tasks::spawn("target", async move {
        loop {
            let (mut stream, from) = listener.accept().await.unwrap();
            let heads = heads.clone();
            tasks::spawn("target-stream", async move {
                loop {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    heads.lock().unwrap().push(format!("{from}\n{head}"));
                    let upgraded = head.contains("upgrade: websocket");
                    let answer = if upgraded {
                        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
                            .to_owned()
                    } else {
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nkeep-alive: 5\r\n\r\n{head}", head.len())
                    };
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    if upgraded {
                        let (mut read, mut write) = stream.split();
                        tokio::io::copy(&mut read, &mut write).await.unwrap();
                        return;
                    }
                }
            });
        }
    });
    (address, connections)
}

fn proxy(last: u8, target: SocketAddr, protocol: Protocol) -> Proxy {
    let [a, b, ..] = std::process::id().to_be_bytes()[2..] else { panic!() };
    Proxy { listen: SocketAddr::from(([127, a.max(1), b, last], 8080)), target, protocol, serving: true }
}

fn serving(wanted: &[Proxy]) -> Proxies {
    let mut proxies = Proxies::default();
    assert_eq!(proxies.settle(wanted), Vec::<String>::new());
    proxies
}

async fn curl(args: &str, at: &Proxy) -> String {
    let mut command = Command::new("curl");
    command.args(["-s", "-m", "5"]).args(args.split(' ').filter(|a| !a.is_empty()));
    command.arg(format!("http://{}/path?q=1", at.listen));
    let out = tasks::blocking(move || command.output().unwrap()).await;
    String::from_utf8(out.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_target_is_told_who_asks_and_nothing_the_client_claims() {
    let (address, heads) = target().await;
    let at = proxy(1, address, Protocol::Http);
    let _proxies = serving(std::slice::from_ref(&at));
    let args = "-H Host:web.shop.internal -H X-Forwarded-For:1.1.1.1 -H Forwarded:for=1.1.1.1 -H X_Real_IP:1 -H Remote-User:root -H Connection:close,x-drop -H X-Drop:1 -H X-Keep:1";
    let got = curl(args, &at).await.to_lowercase();
    assert!(got.starts_with("get /path?q=1 http/1.1\r\n"), "{got}");
    for line in [
        "host: web.shop.internal\r\n",
        "x-keep: 1\r\n",
        "forwarded: for=127.0.0.1;host=\"web.shop.internal\";proto=http\r\n",
        "x-forwarded-for: 127.0.0.1\r\n",
    ] {
        assert!(got.contains(line), "no {line:?} in {got}");
    }
    for gone in ["1.1.1.1", "real", "root", "x-drop", "connection"] {
        assert!(!got.contains(gone), "{gone} in {got}");
    }
    assert!(!curl("-i", &at).await.contains("keep-alive: 5"));
    let reused = curl(&format!("http://{}/first", at.listen), &at).await;
    assert!(reused.contains("/first") && reused.contains("/path?q=1"));
    let heads = heads.lock().unwrap();
    let from: Vec<_> = heads.iter().map(|head| head.lines().next().unwrap()).collect();
    assert_eq!(from[from.len() - 1], from[from.len() - 2], "one connection of the client is one to the target");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_http_name_their_reason() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut at = proxy(2, nobody, Protocol::Http);
    let mut proxies = serving(std::slice::from_ref(&at));
    let got = curl("-i", &at).await;
    assert!(
        got.starts_with("HTTP/1.1 502") && got.contains(&format!("the service's target {nobody} does not")),
        "{got}"
    );
    at.serving = false;
    proxies.settle(std::slice::from_ref(&at));
    let got = curl("-i", &at).await;
    assert!(got.starts_with("HTTP/1.1 503") && got.contains("contested"), "{got}");
    let (address, _) = target().await;
    (at.serving, at.target) = (true, address);
    proxies.settle(std::slice::from_ref(&at));
    assert!(curl("-i", &at).await.starts_with("HTTP/1.1 200"));
    for (bad, code) in [
        ("CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", "400"),
        ("GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x\r\n\r\n", "400"),
    ] {
        let mut stream = TcpStream::connect(at.listen).await.unwrap();
        stream.write_all(bad.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer).ends_with(code), "{bad:?}: {}", String::from_utf8_lossy(&answer));
    }
    let absolute = "GET http://other.internal:81/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(at.listen).await.unwrap();
    stream.write_all(absolute.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("GET /x HTTP/1.1") && answer.contains("host: other.internal:81"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_pass_and_end_with_the_service() {
    let (address, _) = target().await;
    let at = proxy(3, address, Protocol::Http);
    let mut proxies = serving(std::slice::from_ref(&at));
    let mut stream = TcpStream::connect(at.listen).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    stream.write_all(b"ping").await.unwrap();
    let mut echoed = [0; 4];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"ping");
    proxies.settle(&[]);
    let end = timeout(Duration::from_secs(5), stream.read(&mut echoed)).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "withdrawn");
    // The listener ends in a task of its own, which may come after that of the stream.
    let closed = async {
        while TcpStream::connect(at.listen).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(5), closed).await.expect("nothing listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_is_carried_both_ways_and_each_way_ends_by_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = proxy(4, listener.local_addr().unwrap(), Protocol::Tcp);
    let mut proxies = serving(std::slice::from_ref(&at));
    const MIB: usize = 1024 * 1024;
    tasks::spawn("sum", async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
    });
    let mut stream = TcpStream::connect(at.listen).await.unwrap();
    let sent: Vec<u8> = (0..64 * MIB).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let start = Instant::now();
    let mut got = Vec::new();
    stream.write_all(&sent).await.unwrap();
    proxies.settle(std::slice::from_ref(&at));
    stream.shutdown().await.unwrap();
    stream.read_to_end(&mut got).await.unwrap();
    assert!(got == sent, "{} bytes came back", got.len());
    println!("64 MiB there and back through the proxy in {:?}", start.elapsed());
    let udp = Proxy { protocol: Protocol::Udp, ..at.clone() };
    assert!(proxies.settle(&[udp])[0].contains("UDP is not carried"));
    // The listener that gave way closes in a task of its own.
    let taken = timeout(Duration::from_secs(5), async {
        loop {
            match std::net::TcpListener::bind(at.listen) {
                Ok(listener) => return listener,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let taken = taken.await.expect("the port is free again");
    let problems = proxies.settle(std::slice::from_ref(&at));
    assert!(problems.len() == 1 && problems[0].contains("cannot listen"), "{problems:?}");
    drop(taken);
}
