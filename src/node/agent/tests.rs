//! The decisions of the agent, step by step, without a socket or a clock.

use super::*;
use crate::node::client::CallError;
use crate::node::testing::{Fleet, name, node, web};
use state::model::Revision;
use state::view::records::{Epoch, Protocol, Verdict};

struct Lab {
    fleet: Fleet,
    agent: Agent,
    at: Moment,
}

/// Node n0 of a fleet of three, with the list of revision 3 on its disk.
fn lab() -> Lab {
    let mut fleet = Fleet::new();
    for number in 0..3 {
        fleet.set(number, |_| {});
    }
    let trust = fleet.trust();
    let mut held = Held::default();
    held.accept(&trust, &fleet.full(), Extent::Full);
    let agent = start(trust, held);
    Lab { fleet, agent, at: Moment { boot: Duration::from_secs(1000), wall: Millis(3_600_000), chance: u32::MAX / 2 } }
}

fn start(trust: Trust, held: Held) -> Agent {
    let identity = Identity {
        own: Own { id: node(0), ifname: "hf0".into(), listen_port: 51820, private_key_file: "/x/wireguard.key".into() },
        wireguard_key: WireguardKey::from_bytes([1; 32]),
        sealing_key: SealingKey::from_bytes([2; 32]),
        instance: uuid::Uuid::from_u128(7),
        version: "1".into(),
    };
    let machine = Machine { local_endpoints: vec!["198.51.100.10:51820".parse().unwrap()], mtu: 1420 };
    Agent::new(identity, trust, held, Claims::default(), machine, Millis(0))
}

fn unreachable() -> CallError {
    CallError::Unreachable("198.51.100.2:4300: refused".into())
}

fn refused(code: &str, status: u16) -> CallError {
    CallError::Refused(Box::new(Problem { status, ..Failure::new(code, "what", "why", "todo").problem() }))
}

impl Lab {
    fn give(&mut self, input: Input) -> Vec<Output> {
        self.agent.handle(self.at, input)
    }

    fn after(&mut self, millis: u64, input: Input) -> Vec<Output> {
        self.at.boot += Duration::from_millis(millis);
        self.at.wall = self.at.wall.plus(millis);
        self.give(input)
    }

    /// Lets the time pass to the next deadline; gives how long that took.
    fn tick(&mut self) -> (Duration, Vec<Output>) {
        let pause = self.agent.deadline().saturating_sub(self.at.boot);
        self.at.boot += pause;
        self.at.wall = self.at.wall.plus(u64::try_from(pause.as_millis()).unwrap());
        (pause, self.give(Input::Tick))
    }

    fn answer(&self) -> RegisterAnswer {
        RegisterAnswer {
            revision: Revision(self.fleet.revision),
            epoch: Epoch { number: self.fleet.epoch, appliance: self.fleet.appliance_id },
            now: self.at.wall,
            services: vec![],
            roster: None,
            enrolled: None,
            duplicate_identity: false,
        }
    }

    /// Starts and registers; gives what came of the answer.
    fn up(&mut self) -> Vec<Output> {
        assert_eq!(registers(&self.give(Input::Started)), 1);
        let answer = self.answer();
        self.after(5, Input::Registered(Ok(Box::new(answer))))
    }
}

fn wanted_of(outputs: &[Output]) -> Option<&Wanted> {
    outputs.iter().find_map(|output| if let Output::Up(wanted) = output { Some(&**wanted) } else { None })
}

fn registers(outputs: &[Output]) -> usize {
    outputs.iter().filter(|o| matches!(o, Output::Register(_))).count()
}

fn warnings(outputs: &[Output]) -> Vec<&str> {
    outputs.iter().filter_map(|o| if let Output::Warn(text) = o { Some(text.as_str()) } else { None }).collect()
}

fn publish(call: u64) -> Input {
    let target = Some("127.0.0.1:3000".parse().unwrap());
    let claim = Publish { space: name("shop"), name: name("web"), protocol: Protocol::Http, port: 80, target };
    Input::Publish { call, claim }
}

