//! Once a second: who has fallen silent becomes a change.

use crate::listen::stop::Stop;
use crate::serve::appliance::{Appliance, Change, now};
use crate::serve::http::ok;
use crate::wire::operator::Nothing;
use state::subject::nodes::Command;
use state::{Actor, Role};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const PAUSE: Duration = Duration::from_secs(1);

/// Judges until told to stop.
pub(super) async fn run(appliance: Arc<Appliance>, mut stop: Stop) {
    loop {
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = stop.requested() => return,
        }
        let (state, now) = (appliance.handle.state(), now());
        let verdicts = appliance.authority.soft().presence.fallen_silent(&state, now.boot, now.wall);
        if verdicts.is_empty() {
            continue;
        }
        let command = Command::Judge { verdicts };
        let change = Change::new(command, Actor::Appliance, Role::System, None, axum::body::Bytes::new());
        if let Err(refused) = appliance.change(change, |_| Ok(ok(&Nothing {}))).await {
            tracing::warn!(code = refused.code, "the verdicts on silent nodes were not recorded");
        }
    }
}
