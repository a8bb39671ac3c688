//! Client certificates after the first: a successor is good beside the one in use, until it has been used itself.
//!
//! A node's certificates are kept in the order in which they were issued. Using one ends those before it, so a renewal
//! whose answer was lost costs nothing: the next one is used instead. A node asks for the next one by the one in use, or
//! by its signing key where it has none that is good; what becomes of the others is the same.

use super::{Certificate, Event};
use crate::model::{Fingerprint, Millis, NodeId, SigningKey};
use crate::subject::nodes;
use crate::{Code, Context, Refusal, State};

/// Certificates of a node that are good at a time; the oldest that is not in use goes. Renewals whose answers were lost.
const AT_ONCE: usize = 4;

/// The one refusal of every certificate that opens nothing: unknown, retired, revoked or outside its window.
pub fn certificate_refused() -> Refusal {
    Refusal::new(
        Code::CertificateRefused,
        "the certificate was refused",
        "it is not the certificate of an active node",
        "ask for a new one with the signing key, on the mesh listener, which says more",
    )
}

/// The node whose certificate this is, if it is one that holds now. The window is judged if `trusted`: a clock that is
/// behind the latest time ever seen ends nothing.
///
/// # Errors
/// [`certificate_refused`].
pub fn holder(state: &State, certificate: &Fingerprint, now: Millis, trusted: bool) -> Result<NodeId, Refusal> {
    let held = state.enrolment.certificates.get(certificate);
    held.filter(|held| !trusted || (held.not_before <= now && now < held.not_after))
        .map(|held| held.node)
        .filter(|node| state.nodes.all.get(node).is_some_and(|node| node.member.is_some()))
        .ok_or_else(certificate_refused)
}

/// Whether a node's use of this certificate ends another one.
pub fn is_successor(state: &State, certificate: &Fingerprint) -> bool {
    let node = state.enrolment.certificates.get(certificate).and_then(|held| state.nodes.all.get(&held.node));
    node.and_then(|node| node.member.as_ref())
        .is_some_and(|member| member.certificates.first().is_some_and(|first| first != certificate))
}

pub(super) fn decide_renew(
    state: &State,
    by: &Fingerprint,
    certificate: Fingerprint,
    window: (Millis, Millis),
    context: &Context,
) -> Result<Vec<crate::Event>, Refusal> {
    let node = holder(state, by, context.now, context.clock_trusted)?;
    Ok(next(state, node, by, certificate, window))
}

pub(super) fn decide_issue(
    state: &State,
    key: &SigningKey,
    seq: u64,
    certificate: Fingerprint,
    window: (Millis, Millis),
) -> Result<Vec<crate::Event>, Refusal> {
    let node = state.nodes.by_key.get(key).and_then(|id| state.nodes.all.get(id));
    let (node, member) = node
        .and_then(|node| node.member.as_ref().map(|member| (node.id, member)))
        .ok_or_else(|| nodes::not_admitted(key))?;
    // The first one is the last that is known to have been used, and may be still.
    let in_use = member.certificates.first().unwrap_or(&certificate);
    let mut events = next(state, node, in_use, certificate, window);
    events.push(nodes::Event::SeqReached { node, seq }.into());
    Ok(events)
}

/// One more certificate, and the end of those that are too many, the one in use aside.
fn next(
    state: &State,
    node: NodeId,
    in_use: &Fingerprint,
    certificate: Fingerprint,
    (not_before, not_after): (Millis, Millis),
) -> Vec<crate::Event> {
    let held = certificates(state, node);
    let surplus = (held.len() + 1).saturating_sub(AT_ONCE);
    let mut events = retired(node, held.iter().filter(|held| *held != in_use).take(surplus).copied().collect());
    events.push(Event::CertificateIssued { node, certificate, not_before, not_after }.into());
    events
}

pub(super) fn decide_use(
    state: &State,
    certificate: &Fingerprint,
    context: &Context,
) -> Result<Vec<crate::Event>, Refusal> {
    let node = holder(state, certificate, context.now, context.clock_trusted)?;
    let held = certificates(state, node);
    Ok(retired(node, held.iter().take_while(|held| *held != certificate).copied().collect()))
}

fn certificates(state: &State, node: NodeId) -> &[Fingerprint] {
    let member = state.nodes.all.get(&node).and_then(|node| node.member.as_ref());
    member.map_or(&[], |member| &member.certificates)
}

fn retired(node: NodeId, certificates: Vec<Fingerprint>) -> Vec<crate::Event> {
    if certificates.is_empty() {
        return Vec::new();
    }
    vec![Event::CertificatesRetired { node, certificates }.into()]
}

pub(super) fn issued(state: &mut State, certificate: Fingerprint, record: Certificate) {
    let member = state.nodes.all.get_mut(&record.node).and_then(|node| node.member.as_mut());
    let Some(member) = member else { return };
    member.certificates.push(certificate);
    state.enrolment.certificates.insert(certificate, record);
}

pub(super) fn retire(state: &mut State, node: NodeId, certificates: &[Fingerprint]) {
    for certificate in certificates {
        state.enrolment.certificates.remove(certificate);
    }
    if let Some(member) = state.nodes.all.get_mut(&node).and_then(|node| node.member.as_mut()) {
        member.certificates.retain(|held| !certificates.contains(held));
    }
}