fn judged(verdict: ClaimVerdict) -> Vec<Judged> {
    vec![Judged { space: name("shop"), name: name("web"), verdict }]
}

#[test]
fn a_start_registers_holds_the_stream_and_comes_up() {
    let mut lab = lab();
    let outputs = lab.up();
    assert!(outputs.contains(&Output::Watch { after: Revision(3) }));
    let wanted = wanted_of(&outputs).unwrap();
    assert_eq!(wanted.desired.peers.len(), 2);
    assert_eq!(wanted.desired.peers[0].endpoint, Some("198.51.100.11:51820".parse().unwrap()));
    assert_eq!(wanted.resolver.as_of, lab.at.wall);
    assert_eq!(wanted.resolver.listen[0], "10.90.0.1:53".parse().unwrap());
}

#[test]
fn without_an_appliance_it_comes_up_from_what_it_holds_and_says_how_old_that_is() {
    let mut lab = lab();
    lab.give(Input::Started);
    let outputs = lab.after(100, Input::Registered(Err(unreachable())));
    assert!(warnings(&outputs).contains(&"authority unreachable; up from peer list of 60m"), "{outputs:?}");
    assert!(wanted_of(&outputs).is_some());

    let mut silent = self::lab();
    silent.give(Input::Started);
    let (pause, outputs) = silent.tick();
    assert_eq!(pause, PATIENCE);
    assert!(wanted_of(&outputs).is_some(), "an appliance that does not even refuse is not waited for");
}

#[test]
fn a_node_without_a_list_stays_out_and_keeps_trying() {
    let mut lab = lab();
    lab.agent = start(lab.fleet.trust(), Held::default());
    lab.give(Input::Started);
    let outputs = lab.after(9, Input::Registered(Err(unreachable())));
    assert!(wanted_of(&outputs).is_none());
    let (pause, outputs) = lab.tick();
    assert!(pause <= RETRY_MIN && registers(&outputs) == 1);
}

#[test]
fn heartbeats_are_five_seconds_give_or_take_a_tenth() {
    let mut lab = lab();
    lab.up();
    for chance in [0, u32::MAX / 2, u32::MAX] {
        lab.at.chance = chance;
        let answer = lab.answer();
        lab.agent.contact.under_way = Some(0);
        let outputs = lab.give(Input::Registered(Ok(Box::new(answer))));
        assert_eq!(outputs, [], "an unchanged heartbeat does nothing");
        let pause = lab.agent.contact.next - lab.at.boot;
        assert!((4500..=5500).contains(&pause.as_millis()), "{pause:?}");
    }
}

#[test]
fn failures_are_retried_ever_later_and_at_most_every_five_seconds() {
    let mut lab = lab();
    lab.up();
    let mut pauses = Vec::new();
    for _ in 0..12 {
        lab.agent.contact.under_way = Some(0);
        lab.at.chance = u32::MAX;
        lab.give(Input::Registered(Err(unreachable())));
        pauses.push((lab.agent.contact.next - lab.at.boot).as_millis());
    }
    assert_eq!(pauses[..6], [250, 500, 1000, 2000, 4000, 5000]);
    assert_eq!(pauses[11], 5000);
    let answer = lab.answer();
    lab.agent.contact.under_way = Some(0);
    let outputs = lab.give(Input::Registered(Ok(Box::new(answer))));
    assert!(outputs.contains(&Output::Watch { after: Revision(3) }), "the stream of before may be dead");
    assert!(outputs.contains(&Output::Info("an appliance answers again".into())));
}

#[test]
fn nothing_is_forgotten_or_judged_anew_while_the_authority_is_silent() {
    let mut lab = lab();
    let before = wanted_of(&lab.up()).cloned().unwrap();
    for _ in 0..200 {
        let (_, outputs) = lab.tick();
        assert!(wanted_of(&outputs).is_none());
        if registers(&outputs) == 1 {
            lab.give(Input::Registered(Err(unreachable())));
        }
    }
    assert_eq!(lab.agent.report().up, Some(&before));
    assert!(!lab.agent.report().reachable);
}

