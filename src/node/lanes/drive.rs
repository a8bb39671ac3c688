//! Carries out what the lanes decide: calls to the gateway, work begun and ended. A task a lane, so that nothing in one
//! waits for the other.

use super::{Call, Fence, Finish, Groups, Input, Lane, Lease, Moment, NotBegun, Output, group::Group};
use crate::node::client::CallError;
use crate::node::gateway::Gateway;
use crate::node::jobs::{self, Doing};
use crate::node::upkeep::Ask;
use crate::wire::jobs::{Capability, Completion, Held, LeaseRequest, LeasedJob, LogLines};
use crate::{clock, entropy, limits, tasks};
use futures_util::future::BoxFuture;
use serde_json::json;
use state::subject::jobs::{Lane as Which, Outcome, Spec};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// Inputs of a lane that may wait.
const WAITING: usize = 16;
/// The longest sleep: what is measured since boot may have passed faster than the timer, in a suspended machine.
const NAP: Duration = Duration::from_secs(5);

/// How long what a process wrote at its end may take to be read.
const AFTER: Duration = Duration::from_millis(200);

/// What both lanes need.
pub(in crate::node) struct Setting {
    /// Whom to ask; none while this node holds no certificate.
    pub(in crate::node) gateway: watch::Receiver<Option<Arc<Gateway>>>,
    /// The machine's processes of work.
    pub(in crate::node) groups: Groups,
    /// What has begun.
    pub(in crate::node) fence: Mutex<Fence>,
    /// Who keeps this machine.
    pub(in crate::node) asks: mpsc::Sender<Ask>,
    /// The program that does work apart, given `work` as its argument.
    pub(in crate::node) program: PathBuf,
    /// What this machine can do.
    pub(in crate::node) capabilities: BTreeMap<String, Capability>,
}

/// Both lanes at work.
pub(in crate::node) struct Lanes {
    stop: watch::Sender<()>,
    halted: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<Option<()>>>,
}

impl Lanes {
    /// Ends what an earlier agent left running; then both lanes ask for work.
    pub(in crate::node) fn start(setting: Setting) -> Self {
        let setting = Arc::new(setting);
        let (stop, stopped) = watch::channel(());
        let swept = watch::Sender::new(());
        let halted = Arc::default();
        let mut tasks: Vec<_> = [Which::Network, Which::Workload]
            .into_iter()
            .map(|which| {
                let shell = Shell::new(which, setting.clone(), Arc::clone(&halted));
                let (stopped, mut begin) = (stopped.clone(), swept.subscribe());
                tasks::spawn("lane", async move {
                    let mut ends = stopped.clone();
                    tokio::select! {
                        _ = begin.changed() => shell.run(stopped).await,
                        _ = ends.changed() => {}
                    }
                })
            })
            .collect();
        tasks.push(tasks::spawn("orphans", async move {
            if let Err(error) = setting.groups.sweep().await {
                // The jobs concerned are stuck until it can be; others may go on.
                tracing::error!("work of an earlier agent is still there: {error}");
            }
            swept.send_replace(());
        }));
        Self { stop, halted, tasks }
    }

    /// Which lane stopped without having been told to, why, and what to do; none in good order.
    pub(in crate::node) fn halted(&self) -> Vec<String> {
        self.halted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends both, with all work, hands back what they had, and is done within [`limits::LANES_END`].
    pub(in crate::node) async fn end(self) {
        self.stop.send_replace(());
        let all = async {
            for task in self.tasks {
                // A lane that panicked has said so.
                let _ = task.await;
            }
        };
        if tokio::time::timeout(limits::LANES_END, all).await.is_err() {
            tracing::error!("work did not end in time; the next start of the agent ends it");
        }
    }
}

struct Shell {
    lane: Lane,
    setting: Arc<Setting>,
    halted: Arc<Mutex<Vec<String>>>,
    inputs: mpsc::Sender<Input>,
    arriving: mpsc::Receiver<Input>,
    /// Ends the work that runs.
    kill: Option<oneshot::Sender<()>>,
}

impl Shell {
    fn new(which: Which, setting: Arc<Setting>, halted: Arc<Mutex<Vec<String>>>) -> Self {
        let (inputs, arriving) = mpsc::channel(WAITING);
        Self { lane: Lane::new(which), setting, halted, inputs, arriving, kill: None }
    }

