//! Ways in: a token works once whoever races for it, its winner may ask again, a refusal says nothing about why, and
//! machines imaged ahead of time are admitted by a person.

use crate::tools::{agent_view, fleet, pings};
use anyhow::{Context, Result};
use ed25519_dalek::Signer;
use holdfast::lab::{Answer, Fleet, until};
use holdfast::wire::operator::Pending;
use holdfast::wire::token::Token;
use std::time::Duration;

/// Machines that present one token at the same time.
const RACERS: usize = 64;

#[test]
fn one_token_lets_one_machine_in() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    let token = format!("@{}", fleet.token("x", &[])?.display());
    let join = |racer: usize| -> Result<Answer> {
        let state = fleet.lab.folder().join(format!("racer{racer}"));
        let mut line = fleet.holdfast("a", &["join", &token, "--ifname", &format!("hf{racer}")]);
        line.arg("--port").arg((51820 + racer).to_string()).arg("--state").arg(state);
        holdfast::lab::run(&mut line)
    };
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS).map(|racer| scope.spawn(move || join(racer))).collect();
        racers.into_iter().map(|racer| racer.join().expect("a racer's thread")).collect::<Result<_>>()
    })?;
    let winners: Vec<usize> = (0..RACERS).filter(|racer| answers[*racer].code == 0).collect();
    let [winner] = winners[..] else { panic!("{} machines got in: {winners:?}", winners.len()) };
    for (racer, answer) in answers.iter().enumerate().filter(|(racer, _)| *racer != winner) {
        assert!(answer.code == 1 && answer.err.contains("error[token_refused]"), "{racer}: {answer:?}");
    }

    // A lost answer: the same machine asks again and gets the same one.
    let state = fleet.lab.folder().join(format!("racer{winner}"));
    let held = || -> Result<Vec<Vec<u8>>> {
        ["client.crt", "roster.json", "node.id"].iter().map(|file| Ok(std::fs::read(state.join(file))?)).collect()
    };
    let before = held()?;
    join(winner)?.ok().context("the winner's retry")?;
    assert_eq!(before, held()?, "the retry's answer is the first one's");
    let keys = holdfast::keys::NodeKeys::read(&state)?.public();
    let nodes = fleet.nodes()?;
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].signing_key, Some(keys.signing_key), "the registry holds the winner's key");
    Ok(())
}

#[test]
fn every_refused_token_gets_the_same_bytes() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    let spent = token(&fleet, "spent", &[])?;
    let file = fleet.lab.folder().join("spent.token");
    fleet.node("a", &["join", &format!("@{}", file.display())])?.ok()?;
    let expired = token(&fleet, "expired", &["--ttl", "1s"])?;
    let replaced = token(&fleet, "replaced", &[])?;
    fleet.operator(&["node", "token", "replaced"])?.ok()?;
    let end = expired.expires.context("a join token ends")?;
    until(Duration::from_secs(5), "the token's end", || holdfast::clock::wall() > end)?;

    let unknown = hex::encode([0x5e; 32]);
    let secrets = [
        ("spent", spent.secret.expose_hex().to_string()),
        ("expired", expired.secret.expose_hex().to_string()),
        ("replaced", replaced.secret.expose_hex().to_string()),
        ("unknown", unknown),
    ];
    let mut answers = Vec::new();
    for (why, secret) in &secrets {
        let answer = enrol_raw(&fleet, &spent, secret)?;
        assert!(answer.starts_with("HTTP/1.1 401"), "{why}: {answer}");
        assert!(answer.contains("token_refused"), "{why}: {answer}");
        answers.push(answer);
    }
    for ((why, _), answer) in secrets.iter().zip(&answers) {
        assert_eq!(answer, &answers[0], "{why} is told apart from {}", secrets[0].0);
    }
    Ok(())
}

fn token(fleet: &Fleet, node: &str, flags: &[&str]) -> Result<Token> {
    let line = std::fs::read_to_string(fleet.token(node, flags)?)?;
    Ok(Token::decode(line.trim(), holdfast::clock::wall())?)
}

