//! One of a node's two lanes, as decisions without a socket, a process or a clock: an [`Input`] and the [`Moment`] in,
//! [`Output`]s out. `drive.rs` carries them out, and a simulator can.
//!
//! A lane is serial: ask for a job, begin it, renew its lease, answer for it. It believes its own boot-clock copy of the
//! lease's end and nothing else: counted from when the call was sent that the appliance answered, so that it lies before
//! the appliance's. Work is stopped [`limits::LEASE_MARGIN`] before that end unless a renewal was confirmed. An agent that
//! ends hands back what it had, once nothing of it runs, so that the next attempt need not wait for the lease's end.

mod descriptors;
mod drive;
mod fence;
mod group;
mod talk;
#[cfg(test)]
mod tests;

pub(super) use drive::{Lanes, Setting};
pub use fence::{Fence, Outdated, Stale};
pub use group::{Group, GroupError, Groups};
pub use talk::{Call, Finish, Input, Lease, Moment, NotBegun, Output};

use crate::limits;
use crate::node::client::CallError;
use crate::wire::jobs::{Extended, Leased, Recorded};
use serde_json::json;
use state::subject::jobs::{Lane as Which, Outcome};
use std::time::Duration;
use zeroize::Zeroizing;

/// A lane.
pub struct Lane {
    which: Which,
    phase: Phase,
    calls: u64,
    failures: u32,
    /// The last trouble told, so that it is told once.
    told: Option<String>,
    /// The agent ends: nothing new is asked for.
    stopping: bool,
    /// When a lane that stops waits no longer for the answer to its last completion.
    patience: Duration,
}

enum Phase {
    /// Asks at `next`.
    Idle { next: Duration },
    /// Asks. `first` is when the question was first sent.
    Asking { call: Call, key: u128, first: Duration },
    /// Waits to ask the same again.
    AskingAgain { key: u128, first: Duration, next: Duration },
    /// Has a job.
    Holding(Holding),
    /// Has given an attempt up and ends what may still run of it.
    Halting,
    /// Asks for nothing any more.
    Ended,
}

struct Holding {
    lease: Lease,
    kind: String,
    /// This machine's copy of the lease's end.
    until: Duration,
    renewal: Renewal,
    step: Step,
}

enum Renewal {
    /// Due then.
    At(Duration),
    /// Under way since.
    Sent(Call, Duration),
}

enum Step {
    /// The work is being started.
    Beginning,
    /// It runs.
    Working,
    /// It was cancelled and is being ended.
    Cancelling,
    /// The agent ends, and it is being ended.
    Stopping,
    /// Its end is being told.
    Completing(Call),
    /// Its result was refused, and that is being told.
    Confessing(Call),
}

impl Lane {
    /// A lane that asks at once.
    pub fn new(which: Which) -> Self {
        Self {
            which,
            phase: Phase::Idle { next: Duration::ZERO },
            calls: 0,
            failures: 0,
            told: None,
            stopping: false,
            patience: Duration::MAX,
        }
    }

    /// Which one.
    pub fn which(&self) -> Which {
        self.which
    }

    /// When to call again with [`Input::Tick`] if nothing else happens before.
    pub fn deadline(&self) -> Duration {
        match &self.phase {
            Phase::Idle { next } | Phase::AskingAgain { next, .. } => *next,
            Phase::Asking { .. } | Phase::Halting | Phase::Ended => Duration::MAX,
            Phase::Holding(held) => held.deadline().min(self.patience),
        }
    }

