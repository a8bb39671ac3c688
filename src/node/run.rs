//! `holdfast agent run`: carries out what the agent decides. Starts it from the state directory, brings it the answers
//! of appliances, the kernel's news and the operator's calls, and ends promptly. Its end takes nothing down.

use crate::keys::NodeKeys;
use crate::node::agent::{Agent, Identity, Input, Moment, Outcome, Output};
use crate::node::capabilities;
use crate::node::certificate;
use crate::node::claims::Claims;
use crate::node::client::{Appliances, CallError, Client, Sequence, Signer};
use crate::node::directory::{Directory, NodeFile};
use crate::node::failure::Failure;
use crate::node::gateway::{Gateway, Gateways};
use crate::node::held::Held;
use crate::node::join::{local_endpoints, underlay};
use crate::node::kernel::underlay::Underlay;
use crate::node::kernel::wireguard::Backend;
use crate::node::knock::knock;
use crate::node::lanes::{Fence, Groups, Lanes, Setting};
use crate::node::reconcile::Reconciler;
use crate::node::socket::{self, Call};
use crate::node::trust::Trust;
use crate::node::upkeep::{self, Ask, Seen, Upkeep};
use crate::node::view::Snapshot;
use crate::node::wanted::{Machine, Own};
use crate::wire::peers::{CertificateBody, Envelope, LeaveBody};
use crate::{clock, entropy, files, limits, tasks};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

const WHAT: &str = "the agent did not start";
/// Inputs and calls that may wait: more is held back at its source.
const WAITING: usize = 64;
/// The longest sleep: what is measured since boot may have passed faster than the timer, in a suspended machine.
const NAP: Duration = Duration::from_secs(5);

/// Runs the agent of a state directory until it is told to end, on a runtime of its own: one thread, because a node has
/// other things to do.
pub fn main(dir: &Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .thread_stack_size(512 * 1024)
        .build()
        .map_err(|error| Failure::local(WHAT, error))?;
    let ended = runtime.block_on(run(dir));
    // A look-up of a host name may still hang in the C library.
    runtime.shutdown_background();
    ended
}

/// Runs the agent of a state directory until it is told to end.
pub async fn run(dir: &Path) -> Result<(), Failure> {
    let keys = NodeKeys::read(dir)?;
    let _lock = files::lock(dir, "agent")?;
    let directory = Directory::new(dir);
    clean(&directory)?;
    let mut end = End::listen()?;
    let mut node = known(&directory)?;
    if node.node.is_none() {
        tokio::select! {
            () = end.requested() => return Ok(()),
            knocked = knock(&directory, &keys, node) => knocked?,
        }
        node = known(&directory)?;
    }
    let ended = Shell::start(&directory, node, keys).await?.run(&mut end).await;
    clean(&directory)?;
    ended
}

/// What is said when the mesh was taken down on purpose.
pub const DOWN: &str = "the mesh is down on this machine; `holdfast agent run` brings it up again";

/// Takes the mesh down where no agent runs: stops the data plane and removes what is this node's from the kernel.
pub async fn down(dir: &Path) -> Result<(), Failure> {
    NodeKeys::read(dir)?;
    let _lock = files::lock(dir, "agent")?;
    let Some(node) = NodeKeys::id(dir)? else { return Ok(()) };
    let mut reconciler = Reconciler::new(dir, node).await.map_err(|error| Failure::local(upkeep::NOT_DOWN, error))?;
    upkeep::take_down(dir, &mut reconciler).await?;
    clean(&Directory::new(dir))
}

/// Removes what tells others that an agent runs here.
fn clean(directory: &Directory) -> Result<(), Failure> {
    files::remove(&directory.file("ready"))?;
    Ok(files::remove(&directory.file(socket::NAME))?)
}

fn known(directory: &Directory) -> Result<NodeFile, Failure> {
    directory.node()?.ok_or_else(|| {
        let why = format!("{} has the keys of a machine that never joined", directory.path().display());
        Failure::new("not_set_up", WHAT, why, "run `holdfast join TOKEN --state DIR` first")
    })
}

