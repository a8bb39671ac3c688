//! One DNS message in, one out: a pure function of the zone. hickory parses and writes; everything decided is here.
//!
//! There is no recursion, no zone transfer and no update.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, AAAA, HINFO, NS, PTR, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use state::view::names::{Data, Kind, Outcome, Zone};
use std::net::IpAddr;

/// Seconds that a found record may be kept by others: a change is everywhere in that time.
const TTL: u32 = 10;
/// Seconds that "no such name" may be kept (RFC 2308): a new service must not stay hidden for long.
const NEGATIVE_TTL: u32 = 5;
/// The largest UDP answer sent, bytes: what passes a tunnel of any usual MTU without fragments.
const UDP_MAX: u16 = 1232;
/// The largest UDP answer to a client without EDNS (RFC 1035, 4.2.1), bytes.
const UDP_PLAIN: u16 = 512;
/// Extended error 0, Other (RFC 8914): with a text.
const EDE_OTHER: u16 = 0;
/// Extended error 3, Stale Answer (RFC 8914).
const EDE_STALE: u16 = 3;

/// How the question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Answers are cut to what the client takes.
    Udp,
    /// Answers are whole.
    Tcp,
}

/// What the asker's address and the age of the list allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// How the question came.
    pub(crate) transport: Transport,
    /// Whether this source is answered at all.
    pub(crate) served: bool,
    /// Whether the list is so old that answers say it.
    pub(crate) old: bool,
}

/// Answers a message; `None` when nothing may be sent: too short to have a header, or itself a response, so that two
/// servers never answer each other for ever.
pub(crate) fn answer(zone: &Zone, bytes: &[u8], how: Circumstances) -> Option<Vec<u8>> {
    let header = bytes.get(..12)?;
    if header[2] & 0x80 != 0 {
        return None;
    }
    let id = u16::from_be_bytes([header[0], header[1]]);
    let op_code = OpCode::from_u8((header[2] >> 3) & 0x0f);
    if op_code != OpCode::Query {
        return Message::error_msg(id, op_code, ResponseCode::NotImp).to_vec().ok();
    }
    let Ok(query) = Message::from_vec(bytes) else {
        return Message::error_msg(id, op_code, ResponseCode::FormErr).to_vec().ok();
    };
    let mut response = Message::new(id, MessageType::Response, op_code);
    response.metadata.recursion_desired = query.metadata.recursion_desired;
    response.metadata.checking_disabled = query.metadata.checking_disabled;
    response.queries.clone_from(&query.queries);
    let mut limit = UDP_PLAIN;
    if let Some(asked) = &query.edns {
        limit = asked.max_payload().clamp(UDP_PLAIN, UDP_MAX);
        let mut edns = Edns::new();
        edns.set_version(0).set_max_payload(UDP_MAX).set_dnssec_ok(asked.flags().dnssec_ok);
        response.edns = Some(edns);
    }
    fill(zone, &query, &mut response, how);
    let whole = response.to_vec().ok()?;
    if how.transport == Transport::Tcp || whole.len() <= usize::from(limit) {
        return Some(whole);
    }
    let mut cut = response;
    cut.answers.clear();
    cut.authorities.clear();
    cut.additionals.clear();
    cut.metadata.truncation = true;
    cut.to_vec().ok()
}

fn fill(zone: &Zone, query: &Message, response: &mut Message, how: Circumstances) {
    let code = &mut response.metadata.response_code;
    if query.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        *code = ResponseCode::BADVERS;
        return;
    }
    let [question] = query.queries.as_slice() else {
        *code = ResponseCode::FormErr;
        return;
    };
    let transfer = matches!(question.query_type(), RecordType::AXFR | RecordType::IXFR);
    if !how.served || transfer || question.query_class() != DNSClass::IN {
        *code = ResponseCode::Refused;
        return;
    }
    let name = question.name();
    let lower: Vec<Vec<u8>> = name.iter().map(<[u8]>::to_ascii_lowercase).collect();
    let labels: Vec<&[u8]> = lower.iter().map(Vec::as_slice).collect();
    let Some(reply) = zone.ask(&labels, kind(question.query_type())) else {
        *code = ResponseCode::Refused;
        return;
    };
    let (apex, outcome) = (name.trim_to(reply.apex), reply.outcome);
    response.metadata.authoritative = true;
    if how.old {
        explain(response, EDE_STALE, "the list of names is old: no appliance has confirmed it lately");
    }
    match outcome {
        Outcome::Answer(found) => {
            for data in found {
                add(zone, response, name, &apex, data);
            }
        }
        Outcome::NoData if question.query_type() == RecordType::ANY => {
            let synthesised = RData::HINFO(HINFO::new("RFC8482".into(), String::new()));
            response.add_answer(Record::from_rdata(name.clone(), TTL, synthesised));
        }
        Outcome::NoData => negative(zone, response, &apex, ResponseCode::NoError),
        Outcome::NxDomain => negative(zone, response, &apex, ResponseCode::NXDomain),
        Outcome::Contested(who) => {
            explain(response, EDE_OTHER, &contested(who));
            negative(zone, response, &apex, ResponseCode::NXDomain);
        }
    }
}