#[test]
fn a_change_in_the_stream_is_made_so_before_it_is_kept() {
    let mut lab = lab();
    lab.up();
    lab.fleet.set(3, |_| {});
    let outputs = lab.after(50, Input::Changes(lab.fleet.delta(3)));
    assert!(matches!(outputs[..], [Output::Up(_), Output::KeepPeers]), "{outputs:?}");
    assert_eq!(wanted_of(&outputs).unwrap().desired.peers.len(), 3);
    assert_eq!(lab.give(Input::Changes(lab.fleet.delta(3))), []);
}

#[test]
fn a_gap_in_the_stream_is_closed_by_a_full_list() {
    let mut lab = lab();
    lab.up();
    lab.fleet.set(3, |_| {});
    lab.fleet.set(4, |_| {});
    let outputs = lab.give(Input::Changes(lab.fleet.delta(4)));
    assert!(outputs.contains(&Output::List), "{outputs:?}");
    let outputs = lab.give(Input::Listed(Ok(lab.fleet.full())));
    assert_eq!(wanted_of(&outputs).unwrap().desired.peers.len(), 4);
}

#[test]
fn a_stream_that_says_nothing_is_noticed_by_the_heartbeat() {
    let mut lab = lab();
    lab.up();
    lab.fleet.set(3, |_| {});
    for expected in [false, true] {
        let answer = lab.answer();
        lab.agent.contact.under_way = Some(0);
        let outputs = lab.after(5000, Input::Registered(Ok(Box::new(answer))));
        assert_eq!(outputs.contains(&Output::List), expected);
    }
    lab.give(Input::Listed(Ok(lab.fleet.full())));
    let outputs = lab.give(Input::ChangesEnded);
    assert!(!outputs.contains(&Output::Watch { after: Revision(4) }));
    let (_, outputs) = lab.tick();
    assert!(outputs.contains(&Output::Watch { after: Revision(4) }), "{outputs:?}");
}

#[test]
fn publishing_registers_at_once_and_waits_for_the_verdict_on_that_claim() {
    let mut lab = lab();
    lab.up();
    let (_, outputs) = lab.tick();
    assert_eq!(registers(&outputs), 1);
    let outputs = lab.after(1, publish(1));
    assert_eq!(registers(&outputs), 0, "one register at a time");
    assert!(matches!(outputs[..], [Output::Up(_)]), "{outputs:?}");
    assert!(wanted_of(&outputs).unwrap().proxies[0].serving, "who resolves the name at once is served at once");
    let answer = lab.answer();
    let outputs = lab.after(1, Input::Registered(Ok(Box::new(answer))));
    assert!(!outputs.iter().any(|o| matches!(o, Output::Answer { .. })), "that register did not carry the claim");
    let Some(Output::Register(body)) = outputs.last() else { panic!("{outputs:?}") };
    assert_eq!(body.services.len(), 1);
    let answer = RegisterAnswer { services: judged(ClaimVerdict::Routed), ..lab.answer() };
    let outputs = lab.after(1, Input::Registered(Ok(Box::new(answer))));
    assert_eq!(outputs, [Output::Answer { call: 1, outcome: Outcome::Judged(ClaimVerdict::Routed) }]);
    lab.fleet.set(0, |r| r.services = vec![web(Verdict::Routed)]);
    let outputs = lab.after(1, Input::Changes(lab.fleet.delta(3)));
    assert!(wanted_of(&outputs).unwrap().proxies[0].serving);
    lab.fleet.set(0, |r| r.services = vec![web(Verdict::Contested { with: vec![name("n1")] })]);
    let outputs = lab.after(1, Input::Changes(lab.fleet.delta(4)));
    assert!(!wanted_of(&outputs).unwrap().proxies[0].serving);
}

