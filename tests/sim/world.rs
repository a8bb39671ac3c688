//! Time, the network between, and what goes wrong.

use crate::agent::{Act, Agent, Ask, Request};
use crate::appliance::{Answer, Appliance, Wish, told, unanswered};
use crate::chance::Chance;
use crate::fleet;
use crate::watch::{Seen, Watch};
use holdfast::limits;
use holdfast::node::lanes::{Finish, Input};
use state::model::JobId;
use state::subject::jobs::{self, Outcome, Probe, Spec};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long everything goes wrong.
const TROUBLE: Duration = Duration::from_secs(150);
/// How long after that every job must be over: five attempts, their pauses, and the slowest work each time.
const PEACE: Duration = Duration::from_secs(2 * 3600);

enum Event {
    /// A lane's deadline.
    Tick {
        agent: usize,
        life: u32,
        lane: usize,
    },
    /// A question reaches the appliance, if that is still the same start of it.
    Asked {
        request: Request,
        life: u32,
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
    Committed {
        life: u32,
    },
    Look,
    PrimaryStarts,
    AgentStarts {
        agent: usize,
    },
    /// Something goes wrong, or somebody wants something.
    Trouble,
}

pub(crate) struct World {
    now: Duration,
    chance: Chance,
    queue: BTreeMap<(Duration, u64), Event>,
    count: u64,
    appliance: Appliance,
    agents: Vec<Agent>,
    watch: Watch,
    jobs: Vec<JobId>,
    /// By agent: nothing gets through before.
    cut: Vec<Duration>,
    /// How much of the network's traffic is lost, in a hundred.
    lossy: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let appliance = Appliance::new(&mut chance);
        let lossy = chance.below(30);
        let mut world = Self {
            now: Duration::from_secs(1),
            chance,
            queue: BTreeMap::new(),
            count: 0,
            appliance,
            agents: (0..fleet::NODES).map(|_| Agent::new()).collect(),
            watch: Watch::default(),
            jobs: Vec::new(),
            cut: vec![Duration::ZERO; usize::from(fleet::NODES)],
            lossy,
        };
        for agent in 0..world.agents.len() {
            world.wake(agent);
        }
        world.after(Duration::ZERO, Event::Look);
        world.after(Duration::ZERO, Event::Trouble);
        world
    }

