//! What a lane does, as tables: a script of inputs, and all that comes of it.

use super::*;
use crate::wire::jobs::LeasedJob;
use crate::wire::problem::Problem;
use state::model::{JobId, Revision};
use state::subject::jobs::{Probe, Spec};

const SECOND: Duration = Duration::from_secs(1);

/// A lane at a time of the test's choosing.
struct Bench {
    lane: Lane,
    boot: Duration,
    call: Option<Call>,
}

impl Bench {
    fn new(which: Which) -> Self {
        Self { lane: Lane::new(which), boot: 1000 * SECOND, call: None }
    }

    /// What comes of an input, log lines aside, in words.
    fn put(&mut self, input: Input) -> Vec<String> {
        let at = Moment { boot: self.boot, chance: u128::from(u32::MAX / 2) };
        let outputs = self.lane.handle(at, input);
        outputs.into_iter().filter_map(|output| self.word(output)).collect()
    }

    fn word(&mut self, output: Output) -> Option<String> {
        Some(match output {
            Output::Lease { call, key: _ } => {
                self.call = Some(call);
                "lease".into()
            }
            Output::Begin { job, attempt } => format!("begin {} {attempt}", job.kind),
            Output::Renew(call, _) => {
                self.call = Some(call);
                "renew".into()
            }
            Output::Log(_, line) => format!("log {line}"),
            Output::Kill => "kill".into(),
            Output::Complete(call, _, finish) => {
                self.call = Some(call);
                format!("complete {:?} {}", finish.outcome, finish.result)
            }
            Output::Stuck(call, _, why) => {
                self.call = Some(call);
                format!("stuck {why}")
            }
            Output::Ended => "ended".into(),
            Output::Halted(text) => format!("HALTED {text}"),
            Output::Error(text) => format!("ERROR {text}"),
            Output::Info(_) | Output::Warn(_) => return None,
        })
    }

    fn call(&self) -> Call {
        self.call.unwrap()
    }

    /// Lets time pass from deadline to deadline; what was done, with the second.
    fn pass(&mut self, time: Duration) -> Vec<String> {
        let until = self.boot + time;
        let mut done = Vec::new();
        while self.lane.deadline() <= until {
            self.boot = self.lane.deadline().max(self.boot);
            let second = self.boot.as_secs() - 1000;
            done.extend(self.put(Input::Tick).into_iter().map(|word| format!("{second} {word}")));
        }
        self.boot = until;
        done
    }

    /// To a job that runs, leased at second 0.
    fn working(which: Which) -> Self {
        let mut bench = Self::new(which);
        assert_eq!(bench.put(Input::Tick), ["lease"]);
        let kind = job(which).kind;
        assert_eq!(bench.leased(leased(which)), [format!("begin {kind} 1")]);
        assert_eq!(bench.put(Input::Begun(Ok(()))), Vec::<String>::new());
        bench
    }

    fn leased(&mut self, leased: Leased) -> Vec<String> {
        self.put(Input::Leased(self.call(), Ok(Some(Box::new(leased)))))
    }
}

fn job(which: Which) -> LeasedJob {
    let spec = match which {
        Which::Network => Spec::NetworkCheck {},
        Which::Workload => Spec::ServiceCheck { probe: Probe::Tcp("127.0.0.1:22".into()), timeout_s: 3 },
    };
    let (id, kind) = (JobId(uuid::Uuid::from_u128(7)), spec.kind().into());
    LeasedJob { id, kind, lane: which, spec, binding: Default::default(), cancelled: false }
}

fn leased(which: Which) -> Leased {
    Leased { job: job(which), lease_token: "ab".repeat(32), attempt: 1, expires_in_s: 45 }
}

fn refused(status: u16, code: &str) -> CallError {
    let mut problem: Problem = crate::node::failure::Failure::new(code, "what", "why", "todo").problem();
    problem.status = status;
    CallError::Refused(Box::new(problem))
}

fn silence() -> CallError {
    CallError::Unreachable("nobody".into())
}

fn finish() -> Finish {
    Finish { outcome: Outcome::Succeeded, result: json!({ "ok": true }) }
}

fn recorded() -> Recorded {
    Recorded { id: job(Which::Workload).id, status: "succeeded".into(), attempt: 1, revision: Revision(9) }
}

const NOTHING: Vec<String> = Vec::new();

