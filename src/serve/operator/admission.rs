//! `node pending|admit|revoke` and `admission token`.

use super::token::{advertised, line, mint};
use super::{Call, views};
use crate::authority::receipt::Answer;
use crate::authority::refusal::{Refused, invalid, problem};
use crate::clock::rfc3339;
use crate::entropy;
use crate::serve::http::ok;
use crate::wire::operator::{Admit, Nothing, Pending, PendingView, Removed, Revoke, SCHEMA};
use crate::wire::token::Purpose;
use state::model::{Name, NodeId, SigningKey, fingerprint_words};
use state::subject::enrolment;
use state::subject::nodes::{Command, Node, RevokeTarget};

pub(super) async fn pending(call: Call) -> Result<Answer, Refused> {
    let soft = call.appliance.authority.soft();
    let mut all: Vec<_> = soft.pending.iter().collect();
    all.sort_by_key(|(_, attempts)| std::cmp::Reverse(attempts.last));
    let view = |(key, attempts): (&SigningKey, &crate::authority::pending::Attempts)| PendingView {
        signing_key: *key,
        words: fingerprint_words(key),
        name: Some(attempts.name.clone()),
        site: attempts.site.clone(),
        source: attempts.source,
        first_attempt: rfc3339(attempts.first),
        last_attempt: rfc3339(attempts.last),
    };
    Ok(ok(&Pending { schema: SCHEMA, pending: all.into_iter().map(view).collect() }))
}

pub(super) async fn admit(call: Call) -> Result<Answer, Refused> {
    let asked: Admit = call.body()?;
    let attempts = call.appliance.authority.soft().pending.get(&asked.key).cloned();
    let proposed = attempts.as_ref().map(|attempts| attempts.name.clone());
    let name = asked.name.or(proposed).ok_or_else(|| {
        problem(
            404,
            "not_found",
            "the key was not admitted",
            format!("no machine with the key {} has asked, so it has no name", asked.key),
            "give it one with --name, or look at `holdfast node pending`",
        )
    })?;
    let site = asked.site.or(attempts.and_then(|attempts| attempts.site));
    let (appliance, key) = (call.appliance.clone(), asked.key);
    let id = NodeId(entropy::uuid());
    let answer = call
        .change(enrolment::Command::Admit { key, name, org: None, site, id }, move |state| {
            let admitted = state.enrolment.admitted.get(&key).ok_or_else(|| invalid("the key is not admitted"))?;
            let node = Node {
                id: admitted.id,
                name: admitted.name.clone(),
                org: admitted.org.clone(),
                site: admitted.site.clone(),
                hub: admitted.hub,
                appliance: None,
                endpoints: admitted.endpoints.clone(),
                added: state.at,
                token: None,
                member: None,
            };
            Ok(ok(&views::node(&appliance, state, &node)))
        })
        .await?;
    call.appliance.authority.soft().pending.remove(&key);
    Ok(answer)
}

pub(super) async fn revoke(call: Call) -> Result<Answer, Refused> {
    let Revoke { who } = call.body()?;
    let target = match (who.parse::<SigningKey>(), Name::new(&who)) {
        (Ok(key), _) => RevokeTarget::Key(key),
        (Err(_), Ok(name)) => RevokeTarget::Name(name),
        (Err(_), Err(error)) => return Err(invalid(format!("neither a signing key nor a node's name: {error}"))),
    };
    let state = call.state();
    let node = match &target {
        RevokeTarget::Name(name) => state.nodes.by_name.get(name),
        RevokeTarget::Key(key) => state.nodes.by_key.get(key),
    };
    let node = node.and_then(|id| state.nodes.all.get(id));
    let key = match &target {
        RevokeTarget::Key(key) => Some(*key),
        RevokeTarget::Name(_) => node.and_then(|node| node.member.as_ref()).map(|member| member.signing_key),
    };
    let name = node.map(|node| node.name.clone());
    let removed = Removed { schema: SCHEMA, name, signing_key: key, still_admitted: false };
    let answer = call.change(Command::Revoke { target }, move |_| Ok(ok(&removed))).await?;
    if let Some(node) = node {
        call.appliance.authority.soft().presence.forget(node.id);
    }
    Ok(answer)
}

pub(super) async fn token(call: Call) -> Result<Answer, Refused> {
    let Nothing {} = call.body()?;
    advertised(&call.appliance)?;
    let fresh = mint(None)?;
    let appliance = call.appliance.clone();
    call.change(enrolment::Command::IssueAdmissionToken { token: fresh.hash }, move |state| {
        line(&appliance, state, fresh, Purpose::Admission).map(|line| ok(&line))
    })
    .await
}