    /// Lives until every job is over.
    pub(crate) fn run(mut self) -> Seen {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.happen(event);
            let jobs = &self.appliance.state.jobs.all;
            // Those that the appliance did not live to commit were never queued.
            if self.now > TROUBLE && self.jobs.iter().all(|id| jobs.get(id).is_none_or(|job| job.phase.is_over())) {
                break;
            }
            assert!(self.now < TROUBLE + PEACE, "a job never ends: {:#?}", self.appliance.state.jobs);
        }
        self.appliance.check_journal();
        self.watch.seen
    }

    fn after(&mut self, wait: Duration, event: Event) {
        self.count += 1;
        self.queue.insert((self.now + wait, self.count), event);
    }

    fn trouble(&self) -> bool {
        self.now < TROUBLE
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
            Event::Asked { request, life } => {
                if self.appliance.up && self.appliance.life == life {
                    self.asked(request);
                }
            }
            Event::Begins { agent, lane, serial } => self.begins(agent, lane, serial),
            Event::Killed { agent, life, lane } => {
                if self.agents[agent].life == life {
                    self.agents[agent].work[lane] = None;
                    let input = Input::Killed(Ok(()));
                    self.after(Duration::ZERO, Event::Told { agent, life, lane, input });
                }
            }
            Event::WorkEnds { agent, lane, work, finish } => {
                if self.agents[agent].work[lane] == Some(work) {
                    self.agents[agent].work[lane] = None;
                    let (life, input) = (self.agents[agent].life, Input::Finished(finish));
                    self.after(Duration::ZERO, Event::Told { agent, life, lane, input });
                }
            }
            Event::Committed { life } => {
                if self.appliance.up && self.appliance.life == life {
                    let answers = self.appliance.commit(&mut self.watch);
                    answers.into_iter().for_each(|(request, answer)| self.answer(request, answer));
                    self.decide();
                }
            }
            Event::Look => {
                if self.appliance.up {
                    self.appliance.look(self.now);
                    self.decide();
                }
                self.after(Duration::from_secs(1), Event::Look);
            }
            Event::PrimaryStarts => {
                self.appliance.up = true;
                self.appliance.look(self.now);
            }
            Event::AgentStarts { agent } => {
                if self.agents[agent].start(self.now) {
                    self.watch.seen.orphans += 1;
                }
                self.wake(agent);
            }
            Event::Trouble => self.go_wrong(),
        }
    }

    fn wake(&mut self, agent: usize) {
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
                Act::Send { lane, call, ask } => self.send(Request { agent, life, lane, call, ask }),
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
        self.watch.begins(job, attempt, self.agents.iter().flat_map(|agent| agent.work.iter().flatten()));
        self.agents[agent].work[lane] = Some((job, attempt));
        let length = if self.chance.percent(30) { (20_000, 60_000) } else { (50, 8_000) };
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
        if !self.trouble() {
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
        let times = if self.trouble() && self.chance.percent(15) { 2 } else { 1 };
        self.watch.seen.doubled += times - 1;
        for _ in 0..times {
            if let Some(way) = self.way(agent) {
                self.after(way, Event::Asked { request: request.clone(), life: self.appliance.life });
            }
        }
    }

    fn asked(&mut self, request: Request) {
        match &request.ask {
            Ask::Renew(lease) => {
                let input = self.appliance.renew(self.now, &request, lease);
                self.reply(&request, input);
            }
            Ask::Lease { .. } if self.appliance.nothing_for(fleet::node(request.agent as u8)) => {
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
        let input = told(&request, answer);
        self.reply(&request, input);
    }

    fn reply(&mut self, request: &Request, input: Input) {
        let Request { agent, life, lane, .. } = *request;
        if let Some(way) = self.way(agent) {
            self.after(way, Event::Told { agent, life, lane, input });
        }
    }

    fn decide(&mut self) {
        let (now, agents) = (self.now, &self.agents);
        let deciding = self.appliance.decide(now, &mut self.chance, &mut |_, lease| {
            // Whoever could stop its work in time has: told or not.
            for agent in agents.iter().filter(|agent| agent.up && agent.paused <= now) {
                let runs = agent.work.contains(&Some(lease)) && now >= agent.awake + limits::LEASE_MARGIN;
                assert!(!runs, "attempt {} of {} is given back while it runs", lease.1, lease.0);
            }
        });
        if deciding {
            let most = if self.trouble() && self.chance.percent(10) { 3_000 } else { 30 };
            let wait = self.chance.millis(1, most);
            self.after(wait, Event::Committed { life: self.appliance.life });
        }
    }

    /// Something happens about once a second, and then peace comes.
    fn go_wrong(&mut self) {
        if !self.trouble() {
            self.lossy = 0;
            for n in 0..fleet::NODES {
                self.wish(jobs::Command::Undrain { name: fleet::name(n) });
            }
            return;
        }
        let agent = self.chance.below(u64::from(fleet::NODES)) as usize;
        if self.jobs.len() < 12 && self.chance.percent(40) {
            self.submit(agent);
        }
        match self.chance.below(40) {
            8 => {
                if let Some(job) = self.jobs.get(self.chance.below(12) as usize).copied() {
                    self.wish(jobs::Command::Cancel { job });
                }
            }
            9 => self.wish(jobs::Command::Drain { name: fleet::name(agent as u8), until: None }),
            10 => self.wish(jobs::Command::Undrain { name: fleet::name(agent as u8) }),
            11 if self.appliance.up => {
                self.watch.seen.restarts += 1;
                self.appliance.die(&mut self.chance, &mut self.watch);
                let wait = self.chance.millis(100, 60_000);
                self.after(wait, Event::PrimaryStarts);
            }
            12 | 13 if self.agents[agent].up && self.agents[agent].paused <= self.now => {
                self.watch.seen.pauses += 1;
                let wait = self.chance.millis(1_000, 90_000);
                self.agents[agent].paused = self.now + wait;
                self.agents[agent].awake = self.now + wait;
            }
            14 if self.agents[agent].up => {
                self.watch.seen.kills += 1;
                self.agents[agent].die();
                let wait = self.chance.millis(100, 60_000);
                self.after(wait, Event::AgentStarts { agent });
            }
            15 => {
                self.watch.seen.steps += 1;
                let hours = self.chance.below(13) as i64 - 6;
                self.appliance.wall += hours * 3_600_000;
            }
            16 => {
                self.watch.seen.cuts += 1;
                self.cut[agent] = self.now + self.chance.millis(1_000, 90_000);
            }
            _ => {}
        }
        let wait = self.chance.millis(100, 2_000);
        self.after(wait, Event::Trouble);
    }

    fn wish(&mut self, command: jobs::Command) {
        // An operator asks again until it is done.
        self.appliance.queue.push(Wish::Operator(command.into()));
        if self.appliance.up {
            self.decide();
        }
    }

    fn submit(&mut self, agent: usize) {
        if !self.appliance.up {
            return;
        }
        let id = JobId(uuid::Uuid::from_u128(self.jobs.len() as u128 + 1));
        let spec = if self.chance.percent(40) {
            Spec::NetworkCheck {}
        } else {
            Spec::ServiceCheck { probe: Probe::Tcp("127.0.0.1:22".into()), timeout_s: 5 }
        };
        let job = jobs::Wanted { id, node: fleet::node(agent as u8), spec, attempts: jobs::ATTEMPTS };
        self.wish(jobs::Command::Submit { jobs: vec![job] });
        self.jobs.push(id);
    }
}