    /// Whether the lane asks for nothing any more and nothing of it runs.
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Takes what happened and says what is to be done. What no longer fits, such as the late answer to a call about an
    /// attempt that was given up, changes nothing.
    pub fn handle(&mut self, at: Moment, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Tick => self.tick(at, &mut out),
            Input::Leased(call, answer) => self.leased(at, call, answer, &mut out),
            Input::Begun(begun) => self.begun(at, begun, &mut out),
            Input::Said(line) => {
                if let Phase::Holding(held) = &self.phase {
                    out.push(Output::Log(held.lease.clone(), line));
                }
            }
            Input::Finished(finish) => self.finished(at, finish, &mut out),
            Input::Killed(killed) => self.killed(at, killed, &mut out),
            Input::Renewed(call, answer) => self.renewed(at, call, answer, &mut out),
            Input::Completed(call, answer) => self.completed(at, call, answer, &mut out),
            Input::Stop => self.stop(at, &mut out),
        }
        out
    }

    fn tick(&mut self, at: Moment, out: &mut Vec<Output>) {
        match &mut self.phase {
            Phase::Idle { next } if *next <= at.boot => self.ask(at.chance, at.boot, out),
            Phase::AskingAgain { key, first, next } if *next <= at.boot => {
                // A lease that was given to the first question has run since then.
                let stale = at.boot >= *first + limits::LEASE_ASK_AGAIN;
                let (key, first) = if stale { (at.chance, at.boot) } else { (*key, *first) };
                self.ask(key, first, out);
            }
            Phase::Holding(held) => {
                if self.patience <= at.boot {
                    let text = format!("the end of {} was not recorded in time: its lease is left to end", held.name());
                    out.push(Output::Warn(text));
                    return self.end(out);
                }
                if held.lost_at().is_some_and(|lost| lost <= at.boot) {
                    let why = "its lease was not renewed in time";
                    return self.lose(why, out);
                }
                if let (Step::Working, Renewal::At(due)) = (&held.step, &held.renewal)
                    && *due <= at.boot
                {
                    self.calls += 1;
                    held.renewal = Renewal::Sent(Call(self.calls), at.boot);
                    out.push(Output::Renew(Call(self.calls), held.lease.clone()));
                }
            }
            Phase::Idle { .. } | Phase::Asking { .. } | Phase::AskingAgain { .. } | Phase::Halting | Phase::Ended => {}
        }
    }

    fn ask(&mut self, key: u128, first: Duration, out: &mut Vec<Output>) {
        let call = self.call();
        self.phase = Phase::Asking { call, key, first };
        out.push(Output::Lease { call, key });
    }

    fn call(&mut self) -> Call {
        self.calls += 1;
        Call(self.calls)
    }

    fn leased(
        &mut self,
        at: Moment,
        call: Call,
        answer: Result<Option<Box<Leased>>, CallError>,
        out: &mut Vec<Output>,
    ) {
        let Phase::Asking { call: asked, key, first } = self.phase else { return };
        if call != asked {
            return;
        }
        match answer {
            Ok(leased) => {
                if self.told.take().is_some() {
                    out.push(Output::Info(format!("the {} lane gets answers again", self.name())));
                }
                self.failures = 0;
                match leased {
                    None => self.idle(at.boot + jittered(limits::LEASE_POLL, at.chance), out),
                    Some(leased) => self.take(at, first, *leased, out),
                }
            }
            Err(CallError::Malformed(why)) => self.halt(&why, out),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let next = at.boot + backoff(self.failures, at.chance).max(wished(&error, at.chance));
                self.phase =
                    if unanswered(&error) { Phase::AskingAgain { key, first, next } } else { Phase::Idle { next } };
                self.tell(format!("the {} lane gets no work: {error}", self.name()), out);
            }
        }
    }

    fn take(&mut self, at: Moment, first: Duration, leased: Leased, out: &mut Vec<Output>) {
        let Leased { job, lease_token, attempt, expires_in_s } = leased;
        let token = Zeroizing::new(lease_token);
        let fits = job.lane == self.which && job.spec.lane() == self.which && job.spec.kind() == job.kind;
        if !fits || attempt == 0 || token.is_empty() || expires_in_s == 0 {
            let (id, kind) = (job.id, job.kind);
            return self.halt(&format!("attempt {attempt} of {kind} job {id} is not of this lane, or malformed"), out);
        }
        let until = first + Duration::from_secs(expires_in_s);
        if until <= at.boot + limits::LEASE_MARGIN {
            // The answer took too long: the lease ends, and the job comes back.
            return self.idle(at.boot, out);
        }
        out.push(Output::Info(format!("{} {}: attempt {attempt} begins", job.kind, job.id)));
        let lease = Lease { job: job.id, attempt, token };
        let renewal = Renewal::At(first + limits::LEASE_RENEW);
        let kind = job.kind.clone();
        self.phase = Phase::Holding(Holding { lease, kind, until, renewal, step: Step::Beginning });
        out.push(Output::Begin { job: Box::new(job), attempt });
    }

    fn begun(&mut self, at: Moment, begun: Result<(), NotBegun>, out: &mut Vec<Output>) {
        let error = match (begun, &mut self.phase) {
            (Ok(()), Phase::Holding(held)) if matches!(held.step, Step::Beginning) => {
                held.step = Step::Working;
                return self.tick(at, out);
            }
            // It was told to end before that came.
            (Ok(()), _) => return,
            (Err(error), _) => error,
        };
        let Phase::Holding(held) = &self.phase else { return self.killed(at, not_begun(error), out) };
        if !matches!(held.step, Step::Beginning) {
            return self.killed(at, not_begun(error), out);
        }
        let name = held.name();
        match error {
            NotBegun::Stale(_) | NotBegun::Outdated(_) => {
                out.push(Output::Warn(format!("{name} did not begin: {error}")));
                self.idle(at.boot, out);
            }
            NotBegun::Stuck(why) => self.stuck(at, why, out),
            NotBegun::Cancelled => {
                self.answer(at, Finish { outcome: Outcome::Failed, result: json!({ "stopped": true }) }, out);
            }
            NotBegun::Failed(why) => {
                out.push(Output::Warn(format!("{name} did not begin: {why}")));
                self.answer(at, Finish { outcome: Outcome::Retryable, result: json!({ "error": why }) }, out);
            }
        }
    }

    fn finished(&mut self, at: Moment, finish: Finish, out: &mut Vec<Output>) {
        let Phase::Holding(held) = &self.phase else { return self.killed(at, Ok(()), out) };
        if held.until <= at.boot {
            out.push(Output::Warn(format!("{} is given up: it ended after its lease", held.name())));
            return self.idle(at.boot, out);
        }
        match held.step {
            Step::Working | Step::Stopping => self.answer(at, finish, out),
            Step::Cancelling => self.killed(at, Ok(()), out),
            Step::Beginning | Step::Completing(_) | Step::Confessing(_) => {}
        }
    }

    fn stuck(&mut self, at: Moment, why: String, out: &mut Vec<Output>) {
        let Phase::Holding(held) = &self.phase else { return };
        out.push(Output::Error(format!("{} is stuck: {why}", held.name())));
        let lease = held.lease.clone();
        let call = self.completing(at);
        out.push(Output::Stuck(call, lease, why));
    }

    fn answer(&mut self, at: Moment, finish: Finish, out: &mut Vec<Output>) {
        let Phase::Holding(held) = &self.phase else { return };
        let lease = held.lease.clone();
        let call = self.completing(at);
        out.push(Output::Complete(call, lease, finish));
    }

    /// The attempt is about to be answered for.
    fn completing(&mut self, at: Moment) -> Call {
        let call = self.call();
        if let Phase::Holding(held) = &mut self.phase {
            held.step = Step::Completing(call);
        }
        if self.stopping {
            self.patience = at.boot + limits::HAND_BACK;
        }
        call
    }

    fn renewed(&mut self, at: Moment, call: Call, answer: Result<Extended, CallError>, out: &mut Vec<Output>) {
        let Phase::Holding(held) = &mut self.phase else { return };
        let Renewal::Sent(asked, sent) = held.renewal else { return };
        if call != asked {
            return;
        }
        match answer {
            Ok(Extended { expires_in_s }) => {
                held.until = sent + Duration::from_secs(expires_in_s);
                held.renewal = Renewal::At(sent + limits::LEASE_RENEW);
                self.tick(at, out);
            }
            Err(CallError::Refused(problem)) if !passing(problem.status) => match held.step {
                Step::Working if problem.code == "cancelled" => {
                    held.step = Step::Cancelling;
                    out.push(Output::Info(format!("{} was cancelled; it is ended", held.name())));
                    out.push(Output::Kill);
                }
                Step::Beginning | Step::Working => {
                    let why = format!("{} ({})", problem.detail, problem.code);
                    self.lose(&why, out);
                }
                Step::Cancelling | Step::Stopping | Step::Completing(_) | Step::Confessing(_) => {}
            },
            Err(error) => {
                let pause = jittered(limits::LEASE_RENEW_AGAIN, at.chance).max(wished(&error, at.chance));
                held.renewal = Renewal::At(at.boot + pause);
                out.push(Output::Warn(format!("the lease of {} was not renewed: {error}", held.name())));
                self.tick(at, out);
            }
        }
    }

    /// Gives an attempt up: whatever runs is ended before anything else is done, and nothing is answered for.
    fn lose(&mut self, why: &str, out: &mut Vec<Output>) {
        let Phase::Holding(held) = &self.phase else { return };
        out.push(Output::Warn(format!("{} is given up: {why}", held.name())));
        out.push(Output::Kill);
        self.phase = Phase::Halting;
    }

    /// Nothing of the work runs any more, or why something does.
    fn killed(&mut self, at: Moment, killed: Result<(), String>, out: &mut Vec<Output>) {
        let step = match &self.phase {
            Phase::Halting => None,
            Phase::Holding(held) => Some(&held.step),
            Phase::Idle { .. } | Phase::Asking { .. } | Phase::AskingAgain { .. } | Phase::Ended => return,
        };
        match (step, killed) {
            (Some(Step::Cancelling), Ok(())) => {
                self.answer(at, Finish { outcome: Outcome::Failed, result: json!({ "stopped": true }) }, out);
            }
            (Some(Step::Stopping), Ok(())) => {
                let result = json!({ "error": "the agent was stopped before it was done" });
                self.answer(at, Finish { outcome: Outcome::Retryable, result }, out);
            }
            (Some(Step::Beginning | Step::Working | Step::Cancelling), Err(why)) => self.stuck(at, why, out),
            (None, Ok(())) => self.idle(at.boot + jittered(limits::LEASE_POLL, at.chance), out),
            // With something still running nothing is handed back: the lease ends, and the next attempt looks again.
            (None | Some(Step::Stopping), Err(why)) => {
                out.push(Output::Error(format!("work in the {} lane cannot be ended: {why}", self.name())));
                self.idle(at.boot + jittered(limits::LEASE_POLL, at.chance), out);
            }
            (Some(Step::Beginning | Step::Working), Ok(())) | (Some(Step::Completing(_) | Step::Confessing(_)), _) => {}
        }
    }

    fn completed(&mut self, at: Moment, call: Call, answer: Result<Recorded, CallError>, out: &mut Vec<Output>) {
        let next = self.call();
        let Phase::Holding(held) = &mut self.phase else { return };
        let confessed = match held.step {
            Step::Completing(asked) if asked == call => false,
            Step::Confessing(asked) if asked == call => true,
            Step::Completing(_)
            | Step::Confessing(_)
            | Step::Beginning
            | Step::Working
            | Step::Cancelling
            | Step::Stopping => return,
        };
        let name = held.name();
        match answer {
            Ok(recorded) => {
                out.push(Output::Info(format!("{name}: {}", recorded.status)));
                self.idle(at.boot, out);
            }
            Err(CallError::Refused(problem)) if problem.status == 422 && !confessed => {
                out.push(Output::Error(format!("the result of {name} was refused: {}", problem.detail)));
                held.step = Step::Confessing(next);
                let finish = Finish { outcome: Outcome::Failed, result: json!({ "result_refused": problem.code }) };
                out.push(Output::Complete(next, held.lease.clone(), finish));
            }
            Err(error) => {
                let text = format!("the end of {name} was not recorded, and its lease is left to end: {error}");
                out.push(Output::Warn(text));
                let pause = jittered(limits::LEASE_POLL, at.chance).max(wished(&error, at.chance));
                self.idle(at.boot + pause, out);
            }
        }
    }

    /// Stops this lane alone, loudly.
    fn halt(&mut self, why: &str, out: &mut Vec<Output>) {
        let name = self.name();
        let todo = "update holdfast on this machine or the appliance, then restart the agent; all else goes on";
        self.phase = Phase::Ended;
        out.push(Output::Halted(format!("the {name} lane stopped: an appliance answered it wrongly: {why}. {todo}")));
    }

    fn stop(&mut self, at: Moment, out: &mut Vec<Output>) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        match &mut self.phase {
            Phase::Holding(held) => match held.step {
                Step::Beginning | Step::Working => {
                    held.step = Step::Stopping;
                    out.push(Output::Kill);
                }
                Step::Completing(_) | Step::Confessing(_) => self.patience = at.boot + limits::HAND_BACK,
                Step::Cancelling | Step::Stopping => {}
            },
            Phase::Idle { .. } | Phase::Asking { .. } | Phase::AskingAgain { .. } => self.end(out),
            Phase::Halting | Phase::Ended => {}
        }
    }

    fn end(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Ended;
        out.push(Output::Ended);
    }

    /// Has nothing to do before `next`, or is at its end.
    fn idle(&mut self, next: Duration, out: &mut Vec<Output>) {
        self.phase = Phase::Idle { next };
        if self.stopping {
            self.end(out);
        }
    }

    fn tell(&mut self, text: String, out: &mut Vec<Output>) {
        if self.told.as_ref() != Some(&text) {
            out.push(Output::Warn(text.clone()));
            self.told = Some(text);
        }
    }

    fn name(&self) -> &'static str {
        match self.which {
            Which::Network => "network",
            Which::Workload => "workload",
        }
    }
}

