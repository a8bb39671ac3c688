//! `holdfast journal …`.

use super::asking;
use super::client::Client;
use super::confirm::{OffTerminal, confirm};
use super::failure::{Exit, Failure};
use super::globals::Globals;
use super::output::{self, Format};
use super::words::or_dash;
use crate::cluster::Home;
use crate::files;
use crate::wire::operator::{JournalCheck, JournalPage, SCHEMA};
use serde_json::Value;

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List changes, oldest first
    Ls {
        /// Only changes above this number; without it the last ones
        #[arg(long, value_name = "CHANGE")]
        after: Option<u64>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Read, hash and replay the whole journal
    Verify,
    /// Take the store of a stopped appliance for the newest, after its file `head` was lost
    Accept {
        /// Do not ask; needed where there is no terminal
        #[arg(long)]
        yes: bool,
    },
}

/// Does it.
pub(super) fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    match command {
        Command::Accept { yes } => accept(yes, globals),
        Command::Ls { after, limit } => asking(list(after, limit, globals)),
        Command::Verify => asking(verify(globals)),
    }
}

async fn list(after: Option<u64>, limit: u32, globals: &Globals) -> Result<(), Failure> {
    let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
    let page = Client::operator(globals).get(&format!("/v1/journal?limit={limit}{after}")).await?;
    print_page(&page, globals.format());
    Ok(())
}

async fn verify(globals: &Globals) -> Result<(), Failure> {
    let check: JournalCheck = Client::operator(globals).get("/v1/journal/verify").await?;
    print_check(&check, globals.format());
    if check.ok {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failed,
        "journal_broken",
        "the journal does not verify",
        check.problems.join("; "),
        "keep this disk as it is and restore a snapshot elsewhere",
    ))
}

/// There is no appliance to ask: it does not start without its head file.
fn accept(yes: bool, globals: &Globals) -> Result<(), Failure> {
    globals.only(&["--state", "--output"])?;
    let dir = globals.dir()?;
    let lock =
        crate::keys::expect(dir, crate::keys::Role::Appliance).and_then(|()| Ok(files::lock(dir, "appliance")?))?;
    confirm(yes, "take this store for the newest? What a newer copy holds would be lost", OffTerminal::Refuse)?;
    let verified = Home::new(dir).accept().map_err(|error| {
        let todo = "start it with `holdfast serve`, which says what is wrong if anything is";
        Failure::new(Exit::Failed, "not_accepted", "the store was not accepted", error.to_string(), todo)
    })?;
    drop(lock);
    let check = JournalCheck {
        schema: SCHEMA,
        ok: true,
        batches: verified.batches,
        changes: verified.changes,
        head: Some(verified.head.hash),
        state_hash: Some(verified.state),
        problems: Vec::new(),
    };
    print_check(&check, globals.format());
    Ok(())
}

fn print_page(page: &JournalPage, format: Format) {
    if format == Format::Json {
        return output::json(page);
    }
    let rows = page.changes.iter().map(|change| {
        let events: Vec<String> = change.events.iter().map(event_words).collect();
        vec![change.change.to_string(), change.at.clone(), change.actor.clone(), change.kind.clone(), events.join(", ")]
    });
    output::table(&["CHANGE", "AT", "BY", "WHAT", "EVENTS"], rows.collect());
}

/// What happened and to whom, of an event whose kinds only grow: `node_added web-1`. All of it is in the JSON.
fn event_words(event: &Value) -> String {
    fn names<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| match (key.as_str(), value) {
                ("what", Value::String(what)) => out.insert(0, what),
                ("name", Value::String(name)) => out.push(name),
                (_, inner) => names(inner, out),
            }),
            Value::Array(all) => all.iter().for_each(|inner| names(inner, out)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut words = Vec::new();
    names(event, &mut words);
    words.join(" ")
}

fn print_check(check: &JournalCheck, format: Format) {
    if format == Format::Json {
        return output::json(check);
    }
    output::facts(&[
        ("verdict", if check.ok { "whole" } else { "broken" }.to_owned()),
        ("batches", check.batches.to_string()),
        ("changes", check.changes.to_string()),
        ("head", or_dash(check.head)),
        ("state hash", or_dash(check.state_hash)),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_in_words() {
        let event = serde_json::json!({
            "subject": "enrolment",
            "event": { "node": { "hub": true, "name": "web-1" }, "what": "node_added" },
        });
        assert_eq!(event_words(&event), "node_added web-1");
    }
}
