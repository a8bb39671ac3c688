//! The agent's decisions, without a socket, a file or a clock: an [`Input`] and the [`Moment`] in, [`Output`]s out.
//! `run.rs` carries them out.

mod talk;

pub use talk::{Input, Moment, Outcome, Output};

use crate::limits;
use crate::node::claims::Claims;
use crate::node::client::CallError;
use crate::node::failure::Failure;
use crate::node::held::{Accepted, Extent, Held};
use crate::node::trust::Trust;
use crate::node::wanted::{Machine, Own, Resolved, Wanted, host_names, wanted};
use crate::wire::jobs::{Presence, Seen};
use crate::wire::operator::Publish;
use crate::wire::peers::{ClaimVerdict, Envelope, Judged, PeerList, RegisterAnswer, RegisterBody};
use crate::wire::problem::Problem;
use crate::wire::signed::Signed;
use state::model::{Fingerprint, Millis, Name, Revision, SealingKey, WireguardKey};
use state::view::records::Gone;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a start waits for an appliance before the node comes up from what it holds.
const PATIENCE: Duration = Duration::from_secs(1);
/// The first pause after a failed call; doubled up to [`limits::RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(250);
/// How often host names of endpoints are resolved again.
const RESOLVE: Duration = Duration::from_secs(30);
/// How often the data plane and the disk are told that the list still holds, when nothing else is new.
const CONFIRM: Duration = Duration::from_secs(60);

/// What the agent knows of itself that never changes while it runs.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Node, interface, port.
    pub own: Own,
    /// The tunnel key.
    pub wireguard_key: WireguardKey,
    /// What credentials are sealed to.
    pub sealing_key: SealingKey,
    /// Made at random by this start.
    pub instance: uuid::Uuid,
    /// `holdfast --version`.
    pub version: String,
}

/// The agent.
pub struct Agent {
    identity: Identity,
    trust: Trust,
    held: Held,
    claims: Claims,
    /// Grows with every change of the claims.
    generation: u64,
    waiting: Vec<Waiting>,
    machine: Machine,
    resolved: Resolved,
    contact: Contact,
    stream: Stream,
    listing: bool,
    /// Whether the last register already said that there is more than is held.
    behind: bool,
    up: Option<Wanted>,
    /// Whether the mesh was taken down because this node was removed.
    down: bool,
    /// Until when a start waits for an appliance; none once the node came up.
    patience: Option<Duration>,
    resolve_at: Duration,
    /// When an appliance last confirmed what is held.
    confirmed: Millis,
    /// The same as the data plane was told it: within [`CONFIRM`].
    as_of: Millis,
    confirm_at: Duration,
    /// What was warned of, so that each is told once.
    warned: BTreeSet<String>,
}

struct Waiting {
    call: u64,
    space: Name,
    name: Name,
    generation: u64,
}

#[derive(Default)]
struct Contact {
    /// The generation of the claims in the register that is under way.
    under_way: Option<u64>,
    next: Duration,
    failures: u32,
    /// When an appliance last answered, by this run.
    last: Option<Millis>,
    /// Whether this node holds a client certificate.
    certified: bool,
    /// What the last accepted register of this run said; none if the next heartbeat must be one.
    said: Option<Fingerprint>,
    /// What the register that is under way says.
    saying: Option<Fingerprint>,
}

#[derive(Default)]
struct Stream {
    /// When to begin to hold it again; none while it is held or while no appliance answers.
    retry: Option<Duration>,
    failures: u32,
}

/// What the agent says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What it believes.
    pub trust: &'a Trust,
    /// What it holds.
    pub held: &'a Held,
    /// What it publishes.
    pub claims: &'a Claims,
    /// What the machine is to be; none while the mesh is down.
    pub up: Option<&'a Wanted>,
    /// When an appliance last confirmed what is held.
    pub confirmed: Millis,
    /// Whether the last call was answered.
    pub reachable: bool,
}

