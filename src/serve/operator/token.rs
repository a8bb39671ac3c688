//! Making the lines that let machines in. The secret is made here and leaves in the answer alone; the state gets its
//! hash.

use crate::authority::refusal::{Refused, from_decision, problem};
use crate::serve::appliance::Appliance;
use crate::wire::operator::Minted;
use crate::wire::token::{Purpose, Secret, Token, TokenAppliance};
use crate::{clock, entropy, limits};
use state::State;
use state::model::{Fingerprint, Millis};

/// A secret that nobody knows yet, and when it ends.
pub struct Fresh {
    secret: Secret,
    /// What the state keeps of it.
    pub hash: Fingerprint,
    /// When a token with it ends.
    pub expires: Millis,
}

/// A fresh secret for a token with this life in seconds, an hour if none is given.
pub fn mint(ttl_seconds: Option<u64>) -> Result<Fresh, Refused> {
    let seconds = ttl_seconds.unwrap_or(limits::TOKEN_LIFE.as_secs());
    if seconds == 0 || seconds > limits::TOKEN_LIFE_MAX.as_secs() {
        let most = limits::TOKEN_LIFE_MAX.as_secs();
        let detail = format!("a token lives 1 to {most} seconds, not {seconds}");
        return Err(problem(400, "invalid", "no token was made", detail, "give a life within that"));
    }
    let secret = Secret::new(entropy::secret());
    Ok(Fresh { hash: secret.fingerprint(), secret, expires: clock::wall().plus(seconds * 1000) })
}

/// The line for a secret: where the appliance is, how to know it, and the secret.
pub fn line(appliance: &Appliance, state: &State, fresh: Fresh, purpose: Purpose) -> Result<Minted, Refused> {
    let fleet = state.fleet().map_err(|refusal| from_decision(&refusal))?;
    let expires = match purpose {
        Purpose::Join(_) => Some(fresh.expires),
        Purpose::Admission => None,
    };
    let token = Token {
        purpose,
        fleet: fleet.id,
        fleet_name: fleet.name.clone(),
        appliances: vec![TokenAppliance { mesh: appliance.advertised.clone(), pins: vec![appliance.pin] }],
        root_key: fleet.root_key,
        secret: fresh.secret,
        expires,
    };
    Ok(Minted { token: token.encode().to_string(), expires: expires.map(clock::rfc3339) })
}

/// Refuses to make a token that names no address where anybody could present it.
pub(super) fn advertised(appliance: &Appliance) -> Result<(), Refused> {
    if !appliance.advertised.is_empty() {
        return Ok(());
    }
    Err(problem(
        409,
        "not_advertised",
        "no token was made",
        "this appliance advertises no address that another machine can reach",
        "set `advertise = [\"HOST\"]` in its configuration, or start it with `--advertise HOST`",
    ))
}