#[test]
fn a_refused_claim_is_forgotten_and_an_unsent_one_is_kept() {
    let mut lab = lab();
    lab.up();
    lab.give(publish(1));
    let outputs = lab.after(1, Input::Registered(Err(unreachable())));
    assert!(outputs.contains(&Output::Answer { call: 1, outcome: Outcome::Stored }));
    assert_eq!(lab.agent.report().claims.to_vec().len(), 1);
    let verdict = ClaimVerdict::Refused { code: "held".into(), why: "n1 publishes it".into() };
    lab.give(publish(2));
    lab.tick();
    let answer = RegisterAnswer { services: judged(verdict.clone()), ..lab.answer() };
    let outputs = lab.after(1, Input::Registered(Ok(Box::new(answer))));
    assert!(outputs.contains(&Output::Answer { call: 2, outcome: Outcome::Judged(verdict) }), "{outputs:?}");
    assert!(outputs.contains(&Output::KeepClaims(vec![])));
    assert_eq!(lab.agent.report().claims.to_vec().len(), 0);
}

#[test]
fn a_busy_appliance_is_asked_again_before_the_publisher_is_answered() {
    let mut lab = lab();
    lab.up();
    lab.give(publish(1));
    let outputs = lab.after(1, Input::Registered(Err(refused("busy", 503))));
    assert!(!outputs.iter().any(|o| matches!(o, Output::Answer { .. })));
    let (pause, outputs) = lab.tick();
    assert!(pause <= RETRY_MIN && registers(&outputs) == 1);
}

#[test]
fn withdrawing_is_answered_when_the_appliance_knows() {
    let mut lab = lab();
    lab.up();
    let unknown = Input::Withdraw { call: 1, space: name("shop"), name: name("web") };
    assert!(
        matches!(&lab.give(unknown)[..], [Output::Answer { outcome: Outcome::Failed(f), .. }] if f.code == "not_found")
    );
    lab.give(publish(2));
    lab.give(Input::Withdraw { call: 3, space: name("shop"), name: name("web") });
    let answer = RegisterAnswer { services: judged(ClaimVerdict::Routed), ..lab.answer() };
    let outputs = lab.give(Input::Registered(Ok(Box::new(answer))));
    assert!(outputs.contains(&Output::Answer { call: 2, outcome: Outcome::Judged(ClaimVerdict::Routed) }));
    assert_eq!(registers(&outputs), 1);
    let answer = lab.answer();
    let outputs = lab.give(Input::Registered(Ok(Box::new(answer))));
    assert!(outputs.contains(&Output::Answer { call: 3, outcome: Outcome::Withdrawn }), "{outputs:?}");
}

#[test]
fn only_its_own_signed_tombstone_takes_the_mesh_down() {
    let mut lab = lab();
    lab.up();
    let refusal = |tombstone| {
        let problem = Problem { status: 403, tombstone, ..Failure::new("not_admitted", "a", "b", "c").problem() };
        Input::Registered(Err(CallError::Refused(Box::new(problem))))
    };
    let mut other = Fleet::new();
    other.appliance = ed25519_dalek::SigningKey::from_bytes(&[66; 32]);
    other.revision = 100;
    let now = std::mem::replace(&mut lab.fleet.revision, 1);
    let not_above = lab.fleet.tombstone(node(0), Gone::Revoked);
    lab.fleet.revision = now;
    for tombstone in [None, Some(other.tombstone(node(0), Gone::Revoked)), Some(not_above)] {
        let outputs = lab.give(refusal(tombstone));
        assert!(!outputs.contains(&Output::Down), "unsigned, by a stranger, or not above the record: {outputs:?}");
    }
    assert!(lab.agent.report().up.is_some());
    lab.fleet.remove(0, Gone::Revoked);
    let outputs = lab.give(refusal(Some(lab.fleet.tombstone(node(0), Gone::Revoked))));
    assert!(outputs.contains(&Output::Down), "{outputs:?}");
    assert!(lab.agent.report().up.is_none());
    assert!(!lab.give(Input::Machine(Machine::default())).contains(&Output::Down), "once");
    lab.fleet.set(0, |_| {});
    let outputs = lab.give(Input::Changes(lab.fleet.full()));
    assert!(wanted_of(&outputs).is_some(), "let in again, it comes up again");
}

