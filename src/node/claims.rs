//! What a node publishes: checked against each other before any of it is claimed.

use crate::limits;
use crate::node::failure::Failure;
use crate::wire::operator::Publish;
use crate::wire::peers::ServiceClaim;
use state::model::Name;
use state::view::records::Protocol;
use std::collections::BTreeMap;

const WHAT: &str = "the service is not published";

/// The services of this node by (space, name).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(BTreeMap<(Name, Name), Publish>);

impl Claims {
    /// As they were kept.
    pub fn new(claims: Vec<Publish>) -> Self {
        Self(claims.into_iter().map(|c| ((c.space.clone(), c.name.clone()), c)).collect())
    }

    /// As they are kept.
    pub fn to_vec(&self) -> Vec<Publish> {
        self.0.values().cloned().collect()
    }

    /// As they are claimed: without the target, which is nobody else's business.
    pub fn to_wire(&self) -> Vec<ServiceClaim> {
        let wire = |c: &Publish| ServiceClaim {
            space: c.space.clone(),
            name: c.name.clone(),
            protocol: c.protocol,
            port: c.port,
        };
        self.0.values().map(wire).collect()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Publish> {
        self.0.values()
    }

    /// Adds a claim or replaces the one of the same pair. Gives what was there.
    pub fn publish(&mut self, claim: Publish) -> Result<Option<Publish>, Failure> {
        self.check(&claim)?;
        Ok(self.0.insert((claim.space.clone(), claim.name.clone()), claim))
    }

    /// Takes a claim back; none if there was no such.
    pub fn withdraw(&mut self, space: &Name, name: &Name) -> Option<Publish> {
        self.0.remove(&(space.clone(), name.clone()))
    }

    fn check(&self, claim: &Publish) -> Result<(), Failure> {
        let refuse = |why: String, todo: &str| Err(Failure::new("invalid", WHAT, why, todo));
        let tcp = |protocol| match protocol {
            Protocol::Tcp | Protocol::Http => true,
            Protocol::Udp => false,
        };
        if claim.port == 0 {
            return refuse("0 is not a port".into(), "give a port from 1 to 65535 with --port");
        }
        if claim.port == 53 {
            return refuse("port 53 of the mesh address is the resolver's".into(), "give another --port");
        }
        if !tcp(claim.protocol) && claim.target.is_some() {
            return refuse(
                "UDP is not carried to a target".into(),
                "let the service listen on the mesh address itself and leave --target out",
            );
        }
        let pair = (claim.space.clone(), claim.name.clone());
        if !self.0.contains_key(&pair) && self.0.len() >= limits::SERVICES {
            return refuse(format!("this node publishes {} services already", limits::SERVICES), "withdraw one first");
        }
        let clash = self.0.iter().find(|(key, held)| {
            **key != pair
                && held.port == claim.port
                && tcp(held.protocol) == tcp(claim.protocol)
                && (held.target != claim.target || held.protocol != claim.protocol)
        });
        if let Some((_, held)) = clash {
            let why = format!("port {} is published as {}/{} with another target", claim.port, held.space, held.name);
            return Err(Failure::new("conflict", WHAT, why, "give another --port, or withdraw that one first"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::name;

    fn claim(pair: &str, protocol: Protocol, port: u16, target: Option<&str>) -> Publish {
        let (space, service) = pair.split_once('/').unwrap();
        let target = target.map(|t| t.parse().unwrap());
        Publish { space: name(space), name: name(service), protocol, port, target }
    }

    #[test]
    fn claims_of_one_port_have_one_target() {
        let mut claims = Claims::default();
        let mut publish = |pair, protocol, port, target| {
            claims.publish(claim(pair, protocol, port, target)).map(|_| ()).map_err(|f| f.why)
        };
        assert_eq!(publish("shop/web", Protocol::Http, 80, Some("127.0.0.1:3000")), Ok(()));
        assert_eq!(publish("shop/www", Protocol::Http, 80, Some("127.0.0.1:3000")), Ok(()));
        assert_eq!(publish("shop/web", Protocol::Http, 81, Some("127.0.0.1:3001")), Ok(()));
        let clash = "port 80 is published as shop/www with another target";
        assert_eq!(publish("shop/api", Protocol::Http, 80, Some("127.0.0.1:3001")), Err(clash.into()));
        assert_eq!(publish("shop/api", Protocol::Tcp, 80, Some("127.0.0.1:3000")), Err(clash.into()));
        assert_eq!(publish("shop/udp", Protocol::Udp, 80, None), Ok(()));
        assert!(publish("shop/q", Protocol::Udp, 90, Some("127.0.0.1:1")).is_err());
        assert!(publish("shop/dns", Protocol::Udp, 53, None).is_err());
        assert!(publish("shop/z", Protocol::Tcp, 0, None).is_err());
        assert_eq!(claims.to_wire().len(), 3);
        assert_eq!(Claims::new(claims.to_vec()), claims);
        assert!(claims.withdraw(&name("shop"), &name("web")).is_some());
        assert!(claims.withdraw(&name("shop"), &name("web")).is_none());
    }
}
