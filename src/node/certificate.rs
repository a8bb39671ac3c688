//! The client certificate of a running agent: the gateway's client is made with it, and it is renewed at two thirds of
//! its life, until which time nothing happens. The former one works until the next has been used once, so a lost
//! answer or a kill costs nothing.
//!
//! A node whose certificate is missing, damaged, past its window or refused by the gateway asks for one by its signing
//! key instead, for as long as it takes. Nobody has to come.

use crate::keys::{ClientIdentity, KeyError, NextClientKey};
use crate::node::client::CallError;
use crate::node::gateway::{Gateway, Gateways};
use crate::wire::jobs::{Renewal, Renewed};
use crate::{clock, entropy, limits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use state::model::{Millis, NodeId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The longest sleep: the wall clock, which a certificate's life is told by, may be set.
const NAP: Duration = Duration::from_secs(60);
/// The first pause after an attempt that failed; doubled up to the limit of its way.
const RETRY: Duration = Duration::from_secs(1);

/// A certificate is asked for by the signing key.
pub struct Ask {
    /// DER of a PKCS #10 request, in base64.
    pub certificate_request: String,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Renewed, CallError>>,
}

/// How a certificate is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// At the gateway, by the one in use.
    Certificate,
    /// By the signing key.
    SigningKey,
}

/// Gives the gateway's client to whoever calls, made anew when the roster or the certificate changes, and none while no
/// certificate is good; until the agent ends.
pub async fn keep(
    dir: PathBuf,
    node: NodeId,
    mut gateways: watch::Receiver<Gateways>,
    client: watch::Sender<Option<Arc<Gateway>>>,
    asks: mpsc::Sender<Ask>,
) {
    let mut attempts = Attempts::default();
    loop {
        let mut held = held(&dir, node).map(|identity| {
            let gateway = Arc::new(Gateway::new(gateways.borrow_and_update().clone(), &identity.tls));
            Held { not_before: identity.not_before, not_after: identity.not_after, gateway }
        });
        client.send_replace(held.as_ref().map(|held| held.gateway.clone()));
        loop {
            let (way, wait) = attempts.next(held.as_ref(), clock::wall(), clock::boot());
            let refused = async {
                match &held {
                    Some(held) => held.gateway.refused().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = gateways.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = refused => {
                    tracing::warn!("the gateway refuses this node's certificate, so another one is asked for");
                    held = None;
                    client.send_replace(None);
                    attempts.refused(clock::boot());
                    continue;
                }
                () = tokio::time::sleep(wait.min(NAP)) => {}
            }
            if wait > NAP {
                continue;
            }
            match attempts.attempt(way, &dir, held.as_ref(), &asks).await {
                Ok(()) => {
                    tracing::info!("this node has a new client certificate");
                    break;
                }
                Err(why) => {
                    let pause = attempts.failed(way, clock::boot(), u32::from_ne_bytes(entropy::bytes()));
                    attempts.tell(&why, pause);
                }
            }
        }
    }
}

/// The certificate on disk, if it can be used.
fn held(dir: &Path, node: NodeId) -> Option<ClientIdentity> {
    let why = match ClientIdentity::read(dir) {
        Ok(Some(identity)) if identity.is_of(node) => return Some(identity),
        Ok(Some(_)) => "it is another node's".to_owned(),
        Ok(None) => "it is not there".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!("this node's client certificate cannot be used, so another one is asked for: {why}");
    None
}

/// The certificate in use.
struct Held {
    not_before: Millis,
    not_after: Millis,
    gateway: Arc<Gateway>,
}

/// Two thirds of a life.
fn due(not_before: Millis, not_after: Millis) -> Millis {
    Millis(not_before.0 + not_after.since(not_before) / 3 * 2)
}

/// The attempts at one certificate. All ask with the same request, so that an answer that got lost is given again.
#[derive(Default)]
struct Attempts {
    asked: Option<(NextClientKey, String)>,
    failures: u32,
    /// Why the last one failed, as the log has it.
    told: String,
    /// Nothing is asked sooner, by the boot clock.
    again: Duration,
    /// Nor for age alone: should the clocks disagree so much that a new certificate is due at once, it is left alone for
    /// a while.
    rest: Duration,
}

impl Attempts {
    /// How the next certificate is to be asked for, and how long until then.
    fn next(&self, held: Option<&Held>, now: Millis, boot: Duration) -> (Way, Duration) {
        let again = self.again.saturating_sub(boot);
        let Some(held) = held else { return (Way::SigningKey, again) };
        let age = Duration::from_millis(due(held.not_before, held.not_after).since(now));
        let way = if held.not_after <= now { Way::SigningKey } else { Way::Certificate };
        (way, age.max(again).max(self.rest.saturating_sub(boot)))
    }

    async fn attempt(
        &mut self,
        way: Way,
        dir: &Path,
        held: Option<&Held>,
        asks: &mpsc::Sender<Ask>,
    ) -> Result<(), String> {
        let (key, certificate_request) = self.asked.get_or_insert_with(|| {
            let key = NextClientKey::generate();
            let certificate_request = STANDARD.encode(key.request());
            (key, certificate_request)
        });
        let certificate_request = certificate_request.clone();
        let answer = match (way, held) {
            (Way::Certificate, Some(held)) => held.gateway.renew(&Renewal { certificate_request }).await,
            (Way::Certificate, None) | (Way::SigningKey, _) => ask(asks, certificate_request).await,
        };
        match answer {
            Ok(renewed) => match key.adopt(dir, &renewed.certificate) {
                Ok(()) => {
                    self.adopted(clock::boot(), Duration::from_millis(renewed.not_after.since(clock::wall())));
                    Ok(())
                }
                Err(error) => {
                    if !matches!(error, KeyError::File(_)) {
                        self.asked = None;
                    }
                    Err(error.to_string())
                }
            },
            Err(error) => {
                if !may_be_given(&error) {
                    self.asked = None;
                }
                Err(error.to_string())
            }
        }
    }

    fn adopted(&mut self, boot: Duration, life: Duration) {
        let rest = life / 10;
        *self = Self { again: boot + rest.min(limits::CERTIFICATE_ASK_RETRY), rest: boot + rest, ..Self::default() };
    }

    /// The certificate in use is good no more: the pauses of renewing it do not matter.
    fn refused(&mut self, boot: Duration) {
        if self.failures > 0 {
            (self.failures, self.again) = (0, boot);
        }
    }

    /// Tells the log why there is none yet, once for each reason.
    fn tell(&mut self, why: &str, pause: Duration) {
        if self.told != why {
            tracing::warn!("no new client certificate yet, trying again in {} s: {why}", pause.as_secs());
            self.told = why.to_owned();
        }
    }

    /// The pause until the next attempt: longer each time, and drawn from its upper half.
    fn failed(&mut self, way: Way, boot: Duration, chance: u32) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let longest = match way {
            Way::Certificate => limits::CERTIFICATE_RETRY,
            Way::SigningKey => limits::CERTIFICATE_ASK_RETRY,
        };
        let whole = RETRY.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(longest);
        let pause = whole.mul_f64(0.5 + 0.5 * f64::from(chance) / f64::from(u32::MAX));
        self.again = boot + pause;
        pause
    }
}

/// Whether an appliance may have issued a certificate, or will, although it gave none.
fn may_be_given(error: &CallError) -> bool {
    match error {
        CallError::Unreachable(_) | CallError::Disk(_) => true,
        CallError::Refused(problem) => problem.status >= 500 || problem.status == 429,
        CallError::Malformed(_) => false,
    }
}

async fn ask(asks: &mpsc::Sender<Ask>, certificate_request: String) -> Result<Renewed, CallError> {
    let ending = || CallError::Unreachable("the agent is ending".into());
    let (reply, answer) = oneshot::channel();
    asks.send(Ask { certificate_request, reply }).await.map_err(|_| ending())?;
    answer.await.map_err(|_| ending())?
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