    async fn run(mut self, mut stop: watch::Receiver<()>) {
        while !self.lane.ended() {
            let nap = self.lane.deadline().saturating_sub(clock::boot()).min(NAP);
            let input = tokio::select! {
                biased;
                Ok(()) = stop.changed() => Input::Stop,
                Some(input) = self.arriving.recv() => input,
                () = tokio::time::sleep(nap) => Input::Tick,
            };
            let at = Moment { boot: clock::boot(), chance: u128::from_ne_bytes(entropy::bytes()) };
            self.lane.handle(at, input).into_iter().for_each(|output| self.carry_out(output));
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Lease { call, key } => {
                let capabilities = match self.lane.which() {
                    Which::Network => BTreeMap::new(),
                    Which::Workload => self.setting.capabilities.clone(),
                };
                let request = LeaseRequest { lane: Some(self.lane.which()), capabilities };
                self.call(move |gateway| async move {
                    let answer = async { gateway?.lease(&request, key).await }.await;
                    Some(Input::Leased(call, answer.map(|leased| leased.map(Box::new))))
                });
            }
            Output::Begin { job, attempt } => {
                let (kill, killed) = oneshot::channel();
                self.kill = Some(kill);
                let inputs = self.inputs.clone();
                let work = Work { setting: self.setting.clone(), inputs: inputs.clone(), job: *job, attempt };
                let work = tasks::spawn("work", work.run(killed));
                tasks::spawn("work's end", async move {
                    if !matches!(work.await, Ok(Some(()))) {
                        let why = "the agent lost sight of it; restart the agent, which ends it".into();
                        let _ = inputs.send(Input::Killed(Err(why))).await;
                    }
                });
            }
            Output::Renew(call, lease) => self.call(move |gateway| async move {
                let held = Held { lease_token: lease.token.to_string() };
                Some(Input::Renewed(call, async { gateway?.heartbeat(lease.job, &held).await }.await))
            }),
            Output::Log(lease, line) => self.call(move |gateway| async move {
                let lines = LogLines { lease_token: lease.token.to_string(), lines: vec![line], from: None };
                if let Err(error) = async { gateway?.log(lease.job, &lines).await }.await {
                    tracing::debug!("a line of the log of {} was not taken: {error}", lease.job);
                }
                None
            }),
            Output::Complete(call, lease, finish) => self.complete(call, lease, finish, None),
            Output::Stuck(call, lease, why) => {
                self.complete(call, lease, Finish { outcome: Outcome::Retryable, result: json!({}) }, Some(why));
            }
            Output::Kill => {
                // Work that takes no order any more has ended, and what came of it is among the inputs.
                let _ = self.kill.take().map(|kill| kill.send(()));
            }
            Output::Ended => {}
            Output::Halted(why) => {
                tracing::error!("{why}");
                self.halted.lock().unwrap_or_else(PoisonError::into_inner).push(why);
            }
            Output::Info(text) => tracing::info!("{text}"),
            Output::Warn(text) => tracing::warn!("{text}"),
            Output::Error(text) => tracing::error!("{text}"),
        }
    }

    fn complete(&self, call: Call, lease: Lease, finish: Finish, stuck: Option<String>) {
        self.call(move |gateway| async move {
            let (lease_token, attempt) = (lease.token.to_string(), lease.attempt);
            let Finish { outcome, result } = finish;
            let completion = Completion { lease_token, attempt, outcome, result, stuck };
            Some(Input::Completed(call, async { gateway?.complete(lease.job, &completion).await }.await))
        });
    }