impl Holding {
    fn name(&self) -> String {
        format!("{} {} (attempt {})", self.kind, self.lease.job, self.lease.attempt)
    }

    /// When the work must be ended unless a renewal comes; never, once it has ended.
    fn lost_at(&self) -> Option<Duration> {
        match self.step {
            Step::Beginning | Step::Working => Some(self.until.saturating_sub(limits::LEASE_MARGIN)),
            Step::Cancelling | Step::Stopping | Step::Completing(_) | Step::Confessing(_) => None,
        }
    }

    fn deadline(&self) -> Duration {
        let lost = self.lost_at().unwrap_or(Duration::MAX);
        match (&self.step, &self.renewal) {
            (Step::Working, Renewal::At(due)) => lost.min(*due),
            (_, Renewal::At(_) | Renewal::Sent(..)) => lost,
        }
    }
}

/// What is left running by work that was told to end before it had begun.
fn not_begun(error: NotBegun) -> Result<(), String> {
    match error {
        NotBegun::Stale(_) | NotBegun::Outdated(_) | NotBegun::Cancelled | NotBegun::Failed(_) => Ok(()),
        NotBegun::Stuck(why) => Err(why),
    }
}

/// Whether the appliance may have done what was asked although no answer came.
fn unanswered(error: &CallError) -> bool {
    match error {
        CallError::Unreachable(_) => true,
        CallError::Refused(problem) => problem.code == "outcome_unknown",
        CallError::Malformed(_) | CallError::Disk(_) => false,
    }
}

