//! `POST /v1/peers/register` and leaving: from a request that passed its checks to a command, if anything changes, and
//! from the state after it to the answer.

use crate::authority::Authority;
use crate::authority::records::Records;
use crate::authority::refusal::{self, Refused, problem};
use crate::authority::request::Now;
use crate::authority::signature::{Caller, Examined};
use crate::limits;
use crate::wire::peers::{ClaimVerdict, Judged, LeaveBody, RegisterAnswer, RegisterBody, ServiceClaim};
use crate::wire::signed::Signed;
use state::model::{NodeId, Revision};
use state::subject::nodes;
use state::subject::services::{self, Pair, Port};
use state::{Command, Context, State};
use std::net::IpAddr;

/// What a register comes to.
pub enum Registering {
    /// It changes nothing: the answer is known.
    Unchanged(NodeId),
    /// It is a change.
    Change(NodeId, Box<Command>),
    /// A machine whose key was let in joins by it.
    Joins,
}

impl Authority {
    /// What an examined register comes to. Whoever sent it has been heard, unless it is a repetition.
    pub fn register(
        &self,
        state: &State,
        examined: &Examined<RegisterBody>,
        source: IpAddr,
        context: &Context,
        now: Now,
    ) -> Result<Registering, Refused> {
        let body = &examined.body;
        if body.services.len() > limits::SERVICES {
            return Err(refusal::invalid(format!("a node publishes at most {} services", limits::SERVICES)));
        }
        if body.endpoints.len() > limits::ENDPOINTS || body.local_endpoints.len() > limits::ENDPOINTS {
            return Err(refusal::invalid(format!("a node has at most {} endpoints of each kind", limits::ENDPOINTS)));
        }
        let id = match &examined.caller {
            Caller::Node(id) => *id,
            Caller::Admitted(_) => return Ok(Registering::Joins),
        };
        let command: Command = nodes::Command::Register(Box::new(nodes::Register {
            key: examined.key,
            wireguard_key: body.wireguard_key,
            sealing_key: body.sealing_key,
            listen_port: body.listen_port,
            endpoints: body.endpoints.clone(),
            local_endpoints: body.local_endpoints.clone(),
            services: body.services.iter().filter(|claim| claim.port != 0).map(claimed).collect(),
            agent_version: body.agent_version.clone(),
            source,
            seq: body.envelope.seq,
        }))
        .into();
        let events = state::decide(state, command.clone(), context).map_err(|r| refusal::from_decision(&r))?;
        let duplicate = self.hear(id, examined, source, now);
        if duplicate || events.is_empty() {
            return Ok(Registering::Unchanged(id));
        }
        Ok(Registering::Change(id, Box::new(command)))
    }

    fn hear(&self, id: NodeId, examined: &Examined<RegisterBody>, source: IpAddr, now: Now) -> bool {
        let presence = &mut self.soft().presence;
        if examined.again {
            return presence.of(id).is_some_and(|heard| heard.duplicate);
        }
        presence.hear(id, source, now.boot, now.wall);
        let duplicate = presence.start(id, examined.body.instance, examined.body.held_revision);
        if !duplicate {
            presence.registered(id, examined.body.content());
        }
        duplicate
    }

    /// The answer to a register, by the state after it.
    pub fn register_answer(&self, state: &State, id: NodeId, body: &RegisterBody, now: Now) -> Option<RegisterAnswer> {
        let roster = state.appliances.roster.as_ref().filter(|roster| roster.revision > body.roster_revision);
        Some(RegisterAnswer {
            revision: Records::standing(state, id).map_or(Revision(0), |(_, revision)| revision),
            epoch: state.appliances.epoch?,
            now: now.wall,
            services: body.services.iter().map(|claim| judged(state, id, claim)).collect(),
            roster: roster
                .map(|roster| Signed { document: roster.document.clone(), signature: roster.signature.clone() }),
            enrolled: None,
            duplicate_identity: self.soft().presence.of(id).is_some_and(|heard| heard.duplicate),
        })
    }

    /// The command of an examined wish to leave; `path_id` is the id in the request's path.
    pub fn leave(&self, examined: &Examined<LeaveBody>, path_id: NodeId) -> Result<Command, Refused> {
        let Caller::Node(id) = examined.caller else {
            return Err(refusal::from_decision(&nodes::not_admitted(&examined.key)));
        };
        if examined.body.node != id || path_id != id {
            return Err(problem(
                403,
                "wrong_key",
                "the request was refused",
                "a node can only leave by itself, and the named node has another key",
                "an operator removes a node with `holdfast node rm NAME`",
            ));
        }
        Ok(nodes::Command::Leave { key: examined.key, node: id }.into())
    }
}

fn claimed(claim: &ServiceClaim) -> (Pair, Port) {
    (Pair { space: claim.space.clone(), name: claim.name.clone() }, Port { protocol: claim.protocol, port: claim.port })
}

fn judged(state: &State, id: NodeId, claim: &ServiceClaim) -> Judged {
    let (pair, _) = claimed(claim);
    let verdict = match services::judge(state, id, &pair) {
        _ if claim.port == 0 => ClaimVerdict::Refused { code: "invalid".into(), why: "there is no port 0".into() },
        Err(refusal) => ClaimVerdict::Refused { code: refusal.code.as_str().into(), why: refusal.why },
        Ok(()) => services::verdict(state, id, &pair).into(),
    };
    Judged { space: pair.space, name: pair.name, verdict }
}
