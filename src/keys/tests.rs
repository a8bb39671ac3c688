//! Key files as other processes, other users and other tools leave them.

use super::*;
use state::model::{Millis, NodeId};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn home() -> (tempfile::TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("state");
    (outer, dir)
}

fn message<T>(result: Result<T, KeyError>) -> String {
    result.err().expect("a refusal").to_string()
}

/// What a person or another tool puts there.
fn put(path: &Path, text: impl AsRef<[u8]>) {
    files::replace(path, text.as_ref()).unwrap();
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn keys_are_made_once_and_private() {
    let (_outer, dir) = home();
    let first = ApplianceKeys::make(&dir).unwrap();
    let second = ApplianceKeys::make(&dir).unwrap();
    assert_eq!(first.root_key(), second.root_key());
    assert_eq!(first.pin(), second.pin());
    assert_eq!(first.pin(), fingerprint(&dir).unwrap());
    for file in ["root.key", "signing.key", "tls.crt", "tls.key", "ca.crt", "ca.key", MARKER] {
        assert_eq!(std::fs::metadata(dir.join(file)).unwrap().mode() & 0o7777, 0o600, "{file}");
    }
    let line = std::fs::read_to_string(dir.join("root.key")).unwrap();
    assert_eq!((line.len(), line.to_lowercase() == line), (65, true));
}

#[test]
fn sixteen_starts_at_once_make_one_identity() {
    let (_outer, dir) = home();
    let barrier = std::sync::Barrier::new(16);
    let found: std::collections::BTreeSet<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let keys = ApplianceKeys::make(&dir).unwrap();
                    (keys.root_key(), keys.signing_key(), keys.pin(), pin(keys.ca.certificate()))
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    assert_eq!(found.len(), 1);
    let staged = std::fs::read_dir(&dir).unwrap().filter(|e| {
        let name = e.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with(".staged-")
    });
    assert_eq!(staged.count(), 0);
}

#[test]
fn every_key_file_that_is_not_ours_alone_stops_the_start_by_name() {
    for file in ["signing.key", "wireguard.key", "sealing.key"] {
        let (outer, dir) = home();
        let keys = NodeKeys::make(&dir).unwrap().public();
        let path = dir.join(file);
        mode(&path, 0o640);
        assert!(message(NodeKeys::read(&dir)).contains(&format!("{file}: can be read by others (mode 0640)")));
        assert!(message(NodeKeys::make(&dir)).contains(file), "making does not repair it either");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "nothing is chmodded");
        mode(&path, 0o600);
        let moved = outer.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        assert!(message(NodeKeys::read(&dir)).contains(file), "a missing key is named");
        std::os::unix::fs::symlink(&moved, &path).unwrap();
        assert!(message(NodeKeys::read(&dir)).contains("is a symbolic link"));
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&moved, &path).unwrap();
        assert!(message(NodeKeys::read(&dir)).contains("more than one name"));
        std::fs::remove_file(&moved).unwrap();
        assert_eq!(NodeKeys::read(&dir).unwrap().public(), keys);
        put(&path, "5e5e\n");
        let text = message(NodeKeys::read(&dir));
        assert!(text.ends_with("is not one line of 64 hexadecimal digits") && !text.contains("5e5e"));
    }
}

#[test]
fn keys_are_read_in_either_case() {
    let (_outer, dir) = home();
    let keys = NodeKeys::make(&dir).unwrap().public();
    let path = dir.join("signing.key");
    let upper = std::fs::read_to_string(&path).unwrap().to_uppercase();
    put(&path, upper);
    assert_eq!(NodeKeys::read(&dir).unwrap().public(), keys);
}

#[test]
fn a_directory_is_taken_only_when_it_is_empty_private_or_ours() {
    let (outer, dir) = home();
    assert!(message(NodeKeys::read(&dir)).ends_with("holds no holdfast node"));
    std::fs::create_dir(&dir).unwrap();
    mode(&dir, 0o755);
    assert!(message(NodeKeys::make(&dir)).contains("is open to others (mode 0755)"));
    mode(&dir, 0o700);
    put(&dir.join("notes.txt"), "mine");
    assert!(matches!(NodeKeys::make(&dir), Err(KeyError::Foreign(path)) if path == dir));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing was added to it");
    std::fs::remove_file(dir.join("notes.txt")).unwrap();
    put(&dir.join(".staged-0011"), "left by a killed start");
    NodeKeys::make(&dir).unwrap();
    assert!(
        message(ApplianceKeys::make(&dir))
            .contains("is a state directory of role node, and role appliance is needed here")
    );
    let link = outer.path().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    assert!(NodeKeys::read(&link).is_err());
}

#[test]
fn a_missing_root_key_is_never_made_anew_by_reading() {
    let (_outer, dir) = home();
    ApplianceKeys::make(&dir).unwrap();
    std::fs::remove_file(dir.join("root.key")).unwrap();
    assert!(message(ApplianceKeys::read(&dir)).contains("root.key"));
    assert!(!dir.join("root.key").exists());
}