/// A well-formed, signed enrolment with a secret of choice, by a client that is not ours; the answer with its headers,
/// less the date.
fn enrol_raw(fleet: &Fleet, of: &Token, secret: &str) -> Result<String> {
    let state = fleet.lab.folder().join(format!("raw{}", &secret[..8]));
    holdfast::files::private_dir(&state)?;
    let keys = holdfast::keys::NodeKeys::make(&state)?;
    let client = holdfast::keys::ClientKey::make(&state)?;
    let public = keys.public();
    let body = serde_json::json!({
        "audience": of.fleet,
        "secret": secret,
        "signing_key": public.signing_key,
        "wireguard_key": public.wireguard_key,
        "sealing_key": public.sealing_key,
        "certificate_request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, client.request()),
        "listen_port": 51820,
        "local_endpoints": [],
        "agent_version": "holdfast 0.1.0",
    })
    .to_string();
    let now = holdfast::clock::wall().0.to_string();
    let lines = holdfast::wire::peers::signed_lines("POST", "/v1/enroll", &now, body.as_bytes());
    let headers = [
        format!("Holdfast-Key: {}", public.signing_key),
        format!("Holdfast-Timestamp: {now}"),
        format!("Holdfast-Signature: {}", hex::encode(keys.signing.sign(lines.as_bytes()).to_bytes())),
        format!("Idempotency-Key: {}", hex::encode(holdfast::entropy::bytes::<16>())),
        "Content-Type: application/json".to_owned(),
    ];
    let mut line = vec!["curl", "-sk", "-i", "-m5", "-X", "POST", "--data-binary", &body];
    for header in &headers {
        line.extend(["-H", header.as_str()]);
    }
    line.push("https://198.51.100.2:4300/v1/enroll");
    let answer = fleet.lab.run("a", &line)?.ok()?;
    Ok(answer.lines().filter(|line| !line.to_ascii_lowercase().starts_with("date:")).collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_person_admits_a_machine_imaged_ahead_of_time() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    fleet.enrol("a", &["--endpoint", "198.51.100.10:51820"])?;
    fleet.lab.host("kiosk", 11)?;
    let token = fleet.operator(&["admission", "token"])?.ok()?;
    let file = fleet.lab.folder().join("admission.token");
    holdfast::files::replace(&file, token.as_bytes())?;
    fleet.node("kiosk", &["join", &format!("@{}", file.display()), "--name", "kiosk"])?.ok()?;
    fleet.start_agent("kiosk")?;

    let key = holdfast::keys::NodeKeys::read(&fleet.state("kiosk"))?.public().signing_key;
    let asks = || -> Option<Pending> {
        let listed = fleet.operator(&["node", "pending", "-o", "json"]).ok()?.ok().ok()?;
        serde_json::from_str(&listed).ok()
    };
    until(Duration::from_secs(15), "the machine is pending", || {
        asks().is_some_and(|document| document.pending.iter().any(|each| each.signing_key == key))
    })?;
    assert!(!fleet.state("kiosk").join("ready").exists(), "not in the mesh before it was admitted");
    assert!(!fleet.nodes()?.iter().any(|node| node.name.as_str() == "kiosk"), "asking makes no node");

    fleet.operator(&["node", "admit", &key.to_string()])?.ok()?;
    until(Duration::from_secs(15), "the machine is in", || fleet.state("kiosk").join("ready").exists())?;
    let address = fleet.address("kiosk")?;
    until(Duration::from_secs(10), "a ping of the new machine", || pings(&fleet.lab, "a", address))?;
    assert_eq!(agent_view(&fleet, "kiosk")?.name.map(|name| name.to_string()).as_deref(), Some("kiosk"));
    Ok(())
}

#[test]
fn a_mangled_token_is_refused_and_not_printed() -> Result<()> {
    let fleet = fleet()?;
    fleet.appliance("box", 2)?;
    fleet.lab.host("a", 10)?;
    let line = std::fs::read_to_string(fleet.token("x", &[])?)?.trim().to_owned();
    let broken = format!("{}\n{}", &line[..40], &line[40..]);
    let other = format!("hvs.{}", &line[5..]);
    for mangled in [&line[..line.len() - 1], &broken, &other] {
        let answer = fleet.node("a", &["join", mangled])?;
        assert!(matches!(answer.code, 1 | 2), "{answer:?}");
        assert!(!answer.err.contains(&line[6..40]) && !answer.out.contains(&line[6..40]), "it prints the token");
        assert!(answer.err.contains("error["), "{answer:?}");
    }
    Ok(())
}
