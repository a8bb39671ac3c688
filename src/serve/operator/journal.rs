//! `journal ls|verify`: the record of every change, as it lies on the disk.

use super::Call;
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, invalid, problem};
use crate::clock::rfc3339;
use crate::serve::http::ok;
use crate::wire::operator::{JournalCheck, JournalEntry, JournalPage, SCHEMA};
use state::model::{Millis, Revision};
use state::{Actor, Change, State};

/// Entries of a page where none is asked for.
const PAGE: u64 = 50;
/// Entries of a page at most.
const PAGE_MAX: u64 = 1000;

pub(super) async fn page(call: Call) -> Result<Answer, Refused> {
    let (mut after, mut limit) = (None, PAGE);
    for part in call.received.query().split('&').filter(|part| !part.is_empty()) {
        let number = |text: &str| text.parse().map_err(|_| invalid(format!("`{text}` is not a number")));
        match part.split_once('=') {
            Some(("after", text)) => after = Some(number(text)?),
            Some(("limit", text)) => limit = number(text)?,
            Some(_) | None => return Err(invalid(format!("`{part}` is not after=NUMBER or limit=NUMBER"))),
        }
    }
    let limit = limit.clamp(1, PAGE_MAX);
    let state = call.state();
    let after = after.unwrap_or(state.revision.0.saturating_sub(limit));
    let length = usize::try_from(limit).expect("a page is short");
    let read = call
        .appliance
        .handle
        .journal(Revision(after.saturating_add(1)), length)
        .await
        .map_err(unread)?
        .map_err(unread)?;
    let changes = read.iter().flat_map(|batch| batch.changes.iter().map(|change| (batch.time, change)));
    let changes = changes.filter(|(_, change)| change.change.0 > after).take(length);
    Ok(ok(&JournalPage {
        schema: SCHEMA,
        changes: changes.map(|(at, change)| entry(&state, at, change)).collect(),
        last: state.revision,
    }))
}

fn entry(state: &State, at: Millis, change: &Change) -> JournalEntry {
    let node = |id| state.nodes.all.get(id).map_or_else(|| format!("node {id}"), |node| format!("node {}", node.name));
    let actor = match &change.actor {
        Actor::Operator { user } => user.clone(),
        Actor::Node { id } => node(id),
        Actor::Stranger { key } => format!("machine {key}"),
        Actor::Appliance => "appliance".to_owned(),
    };
    let event = |event| serde_json::to_value(event).expect("an event has a JSON form");
    JournalEntry {
        change: change.change,
        at: rfc3339(at),
        actor,
        request: change.request.to_string(),
        kind: change.kind.clone(),
        events: change.events.iter().map(event).collect(),
    }
}

pub(super) async fn verify(call: Call) -> Result<Answer, Refused> {
    let check = match call.appliance.handle.verify().await.map_err(unread)? {
        Ok(found) => JournalCheck {
            schema: SCHEMA,
            ok: true,
            batches: found.batches,
            changes: found.changes,
            head: Some(found.head.hash),
            state_hash: Some(found.state),
            problems: Vec::new(),
        },
        Err(error) => JournalCheck {
            schema: SCHEMA,
            ok: false,
            batches: 0,
            changes: 0,
            head: None,
            state_hash: None,
            problems: vec![error.to_string()],
        },
    };
    Ok(ok(&check))
}

fn unread(error: impl std::fmt::Display) -> Refused {
    problem(503, "store_restarting", "the journal was not read", error.to_string(), "ask again in a moment")
}
