//! What goes wrong, and what operators want meanwhile.

use crate::appliance::Wish;
use crate::fleet;
use crate::world::{Event, World};
use state::model::{JobId, Millis};
use state::subject::jobs::{self, Probe, Spec};
use state::subject::nodes::{self, RevokeTarget};
use std::time::Duration;

/// How a schedule is made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Everything goes wrong that may.
    Storm,
    /// Nothing goes wrong but that the primary dies instead of the step of this number, and what it was at becomes
    /// durable or not.
    DiesAt { step: u64, durable: bool },
}

impl Plan {
    pub(crate) const fn is_calm(self) -> bool {
        matches!(self, Self::DiesAt { .. })
    }

    /// How long new work comes in and anything goes wrong.
    pub(crate) const fn trouble(self) -> Duration {
        match self {
            Self::Storm => Duration::from_secs(200),
            Self::DiesAt { .. } => Duration::from_secs(10),
        }
    }
}

impl World {
    /// Counts a step of the appliance. True if the primary dies, or its disk fails, instead.
    pub(crate) fn step(&mut self) -> bool {
        self.steps += 1;
        match self.plan {
            Plan::Storm if self.trouble() => match (self.chance.below(400), self.chance.percent(50)) {
                (0, durable) => self.die(durable),
                (1..10, durable) => self.disk_fails(durable),
                _ => return false,
            },
            Plan::DiesAt { step, durable } if self.steps == step => self.die(durable),
            Plan::Storm | Plan::DiesAt { .. } => return false,
        }
        true
    }

    fn disk_fails(&mut self, durable: bool) {
        self.watch.seen.reopened += 1;
        self.appliance.break_off(durable, &mut self.watch);
    }

    fn die(&mut self, durable: bool) {
        self.watch.seen.restarts += 1;
        self.appliance.die(durable, &mut self.watch);
        let wait = self.chance.millis(100, 60_000);
        self.after(wait, Event::PrimaryStarts);
    }

    /// Something happens about once a second, and then peace comes.
    pub(crate) fn go_wrong(&mut self) {
        if !self.trouble() {
            self.lossy = 0;
            if !self.appliance.up {
                return self.after(Duration::from_secs(1), Event::Trouble);
            }
            for agent in 0..self.agents.len() {
                self.wish(jobs::Command::Undrain { name: self.agents[agent].identity.name() });
            }
            return;
        }
        let agent = self.chance.below(u64::from(fleet::NODES)) as usize;
        if self.jobs.len() < 16 && self.chance.percent(40) {
            self.submit(agent);
        }
        if !self.plan.is_calm() {
            self.one_of_many(agent);
        }
        let wait = self.chance.millis(100, 2_000);
        self.after(wait, Event::Trouble);
    }

    fn one_of_many(&mut self, agent: usize) {
        let name = self.agents[agent].identity.name();
        let job = self.jobs.get(self.chance.below(16) as usize).copied();
        match (self.chance.below(70), job) {
            (6, Some(job)) => self.wish(jobs::Command::Retry { job }),
            (7 | 8, Some(job)) => self.wish(jobs::Command::Cancel { job }),
            (9, _) => self.wish(jobs::Command::Drain { name, until: None }),
            (10, _) => {
                let wait = self.chance.below(40_000);
                let until = Some(Millis(self.appliance.wall(self.now).0 + wait));
                self.wish(jobs::Command::Drain { name, until });
            }
            (11 | 12 | 21..25, _) => self.wish(jobs::Command::Undrain { name }),
            (13, _) if self.appliance.up => {
                let durable = self.chance.percent(50);
                self.die(durable);
            }
            (14, _) if self.appliance.up => {
                let durable = self.chance.percent(50);
                self.disk_fails(durable);
            }
            (15 | 16 | 25..28, _) if self.agents[agent].up && self.agents[agent].paused <= self.now => {
                self.watch.seen.pauses += 1;
                let wait = self.chance.millis(1_000, 120_000);
                self.agents[agent].paused = self.now + wait;
                self.agents[agent].awake = self.now + wait;
                self.after(wait, Event::Wakes { agent });
            }
            (17, _) if self.agents[agent].up => {
                self.watch.seen.kills += 1;
                self.agents[agent].die();
                let wait = self.chance.millis(100, 60_000);
                self.after(wait, Event::AgentStarts { agent });
            }
            (18, _) => {
                self.watch.seen.steps += 1;
                let hours = self.chance.below(13) as i64 - 6;
                self.appliance.wall += hours * 3_600_000;
            }
            (19, _) => {
                self.watch.seen.cuts += 1;
                self.cut[agent] = self.now + self.chance.millis(1_000, 90_000);
            }
            (20, _) if self.agents[agent].identity.times + 1 < fleet::LIVES => {
                self.wish(nodes::Command::Revoke { target: RevokeTarget::Name(name) });
                let wait = self.chance.millis(1_000, 30_000);
                self.after(wait, Event::Rejoins { agent });
            }
            _ => {}
        }
    }

    /// A machine that was revoked is let in under its next identity; its agent starts anew once it is.
    pub(crate) fn rejoins(&mut self, agent: usize) {
        let identity = self.agents[agent].identity;
        let known = &self.appliance.state.nodes.all;
        if known.contains_key(&identity.node()) {
            // The wish to revoke it came to nothing.
            return;
        }
        let next = identity.next();
        if known.get(&next.node()).is_some_and(|node| node.member.is_some()) {
            self.watch.seen.rejoined += 1;
            if self.agents[agent].up {
                self.agents[agent].die();
                self.after(Duration::ZERO, Event::AgentStarts { agent });
            }
            self.agents[agent].identity = next;
            return;
        }
        for command in next.joins() {
            self.wish(command);
        }
        self.after(Duration::from_secs(5), Event::Rejoins { agent });
    }

    fn wish(&mut self, command: impl Into<state::Command>) {
        if self.appliance.up {
            self.appliance.queue.push(Wish::Operator(command.into()));
            self.decide();
        }
    }

    fn submit(&mut self, agent: usize) {
        let spec = match self.chance.below(20) {
            0 => Spec::NetworkEnsure {},
            1 => Spec::NetworkWithdraw {},
            2..8 => Spec::NetworkCheck {},
            _ => Spec::ServiceCheck { probe: Probe::Tcp("127.0.0.1:22".into()), timeout_s: 5 },
        };
        let node = self.agents[agent].identity.node();
        if !self.appliance.up || !self.appliance.state.nodes.all.contains_key(&node) {
            return;
        }
        let id = JobId(uuid::Uuid::from_u128(self.jobs.len() as u128 + 1));
        self.wish(jobs::Command::Submit { jobs: vec![jobs::Wanted { id, node, spec, attempts: jobs::ATTEMPTS }] });
        self.jobs.push(id);
    }
}
