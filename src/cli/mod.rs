//! The command line: nouns, then verbs, one file each. It parses, asks and prints; whatever is decided is decided
//! elsewhere.

mod admission;
mod agent;
mod client;
mod completions;
mod config;
mod confirm;
pub mod demo;
mod failure;
mod fingerprint;
mod globals;
mod init;
mod job;
mod join;
mod journal;
mod logs;
mod mesh;
mod node;
mod output;
mod secret;
mod serve;
mod service;
mod status;
mod usage;
mod words;

use clap::{Parser, Subcommand};
use failure::Failure;
use globals::Globals;
use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

/// The exit codes, as [`failure::Exit`] has them.
const EXITS: &str = "Exit codes: 0 done, 1 refused or failed, 2 not understood, 3 nobody answers, 4 no such thing, 5 held by \
somebody or something else. Data goes to standard output; an error is three lines on standard error: what, why, and what \
to do.";

/// A private network for a small fleet: admitted, named, declared and restorable.
#[derive(Parser)]
#[command(name = "holdfast", version, disable_help_subcommand = true, after_help = EXITS)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Begin a fleet on this machine
    Init(init::Arguments),
    /// Run the appliance; an empty directory is initialised first
    Serve(config::Arguments),
    /// Nodes: add, admit, look at, remove
    #[command(subcommand)]
    Node(node::Command),
    /// Work that is done once: run it, look at it, stop it
    #[command(subcommand)]
    Job(job::Command),
    /// Why a job is where it is
    Explain {
        /// The job, as `job ls` lists it
        #[arg(value_name = "JOB", value_parser = words::job)]
        what: state::model::JobId,
    },
    /// Tokens for machines that are imaged ahead of time
    #[command(subcommand)]
    Admission(admission::Command),
    /// The mesh as its nodes reach each other
    #[command(subcommand)]
    Mesh(mesh::Command),
    /// The fleet at a glance
    Status,
    /// The record of every change
    #[command(subcommand)]
    Journal(journal::Command),
    /// The pin of this appliance's certificate
    Fingerprint,
    /// Make this machine a node of a fleet
    Join(join::Arguments),
    /// Run this node's tunnel, resolver and proxies; the agent starts it
    Dataplane,
    /// Do the job on standard input; the agent starts it
    #[command(hide = true)]
    Work,
    /// This machine as a node
    #[command(subcommand)]
    Agent(agent::Command),
    /// Names for what this node serves
    #[command(subcommand)]
    Service(service::Command),
    /// The appliance's configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Show an appliance and three nodes at work in network namespaces of this machine
    Demo(demo::Demo),
    /// Completions for a shell, on standard output
    Completions(completions::Arguments),
}

impl Command {
    /// Whether it is a service rather than a question.
    const fn stays(&self) -> bool {
        match self {
            Self::Join(arguments) => arguments.run,
            command => matches!(command, Self::Serve(_) | Self::Dataplane | Self::Agent(agent::Command::Run)),
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os().collect())
}

fn run(arguments: Vec<OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            output::line(error.render().to_string().trim_end());
            return end(Ok(()));
        }
        Err(error) => return end(Err(usage::failure(&error, &arguments))),
    };
    logs::start(if cli.command.stays() { "info" } else { "warn" });
    // An error here means that a provider was installed before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    end(dispatch(cli))
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result.and_then(|()| output::unwritten()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::failure(&failure);
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn dispatch(Cli { globals, command }: Cli) -> Result<(), Failure> {
    match command {
        Command::Init(arguments) => init::run(arguments, &globals),
        Command::Serve(arguments) => serve::run(arguments, &globals),
        Command::Node(command) => asking(node::run(command, &globals)),
        Command::Job(command) => asking(job::run(command, &globals)),
        Command::Explain { what } => asking(job::explain(what, &globals)),
        Command::Admission(command) => asking(admission::run(command, &globals)),
        Command::Mesh(command) => asking(mesh::run(command, &globals)),
        Command::Status => asking(status::run(&globals)),
        Command::Journal(command) => journal::run(command, &globals),
        Command::Fingerprint => fingerprint::run(&globals),
        Command::Join(arguments) => join::run(arguments, &globals),
        Command::Dataplane => {
            globals.only(&["--state"])?;
            Ok(crate::dataplane::main(globals.dir()?)?)
        }
        Command::Work => {
            globals.only(&[])?;
            output::line(&crate::node::jobs::apart(std::io::stdin().lock())?);
            Ok(())
        }
        Command::Agent(command) => agent::run(command, &globals),
        Command::Service(command) => asking(service::run(command, &globals)),
        Command::Config(command) => config::run(command, &globals),
        Command::Demo(arguments) => {
            globals.only(&[])?;
            asking(async { Ok(demo::run(arguments, output::line).await?) })
        }
        Command::Completions(arguments) => completions::run(&arguments, &globals),
    }
}

/// Runs what asks over a socket and waits for the answer.
fn asking<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::from(anyhow::Error::new(error)))?.block_on(work)
}

#[cfg(test)]
mod tests;
