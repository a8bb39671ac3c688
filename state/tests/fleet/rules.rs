//! What may become true of a fleet: commands in, events or refusals out.

use crate::common::*;
use proptest::prelude::*;
use state::model::*;
use state::subject::{enrolment, nodes};
use state::view::records::{Gone, Liveness, Scope, Verdict};
use state::view::told;
use state::{Code, State};

fn address(fleet: &Fleet, n: u8) -> String {
    fleet.state.nodes.all[&id(n)].member.as_ref().unwrap().address.to_string()
}

#[test]
fn a_token_lets_one_key_in_once() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.run(add(1)).unwrap();
    fleet.run(join(Some(1), 1)).unwrap();
    assert_eq!(address(&fleet, 1), "10.90.0.2", ".1 is kept for the first appliance's own machine");
    let spent = fleet.run(join(Some(1), 2)).unwrap_err();
    let unknown = fleet.run(join(Some(77), 2)).unwrap_err();
    fleet.run(add(3)).unwrap();
    fleet.now = Millis(2_000_000);
    let expired = fleet.run(join(Some(3), 3)).unwrap_err();
    assert_eq!(spent, unknown);
    assert_eq!(spent, expired);
    fleet.clock_trusted = false;
    fleet.run(join(Some(3), 3)).unwrap();
}

#[test]
fn a_new_token_ends_the_outstanding_one_and_is_good_for_the_recorded_key_only() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    let token =
        |hash_of| enrolment::Command::IssueToken { name: name("n1"), token: hash(hash_of), expires: Millis(9_000_000) };
    fleet.run(add(1)).unwrap();
    fleet.run(token(50)).unwrap();
    assert_eq!(fleet.code(join(Some(1), 1)), Code::TokenRefused);
    fleet.run(join(Some(50), 1)).unwrap();
    fleet.run(token(51)).unwrap();
    assert_eq!(fleet.code(join(Some(51), 2)), Code::TokenRefused);
    let before = address(&fleet, 1);
    fleet.run(join(Some(51), 1)).unwrap();
    assert_eq!(address(&fleet, 1), before);
    assert_eq!(fleet.state.enrolment.mesh_tokens.len(), 1);
}

#[test]
fn new_keys_take_a_node_over_only_when_an_operator_said_so() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let enrolment::Command::AddNode(mut replace) = add(1) else { panic!() };
    replace.token = hash(60);
    replace.replace = true;
    fleet.run(enrolment::Command::AddNode(replace)).unwrap();
    let before = address(&fleet, 1);
    fleet.run(join(Some(60), 9)).unwrap();
    assert_eq!(address(&fleet, 1), before);
    assert_eq!(fleet.code(register(1, &[])), Code::NotAdmitted);
    fleet.run(register(9, &[])).unwrap();
}

#[test]
fn a_pending_key_takes_over_a_dead_node() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let replace = |live| enrolment::Command::Replace { key: SigningKey::from_bytes([8; 32]), name: name("n1"), live };
    assert_eq!(fleet.code(replace(true)), Code::NodeLive);
    fleet.run(replace(false)).unwrap();
    let before = address(&fleet, 1);
    fleet.run(join(None, 8)).unwrap();
    assert_eq!(address(&fleet, 1), before);
    assert_eq!(fleet.code(register(1, &[])), Code::NotAdmitted);
    assert_eq!(fleet.code(replace(false)), Code::Held);
}

#[test]
fn names_keys_and_addresses_are_held_by_one() {
    let mut fleet = Fleet::founded("10.90.0.0/29");
    fleet.joined(1);
    let taken = fleet.run(add(1)).unwrap_err();
    assert_eq!((taken.code, taken.why.as_str()), (Code::Held, "there is a node `n1` already"));
    fleet.run(add(2)).unwrap();
    assert!(fleet.run(add(2)).unwrap_err().todo.contains("holdfast node token n2"));
    let held = fleet.run(join(Some(2), 1)).unwrap_err();
    assert_eq!((held.code, held.why.as_str()), (Code::Held, "node `n1` has the same signing key"));
    fleet.run(join(Some(2), 2)).unwrap();
    for n in 3..=5 {
        fleet.joined(n);
    }
    fleet.run(add(6)).unwrap();
    let full = fleet.run(join(Some(6), 6)).unwrap_err();
    assert_eq!(full.code, Code::AddressPoolExhausted);
    assert!(full.why.contains("all 6 addresses of 10.90.0.0/29") && full.todo.contains("node rm"), "{full:?}");
    fleet.run(remove(3, false, false)).unwrap();
    fleet.run(join(Some(6), 6)).unwrap();
    assert_eq!(address(&fleet, 6), "10.90.0.4");
}

