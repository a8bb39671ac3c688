//! Renewing a client certificate: when each one ends, and who is refused by it.

use crate::common::*;
use state::Code;
use state::model::*;
use state::subject::enrolment::{self, holder};
use state::subject::nodes;

fn good(fleet: &Fleet, certificates: std::ops::RangeInclusive<u8>) -> Vec<u8> {
    certificates.filter(|n| holder(&fleet.state, &hash(*n), fleet.now, fleet.clock_trusted) == Ok(id(1))).collect()
}

fn used(n: u8) -> enrolment::Command {
    enrolment::Command::UseCertificate { certificate: hash(n) }
}

#[test]
fn a_successor_ends_the_former_certificate_when_it_is_first_used() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    assert!(fleet.run(used(151)).unwrap().is_empty());
    fleet.run(renew(151, 201)).unwrap();
    fleet.run(renew(151, 202)).unwrap();
    fleet.run(renew(201, 203)).unwrap();
    assert_eq!(good(&fleet, 150..=210), [151, 201, 202, 203], "an answer that was lost strands nobody");
    assert!(enrolment::is_successor(&fleet.state, &hash(202)) && !enrolment::is_successor(&fleet.state, &hash(151)));
    fleet.run(used(202)).unwrap();
    assert_eq!(good(&fleet, 150..=210), [202, 203]);
    assert_eq!(fleet.code(used(151)), Code::CertificateRefused);
    assert_eq!(fleet.code(renew(201, 204)), Code::CertificateRefused);
    assert!(fleet.run(used(202)).unwrap().is_empty());
}

#[test]
fn a_node_has_few_certificates_and_keeps_the_one_in_use() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    for n in 201..=209 {
        fleet.run(renew(151, n)).unwrap();
    }
    assert_eq!(good(&fleet, 150..=210), [151, 207, 208, 209]);
    assert_eq!(fleet.state.enrolment.certificates.len(), 4);
}

#[test]
fn a_node_without_a_good_certificate_gets_one_by_its_signing_key() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.now = Millis(9_500_000);
    assert_eq!(good(&fleet, 150..=210), [] as [u8; 0], "it slept through its life");
    let later = |n| {
        let mut command = issue(1, n);
        let enrolment::Command::IssueCertificate { window, .. } = &mut command else { panic!() };
        window.1 = Millis(10_000_000);
        command
    };
    fleet.run(later(201)).unwrap();
    fleet.run(later(202)).unwrap();
    assert_eq!(good(&fleet, 150..=210), [201, 202], "an answer that was lost strands nobody");
    assert_eq!(fleet.state.nodes.all[&id(1)].member.as_ref().unwrap().seq, 202, "a floor for what it sends next");
    fleet.run(used(202)).unwrap();
    assert_eq!(good(&fleet, 150..=210), [202]);
    for n in 203..=209 {
        fleet.run(later(n)).unwrap();
    }
    assert_eq!(good(&fleet, 150..=210), [202, 207, 208, 209], "few at a time, and the one in use stays");
    fleet.run(nodes::Command::Revoke { target: nodes::RevokeTarget::Name(name("n1")) }).unwrap();
    assert_eq!(fleet.code(later(210)), Code::NotAdmitted);
    assert_eq!(fleet.code(issue(9, 210)), Code::NotAdmitted, "nobody's key");
}

#[test]
fn a_certificate_ends_with_its_window_and_with_its_node() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let unknown = fleet.run(used(7)).unwrap_err();
    fleet.now = Millis(9_000_000);
    assert_eq!(fleet.run(used(151)).unwrap_err(), unknown);
    fleet.clock_trusted = false;
    assert_eq!(good(&fleet, 151..=151), [151]);
    fleet.run(renew(151, 201)).unwrap();
    fleet.run(nodes::Command::Revoke { target: nodes::RevokeTarget::Name(name("n1")) }).unwrap();
    assert_eq!(fleet.run(used(201)).unwrap_err(), unknown);
    assert!(fleet.state.enrolment.certificates.is_empty());
}