#[test]
fn the_pin_is_that_of_the_der_and_never_of_a_key() {
    let (_outer, dir) = home();
    let pinned = ApplianceKeys::make(&dir).unwrap().pin();
    let crt = dir.join("tls.crt");
    let pem = std::fs::read_to_string(&crt).unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let lines: Vec<String> = body.as_bytes().chunks(40).map(|c| String::from_utf8(c.to_vec()).unwrap()).collect();
    let wrapped = format!("-----BEGIN CERTIFICATE-----\r\n{}\r\n-----END CERTIFICATE-----\r\n", lines.join("\r\n"));
    put(&crt, format!("subject=holdfast appliance\n{wrapped}"));
    assert_eq!(fingerprint(&dir).unwrap(), pinned);
    assert_eq!(ApplianceKeys::read(&dir).unwrap().pin(), pinned);
    std::fs::copy(dir.join("tls.key"), &crt).unwrap();
    assert!(message(fingerprint(&dir)).ends_with("tls.crt: holds no certificate in PEM"));
    std::fs::copy(dir.join("ca.crt"), &crt).unwrap();
    assert!(message(ApplianceKeys::read(&dir)).ends_with("tls.crt: is not the certificate of the key beside it"));
}

#[test]
fn the_ca_signs_for_the_key_that_asks_and_for_nothing_else_in_the_request() {
    let (_outer, dir) = home();
    let ca = ApplianceKeys::make(&dir).unwrap().ca;
    let (_other, node_dir) = home();
    NodeKeys::make(&node_dir).unwrap();
    let request = ClientKey::make(&node_dir).unwrap().request();
    let node = NodeId(uuid::Uuid::from_u128(7));
    let issued = ca.issue(&request, node, Millis(1_700_000_000_999), Millis(1_700_600_000_000)).unwrap();
    assert_eq!((issued.not_before, issued.not_after), (Millis(1_700_000_000_000), Millis(1_700_600_000_000)));
    let crt = node_dir.join("client.crt");
    put(&crt, &issued.pem);
    let identity = TlsIdentity::read(&crt, &node_dir.join("client.key")).unwrap();
    assert_eq!(pin(&identity.certificate), issued.fingerprint);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.certificate().clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
    let at = |s| rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(s));
    verifier.verify_client_cert(&identity.certificate, &[], at(1_700_000_100)).unwrap();
    assert!(verifier.verify_client_cert(&identity.certificate, &[], at(1_700_600_100)).is_err());

    let mut damaged = request.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for bad in [&damaged[..], &request[..40], b""] {
        let refused = ca.issue(bad, node, Millis(0), Millis(1_000));
        assert!(message(refused).starts_with("the certificate request is refused"));
    }
}

#[test]
fn a_node_keeps_its_first_id() {
    let (_outer, dir) = home();
    NodeKeys::make(&dir).unwrap();
    let [first, second] = [1, 2].map(|n| NodeId(uuid::Uuid::from_u128(n)));
    assert_eq!(NodeKeys::id(&dir).unwrap(), None);
    NodeKeys::keep_id(&dir, first).unwrap();
    NodeKeys::keep_id(&dir, first).unwrap();
    assert!(message(NodeKeys::keep_id(&dir, second)).contains("names another node"));
    assert_eq!(NodeKeys::id(&dir).unwrap(), Some(first));
}

#[test]
fn the_recovery_identity_is_handed_out_once_and_fits_the_public_half() {
    let (outer, dir) = home();
    ApplianceKeys::make(&dir).unwrap();
    let file = outer.path().join("recovery.txt");
    assert!(message(expect_recovery(&dir)).contains("recovery.pub"));
    make_recovery(&dir, &file).unwrap();
    expect_recovery(&dir).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    let secret = text.lines().find_map(|line| line.strip_prefix("hfr1_")).unwrap();
    let mut bytes = [0; 32];
    hex::decode_to_slice(secret, &mut bytes).unwrap();
    let public = x25519_dalek::PublicKey::from(&x25519_dalek::StaticSecret::from(bytes));
    let kept = std::fs::read_to_string(dir.join("recovery.pub")).unwrap();
    assert_eq!(kept.trim(), hex::encode(public.as_bytes()));
    let other = outer.path().join("other.txt");
    assert!(message(make_recovery(&dir, &other)).contains("recovery.pub: exists already"));
    assert!(message(make_recovery(&outer.path().join("new"), &file)).contains("recovery.txt: exists already"));
    assert!(message(check_recovery(&dir.join("x"), &outer.path().join("no/f"))).contains("does not exist"));
    assert!(!other.exists());
}

#[test]
fn a_recovery_identity_half_made_is_completed_and_a_foreign_one_refused() {
    let (outer, dir) = home();
    ApplianceKeys::make(&dir).unwrap();
    let file = outer.path().join("recovery.txt");
    make_recovery(&dir, &file).unwrap();
    let handed_out = std::fs::read(&file).unwrap();
    let kept = std::fs::read(dir.join("recovery.pub")).unwrap();
    std::fs::rename(dir.join("recovery.pub"), dir.join("recovery.pending")).unwrap();
    make_recovery(&dir, &file).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), handed_out);
    assert_eq!(std::fs::read(dir.join("recovery.pub")).unwrap(), kept);
    assert!(!dir.join("recovery.pending").exists());

    std::fs::rename(dir.join("recovery.pub"), dir.join("recovery.pending")).unwrap();
    let foreign = outer.path().join("foreign.txt");
    crate::files::replace(&foreign, format!("hfr1_{}\n", "07".repeat(32)).as_bytes()).unwrap();
    assert!(message(make_recovery(&dir, &foreign)).contains("foreign.txt: exists already"));
    assert!(!dir.join("recovery.pub").exists());
}