#[test]
fn an_address_given_back_is_handed_out_last_and_to_its_former_key_first() {
    let mut fleet = Fleet::founded("10.90.0.0/28");
    for n in 1..=3 {
        fleet.joined(n);
    }
    fleet.run(remove(1, false, false)).unwrap();
    fleet.run(remove(2, false, false)).unwrap();
    fleet.joined(4);
    assert_eq!(address(&fleet, 4), "10.90.0.5");
    let admit = enrolment::Command::Admit {
        key: SigningKey::from_bytes([2; 32]),
        name: name("back"),
        org: None,
        site: None,
        id: id(99),
    };
    fleet.run(admit).unwrap();
    fleet.run(join(None, 2)).unwrap();
    assert_eq!(address(&fleet, 2), "10.90.0.3", "the key keeps its id and its address");
}

#[test]
fn only_a_key_on_the_admission_list_gets_in_without_a_token() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    assert_eq!(fleet.code(join(None, 1)), Code::NotAdmitted);
    let admit = |key| enrolment::Command::Admit {
        key: SigningKey::from_bytes([key; 32]),
        name: name("edge"),
        org: None,
        site: None,
        id: id(key),
    };
    fleet.run(admit(1)).unwrap();
    assert_eq!(fleet.run(admit(1)).unwrap(), []);
    assert_eq!(fleet.code(admit(2)), Code::Held);
    fleet.run(join(None, 1)).unwrap();
    assert_eq!(fleet.code(admit(1)), Code::Held);
    let revoke = |key| nodes::Command::Revoke { target: nodes::RevokeTarget::Key(SigningKey::from_bytes([key; 32])) };
    fleet.run(revoke(1)).unwrap();
    assert_eq!(fleet.code(register(1, &[])), Code::NotAdmitted);
    assert_eq!(fleet.code(join(None, 1)), Code::NotAdmitted);
    assert_eq!(fleet.code(revoke(2)), Code::NotFound);
}

#[test]
fn a_live_node_is_not_removed_by_accident() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    assert_eq!(fleet.code(remove(1, false, true)), Code::NodeLive);
    fleet.run(remove(1, true, true)).unwrap();
    assert_eq!(fleet.code(remove(1, true, true)), Code::NotFound);
    assert_eq!(fleet.state.enrolment.certificates.len(), 0);
}

#[test]
fn an_unchanged_heartbeat_changes_nothing() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    assert_eq!(fleet.run(register(1, &[])).unwrap(), []);
    fleet.run(register(1, &[("shop/web", 80)])).unwrap();
    assert_eq!(fleet.run(register(1, &[("shop/web", 80)])).unwrap(), []);
    let silent = nodes::Command::Judge { verdicts: vec![(id(1), Liveness::OutOfTouch { since: Millis(5) })] };
    fleet.run(silent.clone()).unwrap();
    assert_eq!(fleet.run(silent).unwrap(), []);
    assert_eq!(fleet.run(register(1, &[("shop/web", 80)])).unwrap().len(), 2, "here again, with its sequence number");
}

#[test]
fn a_contested_name_is_dark_on_both_sides_until_one_goes() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    fleet.run(register(1, &[("shop/web", 80)])).unwrap();
    fleet.run(register(2, &[("shop/web", 81), ("shop/db", 5432)])).unwrap();
    let verdicts = |fleet: &Fleet, n| {
        let record = told::record(&fleet.state, id(n)).unwrap();
        record.services.into_iter().map(|s| (s.name.to_string(), s.verdict)).collect::<Vec<_>>()
    };
    let with = |text: &str| Verdict::Contested { with: vec![name(text)] };
    assert_eq!(verdicts(&fleet, 1), [("web".to_owned(), with("n2"))]);
    assert_eq!(verdicts(&fleet, 2), [("db".to_owned(), Verdict::Routed), ("web".to_owned(), with("n1"))]);
    let silent = nodes::Command::Judge { verdicts: vec![(id(1), Liveness::OutOfTouch { since: Millis(5) })] };
    fleet.run(silent).unwrap();
    assert_eq!(verdicts(&fleet, 2)[1].1, with("n1"), "silence resolves nothing");
    fleet.run(register(2, &[("shop/db", 5432)])).unwrap();
    assert_eq!(verdicts(&fleet, 1), [("web".to_owned(), Verdict::Routed)]);
}

