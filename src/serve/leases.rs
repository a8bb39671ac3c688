//! Once a second: leases that have expired go back to the queue. What has expired is asked when the writer decides, so a
//! heartbeat that came before is seen and none that comes after counts.

use crate::cluster::Wish;
use crate::listen::stop::Stop;
use crate::serve::appliance::{Appliance, Change, now};
use crate::serve::http::ok;
use crate::wire::operator::Nothing;
use state::subject::jobs::Command;
use state::{Actor, Role};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const PAUSE: Duration = Duration::from_secs(1);

/// Reaps until told to stop. Leases from before this start are good for a whole one more.
pub(super) async fn run(appliance: Arc<Appliance>, mut stop: Stop) {
    loop {
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = stop.requested() => return,
        }
        let (state, now) = (appliance.handle.state(), now());
        let any = {
            let leases = &mut appliance.authority.soft().leases;
            leases.settle(&state, now.boot, now.wall);
            !leases.expired(now.boot).is_empty()
        };
        if !any {
            continue;
        }
        let judging = appliance.clone();
        let wish = Wish::at_decision(move |_| {
            let expired = judging.authority.soft().leases.expired(crate::clock::boot());
            Command::Reap { expired }.into()
        });
        let change = Change::new(wish, Actor::Appliance, Role::System, None, axum::body::Bytes::new());
        if let Err(refused) = appliance.change(change, |_| Ok(ok(&Nothing {}))).await {
            tracing::warn!(code = refused.code, "expired leases were not given back");
        }
    }
}