fn add(zone: &Zone, response: &mut Message, name: &Name, apex: &Name, data: Data<'_>) {
    let record = |ttl, data| Record::from_rdata(name.clone(), ttl, data);
    match data {
        Data::Address(ip) => {
            response.add_answer(record(TTL, address(ip)));
        }
        Data::Srv { port, node } => {
            let target = ours(zone, node.as_str());
            response.add_answer(record(TTL, RData::SRV(SRV::new(0, 0, port, target.clone()))));
            for kind in [Kind::A, Kind::Aaaa] {
                let labels = [node.as_str().as_bytes(), zone.suffix().as_str().as_bytes()];
                let Some(Outcome::Answer(found)) = zone.ask(&labels, kind).map(|reply| reply.outcome) else { continue };
                for data in found {
                    if let Data::Address(ip) = data {
                        response.add_additional(Record::from_rdata(target.clone(), TTL, address(ip)));
                    }
                }
            }
        }
        Data::Node(node) => {
            response.add_answer(record(TTL, RData::PTR(PTR(ours(zone, node.as_str())))));
        }
        Data::Soa => {
            response.add_answer(soa(zone, apex));
        }
        Data::Ns => {
            response.add_answer(record(TTL, RData::NS(NS(ours(zone, "appliance")))));
        }
    }
}

const fn address(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

fn negative(zone: &Zone, response: &mut Message, apex: &Name, code: ResponseCode) {
    response.metadata.response_code = code;
    response.add_authority(soa(zone, apex));
}

/// The times are for a secondary, and there is none; the last one and the record's own are for caches.
fn soa(zone: &Zone, apex: &Name) -> Record {
    let (server, contact) = (ours(zone, "appliance"), ours(zone, "hostmaster"));
    let data = SOA::new(server, contact, zone.serial(), 60, 30, 3600, NEGATIVE_TTL);
    Record::from_rdata(apex.clone(), NEGATIVE_TTL, RData::SOA(data))
}

fn ours(zone: &Zone, label: &str) -> Name {
    let labels = [label.as_bytes(), zone.suffix().as_str().as_bytes()];
    Name::from_labels(labels).expect("two checked labels make a name")
}

/// An extended error (RFC 8914), only for a client that sent OPT. hickory has no type for it.
fn explain(response: &mut Message, code: u16, text: &str) {
    if let Some(edns) = &mut response.edns {
        let option = [&code.to_be_bytes()[..], text.as_bytes()].concat();
        edns.options_mut().insert(EdnsOption::Unknown(15, option));
    }
}

/// At most four names, so that the text never makes an answer too large.
fn contested(who: &[state::model::Name]) -> String {
    let shown: Vec<&str> = who.iter().take(4).map(state::model::Name::as_str).collect();
    let rest = if who.len() > shown.len() { " and others" } else { "" };
    format!("contested: claimed by {}{rest}; answered for none of them until one withdraws", shown.join(", "))
}

const fn kind(record_type: RecordType) -> Kind {
    match record_type {
        RecordType::A => Kind::A,
        RecordType::AAAA => Kind::Aaaa,
        RecordType::SRV => Kind::Srv,
        RecordType::PTR => Kind::Ptr,
        RecordType::SOA => Kind::Soa,
        RecordType::NS => Kind::Ns,
        _ => Kind::Other,
    }
}
