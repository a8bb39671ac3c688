//! `holdfast job …` and `holdfast explain JOB`.

use super::client::Client;
use super::failure::{Exit, Failure};
use super::globals::Globals;
use super::output::{self, Format};
use super::words::{self, or_dash};
use crate::source::{self, SourceError};
use crate::wire::jobs::MEDIA_SOURCE;
use crate::wire::operator::{JobDetail, JobView, Jobs, Nothing, On, RunJob, SCHEMA, STATES, StoredSource};
use serde::Serialize;
use state::model::{JobId, Millis, Name};
use state::subject::jobs::{Probe, Spec};
use state::subject::sources::Source;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks at jobs that are watched.
const LOOK: Duration = Duration::from_millis(300);

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Have something done once, on one node or on all
    Run(Box<Run>),
    /// List jobs, the newest first
    Ls {
        /// Only those in this state
        #[arg(long, value_name = "STATE", value_parser = STATES)]
        only: Option<String>,
        /// Only those of this node
        #[arg(long)]
        node: Option<Name>,
    },
    /// Show a job with what came of it
    Show {
        /// The job, as `job ls` lists it
        #[arg(value_parser = words::job)]
        id: JobId,
    },
    /// Have a job stopped
    Cancel {
        /// The job, as `job ls` lists it
        #[arg(value_parser = words::job)]
        id: JobId,
    },
    /// Have a job that failed tried once more, or one that waits at once
    Retry {
        /// The job, as `job ls` lists it
        #[arg(value_parser = words::job)]
        id: JobId,
        /// Stay until it is over; the exit code is 1 if it did not succeed
        #[arg(long)]
        watch: bool,
    },
}

/// `job run`.
#[derive(clap::Args)]
pub(super) struct Run {
    /// What is to be done
    #[arg(value_enum)]
    kind: Kind,
    /// A node, or `all`; may be given several times
    #[arg(long, required = true, value_name = "NODE|all")]
    on: Vec<String>,
    /// build.module: the directory that is built from, at most 64 MiB; its .git stays behind
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    #[command(flatten)]
    probe: ProbeFlags,
    /// Where `--dns` is asked; without it, the node's own resolver
    #[arg(long, value_name = "ADDRESS:PORT", requires = "dns")]
    dns_server: Option<String>,
    /// service.check: the longest that it may take [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = words::duration)]
    timeout: Option<Duration>,
    /// How often it may be tried [default: 5]
    #[arg(long, value_name = "N")]
    attempts: Option<u32>,
    /// Stay until all are over; the exit code is 1 if any did not succeed
    #[arg(long)]
    watch: bool,
}

/// The kinds of job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Make the mesh on the node what it should be, and read it back
    #[value(name = "network.ensure")]
    NetworkEnsure,
    /// Read the mesh on the node, and compare
    #[value(name = "network.check")]
    NetworkCheck,
    /// Take the mesh on the node down until its agent starts again
    #[value(name = "network.withdraw")]
    NetworkWithdraw,
    /// Ask a service for an answer, from the node
    #[value(name = "service.check")]
    ServiceCheck,
    /// Build what the manifest in a source directory declares, on a node that can
    #[value(name = "build.module")]
    BuildModule,
}

/// How `service.check` asks: one of them.
#[derive(clap::Args)]
#[group(multiple = false)]
struct ProbeFlags {
    /// service.check: a TCP connection is accepted
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<String>,
    /// service.check: a GET of this http:// URL answers with a status below 400
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// service.check: a name has an address
    #[arg(long, value_name = "NAME")]
    dns: Option<String>,
    /// service.check: a PostgreSQL server answers
    #[arg(long, value_name = "HOST:PORT")]
    postgres: Option<String>,
}

/// Does it.
pub(super) async fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    let client = Client::operator(globals);
    let format = globals.format();
    match command {
        Command::Run(arguments) => {
            let watch = arguments.watch;
            let queued: Jobs = client.post("/v1/jobs", &asked(&client, *arguments).await?).await?;
            if watch {
                return follow(&client, queued.jobs, format).await;
            }
            print_jobs(&queued, format);
        }
        Command::Ls { only, node } => {
            let only = only.map(|only| format!("state={only}"));
            let node = node.map(|node| format!("node={node}"));
            let query: Vec<String> = only.into_iter().chain(node).collect();
            print_jobs(&client.get(&format!("/v1/jobs?{}", query.join("&"))).await?, format);
        }
        Command::Show { id } => print_job(&client.get(&format!("/v1/jobs/{id}")).await?, format),
        Command::Cancel { id } => {
            print_job(&client.post(&format!("/v1/jobs/{id}/cancel"), &Nothing {}).await?, format);
        }
        Command::Retry { id, watch } => {
            let job: JobDetail = client.post(&format!("/v1/jobs/{id}/retry"), &Nothing {}).await?;
            if watch {
                return follow(&client, vec![job.job], format).await;
            }
            print_job(&job, format);
        }
    }
    Ok(())
}

