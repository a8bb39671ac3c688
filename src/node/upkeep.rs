//! Keeps the machine as it is wanted: the data plane told and the kernel reconciled, at once when something is new or
//! changed, and compared as a whole now and then. A task of its own, so that a slow kernel never delays a heartbeat.

use crate::dataplane::client as plane;
use crate::node::failure::Failure;
use crate::node::kernel::events;
use crate::node::kernel::underlay::Underlay;
use crate::node::kernel::wireguard::{Backend, PeerSeen};
use crate::node::reconcile::{Evidence, ReconcileError, Reconciler};
use crate::node::wanted::Wanted;
use crate::wire::dataplane::{Status, Told};
use state::model::WireguardKey;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Between two comparisons of everything when nothing happens.
const COMPARE: Duration = Duration::from_secs(30);
/// How often the data plane is asked whether it still runs, because its end takes names and proxies away; and how soon
/// everything is tried again after something was not as wanted.
const LOOK: Duration = Duration::from_secs(2);

/// What the agent asks of the upkeep.
pub(super) enum Ask {
    /// Make the machine so, from now on.
    Up(Box<Wanted>),
    /// Take everything down; the answer says what could not be.
    Down(oneshot::Sender<Result<(), Failure>>),
    /// What would be done now, one line a step.
    Plan(oneshot::Sender<Result<Vec<String>, Failure>>),
    /// All peers as the tunnel has them.
    Peers(oneshot::Sender<BTreeMap<WireguardKey, PeerSeen>>),
    /// For a job: make the machine as wanted and say what is not. Ends a withdrawal.
    Ensure(Question<Vec<String>>),
    /// For a job: what is not as wanted, one line a step.
    Check(Question<Vec<String>>),
    /// For a job: take everything down until the agent starts again or is to ensure it.
    Withdraw(Question<()>),
}

/// What a job asks. Whatever is being done for it is dropped, between two steps or in one, once it is taken back: a job
/// whose lease was lost must have no effect any more.
pub(super) struct Question<T> {
    /// Told once it is begun: what tells its end.
    begun: oneshot::Sender<oneshot::Receiver<()>>,
    reply: oneshot::Sender<Result<T, Failure>>,
}

/// The other end of a [`Question`].
pub(super) struct Asked<T> {
    begun: oneshot::Receiver<oneshot::Receiver<()>>,
    reply: oneshot::Receiver<Result<T, Failure>>,
}

/// A question, and where its answer comes.
pub(super) fn question<T>() -> (Question<T>, Asked<T>) {
    let ((begun, seen), (reply, answer)) = (oneshot::channel(), oneshot::channel());
    (Question { begun, reply }, Asked { begun: seen, reply: answer })
}

impl<T> Question<T> {
    /// Does the work that answers it.
    pub(super) async fn answer(mut self, work: impl Future<Output = Result<T, Failure>>) {
        if self.reply.is_closed() {
            return;
        }
        let (under_way, ended) = oneshot::channel();
        let _ = self.begun.send(ended);
        tokio::select! {
            biased;
            () = self.reply.closed() => {}
            done = work => {
                let _ = self.reply.send(done);
            }
        }
        drop(under_way);
    }
}

impl<T> Asked<T> {
    /// The answer.
    pub(super) async fn wait(&mut self) -> Result<T, Failure> {
        let gone = || Failure::local("the mesh was not looked at", "nothing keeps this machine any more");
        (&mut self.reply).await.unwrap_or_else(|_| Err(gone()))
    }

    /// Takes the question back: once this is over nothing is done for it, and nothing will be.
    pub(super) async fn take_back(mut self) {
        self.reply.close();
        // One that was not begun by now finds nobody who waits.
        if let Ok(ended) = self.begun.try_recv() {
            let _ = ended.await;
        }
    }
}

/// How the machine is, as far as it was last looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whether interface, address, peers and resolver are as wanted.
    pub up: bool,
    /// What is not as wanted, in words.
    pub problems: Vec<String>,
    /// The machine's networks, when they were looked at.
    pub underlay: Option<Underlay>,
    /// What somebody else holds and the start needs: the agent ends for it.
    pub foreign: Option<String>,
}

/// The upkeep of one state directory.
pub(super) struct Upkeep {
    dir: PathBuf,
    ifname: String,
    reconciler: Reconciler,
    wanted: Option<Wanted>,
    /// What the data plane with this process id was told.
    told: Option<(u32, Told)>,
    /// What is wanted again once a withdrawal ends; none while the mesh is not withdrawn.
    withdrawn: Option<Option<Wanted>>,
    /// Whether this run has already made sure that nothing of somebody else stands in the way.
    clear: bool,
    seen: watch::Sender<Seen>,
}