#[test]
fn a_job_is_leased_renewed_each_15_s_and_answered_for() {
    let mut bench = Bench::working(Which::Workload);
    for second in [15, 30, 45] {
        assert_eq!(bench.pass(15 * SECOND), [format!("{second} renew")]);
        assert_eq!(bench.put(Input::Renewed(bench.call(), Ok(Extended { expires_in_s: 45 }))), NOTHING);
    }
    assert_eq!(bench.put(Input::Said("half".into())), ["log half"]);
    assert_eq!(bench.put(Input::Finished(finish())), [r#"complete Succeeded {"ok":true}"#]);
    assert_eq!(bench.put(Input::Completed(bench.call(), Ok(recorded()))), NOTHING);
    assert_eq!(bench.pass(Duration::ZERO), ["45 lease"], "the next job is asked for at once");
}

#[test]
fn an_idle_lane_asks_every_2_s() {
    let mut bench = Bench::new(Which::Network);
    assert_eq!(bench.put(Input::Tick), ["lease"]);
    assert_eq!(bench.put(Input::Leased(bench.call(), Ok(None))), NOTHING);
    assert_eq!(bench.pass(SECOND), NOTHING);
    assert_eq!(bench.pass(SECOND), ["2 lease"]);
}

#[test]
fn without_a_confirmed_renewal_the_work_is_killed_before_the_lease_ends() {
    let mut bench = Bench::working(Which::Workload);
    assert_eq!(bench.pass(15 * SECOND), ["15 renew"]);
    // No answer at all.
    assert_eq!(bench.pass(60 * SECOND), ["40 kill"]);
    assert_eq!(bench.put(Input::Killed(Ok(()))), NOTHING, "nothing is answered for any more");
    assert_eq!(bench.pass(3 * SECOND).len(), 1);

    // An answer that is none: asked again, and killed all the same.
    let mut bench = Bench::working(Which::Workload);
    let mut done = Vec::new();
    for _ in 0..50 {
        for word in bench.pass(SECOND) {
            if word.ends_with("renew") {
                bench.put(Input::Renewed(bench.call(), Err(silence())));
            }
            done.push(word);
        }
    }
    let (last, renewals) = done.split_last().unwrap();
    assert_eq!(last, "40 kill");
    assert!(renewals.len() > 5 && renewals.iter().all(|word| word.ends_with("renew")), "{done:?}");
}

#[test]
fn the_lease_is_counted_from_the_question() {
    // Answered after 38 s: 7 s are left, of which 5 are kept.
    let mut bench = Bench::new(Which::Workload);
    bench.put(Input::Tick);
    bench.boot += 38 * SECOND;
    assert_eq!(bench.leased(leased(Which::Workload)).len(), 1);
    assert_eq!(bench.pass(3 * SECOND), ["40 kill"], "also while it is beginning");
    // Answered too late: nothing begins.
    let mut bench = Bench::new(Which::Workload);
    bench.put(Input::Tick);
    bench.boot += 41 * SECOND;
    assert_eq!(bench.leased(leased(Which::Workload)), NOTHING);
    // A renewal sent at 15 and answered at 25 is good until 60.
    let mut bench = Bench::working(Which::Workload);
    bench.pass(15 * SECOND);
    let first = bench.call();
    bench.boot += 10 * SECOND;
    bench.put(Input::Renewed(first, Ok(Extended { expires_in_s: 45 })));
    assert_eq!(bench.pass(5 * SECOND), ["30 renew"]);
    // The late second answer to the first renewal extends nothing.
    bench.put(Input::Renewed(first, Ok(Extended { expires_in_s: 4500 })));
    assert_eq!(bench.pass(60 * SECOND), ["55 kill"]);
}

#[test]
fn what_a_refused_renewal_means() {
    let cases = [
        (refused(409, "stale_lease"), vec!["kill"]),
        (refused(409, "superseded"), vec!["kill"]),
        (refused(409, "cancelled"), vec!["kill"]),
        (refused(404, "not_found"), vec!["kill"]),
        (refused(401, "certificate"), vec!["kill"]),
        (refused(503, "busy"), vec![]),
        (refused(429, "busy"), vec![]),
        (silence(), vec![]),
        (CallError::Malformed("<html>".into()), vec![]),
    ];
    for (answer, done) in cases {
        let mut bench = Bench::working(Which::Workload);
        bench.pass(15 * SECOND);
        let told = answer.to_string();
        assert_eq!(bench.put(Input::Renewed(bench.call(), Err(answer))), done, "{told}");
    }
}

#[test]
fn a_cancel_counts_once_the_work_has_stopped() {
    let cancelled = || {
        let mut bench = Bench::working(Which::Workload);
        bench.pass(15 * SECOND);
        assert_eq!(bench.put(Input::Renewed(bench.call(), Err(refused(409, "cancelled")))), ["kill"]);
        bench
    };
    assert_eq!(cancelled().put(Input::Killed(Ok(()))), [r#"complete Failed {"stopped":true}"#]);
    let stuck = cancelled().put(Input::Killed(Err("state D".into())));
    assert!(stuck[0].starts_with("ERROR") && stuck[1] == "stuck state D", "{stuck:?}");
}

#[test]
fn a_completion_that_fails_stays_local_to_the_attempt() {
    for error in [silence(), refused(500, "internal"), refused(409, "stale_lease"), refused(401, "certificate")] {
        let mut bench = Bench::working(Which::Network);
        bench.put(Input::Finished(finish()));
        assert_eq!(bench.put(Input::Completed(bench.call(), Err(error))), NOTHING);
        let next = bench.pass(3 * SECOND);
        assert!(next.len() == 1 && next[0].ends_with("lease"), "the lane goes on: {next:?}");
    }
    // What was found is refused: that is told instead, once.
    let mut bench = Bench::working(Which::Network);
    bench.put(Input::Finished(finish()));
    let told = bench.put(Input::Completed(bench.call(), Err(refused(422, "secret"))));
    assert_eq!(told[1], r#"complete Failed {"result_refused":"secret"}"#);
    assert_eq!(bench.put(Input::Completed(bench.call(), Err(refused(422, "secret")))), NOTHING);
}

#[test]
fn a_malformed_or_misrouted_lease_stops_that_lane_alone_and_loudly() {
    let mut other = Bench::working(Which::Network);
    let mut wrong_lane = leased(Which::Network);
    wrong_lane.job.lane = Which::Workload;
    let mut wrong_kind = leased(Which::Workload);
    wrong_kind.job.kind = "network.check".into();
    let mut zero = leased(Which::Workload);
    zero.attempt = 0;
    let mut bare = leased(Which::Workload);
    bare.lease_token.clear();
    let answers = [wrong_lane, wrong_kind, zero, bare, leased(Which::Network)].map(|l| Ok(Some(Box::new(l))));
    for answer in answers.into_iter().chain([Err(CallError::Malformed("no job in it".into()))]) {
        let mut bench = Bench::new(Which::Workload);
        bench.put(Input::Tick);
        let done = bench.put(Input::Leased(bench.call(), answer));
        assert!(done.len() == 1 && done[0].starts_with("HALTED the workload lane stopped"), "{done:?}");
        assert!(bench.lane.ended());
        assert_eq!(bench.pass(1000 * SECOND), NOTHING);
    }
    assert_eq!(other.pass(15 * SECOND), ["15 renew"], "the other lane goes on");
}

#[test]
fn a_lost_answer_is_asked_for_again_by_the_same_key_while_its_lease_would_hold() {
    let mut lane = Lane::new(Which::Workload);
    let mut keys = Vec::new();
    let mut boot = 1000 * SECOND;
    for round in 0_u32..12 {
        let at = Moment { boot, chance: u128::from(round) };
        let Some(Output::Lease { call, key }) = lane.handle(at, Input::Tick).pop() else { panic!("no question") };
        keys.push((boot.as_secs() - 1000, key));
        lane.handle(Moment { boot: boot + 2 * SECOND, ..at }, Input::Leased(call, Err(silence())));
        boot = lane.deadline();
    }
    let first = keys.iter().filter(|(_, key)| *key == keys[0].1).map(|(second, _)| *second).max().unwrap();
    assert!(first < limits::LEASE_ASK_AGAIN.as_secs() && keys[11].1 != keys[0].1, "{keys:?}");
    // Refused is answered: the next question is a new one.
    let at = Moment { boot, chance: 1 << 64 };
    let Some(Output::Lease { call, key }) = lane.handle(at, Input::Tick).pop() else { panic!("no question") };
    lane.handle(at, Input::Leased(call, Err(refused(503, "busy"))));
    let at = Moment { boot: lane.deadline(), chance: 2 << 64 };
    let Some(Output::Lease { key: next, .. }) = lane.handle(at, Input::Tick).pop() else { panic!("no question") };
    assert_ne!(key, next);
}

#[test]
fn work_that_does_not_begin_is_dropped_if_stale_and_answered_for_otherwise() {
    let begun = |error| {
        let mut bench = Bench::new(Which::Workload);
        bench.put(Input::Tick);
        bench.leased(leased(Which::Workload));
        bench.put(Input::Begun(Err(error)))
    };
    assert_eq!(begun(Stale { attempt: 1, begun: 2 }.into()), NOTHING);
    assert_eq!(begun(NotBegun::Failed("no".into())), [r#"complete Retryable {"error":"no"}"#]);
    let outdated = Outdated { generation: Revision(1), seen: Revision(2) };
    assert_eq!(begun(outdated.into()), NOTHING);
    assert_eq!(begun(NotBegun::Cancelled), [r#"complete Failed {"stopped":true}"#]);
    let stuck = begun(NotBegun::Stuck("still there".into()));
    assert!(stuck[0].starts_with("ERROR service.check"), "{stuck:?}");
    assert_eq!(stuck[1], "stuck still there");
}

#[test]
fn told_to_stop_a_lane_that_has_nothing_ends_at_once() {
    let mut idle = Bench::new(Which::Workload);
    assert_eq!(idle.put(Input::Stop), ["ended"]);
    let mut asking = Bench::new(Which::Workload);
    asking.put(Input::Tick);
    assert_eq!(asking.put(Input::Stop), ["ended"]);
    let mut waiting = Bench::new(Which::Workload);
    waiting.put(Input::Tick);
    waiting.put(Input::Leased(waiting.call(), Err(silence())));
    assert_eq!(waiting.put(Input::Stop), ["ended"], "a pause after a failure does not delay it");
    let mut losing = Bench::working(Which::Workload);
    losing.pass(60 * SECOND);
    assert_eq!(losing.put(Input::Stop), NOTHING);
    assert_eq!(losing.put(Input::Killed(Ok(()))), ["ended"], "a lost attempt is not handed back");
}

const HANDED_BACK: &str = r#"complete Retryable {"error":"the agent was stopped before it was done"}"#;

#[test]
fn told_to_stop_a_lane_hands_back_what_it_had_once_nothing_of_it_runs() {
    let stopped = || {
        let mut bench = Bench::working(Which::Workload);
        assert_eq!(bench.put(Input::Stop), ["kill"]);
        assert_eq!(bench.put(Input::Stop), NOTHING, "once");
        bench
    };
    let mut answered = stopped();
    assert_eq!(answered.put(Input::Killed(Ok(()))), [HANDED_BACK]);
    assert_eq!(answered.put(Input::Completed(answered.call(), Ok(recorded()))), ["ended"]);
    // One attempt at it, and not long.
    let mut refused_ = stopped();
    refused_.put(Input::Killed(Ok(())));
    assert_eq!(refused_.put(Input::Completed(refused_.call(), Err(refused(503, "busy")))), ["ended"]);
    let mut silent = stopped();
    silent.put(Input::Killed(Ok(())));
    assert_eq!(silent.pass(limits::HAND_BACK), ["1 ended"]);
    // Unless it is sure that nothing runs nothing is handed back.
    let unsure = stopped().put(Input::Killed(Err("state D".into())));
    assert!(unsure.len() == 2 && unsure[0].starts_with("ERROR") && unsure[1] == "ended", "{unsure:?}");
    // It was just done: that is what is told.
    let mut done = stopped();
    assert_eq!(done.put(Input::Finished(finish())), [r#"complete Succeeded {"ok":true}"#]);
    assert_eq!(done.pass(limits::HAND_BACK), ["1 ended"]);
    // The same while it was beginning.
    let beginning = || {
        let mut bench = Bench::new(Which::Workload);
        bench.put(Input::Tick);
        bench.leased(leased(Which::Workload));
        assert_eq!(bench.put(Input::Stop), ["kill"]);
        bench
    };
    assert_eq!(beginning().put(Input::Killed(Ok(()))), [HANDED_BACK]);
    assert_eq!(beginning().put(Input::Begun(Err(NotBegun::Failed("no".into())))), [HANDED_BACK]);
    let stuck = beginning().put(Input::Begun(Err(NotBegun::Stuck("still there".into()))));
    assert!(stuck.len() == 2 && stuck[0].starts_with("ERROR") && stuck[1] == "ended", "{stuck:?}");
    let mut late = beginning();
    assert_eq!(late.put(Input::Begun(Ok(()))), NOTHING);
    assert_eq!(late.put(Input::Killed(Ok(()))), [HANDED_BACK]);
}

#[test]
fn told_to_stop_a_lane_waits_a_second_for_an_answer_that_is_under_way() {
    let mut bench = Bench::working(Which::Workload);
    bench.put(Input::Finished(finish()));
    assert_eq!(bench.put(Input::Stop), NOTHING);
    assert_eq!(bench.put(Input::Completed(bench.call(), Ok(recorded()))), ["ended"]);
    let mut bench = Bench::working(Which::Workload);
    bench.put(Input::Finished(finish()));
    bench.put(Input::Stop);
    assert_eq!(bench.pass(5 * SECOND), ["1 ended"]);
    // A cancelled attempt is answered for as such.
    let mut bench = Bench::working(Which::Workload);
    bench.pass(15 * SECOND);
    bench.put(Input::Renewed(bench.call(), Err(refused(409, "cancelled"))));
    assert_eq!(bench.put(Input::Stop), NOTHING);
    assert_eq!(bench.put(Input::Killed(Ok(()))), [r#"complete Failed {"stopped":true}"#]);
    assert_eq!(bench.put(Input::Completed(bench.call(), Ok(recorded()))), ["ended"]);
}

#[test]
fn work_that_ends_as_it_is_told_to_is_seen_to_have_ended() {
    let mut lost = Bench::working(Which::Workload);
    assert_eq!(lost.pass(60 * SECOND).last().unwrap(), "40 kill");
    assert_eq!(lost.put(Input::Finished(finish())), NOTHING);
    assert_eq!(lost.pass(3 * SECOND).len(), 1, "the next job is asked for");
    let mut cancelled = Bench::working(Which::Workload);
    cancelled.pass(15 * SECOND);
    cancelled.put(Input::Renewed(cancelled.call(), Err(refused(409, "cancelled"))));
    assert_eq!(cancelled.put(Input::Finished(finish())), [r#"complete Failed {"stopped":true}"#]);
    // What it started and left cannot be ended.
    let left = Bench::working(Which::Workload).put(Input::Killed(Err("state D".into())));
    assert!(left[0].starts_with("ERROR") && left[1] == "stuck state D", "{left:?}");
    // The same before it was seen to begin.
    let mut beginning = Bench::new(Which::Workload);
    beginning.put(Input::Tick);
    beginning.leased(leased(Which::Workload));
    let left = beginning.put(Input::Killed(Err("lost sight of".into())));
    assert!(left[0].starts_with("ERROR") && left[1] == "stuck lost sight of", "{left:?}");
}

#[test]
fn the_pause_that_an_appliance_asks_for_is_kept_within_reason() {
    let busy = |seconds| match refused(503, "busy") {
        CallError::Refused(problem) => {
            CallError::Refused(Box::new(Problem { retry_after: Some(seconds * SECOND), ..*problem }))
        }
        other => other,
    };
    let asks_after = |seconds| {
        let mut bench = Bench::new(Which::Workload);
        bench.put(Input::Tick);
        bench.put(Input::Leased(bench.call(), Err(busy(seconds))));
        bench.lane.deadline() - bench.boot
    };
    assert!(asks_after(0) < SECOND);
    assert!((7 * SECOND..8 * SECOND).contains(&asks_after(7)), "{:?}", asks_after(7));
    let most = limits::RETRY_AFTER_MAX;
    assert!((most..most * 11 / 10).contains(&asks_after(3600)));
    let mut bench = Bench::working(Which::Workload);
    bench.pass(15 * SECOND);
    bench.put(Input::Renewed(bench.call(), Err(busy(6))));
    assert_eq!(bench.pass(6 * SECOND), NOTHING);
    assert_eq!(bench.pass(SECOND), ["21 renew"]);
    bench.put(Input::Renewed(bench.call(), Ok(Extended { expires_in_s: 45 })));
    bench.put(Input::Finished(finish()));
    bench.put(Input::Completed(bench.call(), Err(busy(5))));
    assert_eq!(bench.pass(5 * SECOND), NOTHING);
    assert_eq!(bench.pass(SECOND), ["27 lease"]);
}
