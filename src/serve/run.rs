//! `holdfast init` and `holdfast serve`: what is started, in which order, and how it ends.

use crate::authority::Authority;
use crate::authority::records::Records;
use crate::config::Config;
use crate::listen::serve_local;
use crate::listen::stop::{self, Stop};
use crate::serve::accept::{bind, serve_tls, stranger};
use crate::serve::appliance::Appliance;
use crate::serve::gate::Gate;
use crate::serve::observed::Observed;
use crate::serve::sources::{self, Sources};
use crate::serve::{found, gateway, leases, mesh, names, operator, own_node, page, scrub, tls, verdicts};
use crate::{clock, files, limits, tasks};
use anyhow::Context as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

/// Where an appliance keeps its state, and how it is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state directory.
    pub state: PathBuf,
    /// Everything else.
    pub config: Config,
}

/// The file of the recovery identity where no other was named.
pub const RECOVERY: &str = "recovery.txt";

/// Founds a fleet in an empty directory and gives the pin of its appliance. A directory that holds one is refused.
/// Where no file is named, the recovery identity goes into the directory itself.
pub fn init(options: &Options, recovery: Option<&Path>) -> anyhow::Result<state::model::Fingerprint> {
    let Options { state: dir, config } = options;
    let recovery = recovery.map_or_else(|| dir.join(RECOVERY), Path::to_owned);
    runtime()?.block_on(async {
        let opened = found::open(dir, config, &recovery).await?;
        opened.handle.close().await;
        if opened.founded {
            return Ok(opened.keys.pin());
        }
        Err(state::Refusal::new(
            state::Code::Conflict,
            "no fleet was founded",
            format!("{} holds one already", dir.display()),
            "start it with `holdfast serve`, or give another directory",
        )
        .into())
    })
}

/// Serves until SIGTERM or SIGINT. An empty directory is initialised first.
pub fn run(options: &Options) -> anyhow::Result<()> {
    runtime()?.block_on(serve(options))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    runtime.context("starting the runtime")
}

async fn serve(options: &Options) -> anyhow::Result<()> {
    let Options { state: dir, config } = options;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Ports first: a taken one is found out before anything is made.
    let mesh_listener = bind(SocketAddr::new(config.listen, config.ports.mesh))?;
    let gateway_listener = bind(SocketAddr::new(config.listen, config.ports.gateway))?;
    let page_listener = bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), config.ports.page))?;
    let opened = found::open(dir, config, &dir.join(RECOVERY)).await?;
    let found::Opened { keys, id, handle, advertised, lock, founded: _ } = opened;
    let ready = dir.join("ready");
    files::remove(&ready)?;
    let (leaf, key) = (keys.tls.certificate.clone(), &keys.tls.key);
    let acceptor: TlsAcceptor = tls::server_config(leaf.clone(), key.der())?.into();
    let pin = keys.pin();
    let records = Records::new(keys.signing.clone(), id);
    let authority = Authority::new(records, keys.ca, config.certificate_life, clock::boot());
    let since = clock::wall();
    let sources = Sources::open(dir, config.source_slots)?;
    let observed = Observed::default();
    let appliance = Arc::new(Appliance { handle, authority, sources, id, pin, advertised, since, observed });
    let (stopper, stop) = stop::pair();
    let mutual: TlsAcceptor = gateway::tls_config(appliance.clone(), leaf, key.der())?.into();
    let mut running = vec![
        tasks::spawn(
            "gateway listener",
            serve_tls(
                gateway_listener,
                mutual,
                gateway::router(appliance.clone()),
                Arc::new(Gate::default()),
                gateway::Client::of,
                stop.clone(),
            ),
        ),
        tasks::spawn(
            "mesh listener",
            serve_tls(
                mesh_listener,
                acceptor,
                mesh::router(appliance.clone(), stop.clone()),
                Arc::new(Gate::default()),
                stranger,
                stop.clone(),
            ),
        ),
        tasks::spawn("verdicts", verdicts::run(appliance.clone(), stop.clone())),
        tasks::spawn("scrub", scrub::run(appliance.clone(), limits::SCRUB, stop.clone())),
        tasks::spawn("leases", leases::run(appliance.clone(), stop.clone())),
        tasks::spawn("sources", sources::run(appliance.clone(), stop.clone())),
        tasks::spawn("page", page::serve(page_listener, appliance.clone(), stop.clone())),
        tasks::spawn("operator socket", local(dir, appliance.clone(), stop.clone())?),
    ];
    let resolver = match config.dns {
        Some(address) => Some(names::start(address, appliance.clone(), stop.clone())?),
        None => None,
    };
    if config.node {
        running.push(tasks::spawn("own node", own_node::run(dir.join("node"), appliance.clone(), stop.clone())));
    }
    nag(dir);
    tracing::info!(fingerprint = %pin, listen = %config.listen, port = config.ports.mesh, "the appliance serves");
    files::replace(&ready, format!("{}\n", std::process::id()).as_bytes())?;
    announce(&[sd_notify::NotifyState::Ready]);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    announce(&[sd_notify::NotifyState::Stopping]);
    files::remove(&ready)?;
    stopper.stop();
    for task in running {
        // A task that panicked has said so; the others still end in order.
        let _ = task.await;
    }
    drop(resolver);
    files::remove(&dir.join("operator.sock"))?;
    // The engine ends with the last handle, and the appliance holds one.
    let handle = appliance.handle.clone();
    drop(appliance);
    handle.close().await;
    drop(lock);
    Ok(())
}

/// The operator socket of a directory. The lock is held, so a socket that lies there is a dead process's.
fn local(dir: &Path, appliance: Arc<Appliance>, stop: Stop) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let path = dir.join("operator.sock");
    files::remove(&path)?;
    let listener = UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
    rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o600))
        .context("closing the operator socket to others")?;
    Ok(serve_local(listener, operator::router(appliance), stop))
}

fn nag(dir: &Path) {
    if dir.join(RECOVERY).exists() {
        tracing::warn!("{}: take this file off the machine and keep it safe", dir.join(RECOVERY).display());
    }
}

fn announce(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager was not told");
    }
}
