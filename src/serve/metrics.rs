//! `/metrics` in the OpenMetrics text format: figures of the appliance under names that are only ever added to.
//!
//! No label has a name, a key or an address in it: there are as many lines as the program has words, whatever the fleet.

use crate::clock;
use crate::serve::appliance::Appliance;
use crate::serve::observed;
use state::State;
use state::model::Millis;
use state::view::status::summary;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The content type of what [`Figures::exposition`] writes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a job can be, whether or not there are any.
const PHASES: [&str; 6] = ["queued", "leased", "succeeded", "failed", "cancelled", "superseded"];

/// The figures of one moment.
#[derive(Debug, Default)]
pub(super) struct Figures {
    nodes: [(&'static str, u64); 3],
    jobs: BTreeMap<&'static str, u64>,
    certificate_age: Option<u64>,
    revision: u64,
    commits: u64,
    waiting: u64,
    store: Option<u64>,
    refused: BTreeMap<String, u64>,
    scrub: Option<(u64, bool)>,
}

impl Figures {
    /// Of an appliance now. Looks at every job and node, and may wait for the store's file.
    pub(super) fn of(appliance: &Appliance) -> Self {
        let now = clock::wall();
        let seconds = |at: Millis| now.since(at) / 1000;
        let scrub = appliance.observed.last_scrub();
        Self {
            commits: appliance.handle.commits(),
            waiting: appliance.handle.waiting() as u64,
            store: appliance.handle.store_size(),
            refused: observed::refusals(),
            scrub: scrub.map(|scrub| (seconds(scrub.at), scrub.problem.is_none())),
            ..Self::of_state(&appliance.handle.state(), now)
        }
    }

    fn of_state(state: &State, now: Millis) -> Self {
        let found = summary(state);
        let mut jobs: BTreeMap<&'static str, u64> = PHASES.map(|phase| (phase, 0)).into();
        for job in state.jobs.all.values() {
            *jobs.entry(job.phase.as_str()).or_default() += 1;
        }
        let oldest = state.enrolment.certificates.values().map(|certificate| certificate.not_before).min();
        Self {
            nodes: [
                ("here", found.here as u64),
                ("out_of_touch", found.out_of_touch.len() as u64),
                ("never_spoken", found.never_spoken.len() as u64),
            ],
            jobs,
            certificate_age: oldest.map(|at| now.since(at) / 1000),
            revision: state.revision.0,
            ..Self::default()
        }
    }

    /// As text. A figure that is not known is left out.
    pub(super) fn exposition(&self) -> String {
        let mut out = Exposition(String::new());
        out.family("holdfast_nodes", "gauge", "Nodes by liveness.");
        self.nodes.iter().for_each(|(word, count)| out.labelled("holdfast_nodes", "liveness", word, *count));
        out.family("holdfast_jobs", "gauge", "Jobs by phase, those that are over as long as they are shown.");
        self.jobs.iter().for_each(|(phase, count)| out.labelled("holdfast_jobs", "phase", phase, *count));
        let leased = self.jobs.get("leased").copied();
        out.one("holdfast_leases_open", "gauge", "Leases that a node holds.", leased);
        out.one("holdfast_revision", "gauge", "The number of the last change.", Some(self.revision));
        out.family("holdfast_commits", "counter", "Entries of the log committed since the start.");
        out.line("holdfast_commits_total", self.commits);
        out.one("holdfast_writer_queue", "gauge", "Calls that wait for the writer.", Some(self.waiting));
        out.one("holdfast_store_bytes", "gauge", "Size of the store.", self.store);
        out.one(
            "holdfast_certificate_age_seconds",
            "gauge",
            "Age of the oldest client certificate of a node that is still good.",
            self.certificate_age,
        );
        out.one("holdfast_scrub_age_seconds", "gauge", "Since the last scrub of the store.", self.scrub.map(|s| s.0));
        out.one(
            "holdfast_scrub_ok",
            "gauge",
            "Whether the last scrub found the store as it was written.",
            self.scrub.map(|s| u64::from(s.1)),
        );
        out.family("holdfast_refused", "counter", "Refusals since the start by their stable code.");
        self.refused.iter().for_each(|(code, count)| out.labelled("holdfast_refused_total", "code", code, *count));
        out.0 + "# EOF\n"
    }
}

struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}");
    }

    fn line(&mut self, name: &str, value: u64) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn labelled(&mut self, name: &str, label: &str, word: &str, value: u64) {
        let _ = writeln!(self.0, "{name}{{{label}=\"{word}\"}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.family(name, kind, help);
            self.line(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_these_names_for_ever() {
        let mut figures = Figures::of_state(&State::default(), Millis(0));
        figures.store = Some(4096);
        figures.certificate_age = Some(60);
        figures.scrub = Some((5, true));
        figures.refused = BTreeMap::from([("held".to_owned(), 2)]);
        let text = figures.exposition();
        let held = [
            "holdfast_nodes{liveness=\"here\"} 0",
            "holdfast_nodes{liveness=\"out_of_touch\"} 0",
            "holdfast_nodes{liveness=\"never_spoken\"} 0",
            "holdfast_jobs{phase=\"queued\"} 0",
            "holdfast_jobs{phase=\"leased\"} 0",
            "holdfast_leases_open 0",
            "holdfast_revision 0",
            "holdfast_commits_total 0",
            "holdfast_writer_queue 0",
            "holdfast_store_bytes 4096",
            "holdfast_certificate_age_seconds 60",
            "holdfast_scrub_age_seconds 5",
            "holdfast_scrub_ok 1",
            "holdfast_refused_total{code=\"held\"} 2",
        ];
        for line in held {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.ends_with("# EOF\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let family = line.split(['{', ' ']).next().unwrap().trim_end_matches("_total");
            assert!(text.contains(&format!("# TYPE {family} ")), "{line} has no type");
        }
    }
}