/// Whether a refusal says nothing about the lease.
const fn passing(status: u16) -> bool {
    status >= 500 || status == 429
}

/// The pause that a refusal asks for (`Retry-After`), and up to a tenth of it more so that not all come back at once.
fn wished(error: &CallError, chance: u128) -> Duration {
    match error {
        CallError::Refused(problem) => {
            let wished = problem.retry_after.unwrap_or_default().min(limits::RETRY_AFTER_MAX);
            wished.mul_f64(1.0 + 0.1 * fraction(chance))
        }
        CallError::Unreachable(_) | CallError::Malformed(_) | CallError::Disk(_) => Duration::ZERO,
    }
}

/// `base`, give or take a tenth.
fn jittered(base: Duration, chance: u128) -> Duration {
    base.mul_f64(0.9 + 0.2 * fraction(chance))
}

/// The pause after so many failures in a row: doubled each time, of which the upper half is chance.
fn backoff(failures: u32, chance: u128) -> Duration {
    let whole = limits::LEASE_RETRY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16));
    whole.min(limits::RETRY_MAX).mul_f64(0.5 + 0.5 * fraction(chance))
}

fn fraction(chance: u128) -> f64 {
    let low = u32::try_from(chance & u128::from(u32::MAX)).expect("masked to 32 bits");
    f64::from(low) / f64::from(u32::MAX)
}