    /// Calls the gateway in the background.
    fn call<F>(&self, call: impl FnOnce(Result<Arc<Gateway>, CallError>) -> F)
    where
        F: Future<Output = Option<Input>> + Send + 'static,
    {
        let gateway = self.setting.gateway.borrow().clone();
        let none = || CallError::Unreachable("this node holds no client certificate".into());
        let called = call(gateway.ok_or_else(none));
        let inputs = self.inputs.clone();
        tasks::spawn("gateway call", async move {
            if let Some(input) = called.await {
                // Refused only when the lane has ended.
                let _ = inputs.send(input).await;
            }
        });
    }
}

/// One attempt.
struct Work {
    setting: Arc<Setting>,
    inputs: mpsc::Sender<Input>,
    job: LeasedJob,
    attempt: u32,
}

/// What runs.
enum Running {
    /// In the agent, until it is told to stop.
    Here(BoxFuture<'static, Finish>, oneshot::Sender<()>),
    Apart(Box<Group>),
}

impl Work {
    /// Exactly one of finished, killed or not begun is told at the end, when nothing of it runs any more or it cannot be
    /// ended.
    async fn run(self, mut killed: oneshot::Receiver<()>) {
        let begun = tokio::select! {
            begun = self.begin() => begun,
            _ = &mut killed => return self.tell(Input::Killed(Ok(()))).await,
        };
        let mut running = match begun {
            Ok(running) => running,
            Err(error) => {
                killed.close();
                return self.tell(Input::Begun(Err(error))).await;
            }
        };
        self.tell(Input::Begun(Ok(()))).await;
        let finish = tokio::select! {
            finish = self.carry_on(&mut running) => Some(finish),
            _ = &mut killed => None,
        };
        let ended = match running {
            Running::Here(..) if finish.is_some() => Ok(()),
            Running::Here(work, stop) => {
                let _ = stop.send(());
                let ended = tokio::time::timeout(limits::GROUP_END, work).await;
                ended.map(drop).map_err(|_| "what keeps this machine does not let go of it".to_owned())
            }
            Running::Apart(group) => group.end().await.map_err(|error| error.to_string()),
        };
        killed.close();
        self.tell(match (finish, ended) {
            (Some(finish), Ok(())) => Input::Finished(finish),
            (_, ended) => Input::Killed(ended),
        })
        .await;
    }

    async fn begin(&self) -> Result<Running, NotBegun> {
        let failed = |error: &dyn std::fmt::Display| NotBegun::Failed(error.to_string());
        {
            let mut fence = self.setting.fence.lock().unwrap_or_else(PoisonError::into_inner);
            fence.begin(self.job.id, self.attempt).map_err(|error| failed(&error))??;
            if self.job.lane == Which::Network {
                fence.turn(self.job.binding.generation).map_err(|error| failed(&error))??;
            }
        }
        self.setting.groups.clear(self.job.id).await.map_err(|error| NotBegun::Stuck(error.to_string()))?;
        if self.job.cancelled {
            return Err(NotBegun::Cancelled);
        }
        match jobs::doing(self.job.spec.clone()) {
            Doing::Here(work) => {
                let (stop, stopped) = oneshot::channel();
                Ok(Running::Here(work(self.setting.asks.clone(), stopped), stop))
            }
            Doing::Apart(_) => {
                #[expect(clippy::disallowed_methods, reason = "work is a process of its own, so that it can be killed")]
                let mut command = Command::new(&self.setting.program);
                command.arg("work");
                let group = self.setting.groups.start(self.job.id, self.attempt, command);
                group.map(|group| Running::Apart(Box::new(group))).map_err(|error| failed(&error))
            }
        }
    }

    async fn carry_on(&self, running: &mut Running) -> Finish {
        match running {
            Running::Here(work, _) => work.await,
            Running::Apart(group) => {
                self.tell(Input::Said(format!("attempt {} runs on this node", self.attempt))).await;
                converse(group, &self.job.spec).await.unwrap_or_else(|error| jobs::retryable(error.to_string()))
            }
        }
    }

    async fn tell(&self, input: Input) {
        // Refused only when the lane has ended.
        let _ = self.inputs.send(input).await;
    }
}

/// Gives the work its specification and reads what it found.
async fn converse(group: &mut Group, spec: &Spec) -> std::io::Result<Finish> {
    let mut stdin = group.child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let stdout = group.child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    stdin.write_all(&state::to_bytes(spec)).await?;
    drop(stdin);
    let mut told = Vec::new();
    let mut stdout = stdout.take(jobs::SPEC);
    let mut reading = Box::pin(stdout.read_to_end(&mut told));
    let ended = tokio::select! {
        _ = &mut reading => group.child.wait().await?,
        ended = group.child.wait() => {
            // What it has left running may hold the pipe, and is ended next.
            let _ = tokio::time::timeout(AFTER, reading).await;
            ended?
        }
    };
    Ok(serde_json::from_slice(&told).unwrap_or_else(|_| jobs::retryable(format!("the work ended early: {ended}"))))
}

#[cfg(test)]
mod tests;