/// The signals that end the agent.
struct End {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl End {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::local(WHAT, error));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

struct Shell {
    directory: Directory,
    node: NodeFile,
    agent: Agent,
    signer: Arc<Signer>,
    client: Arc<Client>,
    /// The roster's gateways, for whoever makes the client of them.
    gateways: watch::Sender<Gateways>,
    /// The gateway's client, while this node holds a certificate.
    gateway: watch::Receiver<Option<Arc<Gateway>>>,
    /// The certificates that are asked for by the signing key.
    certificates: mpsc::Receiver<certificate::Ask>,
    lanes: Option<Lanes>,
    /// When the lanes start even if nothing has come of the mesh yet; none once they were started.
    lanes_at: Option<Duration>,
    /// Why there are none although they were started.
    no_lanes: Option<String>,
    stream: Option<JoinHandle<Option<()>>>,
    inputs: mpsc::Sender<Input>,
    arriving: mpsc::Receiver<Input>,
    calls: mpsc::Receiver<Call>,
    asks: mpsc::Sender<Ask>,
    seen: watch::Receiver<Seen>,
    backend: Backend,
    waiting: BTreeMap<u64, oneshot::Sender<Outcome>>,
    next_call: u64,
    ready: bool,
}

impl Shell {
    async fn start(directory: &Directory, node: NodeFile, keys: NodeKeys) -> Result<Self, Failure> {
        let dir = directory.path();
        let damaged = |file: &str, why: String| {
            let todo = "join again with a token of `holdfast node token NAME`";
            Failure::new("file_malformed", WHAT, format!("{}: {why}", directory.file(file).display()), todo)
        };
        let id = node.node.ok_or_else(|| damaged("node.json", "names no node".into()))?;
        let roster = directory.roster()?.ok_or_else(|| damaged("roster.json", "is not there".into()))?;
        let trust = Trust::new(node.root_key, node.fleet, roster).map_err(|e| damaged("roster.json", e.to_string()))?;
        let held = read_held(directory, &trust)?;
        let public = keys.public();
        let signer = Signer::new(keys.signing, Some(directory.mesh_token()?), Sequence::open(dir)?);
        let signer = Arc::new(signer);
        let client = Arc::new(Client::new(Appliances::from(trust.roster()), signer.clone()));
        let (gateways, known) = watch::channel(Gateways::from(trust.roster()));
        let (holding, gateway) = watch::channel(None);
        let reconciler = Reconciler::new(dir, id).await.map_err(|error| Failure::local(WHAT, error))?;
        let identity = Identity {
            own: Own {
                id,
                ifname: node.ifname.clone(),
                listen_port: node.listen_port,
                private_key_file: absolute(&NodeKeys::wireguard_file(dir))?,
            },
            wireguard_key: public.wireguard_key,
            sealing_key: public.sealing_key,
            instance: entropy::uuid(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let machine = machine(&underlay(&node.ifname).await?, &node);
        let claims = Claims::new(directory.claims()?);
        let confirmed = directory.confirmed()?.unwrap_or_default();
        let agent = Agent::new(identity, trust, held, claims, machine, confirmed);
        let (inputs, arriving) = mpsc::channel(WAITING);
        let (asks, asked) = mpsc::channel(WAITING);
        let (call, calls) = mpsc::channel(WAITING);
        let backend = reconciler.backend();
        let (upkeep, seen) = Upkeep::new(dir.to_owned(), node.ifname.clone(), reconciler);
        tasks::spawn("upkeep", upkeep.run(asked));
        socket::serve(&directory.file(socket::NAME), call, asks.clone())?;
        let (ask, certificates) = mpsc::channel(1);
        tasks::spawn("certificate", certificate::keep(dir.to_owned(), id, known, holding, ask));
        Ok(Self {
            directory: directory.clone(),
            node,
            agent,
            signer,
            client,
            gateways,
            gateway,
            certificates,
            lanes: None,
            lanes_at: Some(clock::boot() + limits::LANES_WAIT),
            no_lanes: None,
            stream: None,
            inputs,
            arriving,
            calls,
            asks,
            seen,
            backend,
            waiting: BTreeMap::new(),
            next_call: 0,
            ready: false,
        })
    }

    /// Until a signal, `agent down`, leaving, or something of somebody else in the way of the start.
    async fn run(mut self, end: &mut End) -> Result<(), Failure> {
        // Whatever is being waited for, a signal ends it.
        let ended = tokio::select! {
            () = end.requested() => Ok(()),
            ended = self.obey_all() => ended,
        };
        if let Some(lanes) = self.lanes.take() {
            lanes.end().await;
        }
        ended
    }

    async fn obey_all(&mut self) -> Result<(), Failure> {
        self.take(Input::Started).await;
        loop {
            let due = self.agent.deadline().min(self.lanes_at.unwrap_or(Duration::MAX));
            let nap = due.saturating_sub(clock::boot()).min(NAP);
            tokio::select! {
                Some(input) = self.arriving.recv() => self.take(input).await,
                Some(call) = self.calls.recv() => {
                    if self.obey(call).await {
                        return Ok(());
                    }
                }
                Ok(()) = self.seen.changed() => self.look().await?,
                Some(ask) = self.certificates.recv() => self.certify(ask),
                Ok(()) = self.gateway.changed() => {
                    if self.gateway.borrow_and_update().is_some() {
                        self.take(Input::Certified).await;
                    }
                }
                () = tokio::time::sleep(nap) => self.take(Input::Tick).await,
            }
            if self.lanes_at.is_some_and(|at| at <= clock::boot()) {
                self.start_lanes();
            }
        }
    }

    async fn take(&mut self, input: Input) {
        let chance = u32::from_ne_bytes(entropy::bytes());
        let at = Moment { boot: clock::boot(), wall: clock::wall(), chance };
        for output in self.agent.handle(at, input) {
            self.carry_out(output).await;
        }
    }

    async fn carry_out(&mut self, output: Output) {
        match output {
            Output::Register(body) => {
                let client = self.client.clone();
                self.fetch("register", async move { Input::Registered(client.register(*body).await.map(Box::new)) });
            }
            Output::Present(presence) => {
                let gateway = self.gateway.borrow().clone();
                self.fetch("presence", async move {
                    let none = || CallError::Unreachable("this node holds no client certificate".into());
                    Input::Presented(async { gateway.ok_or_else(none)?.presence(&presence).await }.await)
                });
            }
            Output::List => {
                let client = self.client.clone();
                self.fetch("list", async move { Input::Listed(client.list().await) });
            }
            Output::Watch { after } => {
                if let Some(stream) = self.stream.take() {
                    stream.abort();
                }
                let (client, inputs) = (self.client.clone(), self.inputs.clone());
                self.stream = Some(tasks::spawn("watch", async move {
                    if let Ok(mut watch) = client.watch(after).await {
                        while let Ok(Some(list)) = watch.next().await {
                            if inputs.send(Input::Changes(list)).await.is_err() {
                                return;
                            }
                        }
                    }
                    let _ = inputs.send(Input::ChangesEnded).await;
                }));
            }
            Output::Resolve(names) => self.resolve(names),
            Output::Up(wanted) => self.ask(Ask::Up(wanted)).await,
            Output::Down => {
                let (reply, _) = oneshot::channel();
                self.ask(Ask::Down(reply)).await;
            }
            Output::KeepPeers => self.kept(self.directory.keep_peers(&self.agent.report().held.write())),
            Output::KeepRoster(roster) => {
                self.kept(self.directory.keep_roster(&roster));
                let roster = self.agent.report().trust.roster();
                let appliances = Appliances::from(roster);
                let gateways = Gateways::from(roster);
                self.gateways.send_if_modified(|known| std::mem::replace(known, gateways.clone()) != gateways);
                self.client = Arc::new(Client::new(appliances, self.signer.clone()));
            }
            Output::KeepClaims(claims) => self.kept(self.directory.keep_claims(&claims)),
            Output::KeepConfirmed(at) => self.kept(self.directory.keep_confirmed(at)),
            Output::Answer { call, outcome } => {
                if let Some(reply) = self.waiting.remove(&call) {
                    // Whoever asked may have gone away.
                    let _ = reply.send(outcome);
                }
            }
            Output::Info(text) => tracing::info!("{text}"),
            Output::Warn(text) => tracing::warn!("{text}"),
        }
    }

    /// Does something in the background whose end is an input.
    fn fetch(&self, name: &'static str, work: impl Future<Output = Input> + Send + 'static) {
        let inputs = self.inputs.clone();
        tasks::spawn(name, async move {
            // Refused only when the agent ends.
            let _ = inputs.send(work.await).await;
        });
    }

    /// Asks the appliances for a certificate, by the signing key.
    fn certify(&self, ask: certificate::Ask) {
        let client = self.client.clone();
        let certificate::Ask { certificate_request, reply } = ask;
        let envelope = self.envelope();
        tasks::spawn("certificate request", async move {
            // Whoever asked ends only with the agent.
            let _ = reply.send(client.certificate(CertificateBody { envelope, certificate_request }).await);
        });
    }

    /// What a signed body begins with; the client fills in `seq`.
    fn envelope(&self) -> Envelope {
        let report = self.agent.report();
        Envelope { seq: 0, audience: report.trust.roster().fleet, epoch: report.held.epoch() }
    }

    fn resolve(&self, names: BTreeSet<String>) {
        for name in names {
            self.fetch("resolve", async move {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await;
                let first = found.ok().and_then(|mut found| found.next()).map(|socket| socket.ip());
                Input::Resolved(name, first)
            });
        }
    }

    async fn ask(&self, ask: Ask) {
        if self.asks.send(ask).await.is_err() {
            tracing::error!("nothing keeps this machine as wanted any more; restart the agent");
        }
    }

    fn kept(&self, result: Result<(), files::FileError>) {
        if let Err(error) = result {
            tracing::error!("not kept on disk, so not known after a restart: {error}");
        }
    }

    /// What the upkeep saw.
    async fn look(&mut self) -> Result<(), Failure> {
        let seen = self.seen.borrow_and_update().clone();
        if let Some(foreign) = seen.foreign {
            return Err(Failure::new("foreign", WHAT, foreign, "nothing was made or changed; start again afterwards"));
        }
        if let Some(underlay) = &seen.underlay {
            self.take(Input::Machine(machine(underlay, &self.node))).await;
        }
        if seen.up || !seen.problems.is_empty() {
            self.start_lanes();
        }
        if seen.up && !self.ready {
            self.ready = true;
            let name = &self.node.name;
            tracing::info!("the mesh is up: {name} on {}", self.node.ifname);
            files::replace(&self.directory.file("ready"), b"ready\n")?;
            if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
                tracing::warn!(%error, "the service manager was not told that the mesh is up");
            }
        }
        Ok(())
    }

    /// The lanes come last of all that a node starts: after mesh and names, or after the attempt at them, because a job may
    /// be what repairs them. Without lanes the rest goes on.
    fn start_lanes(&mut self) {
        let Some(node) = self.node.node.filter(|_| self.lanes_at.take().is_some()) else { return };
        let dir = self.directory.path();
        let groups = Groups::open(dir, node).map_err(|error| error.to_string());
        let fence = Fence::open(dir).map_err(|error| error.to_string());
        match groups.and_then(|groups| Ok((groups, fence?))) {
            Ok((groups, fence)) => {
                if !groups.are_tight() {
                    tracing::warn!(
                        "work is ended less surely here: cgroup version 2 cannot be written; mount it writable at \
                         /sys/fs/cgroup"
                    );
                }
                self.lanes = Some(Lanes::start(Setting {
                    gateway: self.gateway.clone(),
                    capabilities: capabilities::found(&groups, self.backend),
                    groups,
                    fence: fence.into(),
                    asks: self.asks.clone(),
                    program: "/proc/self/exe".into(),
                }));
            }
            Err(error) => {
                let why = format!("this node takes no jobs until its agent is restarted: {error}");
                tracing::error!("{why}");
                self.no_lanes = Some(why);
            }
        }
    }

    /// Obeys the operator. True if the agent is to end.
    async fn obey(&mut self, call: Call) -> bool {
        match call {
            Call::View(reply) => {
                let mut seen = self.seen.borrow().clone();
                seen.problems.extend(self.lanes.iter().flat_map(Lanes::halted).chain(self.no_lanes.clone()));
                let node = self.node.clone();
                let authority = self.client.answered_last();
                let _ = reply.send(Snapshot::take(&self.agent.report(), node, self.backend, seen, authority));
            }
            Call::Publish(claim, reply) => {
                let mut claims = self.agent.report().claims.clone();
                let kept = claims.publish(claim.clone()).and_then(|_| self.keep_first(&claims));
                let call = self.waits(reply);
                match kept {
                    Ok(()) => self.take(Input::Publish { call, claim }).await,
                    Err(failure) => self.carry_out(Output::Answer { call, outcome: Outcome::Failed(failure) }).await,
                }
            }
            Call::Withdraw(space, name, reply) => {
                let mut claims = self.agent.report().claims.clone();
                let kept = claims.withdraw(&space, &name).map_or(Ok(()), |_| self.keep_first(&claims));
                let call = self.waits(reply);
                match kept {
                    Ok(()) => self.take(Input::Withdraw { call, space, name }).await,
                    Err(failure) => self.carry_out(Output::Answer { call, outcome: Outcome::Failed(failure) }).await,
                }
            }
            Call::Down(reply) => return self.down(reply).await,
            Call::Leave(reply) => {
                let Some(node) = self.node.node else { return false };
                match self.client.leave(LeaveBody { envelope: self.envelope(), node }).await {
                    Ok(_) => return self.down(reply).await,
                    Err(error) => {
                        let failure = Failure::call("this node did not leave", error);
                        let _ = reply.send(Err(failure));
                    }
                }
            }
        }
        false
    }

    /// Keeps claims as they are about to be: nobody is told of a change that a restart would forget.
    fn keep_first(&self, claims: &Claims) -> Result<(), Failure> {
        let kept = self.directory.keep_claims(&claims.to_vec());
        kept.map_err(|error| Failure::local("what this node publishes was not changed", error))
    }

    fn waits(&mut self, reply: oneshot::Sender<Outcome>) -> u64 {
        self.next_call += 1;
        self.waiting.insert(self.next_call, reply);
        self.next_call
    }

    async fn down(&mut self, reply: oneshot::Sender<Result<(), Failure>>) -> bool {
        let (done, down) = oneshot::channel();
        self.ask(Ask::Down(done)).await;
        let gone = || Err(Failure::local("the mesh was not taken down", "nothing keeps this machine any more"));
        let result = down.await.unwrap_or_else(|_| gone());
        let ends = result.is_ok();
        let _ = reply.send(result);
        if ends {
            // The answer is written by another task of this thread.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ends
    }
}

fn read_held(directory: &Directory, trust: &Trust) -> Result<Held, Failure> {
    let Some(bytes) = directory.peers()? else { return Ok(Held::default()) };
    match Held::read(trust, &bytes) {
        Ok((held, alarms)) => {
            for alarm in alarms {
                tracing::warn!("peers.json: {alarm}");
            }
            Ok(held)
        }
        Err(error) => {
            tracing::warn!("peers.json is damaged and not used: {error}; the list comes from an appliance");
            Ok(Held::default())
        }
    }
}

fn machine(underlay: &Underlay, node: &NodeFile) -> Machine {
    Machine { local_endpoints: local_endpoints(&underlay.addresses, node.listen_port), mtu: underlay.mesh_mtu }
}

/// The data plane has another working directory.
fn absolute(path: &Path) -> Result<std::path::PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::local(WHAT, error))
}
