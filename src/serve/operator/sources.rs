//! A source snapshot is handed over: one at a time, so that the memory for their bodies is bounded.

use super::Call;
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, problem};
use crate::limits;
use crate::listen::LocalPeer;
use crate::serve::appliance::Appliance;
use crate::serve::http::{Received, ok, respond};
use crate::wire::operator::{SCHEMA, StoredSource};
use axum::extract::{Extension, Request, State as Shared};
use axum::response::Response;
use state::subject::sources::Command;
use std::sync::Arc;

pub(super) async fn store(
    Shared(appliance): Shared<Arc<Appliance>>,
    Extension(peer): Extension<LocalPeer>,
    request: Request,
) -> Response {
    let _alone = appliance.sources.alone().await;
    let received = Received::read_up_to(limits::SOURCE, request).await;
    respond(Call { appliance: appliance.clone(), peer, received }.once(stored).await)
}

async fn stored(call: Call) -> Result<Answer, Refused> {
    let archive = call.received.body.clone().ok_or_else(|| {
        let detail = format!("a source has at most {} MiB, compressed", limits::SOURCE >> 20);
        problem(413, "too_large", "the source was not stored", detail, "leave out what is not built from")
    })?;
    let source = call.appliance.sources.keep(archive).await?;
    call.change(Command::Store { source }, move |state| {
        let held = state.sources.of(&source.sha256, None).map_or(source, |held| held.source);
        Ok(ok(&StoredSource { schema: SCHEMA, source: held }))
    })
    .await
}