#[test]
fn a_claim_that_may_not_be_is_left_out_and_contests_nothing() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.run(register(1, &[("n1/web", 80), ("internal/web", 80), ("shop/web", 80)])).unwrap();
    assert_eq!(fleet.state.services.claims.len(), 1);
    let enrolment::Command::AddNode(mut shop) = add(5) else { panic!() };
    shop.name = name("shop");
    assert_eq!(fleet.code(enrolment::Command::AddNode(shop)), Code::Held);
    let enrolment::Command::AddNode(mut tenant) = add(6) else { panic!() };
    tenant.org = Some(name("acme"));
    fleet.run(enrolment::Command::AddNode(tenant)).unwrap();
    fleet.run(join(Some(6), 6)).unwrap();
    fleet.run(register(6, &[("shop/web", 80)])).unwrap();
    assert_eq!(fleet.state.services.claims[&pair("shop/web")].len(), 1, "another org's space cannot be contested");
}

#[test]
fn a_machine_that_left_joins_again_under_its_former_id() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    let leave = |n: u8| nodes::Command::Leave { key: SigningKey::from_bytes([n; 32]), node: id(n) };
    let address = fleet.state.nodes.all[&id(1)].member.as_ref().unwrap().address;
    fleet.run(leave(1)).unwrap();
    fleet.run(add(3)).unwrap();
    fleet.run(join(Some(3), 1)).unwrap();
    let node = &fleet.state.nodes.all[&id(1)];
    assert_eq!((node.name.as_str(), node.member.as_ref().unwrap().address), ("n3", address));
    assert!(!fleet.state.nodes.all.contains_key(&id(3)) && fleet.state.enrolment.tokens.is_empty());
    let scope = Scope::mesh(None);
    assert_eq!(told::tombstones(&fleet.state, &scope, Revision(0)), []);
    fleet.run(leave(1)).unwrap();
    let enrolment::Command::AddNode(mut replace) = add(2) else { panic!() };
    (replace.replace, replace.token) = (true, hash(7));
    fleet.run(enrolment::Command::AddNode(replace)).unwrap();
    assert_eq!(fleet.code(join(Some(7), 1)), Code::Held, "a key brings its id, so it takes over nobody's");
}

#[test]
fn what_is_gone_leaves_a_tombstone_above_its_record() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    fleet.joined(2);
    let scope = Scope::mesh(None);
    let record = told::record(&fleet.state, id(1)).unwrap();
    fleet.run(remove(1, true, true)).unwrap();
    let tombstones = told::tombstones(&fleet.state, &scope, record.revision);
    assert_eq!(tombstones.len(), 1);
    assert_eq!((tombstones[0].id, tombstones[0].reason), (id(1), Gone::Removed));
    assert!(tombstones[0].revision > record.revision);
    assert_eq!(told::members(&fleet.state, &scope).map(|(id, _)| id).collect::<Vec<_>>(), [id(2)]);
}

#[test]
fn an_org_sees_its_own_nodes_and_the_hubs() {
    let mut fleet = Fleet::founded("10.90.0.0/16");
    fleet.joined(1);
    let enrolment::Command::AddNode(mut hub) = add(2) else { panic!() };
    hub.hub = true;
    fleet.run(enrolment::Command::AddNode(hub)).unwrap();
    fleet.run(join(Some(2), 2)).unwrap();
    let enrolment::Command::AddNode(mut tenant) = add(3) else { panic!() };
    tenant.org = Some(name("acme"));
    fleet.run(enrolment::Command::AddNode(tenant)).unwrap();
    fleet.run(join(Some(3), 3)).unwrap();
    let seen = |scope: &Scope| told::members(&fleet.state, scope).map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(seen(&Scope::mesh(None)), [id(1), id(2)]);
    assert_eq!(seen(&Scope::mesh(Some(name("acme")))), [id(2), id(3)]);
    fleet.org = Some(name("acme"));
    assert_eq!(fleet.code(remove(1, true, true)), Code::NotFound, "a tenant knows nothing of the others");
    fleet.run(remove(3, true, true)).unwrap();
}

