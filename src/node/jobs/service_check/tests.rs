//! Real servers on loopback; PostgreSQL is the machine's own where it is installed.

use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::net::TcpListener;

async fn asked(probe: Probe) -> (Outcome, String) {
    let Finish { outcome, result } = check(probe, 3).await;
    let text = result.get("answer").or(result.get("why")).unwrap().as_str().unwrap().to_owned();
    assert_eq!(result["ok"], outcome == Outcome::Succeeded);
    (outcome, text)
}

/// A server that says one thing to each that connects, once it has heard something, and the address to ask.
async fn says(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    crate::tasks::spawn("test server", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut heard = [0; 1024];
            let _ = stream.read(&mut heard).await;
            let _ = stream.write_all(words).await;
        }
    });
    address
}

fn closed_port() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn tcp_is_there_or_not() {
    assert_eq!(asked(Probe::Tcp(says(b"").await)).await.0, Outcome::Succeeded);
    let closed = closed_port();
    let (outcome, why) = asked(Probe::Tcp(closed.clone())).await;
    assert_eq!((outcome, why.contains(&closed), why.contains("refused")), (Outcome::Failed, true, true), "{why}");
}

#[tokio::test]
async fn http_is_judged_by_its_status() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = |address: String| Probe::Http(format!("http://{address}/health"));
    let ok = says(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(asked(url(ok)).await, (Outcome::Succeeded, "204 No Content".into()));
    let moved = says(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(asked(url(moved)).await.0, Outcome::Succeeded);
    let broken = says(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n").await;
    let (outcome, why) = asked(url(broken)).await;
    assert!(outcome == Outcome::Failed && why.contains("500"), "{why}");
    let (outcome, why) = asked(Probe::Http("https://127.0.0.1/".into())).await;
    assert!(outcome == Outcome::Failed && why.contains("http://"), "{why}");
}

#[tokio::test]
async fn dns_is_an_address_or_a_reason() {
    use hickory_proto::rr::{Record, rdata};
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap().to_string();
    crate::tasks::spawn("test server", async move {
        let mut bytes = [0; 512];
        // The first question gets lost.
        let _ = socket.recv_from(&mut bytes).await;
        while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
            let question = Message::from_vec(&bytes[..length]).unwrap();
            let mut answer = Message::new(question.id, MessageType::Response, OpCode::Query);
            let query = question.queries[0].clone();
            let name = query.name().clone();
            if name.to_ascii().starts_with("six") && query.query_type() == RecordType::AAAA {
                answer.answers.push(Record::from_rdata(name, 60, RData::AAAA(rdata::AAAA("fd00::7".parse().unwrap()))));
            } else if name.to_ascii().starts_with("four") && query.query_type() == RecordType::A {
                answer.answers.push(Record::from_rdata(name, 60, RData::A(rdata::A("10.0.0.7".parse().unwrap()))));
            } else if name.to_ascii().starts_with("none") {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            answer.add_query(query);
            socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    });
    let ask = |name: &str| asked(Probe::Dns { name: name.into(), server: Some(server.clone()) });
    assert_eq!(ask("four.internal").await, (Outcome::Succeeded, "10.0.0.7".into()));
    assert_eq!(ask("six.internal").await, (Outcome::Succeeded, "fd00::7".into()));
    let (outcome, why) = ask("none.internal").await;
    assert!(outcome == Outcome::Failed && why.contains("none.internal"), "{why}");
    let (outcome, why) = ask("empty.internal").await;
    assert!(outcome == Outcome::Failed && why.contains("no address"), "{why}");
}

#[tokio::test]
async fn silence_ends_with_the_time_given() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = clock::boot();
    let finish = check(Probe::Postgres(listener.local_addr().unwrap().to_string()), 1).await;
    assert_eq!(finish.result["why"], "no answer in 1 s");
    assert!((1..3).contains(&(clock::boot() - begun).as_secs()));
}

#[tokio::test]
async fn only_postgres_answers_as_postgres() {
    for words in
        [b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(), b"SSH-2.0-OpenSSH_9\r\n", b"R\0\0\0\x01", b"E\0\0\0\x04"]
    {
        let (outcome, why) = asked(Probe::Postgres(says(words).await)).await;
        assert!(outcome == Outcome::Failed && why.contains("does not answer as PostgreSQL"), "{why}");
    }
    let starting = says(b"E\0\0\0\x15SFATAL\0C57P03\0\0\0\0").await;
    let (outcome, why) = asked(Probe::Postgres(starting)).await;
    assert!(outcome == Outcome::Failed && why.contains("57P03"), "{why}");
}

#[test]
fn the_start_up_message_is_pinned() {
    let words = b"\0\0\0\x43\0\x03\0\0user\0holdfast\0database\0postgres\0application_name\0holdfast\0\0";
    assert_eq!(startup(), words);
}

/// A PostgreSQL server of the machine's own programs, in a folder of its own; it ends with the test.
struct Postgres {
    programs: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
}

impl Postgres {
    fn start() -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let programs =
            versions.flatten().map(|entry| entry.path().join("bin")).find(|bin| bin.join("initdb").exists())?;
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let postgres = Self { programs, dir, port };
        std::fs::write(postgres.dir.path().join("password"), "x").unwrap();
        // It refuses to run as root.
        let owner = Command::new("chown").args(["-R", "nobody"]).arg(postgres.dir.path()).status().unwrap();
        assert!(owner.success());
        let (data, password) = (postgres.data(), format!("--pwfile={}/password", postgres.dir.path().display()));
        postgres.run("initdb", &["-A", "scram-sha-256", "-U", "postgres", "--no-sync", &password, "-D", &data]);
        let options = format!("-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off");
        postgres.run("pg_ctl", &["-w", "-s", "-D", &data, "-l", "/dev/null", "-o", &options, "start"]);
        Some(postgres)
    }

    fn data(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(self.programs.join(Path::new(program)));
        command.args(arguments).current_dir("/").stdin(std::process::Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.stdout(std::process::Stdio::null()).status().unwrap();
        assert!(output.success(), "{program}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.run("pg_ctl", &["-s", "-m", "immediate", "-D", &self.data(), "stop"]);
    }
}

#[tokio::test]
async fn a_real_postgres_is_told_from_one_that_is_gone() {
    let Some(postgres) = Postgres::start() else { return };
    let target = format!("127.0.0.1:{}", postgres.port);
    assert_eq!(asked(Probe::Postgres(target.clone())).await, (Outcome::Succeeded, "it asks to authenticate".into()));
    drop(postgres);
    let (outcome, why) = asked(Probe::Postgres(target)).await;
    assert!(outcome == Outcome::Failed && why.contains("refused"), "{why}");
}