/// Why a job is where it is.
pub(super) async fn explain(id: JobId, globals: &Globals) -> Result<(), Failure> {
    let job: JobDetail = Client::operator(globals).get(&format!("/v1/jobs/{id}")).await?;
    match globals.format() {
        Format::Table => output::line(&format!("job {id} is {}: {}", job.job.state, job.explanation)),
        Format::Json => {
            output::json(&Explained { schema: SCHEMA, job: id, state: job.job.state, explanation: job.explanation });
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Explained {
    schema: u16,
    job: JobId,
    state: String,
    explanation: String,
}

async fn asked(client: &Client, arguments: Run) -> Result<RunJob, Failure> {
    let Run { kind, on, source, probe, dns_server, timeout, attempts, watch: _ } = arguments;
    let refuse = |what: &str, why: &str, todo: &str| Err(Failure::usage(what, why, todo));
    let on = if on.iter().any(|node| node == "all") {
        if on.len() > 1 {
            return refuse("--on is not understood", "`all` is given beside others", "leave the others out");
        }
        On::All
    } else {
        let name = |text: &String| {
            let todo = "give the name of a node, or `all`";
            Name::new(text).map_err(|error| Failure::usage("--on is not understood", error.to_string(), todo))
        };
        On::Nodes(on.iter().map(name).collect::<Result<_, _>>()?)
    };
    let ProbeFlags { tcp, http, dns, postgres } = probe;
    let dns = dns.map(|name| Probe::Dns { name, server: dns_server });
    let probe = tcp.map(Probe::Tcp).or(http.map(Probe::Http)).or(dns).or(postgres.map(Probe::Postgres));
    if source.is_some() && kind != Kind::BuildModule {
        return refuse("--source is not understood", "only build.module has one", "leave --source out");
    }
    let spec = match (kind, probe) {
        (Kind::ServiceCheck, Some(probe)) => {
            let seconds = timeout.unwrap_or(Duration::from_secs(10)).as_secs();
            Spec::ServiceCheck { probe, timeout_s: u16::try_from(seconds).unwrap_or(u16::MAX) }
        }
        (Kind::ServiceCheck, None) => {
            let todo = "add one of --tcp, --http, --dns and --postgres";
            return refuse("service.check is not complete", "it does not say how the service is asked", todo);
        }
        (Kind::NetworkEnsure | Kind::NetworkCheck | Kind::NetworkWithdraw | Kind::BuildModule, Some(_)) => {
            let todo = "leave --tcp, --http, --dns or --postgres out";
            return refuse("a flag is not understood", "only service.check asks a service", todo);
        }
        (Kind::NetworkEnsure | Kind::NetworkCheck | Kind::NetworkWithdraw | Kind::BuildModule, None)
            if timeout.is_some() =>
        {
            return refuse("--timeout is not understood", "only service.check has one", "leave --timeout out");
        }
        (Kind::NetworkEnsure, None) => Spec::NetworkEnsure {},
        (Kind::NetworkCheck, None) => Spec::NetworkCheck {},
        (Kind::NetworkWithdraw, None) => Spec::NetworkWithdraw {},
        (Kind::BuildModule, None) => match &source {
            Some(dir) => Spec::BuildModule { source: hand_over(client, dir).await? },
            None => return refuse("build.module is not complete", "it does not say from what", "add --source DIR"),
        },
    };
    Ok(RunJob { spec, on, attempts })
}

/// Makes the snapshot of a directory, and gives it to the appliance.
async fn hand_over(client: &Client, dir: &Path) -> Result<Source, Failure> {
    let archive = source::archive(dir).map_err(|error| {
        let what = format!("no source was made of {}", dir.display());
        let (code, todo) = match &error {
            SourceError::TooLarge => ("too_large", "leave out what is not built from"),
            SourceError::Refused { .. } => ("invalid", "take it out of the directory"),
            SourceError::Io { .. } => ("file", "give a directory that can be read"),
        };
        Failure::new(Exit::Failed, code, what, error.to_string(), todo)
    })?;
    let stored: StoredSource = client.upload("/v1/sources", MEDIA_SOURCE, archive).await?;
    Ok(stored.source)
}

/// Watches jobs until all are over, saying on stderr what they say, and then prints them. Fails if any did.
async fn follow(client: &Client, jobs: Vec<JobView>, format: Format) -> Result<(), Failure> {
    let mut open: BTreeMap<JobId, (u64, String)> = jobs.into_iter().map(|job| (job.id, (0, String::new()))).collect();
    let mut over = Vec::new();
    while !open.is_empty() {
        for (id, (told, state)) in &mut open {
            let detail: JobDetail = client.get(&format!("/v1/jobs/{id}")).await?;
            let who = or_dash(detail.job.node.as_ref());
            let known = usize::try_from(told.saturating_sub(detail.log_dropped)).unwrap_or(usize::MAX);
            detail.log.iter().skip(known).for_each(|line| output::note(&format!("{who}: {}", line.line)));
            *told = detail.log_dropped + detail.log.len() as u64;
            let now = format!("{} (attempt {} of {})", detail.job.state, detail.job.attempt, detail.job.attempts);
            let now = if detail.job.state == "stuck" { format!("{now}: {}", detail.explanation) } else { now };
            if now != *state {
                output::note(&format!("{who}: {now}"));
                *state = now;
            }
            if detail.job.completed_at.is_some() {
                over.push(detail);
            }
        }
        over.iter().for_each(|detail| drop(open.remove(&detail.job.id)));
        if !open.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    }
    let failed: Vec<String> = over
        .iter()
        .filter(|detail| detail.job.state != "succeeded")
        .map(|detail| format!("{} on {}", detail.job.state, or_dash(detail.job.node.as_ref())))
        .collect();
    match over.as_slice() {
        [one] => print_job(one, format),
        _ => print_jobs(&Jobs { schema: SCHEMA, jobs: over.into_iter().map(|detail| detail.job).collect() }, format),
    }
    if failed.is_empty() {
        return Ok(());
    }
    let todo = "`holdfast job show ID` says what was found";
    Err(Failure::new(Exit::Failed, "job_failed", "not all was done", failed.join(", "), todo))
}

fn print_jobs(jobs: &Jobs, format: Format) {
    if format == Format::Json {
        return output::json(jobs);
    }
    let now = crate::clock::wall();
    let rows = jobs.jobs.iter().map(|job| row(job, now));
    output::table(&["JOB", "KIND", "NODE", "STATE", "ATTEMPT", "AGE", "WHY"], rows.collect());
}

fn row(job: &JobView, now: Millis) -> Vec<String> {
    vec![
        job.id.to_string(),
        job.kind.clone(),
        or_dash(job.node.as_ref()),
        state(job),
        format!("{}/{}", job.attempt, job.attempts),
        words::since(&job.created, now).map_or_else(|| "-".to_owned(), words::short),
        or_dash(job.why.as_ref()),
    ]
}

/// Where a job is, and that its node has been told to stop it.
fn state(job: &JobView) -> String {
    let stopping = job.cancelling || job.superseded_by.is_some();
    if stopping && job.completed_at.is_none() { format!("{}, stopping", job.state) } else { job.state.clone() }
}

fn print_job(detail: &JobDetail, format: Format) {
    if format == Format::Json {
        return output::json(detail);
    }
    let job = &detail.job;
    let results = detail.results.iter().map(|answered| {
        let outcome = serde_json::to_value(answered.outcome).ok();
        let outcome = outcome.as_ref().and_then(|word| word.as_str()).unwrap_or("-").to_owned();
        let found = answered.result.as_ref().map_or_else(|| "not kept any more".to_owned(), ToString::to_string);
        format!("{}: {outcome}: {found}", answered.attempt)
    });
    let results: Vec<String> = results.collect();
    let log: Vec<&str> = detail.log.iter().map(|line| line.line.as_str()).collect();
    let or_nothing = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    output::facts(&[
        ("job", job.id.to_string()),
        ("kind", job.kind.clone()),
        ("node", or_dash(job.node.as_ref())),
        ("state", state(job)),
        ("explanation", detail.explanation.clone()),
        ("attempt", format!("{} of {}", job.attempt, job.attempts)),
        ("created", job.created.clone()),
        ("completed", or_dash(job.completed_at.as_ref())),
        ("results", or_nothing(results.join("\n"))),
        ("log", or_nothing(log.join("\n"))),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(changes: &[(&str, serde_json::Value)]) -> JobView {
        let id = "00000000-0000-0000-0000-000000000007";
        let mut view = json!({
            "id": id, "kind": "network.check", "lane": "network", "node": "web-1", "node_id": id, "org": null,
            "spec": {"kind": "network.check"}, "state": "queued", "cancelling": false, "superseded_by": null,
            "attempt": 2, "attempts": 6, "created": "1970-01-01T00:00:00Z", "not_before": null, "leased": null,
            "expires_in_s": null, "completed_at": null, "why": null,
        });
        changes.iter().for_each(|(key, value)| view[key] = value.clone());
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn a_row_says_where_a_job_is_and_why() {
        let shown = |job: &JobView| row(job, Millis(60_000))[1..].join(" ");
        assert_eq!(shown(&job(&[])), "network.check web-1 queued 2/6 1m -");
        let stuck = job(&[("state", json!("stuck")), ("why", json!("process 7 does not end"))]);
        assert_eq!(shown(&stuck), "network.check web-1 stuck 2/6 1m process 7 does not end");
        let cancelled = job(&[("state", json!("stuck")), ("cancelling", json!(true))]);
        assert_eq!(shown(&cancelled), "network.check web-1 stuck, stopping 2/6 1m -");
        let outdated = [("state", json!("leased")), ("superseded_by", json!(57))];
        assert_eq!(shown(&job(&outdated)), "network.check web-1 leased, stopping 2/6 1m -");
        let over = [("completed_at", json!("1970-01-01T00:00:30Z")), ("state", json!("superseded"))];
        assert_eq!(shown(&job(&[&outdated[..], &over].concat())), "network.check web-1 superseded 2/6 1m -");
    }
}