#[test]
fn an_appliance_of_a_lower_epoch_is_not_obeyed() {
    let mut lab = lab();
    lab.fleet.epoch = 2;
    lab.fleet.revision += 1;
    lab.up();
    lab.give(Input::Changes(lab.fleet.full()));
    let stale = Epoch { number: 1, appliance: lab.fleet.appliance_id };
    lab.agent.contact.under_way = Some(0);
    let outputs = lab.give(Input::Registered(Ok(Box::new(RegisterAnswer { epoch: stale, ..lab.answer() }))));
    assert!(warnings(&outputs)[0].contains("lower epoch 1"), "{outputs:?}");
    assert!(!lab.agent.report().reachable);
}

#[test]
fn a_new_roster_is_kept_and_an_old_or_forged_one_is_not() {
    let mut lab = lab();
    lab.up();
    lab.fleet.roster_revision = 2;
    let roster = lab.fleet.roster();
    let mut forged = roster.clone();
    forged.document = forged.document.replace("\"revision\":2", "\"revision\":3");
    for (signed, kept) in [(forged, false), (roster.clone(), true), (roster, false)] {
        lab.agent.contact.under_way = Some(0);
        let answer = RegisterAnswer { roster: Some(signed.clone()), ..lab.answer() };
        let outputs = lab.give(Input::Registered(Ok(Box::new(answer))));
        assert_eq!(outputs.contains(&Output::KeepRoster(signed)), kept);
    }
}

#[test]
fn changed_addresses_are_told_at_once() {
    let mut lab = lab();
    lab.up();
    let machine = Machine { local_endpoints: vec!["192.168.1.7:51820".parse().unwrap()], mtu: 1280 };
    let outputs = lab.give(Input::Machine(machine.clone()));
    assert_eq!((wanted_of(&outputs).unwrap().desired.mtu, registers(&outputs)), (1280, 1));
    assert_eq!(lab.give(Input::Machine(machine)), []);
}

#[test]
fn host_names_are_resolved_and_resolved_again() {
    let mut lab = lab();
    lab.fleet.set(1, |r| r.endpoints = vec!["vpn.example.org:51820".parse().unwrap()]);
    lab.agent.held.accept(&lab.fleet.trust(), &lab.fleet.full(), Extent::Full);
    let outputs = lab.up();
    assert_eq!(wanted_of(&outputs).unwrap().desired.peers[0].endpoint, None);
    let host = "vpn.example.org".to_owned();
    assert!(outputs.contains(&Output::Resolve([host.clone()].into())), "{outputs:?}");
    let outputs = lab.give(Input::Resolved(host.clone(), Some("203.0.113.7".parse().unwrap())));
    assert_eq!(wanted_of(&outputs).unwrap().desired.peers[0].endpoint, Some("203.0.113.7:51820".parse().unwrap()));
    assert_eq!(lab.give(Input::Resolved(host, None)), [], "a name that cannot be resolved keeps its address");
    let again = std::iter::repeat_with(|| lab.tick().1).take(20).flatten().any(|o| matches!(o, Output::Resolve(_)));
    assert!(again);
}

#[test]
fn the_data_plane_hears_once_a_minute_that_the_list_still_holds() {
    let mut lab = lab();
    lab.up();
    let mut told = 0;
    for _ in 0..24 {
        let answer = lab.answer();
        lab.agent.contact.under_way = Some(0);
        let outputs = lab.after(5000, Input::Registered(Ok(Box::new(answer))));
        told += usize::from(wanted_of(&outputs).is_some());
        assert_eq!(wanted_of(&outputs).is_some(), outputs.iter().any(|o| matches!(o, Output::KeepConfirmed(_))));
    }
    assert_eq!(told, 2, "in two minutes");
}

fn presents(outputs: &[Output]) -> Vec<&Presence> {
    outputs.iter().filter_map(|o| if let Output::Present(presence) = o { Some(presence) } else { None }).collect()
}