impl Agent {
    /// An agent that holds what was kept on disk. `confirmed` is when an appliance last answered an earlier run.
    pub fn new(
        identity: Identity,
        trust: Trust,
        held: Held,
        claims: Claims,
        machine: Machine,
        confirmed: Millis,
    ) -> Self {
        Self {
            identity,
            trust,
            held,
            claims,
            generation: 0,
            waiting: Vec::new(),
            machine,
            resolved: Resolved::new(),
            contact: Contact::default(),
            stream: Stream::default(),
            listing: false,
            behind: false,
            up: None,
            down: false,
            patience: None,
            resolve_at: Duration::MAX,
            confirmed,
            as_of: confirmed,
            confirm_at: Duration::ZERO,
            warned: BTreeSet::new(),
        }
    }

    /// What it knows, for people.
    pub fn report(&self) -> Report<'_> {
        Report {
            trust: &self.trust,
            held: &self.held,
            claims: &self.claims,
            up: self.up.as_ref(),
            confirmed: self.confirmed,
            reachable: self.contact.failures == 0 && self.contact.last.is_some(),
        }
    }

    /// When [`Input::Tick`] is due, as time since boot.
    pub fn deadline(&self) -> Duration {
        let register = if self.contact.under_way.is_some() { Duration::MAX } else { self.contact.next };
        register
            .min(self.stream.retry.unwrap_or(Duration::MAX))
            .min(self.patience.unwrap_or(Duration::MAX))
            .min(self.resolve_at)
    }

    /// Takes one input and says what is to be done, in this order.
    pub fn handle(&mut self, at: Moment, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Started => {
                self.patience = Some(at.boot + PATIENCE);
                self.resolve_at = at.boot;
                self.contact.next = at.boot;
            }
            Input::Tick => {}
            Input::Certified => self.contact.certified = true,
            Input::Presented(answer) => self.presented(at, answer, &mut out),
            Input::Registered(Ok(answer)) => self.registered(at, *answer, &mut out),
            Input::Registered(Err(error)) => self.not_registered(at, error, &mut out),
            Input::Changes(list) => {
                self.stream.failures = 0;
                self.accept(at, &list, Extent::Delta, &mut out);
            }
            Input::ChangesEnded => self.stream_ended(at),
            Input::Listed(Ok(list)) => {
                self.listing = false;
                self.accept(at, &list, Extent::Full, &mut out);
            }
            Input::Listed(Err(error)) => {
                self.listing = false;
                self.warn(format!("the full list could not be had: {error}"), &mut out);
            }
            Input::Machine(machine) => {
                if machine.local_endpoints != self.machine.local_endpoints {
                    self.contact.next = at.boot;
                }
                self.machine = machine;
                self.refresh(at, &mut out);
            }
            Input::Resolved(name, Some(ip)) => {
                if self.resolved.insert(name, ip) != Some(ip) {
                    self.refresh(at, &mut out);
                }
            }
            Input::Resolved(_, None) => {}
            Input::Publish { call, claim } => self.publish(at, call, claim, &mut out),
            Input::Withdraw { call, space, name } => self.withdraw(at, call, space, name, &mut out),
        }
        self.due(at, &mut out);
        out
    }

    /// Does what the time has come for.
    fn due(&mut self, at: Moment, out: &mut Vec<Output>) {
        if self.contact.under_way.is_none() && self.contact.next <= at.boot {
            self.contact.under_way = Some(self.generation);
            let register = self.register();
            let content = register.content();
            if self.contact.certified && self.contact.said == Some(content) {
                out.push(Output::Present(Presence {
                    instance: register.instance,
                    roster_revision: register.roster_revision,
                    held_revision: register.held_revision,
                    registered: content,
                }));
            } else {
                self.contact.saying = Some(content);
                out.push(Output::Register(Box::new(register)));
            }
        }
        if self.stream.retry.is_some_and(|retry| retry <= at.boot) {
            self.watch(out);
        }
        if self.patience.is_some_and(|until| until <= at.boot) {
            self.come_up_alone(at, out);
        }
        if self.resolve_at <= at.boot {
            self.resolve_at = at.boot + RESOLVE;
            let names = host_names(self.identity.own.id, &self.held);
            if !names.is_empty() {
                out.push(Output::Resolve(names));
            }
        }
    }

    fn register(&self) -> RegisterBody {
        RegisterBody {
            envelope: Envelope { seq: 0, audience: self.trust.roster().fleet, epoch: self.held.epoch() },
            instance: self.identity.instance,
            wireguard_key: self.identity.wireguard_key,
            sealing_key: self.identity.sealing_key,
            listen_port: self.identity.own.listen_port,
            endpoints: Vec::new(),
            local_endpoints: self.machine.local_endpoints.clone(),
            services: self.claims.to_wire(),
            agent_version: self.identity.version.clone(),
            roster_revision: self.trust.roster().revision,
            held_revision: self.held.revision(),
            knock: None,
        }
    }

    /// An unchanged heartbeat was answered. One that was not is no reason for anything but a register, at once.
    fn presented(&mut self, at: Moment, answer: Result<Seen, CallError>, out: &mut Vec<Output>) {
        let known = answer.ok().filter(|seen| {
            !seen.register && seen.fleet == self.trust.roster().fleet && Some(seen.epoch) >= self.held.epoch()
        });
        let Some(seen) = known else {
            self.contact.under_way = None;
            self.contact.said = None;
            self.contact.next = at.boot;
            return;
        };
        self.heard(at, seen.revision, out);
    }

    fn registered(&mut self, at: Moment, answer: RegisterAnswer, out: &mut Vec<Output>) {
        if Some(answer.epoch) < self.held.epoch() {
            let why = format!("an appliance of the lower epoch {} answered; it is not obeyed", answer.epoch.number);
            let problem = Failure::new("epoch_behind", "register", why, "").problem();
            return self.not_registered(at, CallError::Refused(Box::new(problem)), out);
        }
        let sent = self.contact.under_way.unwrap_or_default();
        self.contact.said = self.contact.saying.take().filter(|_| !answer.duplicate_identity);
        self.warned.retain(|w| !w.starts_with("register"));
        if answer.duplicate_identity {
            let text = "another machine speaks with this node's keys; stop the copy and remove its state directory";
            self.warn(text.into(), out);
        }
        if let Some(roster) = &answer.roster {
            self.accept_roster(roster, out);
        }
        self.judge(at, sent, &answer.services, out);
        self.heard(at, answer.revision, out);
    }

    /// An appliance answered a heartbeat of either kind; `revision` is that of its newest head.
    fn heard(&mut self, at: Moment, revision: Revision, out: &mut Vec<Output>) {
        let sent = self.contact.under_way.take().unwrap_or_default();
        if self.contact.failures > 0 {
            out.push(Output::Info("an appliance answers again".into()));
        }
        let back = self.contact.failures > 0 || self.contact.last.is_none();
        self.contact.failures = 0;
        self.contact.last = Some(at.wall);
        self.contact.next =
            if sent < self.generation { at.boot } else { at.boot + jittered(limits::HEARTBEAT, at.chance) };
        if back {
            self.watch(out);
        } else if revision > self.held.revision() {
            let streaming = self.stream.retry.is_none();
            if std::mem::replace(&mut self.behind, true) || !streaming {
                self.ask_for_list(out);
            }
        } else {
            self.behind = false;
        }
        self.patience = None;
        self.confirm(at, out);
        self.refresh(at, out);
    }

    /// Remembers that what is held was confirmed; tells it onwards now and then.
    fn confirm(&mut self, at: Moment, out: &mut Vec<Output>) {
        self.confirmed = at.wall;
        if self.confirm_at <= at.boot {
            self.confirm_at = at.boot + CONFIRM;
            self.as_of = at.wall;
            out.push(Output::KeepConfirmed(at.wall));
        }
    }

    fn not_registered(&mut self, at: Moment, error: CallError, out: &mut Vec<Output>) {
        self.contact.under_way = None;
        self.contact.said = None;
        self.contact.failures = self.contact.failures.saturating_add(1);
        self.contact.next = at.boot + backoff(self.contact.failures, at.chance);
        match error {
            CallError::Refused(problem) => {
                if let Some(tombstone) = &problem.tombstone {
                    self.accept_tombstone(at, tombstone, out);
                }
                if problem.code == "epoch_behind" {
                    self.ask_for_list(out);
                }
                let passing = problem.status >= 500 || problem.status == 429;
                if !passing {
                    self.contact.next = at.boot + jittered(limits::RETRY_MAX, at.chance);
                    self.answer_all(&Outcome::Failed(Problem::clone(&problem).into()), out);
                }
                let Problem { title, detail, code, .. } = *problem;
                self.warn(format!("register was refused: {title}: {detail} ({code})"), out);
            }
            CallError::Unreachable(why) => {
                self.answer_all(&Outcome::Stored, out);
                self.warn(format!("register failed: {why}"), out);
            }
            error @ (CallError::Malformed(_) | CallError::Disk(_)) => {
                self.warn(format!("register failed: {error}"), out);
            }
        }
        if self.patience.is_some() {
            self.come_up_alone(at, out);
        }
    }

    fn come_up_alone(&mut self, at: Moment, out: &mut Vec<Output>) {
        self.patience = None;
        if self.held.record(self.identity.own.id).is_some() {
            let age = Duration::from_millis(at.wall.since(self.confirmed)).as_secs();
            out.push(Output::Warn(format!("authority unreachable; up from peer list of {}", age_text(age))));
            self.refresh(at, out);
        }
    }

    fn watch(&mut self, out: &mut Vec<Output>) {
        self.stream.retry = None;
        out.push(Output::Watch { after: self.held.revision() });
    }

    fn stream_ended(&mut self, at: Moment) {
        if self.contact.failures == 0 {
            self.stream.failures = self.stream.failures.saturating_add(1);
            self.stream.retry = Some(at.boot + backoff(self.stream.failures, at.chance));
        }
    }

    fn accept(&mut self, at: Moment, list: &PeerList, extent: Extent, out: &mut Vec<Output>) {
        let own = |held: &Held| held.record(self.identity.own.id).map(|record| record.revision);
        let before = own(&self.held);
        let Accepted { changed, resync, alarms } = self.held.accept(&self.trust, list, extent);
        if own(&self.held) != before {
            // Its claims may have been judged anew, which only a register tells.
            self.contact.said = None;
        }
        for alarm in alarms {
            self.warn(alarm.to_string(), out);
        }
        if changed {
            self.confirmed = at.wall;
            self.as_of = at.wall;
            self.refresh(at, out);
            out.push(Output::KeepPeers);
        }
        if resync && extent == Extent::Delta {
            self.ask_for_list(out);
        }
    }

    fn accept_roster(&mut self, roster: &Signed, out: &mut Vec<Output>) {
        match self.trust.accept(roster) {
            Ok(true) => out.push(Output::KeepRoster(roster.clone())),
            Ok(false) => {}
            Err(error) => self.warn(error.to_string(), out),
        }
    }

    fn accept_tombstone(&mut self, at: Moment, tombstone: &Signed, out: &mut Vec<Output>) {
        match self.held.accept_tombstone(&self.trust, tombstone) {
            Ok(true) => {
                self.refresh(at, out);
                out.push(Output::KeepPeers);
            }
            Ok(false) => {}
            Err(error) => self.warn(format!("the tombstone in a refusal is not believed: {error}"), out),
        }
    }

    fn ask_for_list(&mut self, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.listing, true) {
            out.push(Output::List);
        }
    }

    /// Works out anew what the machine should be, and says so if it is different.
    fn refresh(&mut self, at: Moment, out: &mut Vec<Output>) {
        if self.patience.is_some() {
            return;
        }
        let own = self.identity.own.id;
        if self.held.record(own).is_none() && self.held.tombstone(own).is_some_and(|t| t.reason != Gone::Moved) {
            self.up = None;
            if !std::mem::replace(&mut self.down, true) {
                let text = "this node was removed from the fleet, as its signed tombstone says; its mesh is taken down";
                out.push(Output::Warn(text.into()));
                out.push(Output::Down);
            }
            return;
        }
        self.down = false;
        let own = &self.identity.own;
        let (roster, held, claims) = (self.trust.roster(), &self.held, &self.claims);
        let next = wanted(own, &self.machine, roster, held, claims, &self.resolved, self.as_of);
        let Some(next) = next.filter(|next| Some(next) != self.up.as_ref()) else { return };
        if self.up.is_none() {
            self.resolve_at = at.boot;
        }
        self.up = Some(next.clone());
        out.push(Output::Up(Box::new(next)));
    }

    fn publish(&mut self, at: Moment, call: u64, claim: Publish, out: &mut Vec<Output>) {
        let (space, name) = (claim.space.clone(), claim.name.clone());
        match self.claims.publish(claim) {
            Ok(_) => self.claims_changed(at, call, space, name, out),
            Err(failure) => out.push(Output::Answer { call, outcome: Outcome::Failed(failure) }),
        }
    }

    fn withdraw(&mut self, at: Moment, call: u64, space: Name, name: Name, out: &mut Vec<Output>) {
        if self.claims.withdraw(&space, &name).is_some() {
            return self.claims_changed(at, call, space, name, out);
        }
        let why = format!("this node does not publish {space}/{name}");
        let failure = Failure::new("not_found", "nothing was withdrawn", why, "see `holdfast agent status`");
        out.push(Output::Answer { call, outcome: Outcome::Failed(failure) });
    }

    fn claims_changed(&mut self, at: Moment, call: u64, space: Name, name: Name, out: &mut Vec<Output>) {
        self.generation += 1;
        self.waiting.push(Waiting { call, space, name, generation: self.generation });
        self.contact.next = at.boot;
        self.refresh(at, out);
    }

    /// Takes the verdicts on the claims of generation `sent`, and answers whom they concern.
    fn judge(&mut self, at: Moment, sent: u64, judged: &[Judged], out: &mut Vec<Output>) {
        let waiting = std::mem::take(&mut self.waiting);
        let (answered, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| w.generation <= sent);
        self.waiting = waiting;
        for Waiting { call, space, name, .. } in answered {
            let verdict = judged.iter().find(|j| j.space == space && j.name == name);
            let outcome = verdict.map_or(Outcome::Withdrawn, |j| Outcome::Judged(j.verdict.clone()));
            out.push(Output::Answer { call, outcome });
        }
        let mut forgotten = false;
        for Judged { space, name, verdict } in judged {
            match verdict {
                ClaimVerdict::Refused { why, .. } if sent == self.generation => {
                    out.push(Output::Warn(format!("{space}/{name} is not published: {why}")));
                    forgotten |= self.claims.withdraw(space, name).is_some();
                }
                ClaimVerdict::Contested { with } => {
                    let with: Vec<String> = with.iter().map(ToString::to_string).collect();
                    self.warn(format!("{space}/{name} is contested with {}; nobody is answered", with.join(", ")), out);
                }
                ClaimVerdict::Refused { .. } | ClaimVerdict::Routed => {}
            }
        }
        if forgotten {
            out.push(Output::KeepClaims(self.claims.to_vec()));
            self.refresh(at, out);
        }
    }

    fn answer_all(&mut self, outcome: &Outcome, out: &mut Vec<Output>) {
        let answers = self.waiting.drain(..).map(|w| Output::Answer { call: w.call, outcome: outcome.clone() });
        out.extend(answers);
    }

    /// Warns once of the same thing; what concerns registering may be told again after a success.
    fn warn(&mut self, text: String, out: &mut Vec<Output>) {
        if self.warned.len() >= WARNINGS {
            self.warned.clear();
        }
        if self.warned.insert(text.clone()) {
            out.push(Output::Warn(text));
        }
    }
}

/// Different warnings remembered so that each is told once.
const WARNINGS: usize = 256;

/// `base`, give or take a tenth.
fn jittered(base: Duration, chance: u32) -> Duration {
    base.mul_f64(0.9 + 0.2 * f64::from(chance) / f64::from(u32::MAX))
}

/// The pause after so many failures in a row: doubled each time, of which the upper half is chance.
fn backoff(failures: u32, chance: u32) -> Duration {
    let whole = RETRY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(limits::RETRY_MAX);
    whole.mul_f64(0.5 + 0.5 * f64::from(chance) / f64::from(u32::MAX))
}

fn age_text(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests;