/// One random wish.
fn wish() -> impl Strategy<Value = (u8, u8, u8)> {
    (0u8..10, 1u8..7, 1u8..7)
}

fn perform(fleet: &mut Fleet, (what, n, m): (u8, u8, u8)) {
    // An id is made anew for every wish, as the caller does.
    let fresh = NodeId(uuid::Uuid::from_u128(1_000 + u128::from(fleet.state.revision.0)));
    let outcome = match what {
        0 => {
            let enrolment::Command::AddNode(mut node) = add(n) else { return };
            node.id = fresh;
            fleet.run(enrolment::Command::AddNode(node))
        }
        1 => fleet.run(join(Some(n), m)),
        2 => fleet.run(join(None, n)),
        3 => fleet.run(register(n, &[("shop/web", 80)])),
        4 => fleet.run(register(n, &[])),
        5 => fleet.run(remove(n, true, true)),
        6 => fleet.run(nodes::Command::Revoke { target: nodes::RevokeTarget::Key(SigningKey::from_bytes([n; 32])) }),
        7 => fleet.run(enrolment::Command::Admit {
            key: SigningKey::from_bytes([n; 32]),
            name: name(&format!("n{m}")),
            org: None,
            site: None,
            id: fresh,
        }),
        8 => fleet.run(enrolment::Command::Replace {
            key: SigningKey::from_bytes([n; 32]),
            name: name(&format!("n{m}")),
            live: false,
        }),
        _ => {
            let node = fleet.state.nodes.by_name.get(&name(&format!("n{n}"))).copied().unwrap_or(fresh);
            let verdict = Liveness::OutOfTouch { since: Millis(u64::from(m)) };
            fleet.run(nodes::Command::Judge { verdicts: vec![(node, verdict)] })
        }
    };
    // A refusal is as good an outcome as any; what must hold afterwards is checked by the caller.
    drop(outcome);
}

proptest! {
    #[test]
    fn whatever_is_asked_the_registry_stays_consistent(wishes in proptest::collection::vec(wish(), 1..60)) {
        let mut fleet = Fleet::founded("10.90.0.0/29");
        for wish in wishes {
            perform(&mut fleet, wish);
            let s = &fleet.state;
            let members: Vec<_> = s.nodes.all.values().filter_map(|n| n.member.as_ref().map(|m| (n.id, m))).collect();
            prop_assert_eq!(s.nodes.by_name.len(), s.nodes.all.len());
            prop_assert_eq!(s.nodes.by_key.len(), members.len());
            prop_assert_eq!(s.nodes.addresses.len(), members.len());
            prop_assert_eq!(s.enrolment.mesh_tokens.len(), members.len() + s.nodes.departed.len());
            for (id, member) in &members {
                prop_assert_eq!(s.nodes.addresses.get(&member.address), Some(id));
                prop_assert_eq!(s.nodes.by_key.get(&member.signing_key), Some(id));
                prop_assert_eq!(s.nodes.by_wireguard.get(&member.wireguard_key), Some(id));
                prop_assert!(!s.nodes.released.contains_key(&member.address));
                prop_assert!(!s.nodes.departed.contains_key(&member.signing_key));
                let record = told::record(s, *id).unwrap();
                prop_assert!(record.revision.0 > 0 && record.revision <= s.revision);
            }
            prop_assert_eq!(s.told.records.len(), members.len());
            for token in s.enrolment.tokens.values() {
                prop_assert!(s.nodes.all.contains_key(&token.node));
            }
        }
        let mut replayed = State::default();
        for change in &fleet.changes {
            let bytes = state::to_bytes(change);
            replayed.apply(&serde_json::from_slice(&bytes).unwrap(), fleet.now);
        }
        prop_assert_eq!(&replayed, &fleet.state);
        let kept: State = serde_json::from_slice(&state::to_bytes(&fleet.state)).unwrap();
        prop_assert_eq!(&kept, &fleet.state);
    }
}