impl Lab {
    fn seen(&self) -> Seen {
        let RegisterAnswer { revision, epoch, now, .. } = self.answer();
        Seen { fleet: self.fleet.id, revision, epoch, now, register: false }
    }

    /// Up, with a certificate.
    fn certified(&mut self) {
        self.up();
        self.give(Input::Certified);
    }
}

#[test]
fn with_a_certificate_an_unchanged_heartbeat_is_a_presence() {
    let mut lab = lab();
    assert_eq!(presents(&lab.up()), Vec::<&Presence>::new());
    let (_, outputs) = lab.tick();
    assert_eq!((presents(&outputs).len(), registers(&outputs)), (0, 1), "without one it registers");
    let answer = lab.answer();
    lab.after(5, Input::Registered(Ok(Box::new(answer))));
    lab.give(Input::Certified);
    for _ in 0..3 {
        let (pause, outputs) = lab.tick();
        assert!((4..=6).contains(&pause.as_secs()));
        let registered = lab.agent.register().content();
        let held = Revision(3);
        let instance = uuid::Uuid::from_u128(7);
        let expected = Presence { instance, roster_revision: Revision(1), held_revision: held, registered };
        assert_eq!((presents(&outputs), registers(&outputs)), (vec![&expected], 0));
        let seen = lab.seen();
        lab.after(5, Input::Presented(Ok(seen)));
    }
    assert!(lab.agent.report().reachable);
}

#[test]
fn a_presence_that_is_not_enough_is_followed_by_a_register_at_once() {
    type Case = fn(&Lab) -> Result<Seen, CallError>;
    let cases: [Case; 5] = [
        |lab| Ok(Seen { register: true, ..lab.seen() }),
        |lab| Ok(Seen { fleet: state::model::FleetId(uuid::Uuid::nil()), ..lab.seen() }),
        |lab| Ok(Seen { epoch: Epoch { number: 0, ..lab.seen().epoch }, ..lab.seen() }),
        |_| Err(unreachable()),
        |_| Err(refused("certificate", 401)),
    ];
    for case in cases {
        let mut lab = lab();
        lab.certified();
        assert_eq!(presents(&lab.tick().1).len(), 1);
        let answer = case(&lab);
        let outputs = lab.after(5, Input::Presented(answer));
        assert_eq!((registers(&outputs), warnings(&outputs)), (1, vec![]), "and nothing is said of it");
        let answer = lab.answer();
        lab.after(5, Input::Registered(Ok(Box::new(answer))));
        assert_eq!(presents(&lab.tick().1).len(), 1, "afterwards a presence does again");
    }
}

#[test]
fn what_is_new_is_registered_and_a_presence_tells_of_a_longer_list() {
    let mut lab = lab();
    lab.certified();
    assert_eq!(registers(&lab.give(publish(1))), 1, "a claim");
    let answer = RegisterAnswer { services: judged(ClaimVerdict::Routed), ..lab.answer() };
    lab.after(5, Input::Registered(Ok(Box::new(answer))));
    assert_eq!(presents(&lab.tick().1).len(), 1);
    let seen = lab.seen();
    lab.after(5, Input::Presented(Ok(seen)));
    // Its own record changes: its claims may have been judged anew.
    lab.fleet.set(0, |record| record.services = vec![web(Verdict::Contested { with: vec![name("n1")] })]);
    let delta = lab.fleet.delta(3);
    lab.after(5, Input::Changes(delta));
    assert_eq!(registers(&lab.tick().1), 1);
    let answer = RegisterAnswer { services: judged(ClaimVerdict::Contested { with: vec![] }), ..lab.answer() };
    lab.after(5, Input::Registered(Ok(Box::new(answer))));
    // Twice behind by two heartbeats: the stream is dumb.
    lab.fleet.set(1, |_| {});
    let mut lists = 0;
    for _ in 0..2 {
        lab.tick();
        let seen = lab.seen();
        lists += lab.after(5, Input::Presented(Ok(seen))).iter().filter(|o| **o == Output::List).count();
    }
    assert_eq!(lists, 1);
}
