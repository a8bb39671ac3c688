//! The client certificate of a running agent: the gateway's client is made with it, and it is renewed at two thirds of
//! its life, until which time nothing happens. The former one works until the next has been used once, so a lost
//! answer or a kill costs nothing.

use crate::keys::{ClientIdentity, NextClientKey};
use crate::node::client::CallError;
use crate::node::gateway::{Gateway, Gateways};
use crate::wire::jobs::Renewal;
use crate::{clock, entropy, limits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use state::model::Millis;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The longest sleep: the wall clock, which a certificate's life is told by, may be set.
const NAP: Duration = Duration::from_secs(60);
/// The first pause after a renewal that failed; doubled up to [`limits::CERTIFICATE_RETRY`].
const RETRY: Duration = Duration::from_secs(1);

/// Gives the gateway's client to whoever calls, made anew when the roster or the certificate changes, until the agent
/// ends.
pub(super) async fn keep(
    dir: PathBuf,
    mut gateways: watch::Receiver<Gateways>,
    client: watch::Sender<Option<Arc<Gateway>>>,
) {
    let mut renewal = Attempts::default();
    loop {
        let identity = match ClientIdentity::read(&dir) {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                return tracing::warn!("this node holds no client certificate, so it takes no jobs; join again");
            }
            Err(error) => return tracing::error!("this node's client certificate cannot be used: {error}"),
        };
        let gateway = Arc::new(Gateway::new(gateways.borrow_and_update().clone(), &identity.tls));
        client.send_replace(Some(gateway.clone()));
        loop {
            let now = clock::wall();
            let due = due(identity.not_before, identity.not_after).max(renewal.not_before);
            let nap = Duration::from_millis(due.since(now)).min(NAP);
            tokio::select! {
                changed = gateways.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = tokio::time::sleep(nap) => {}
            }
            if clock::wall() < due {
                continue;
            }
            match renewal.attempt(&dir, &gateway).await {
                Ok(()) => {
                    tracing::info!("the client certificate was renewed");
                    // Should the clocks disagree so much that the next one is due at once, it is left alone for a while.
                    let pause = identity.not_after.since(identity.not_before) / 10;
                    renewal = Attempts { not_before: Millis(clock::wall().0 + pause), ..Attempts::default() };
                    break;
                }
                Err(why) => {
                    let pause = renewal.pause();
                    tracing::warn!(
                        "the client certificate was not renewed, trying again in {} s: {why}",
                        pause.as_secs()
                    );
                    renewal.not_before = Millis(clock::wall().0 + u64::try_from(pause.as_millis()).unwrap_or(0));
                }
            }
        }
    }
}

/// Two thirds of a life.
fn due(not_before: Millis, not_after: Millis) -> Millis {
    Millis(not_before.0 + not_after.since(not_before) / 3 * 2)
}

/// The attempts at one renewal. All ask with the same bytes, so that an answer that got lost is given again.
#[derive(Default)]
struct Attempts {
    asked: Option<(NextClientKey, Renewal)>,
    failures: u32,
    /// No sooner than then.
    not_before: Millis,
}

impl Attempts {
    async fn attempt(&mut self, dir: &std::path::Path, gateway: &Gateway) -> Result<(), String> {
        let (key, renewal) = self.asked.get_or_insert_with(|| {
            let key = NextClientKey::generate();
            let certificate_request = STANDARD.encode(key.request());
            (key, Renewal { certificate_request })
        });
        match gateway.renew(renewal).await {
            Ok(renewed) => key.adopt(dir, &renewed.certificate).map_err(|error| error.to_string()),
            Err(error) => {
                if !matches!(error, CallError::Unreachable(_)) {
                    self.asked = None;
                }
                Err(error.to_string())
            }
        }
    }

    fn pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let whole = RETRY.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(limits::CERTIFICATE_RETRY);
        let chance = f64::from(u32::from_ne_bytes(entropy::bytes())) / f64::from(u32::MAX);
        whole.mul_f64(0.5 + 0.5 * chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        assert_eq!(due(Millis(1_000), Millis(10_000)), Millis(7_000));
        assert_eq!(due(Millis(5), Millis(5)), Millis(5));
    }
}
