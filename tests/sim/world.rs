//! Time, and the network between. What goes wrong is in `trouble.rs`.

use crate::agent::{Act, Agent, Ask, Request};
use crate::appliance::{Answer, Appliance, Wish, told, unanswered};
use crate::chance::Chance;
use crate::fleet::{self, Identity};
use crate::trouble::Plan;
use crate::watch::{Seen, Watch};
use holdfast::limits;
use holdfast::node::client::CallError;
use holdfast::node::lanes::{Finish, Input};
use state::model::JobId;
use state::subject::jobs::Outcome;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long after that every job must be over: five attempts, their pauses, and the slowest work each time.
const PEACE: Duration = Duration::from_secs(2 * 3600);

pub(crate) enum Event {
    /// A lane's deadline.
    Tick {
        agent: usize,
        life: u32,
        lane: usize,
    },
    /// A question reaches the appliance, whichever start of it that is.
    Asked {
        request: Request,
    },
    /// Something reaches a lane.
    Told {
        agent: usize,
        life: u32,
        lane: usize,
        input: Input,
    },
    Begins {
        agent: usize,
        lane: usize,
        serial: u64,
    },
    Killed {
        agent: usize,
        life: u32,
        lane: usize,
    },
    WorkEnds {
        agent: usize,
        lane: usize,
        work: (JobId, u32),
        finish: Finish,
    },
    /// What could not be ended ends.
    Ends {
        agent: usize,
        job: JobId,
    },
    Committed {
        life: u32,
    },
    Look,
    PrimaryStarts,
    AgentStarts {
        agent: usize,
    },
    /// A paused agent goes on.
    Wakes {
        agent: usize,
    },
    /// A machine whose revocation may have come about asks to be let in as somebody else.
    Rejoins {
        agent: usize,
    },
    /// Something goes wrong, or somebody wants something.
    Trouble,
}

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) chance: Chance,
    queue: BTreeMap<(Duration, u64), Event>,
    count: u64,
    pub(crate) appliance: Appliance,
    pub(crate) agents: Vec<Agent>,
    pub(crate) watch: Watch,
    pub(crate) jobs: Vec<JobId>,
    /// By agent: nothing gets through before.
    pub(crate) cut: Vec<Duration>,
    /// How much of the network's traffic is lost, in a hundred.
    pub(crate) lossy: u64,
    pub(crate) plan: Plan,
    /// Steps of the appliance so far: what has reached it, and what it has made durable.
    pub(crate) steps: u64,
    /// By agent and lane: the last question that has reached the appliance.
    arrived: [[u64; 2]; fleet::NODES as usize],
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut chance = Chance::new(seed);
        let appliance = Appliance::new(&mut chance);
        let lossy = if plan.is_calm() { 0 } else { chance.below(30) };
        let mut world = Self {
            now: Duration::from_secs(1),
            chance,
            queue: BTreeMap::new(),
            count: 0,
            appliance,
            agents: (0..fleet::NODES).map(|n| Agent::new(Identity::first(n))).collect(),
            watch: Watch::default(),
            jobs: Vec::new(),
            cut: vec![Duration::ZERO; usize::from(fleet::NODES)],
            lossy,
            plan,
            steps: 0,
            arrived: Default::default(),
        };
        for agent in 0..world.agents.len() {
            world.wake(agent);
        }
        world.after(Duration::ZERO, Event::Look);
        world.after(Duration::ZERO, Event::Trouble);
        world
    }

    /// Lives until every job is over. Gives what happened, and the steps that the appliance made.
    pub(crate) fn run(mut self) -> (Seen, u64) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.happen(event);
            let jobs = &self.appliance.state.jobs.all;
            // Those that the appliance did not live to commit were never queued.
            if !self.trouble() && self.jobs.iter().all(|id| jobs.get(id).is_none_or(|job| job.phase.is_over())) {
                break;
            }
            assert!(self.now < self.plan.trouble() + PEACE, "a job never ends: {:#?}", self.appliance.state.jobs);
        }
        self.appliance.check_journal();
        (self.watch.seen, self.steps)
    }

    pub(crate) fn after(&mut self, wait: Duration, event: Event) {
        self.count += 1;
        self.queue.insert((self.now + wait, self.count), event);
    }

    pub(crate) fn trouble(&self) -> bool {
        self.now <= self.plan.trouble()
    }

    fn happen(&mut self, event: Event) {
        if let Event::Tick { agent, .. } | Event::Told { agent, .. } | Event::Begins { agent, .. } = &event
            && self.agents[*agent].paused > self.now
        {
            return self.after(self.agents[*agent].paused - self.now, event);
        }
        match event {
            Event::Tick { agent, life, lane } => {
                let held = &self.agents[agent];
                if held.up && held.life == life && held.lanes[lane].deadline() <= self.now {
                    self.tell(agent, lane, Input::Tick);
                }
            }
            Event::Told { agent, life, lane, input } => {
                if self.agents[agent].up && self.agents[agent].life == life {
                    self.tell(agent, lane, input);
                }
            }
            Event::Asked { request } => {
                if self.appliance.up && !self.step() {
                    self.asked(request);
                }
            }
            Event::Begins { agent, lane, serial } => self.begins(agent, lane, serial),
            Event::Killed { agent, life, lane } => {
                if self.agents[agent].life == life {
                    let work = self.agents[agent].work[lane].take();
                    let stays = work.filter(|_| self.trouble() && self.chance.percent(30));
                    if let Some((job, attempt)) = stays {
                        self.watch.seen.stuck += 1;
                        self.agents[agent].remains.insert(job, attempt);
                        let wait = self.chance.millis(1_000, 90_000);
                        self.after(wait, Event::Ends { agent, job });
                    }
                    let input = Input::Killed(stays.map_or(Ok(()), |_| Err("it does not end".into())));
                    self.after(Duration::ZERO, Event::Told { agent, life, lane, input });
                }
            }
            Event::Ends { agent, job } => {
                self.agents[agent].remains.remove(&job);
            }
            Event::WorkEnds { agent, lane, work, finish } => {
                if self.agents[agent].work[lane] == Some(work) {
                    self.agents[agent].work[lane] = None;
                    let (life, input) = (self.agents[agent].life, Input::Finished(finish));
                    if self.agents[agent].up {
                        self.after(Duration::ZERO, Event::Told { agent, life, lane, input });
                    }
                }
            }
            Event::Committed { life } => {
                if self.appliance.up && self.appliance.life == life && !self.step() {
                    let answers = self.appliance.commit(&mut self.watch);
                    answers.into_iter().for_each(|(request, answer)| self.answer(request, answer));
                    self.decide();
                }
            }
            Event::Look => {
                self.watch.looks(self.now, self.agents.iter());
                if self.appliance.up {
                    self.watch.reaps(self.now);
                    self.appliance.look(self.now);
                    self.decide();
                }
                self.after(Duration::from_secs(1), Event::Look);
            }
            Event::PrimaryStarts => {
                self.appliance.up = true;
                self.appliance.look(self.now);
                self.watch.started(self.now);
            }
            Event::AgentStarts { agent } if self.agents[agent].up => {}
            Event::AgentStarts { agent } => {
                if self.agents[agent].start(self.now) {
                    self.watch.seen.orphans += 1;
                }
                self.wake(agent);
            }
            Event::Wakes { agent } => self.watch.wakes(self.now, &self.agents[agent]),
            Event::Rejoins { agent } => self.rejoins(agent),
            Event::Trouble => self.go_wrong(),
        }
    }

    pub(crate) fn wake(&mut self, agent: usize) {
        let life = self.agents[agent].life;
        for lane in 0..2 {
            self.after(Duration::ZERO, Event::Tick { agent, life, lane });
        }
    }

    fn tell(&mut self, agent: usize, lane: usize, input: Input) {
        let life = self.agents[agent].life;
        let acts = self.agents[agent].handle(self.now, &mut self.chance, lane, input);
        for act in acts {
            match act {
                Act::Begin { lane, serial } => {
                    let wait = self.chance.millis(1, 1_500);
                    self.after(wait, Event::Begins { agent, lane, serial });
                }
                Act::Kill { lane } => {
                    let wait = self.chance.millis(1, 2_000);
                    self.after(wait, Event::Killed { agent, life, lane });
                }
                Act::Send { lane, call, ask } => {
                    self.count += 1;
                    let (by, sent) = (self.agents[agent].identity, self.count);
                    self.send(Request { agent, by, sent, life, lane, call, ask });
                }
                Act::Tell { lane, input } => self.after(Duration::ZERO, Event::Told { agent, life, lane, input }),
            }
        }
        let deadline = self.agents[agent].lanes[lane].deadline();
        if deadline != Duration::MAX {
            self.after(deadline.saturating_sub(self.now), Event::Tick { agent, life, lane });
        }
    }

    fn begins(&mut self, agent: usize, lane: usize, serial: u64) {
        let Some((job, attempt, _)) = self.agents[agent].starting[lane].filter(|(_, _, of)| *of == serial) else {
            return;
        };
        // The machine has seen that nothing of an earlier attempt runs in this lane.
        self.agents[agent].starting[lane] = None;
        self.agents[agent].work[lane] = None;
        self.watch.begins(job, attempt, self.agents.iter().flat_map(Agent::running));
        self.agents[agent].work[lane] = Some((job, attempt));
        let length = match self.chance.below(10) {
            0..7 => (50, 8_000),
            7..9 => (20_000, 60_000),
            _ => (60_000, 200_000),
        };
        let wait = self.chance.millis(length.0, length.1);
        let outcome = match self.chance.below(10) {
            0..6 => Outcome::Succeeded,
            6 => Outcome::Failed,
            _ => Outcome::Retryable,
        };
        let finish = Finish { outcome, result: serde_json::json!({ "n": self.chance.below(1_000) }) };
        self.after(wait, Event::WorkEnds { agent, lane, work: (job, attempt), finish });
        self.tell(agent, lane, Input::Begun(Ok(())));
    }

    /// How long a message is on its way; none if it is lost.
    fn way(&mut self, agent: usize) -> Option<Duration> {
        if !self.trouble() || self.plan.is_calm() {
            return Some(self.chance.millis(1, 20));
        }
        if self.cut[agent] > self.now || self.chance.percent(self.lossy) {
            self.watch.seen.lost += 1;
            return None;
        }
        let most = match self.chance.below(100) {
            0..80 => 300,
            80..97 => 30_000,
            _ => 120_000,
        };
        Some(self.chance.millis(1, most))
    }

    fn send(&mut self, request: Request) {
        let Request { agent, life, lane, .. } = request;
        self.after(limits::REQUEST, Event::Told { agent, life, lane, input: unanswered(&request) });
        for _ in 0..self.times() {
            if let Some(way) = self.way(agent) {
                self.after(way, Event::Asked { request: request.clone() });
            }
        }
    }

    fn asked(&mut self, request: Request) {
        let last = &mut self.arrived[request.agent][request.lane];
        self.watch.seen.reordered += u64::from(request.sent < *last);
        *last = request.sent.max(*last);
        match &request.ask {
            Ask::Renew(lease) => {
                let extended = self.appliance.renew(self.now, &request, lease, &mut self.watch);
                self.reply(&request, || Input::Renewed(request.call, extended.clone().map_err(CallError::Refused)));
            }
            Ask::Lease { .. } if self.appliance.nothing_for(request.by.node()) => {
                self.answer(request, Answer::Nothing);
            }
            Ask::Lease { .. } | Ask::Complete(..) => {
                self.appliance.queue.push(Wish::Ask(request));
                self.decide();
            }
        }
    }

    fn answer(&mut self, request: Request, answer: Answer) {
        match &answer {
            Answer::Refused(_) => self.watch.seen.refused += 1,
            Answer::Recorded(recorded) if recorded.revision < self.appliance.state.revision => {
                self.watch.seen.repeated += 1;
            }
            Answer::Recorded(_) | Answer::Leased { .. } | Answer::Nothing => {}
        }
        self.reply(&request, || told(&request, answer.clone()));
    }

    /// Sends an answer, sometimes twice.
    fn reply(&mut self, request: &Request, input: impl Fn() -> Input) {
        let Request { agent, life, lane, .. } = *request;
        for _ in 0..self.times() {
            if let Some(way) = self.way(agent) {
                self.after(way, Event::Told { agent, life, lane, input: input() });
            }
        }
    }

    /// How often a message arrives.
    fn times(&mut self) -> u64 {
        let times = if self.trouble() && !self.plan.is_calm() && self.chance.percent(15) { 2 } else { 1 };
        self.watch.seen.doubled += times - 1;
        times
    }

    pub(crate) fn decide(&mut self) {
        let deciding = self.appliance.decide(self.now, &mut self.chance, &mut self.watch, &self.agents);
        if deciding {
            let most = if self.trouble() && self.chance.percent(20) { 3_000 } else { 30 };
            let wait = self.chance.millis(1, most);
            self.after(wait, Event::Committed { life: self.appliance.life });
        }
    }
}