/// What is not as wanted while the mesh is withdrawn.
const WITHDRAWN: &str = "a job has withdrawn the mesh; a network.ensure job brings it back";

/// What could not be done when [`take_down`] fails.
pub(super) const NOT_DOWN: &str = "the mesh was not taken down whole";

/// Stops the data plane and removes what is this node's from the kernel.
pub(super) async fn take_down(dir: &Path, reconciler: &mut Reconciler) -> Result<(), Failure> {
    plane::stop(dir).await.map_err(|error| Failure::local(NOT_DOWN, format!("{error:#}")))?;
    reconciler.withdraw().await.map_err(|error| Failure::local(NOT_DOWN, error))
}

impl Upkeep {
    /// Nothing is made yet.
    pub(super) fn new(dir: PathBuf, ifname: String, reconciler: Reconciler) -> (Self, watch::Receiver<Seen>) {
        let (seen, receiver) = watch::channel(Seen::default());
        (Self { dir, ifname, reconciler, wanted: None, told: None, withdrawn: None, clear: false, seen }, receiver)
    }

    /// Runs until the agent is gone.
    pub(super) async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        let mut events = match events::Watch::open() {
            Ok(events) => Some(events),
            Err(error) => {
                tracing::warn!(%error, "changes of the kernel are seen only every 30 s");
                None
            }
        };
        let mut compare = tokio::time::interval(COMPARE);
        let mut look = tokio::time::interval(LOOK);
        loop {
            let changed = async {
                match &mut events {
                    Some(events) => events.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => return,
                },
                () = changed => self.converge().await,
                _ = compare.tick() => self.converge().await,
                _ = look.tick() => if self.troubled() { self.converge().await } else { self.look().await },
            }
        }
    }

    async fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Up(wanted) => match &mut self.withdrawn {
                Some(later) => *later = Some(*wanted),
                None => {
                    self.wanted = Some(*wanted);
                    self.converge().await;
                }
            },
            Ask::Down(reply) => {
                let down = self.down().await;
                // Whoever asked may be gone; it is down all the same.
                let _ = reply.send(down);
            }
            Ask::Plan(reply) => {
                let _ = reply.send(self.plan().await);
            }
            Ask::Peers(reply) => {
                let peers = match &self.wanted {
                    Some(wanted) => self.reconciler.peers_seen(&wanted.desired).await.unwrap_or_default(),
                    None => BTreeMap::new(),
                };
                let _ = reply.send(peers);
            }
            Ask::Ensure(question) => question.answer(self.ensure()).await,
            Ask::Check(question) => question.answer(self.check()).await,
            Ask::Withdraw(question) => question.answer(self.withdraw()).await,
        }
    }

    async fn down(&mut self) -> Result<(), Failure> {
        self.wanted = None;
        self.told = None;
        self.seen.send_modify(|seen| seen.up = false);
        take_down(&self.dir, &mut self.reconciler).await
    }

    /// Withdrawn is what was taken down whole: where that fails or is broken off, the mesh comes back.
    async fn withdraw(&mut self) -> Result<(), Failure> {
        self.told = None;
        self.seen.send_modify(|seen| seen.up = false);
        take_down(&self.dir, &mut self.reconciler).await?;
        if self.withdrawn.is_none() {
            self.withdrawn = Some(self.wanted.take());
        }
        self.converge().await;
        Ok(())
    }

    async fn check(&self) -> Result<Vec<String>, Failure> {
        match (&self.wanted, &self.withdrawn) {
            (Some(_), _) => self.plan().await,
            (None, Some(_)) => Ok(vec![WITHDRAWN.into()]),
            (None, None) => Err(nothing_wanted()),
        }
    }

    async fn ensure(&mut self) -> Result<Vec<String>, Failure> {
        if let Some(wanted) = self.withdrawn.take() {
            self.wanted = wanted;
        }
        if self.wanted.is_none() {
            return Err(nothing_wanted());
        }
        self.converge().await;
        let seen = self.seen.borrow();
        Ok(seen.problems.iter().chain(&seen.foreign).cloned().collect())
    }

    async fn plan(&self) -> Result<Vec<String>, Failure> {
        let Some(wanted) = &self.wanted else { return Ok(Vec::new()) };
        let plan = self.reconciler.plan(&wanted.desired).await;
        let plan = plan.map_err(|error| Failure::local("there is no plan", error))?;
        Ok(plan.steps.iter().map(ToString::to_string).chain(plan.waiting).collect())
    }

    /// Whether something was not as wanted when it was last looked at.
    fn troubled(&self) -> bool {
        self.wanted.is_some() && !self.seen.borrow().up
    }

    /// Starts the data plane again if it ended.
    async fn look(&mut self) {
        let Some((pid, _)) = &self.told else { return };
        match plane::status(&self.dir).await {
            Ok(Some(status)) if status.pid == *pid => {}
            Ok(Some(_) | None) => {
                tracing::warn!("the data plane ended; it is started again");
                self.converge().await;
            }
            Err(error) => tracing::warn!("{error:#}"),
        }
    }

    /// Makes data plane and kernel as wanted and tells what came of it.
    async fn converge(&mut self) {
        let underlay = self.reconciler.underlay(&self.ifname).await.ok();
        let mut seen = Seen { underlay, ..Seen::default() };
        if let Some(wanted) = self.wanted.clone() {
            if !self.clear {
                match self.reconciler.check_foreign(&wanted.desired).await {
                    Ok(()) => self.clear = true,
                    Err(ReconcileError::Foreign(found)) => {
                        seen.foreign = Some(found.to_string());
                        self.seen.send_replace(seen);
                        return;
                    }
                    // It could not even be looked.
                    Err(error) => seen.problems.push(error.to_string()),
                }
            }
            if self.clear {
                match self.make(&wanted).await {
                    Ok(problems) => seen.problems = problems,
                    Err(problem) => seen.problems.push(problem),
                }
            }
            seen.up = seen.problems.is_empty();
        } else if self.withdrawn.is_some() {
            seen.problems.push(WITHDRAWN.into());
        }
        self.seen.send_if_modified(|held| {
            for problem in seen.problems.iter().filter(|problem| !held.problems.contains(problem)) {
                tracing::warn!("{problem}");
            }
            let changed = *held != seen;
            *held = seen;
            changed
        });
    }

    async fn make(&mut self, wanted: &Wanted) -> Result<Vec<String>, String> {
        let userspace = self.reconciler.backend() == Backend::Userspace;
        let told = wanted.told(userspace);
        let mut status = self.tell(&told).await.map_err(|error| format!("{error:#}"))?;
        let mut evidence = self.reconciler.converge(&wanted.desired).await.map_err(|error| error.to_string())?;
        // The data plane looks at once when it is told: what failed for want of the interface or its address may work
        // now, and an interface that somebody deleted comes back.
        let lost = userspace && evidence.seen.link.is_none();
        if lost || !status.problems.is_empty() {
            status = plane::tell(&self.dir, told).await.map_err(|error| format!("{error:#}"))?;
            evidence = self.reconciler.converge(&wanted.desired).await.map_err(|error| error.to_string())?;
        }
        let Evidence { sent, foreign, open, seen: _ } = evidence;
        for step in &sent {
            tracing::info!("{step}");
        }
        Ok(foreign.iter().map(ToString::to_string).chain(open).chain(status.problems).collect())
    }

    /// Tells the data plane what is new to it, and gives its state.
    async fn tell(&mut self, told: &Told) -> anyhow::Result<Status> {
        let status = plane::ensure(&self.dir).await?;
        if self.told.as_ref().is_some_and(|(pid, before)| *pid == status.pid && before == told) {
            return Ok(status);
        }
        let status = plane::tell(&self.dir, told.clone()).await?;
        self.told = Some((status.pid, told.clone()));
        Ok(status)
    }
}

fn nothing_wanted() -> Failure {
    let todo = "it comes up once this node holds a peer list";
    Failure::new("not_up", "the mesh was not looked at", "the mesh of this node is down", todo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_that_is_taken_back_is_let_go_of_and_one_not_begun_never_is() {
        let (question, asked) = question::<()>();
        asked.take_back().await;
        question.answer(async { panic!("begun for nobody") }).await;

        let (question, mut asked) = super::question();
        let (held, gone) = oneshot::channel::<()>();
        let work = async move {
            // Work that takes for ever, and is seen to be dropped.
            let _held = held;
            std::future::pending::<()>().await;
            Ok(())
        };
        let upkeep = crate::tasks::spawn("upkeep", question.answer(work));
        assert!(tokio::time::timeout(Duration::from_millis(50), asked.wait()).await.is_err(), "it is under way");
        asked.take_back().await;
        let mut gone = gone;
        assert!(gone.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed), "let go of");
        upkeep.await.unwrap();
    }
}
