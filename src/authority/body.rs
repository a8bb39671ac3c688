//! Bodies from strangers, parsed once and strictly: unknown and duplicate keys, deep nesting and trailing bytes are
//! refused.

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;

/// Levels of `{` and `[` in a body. Ours need four.
const NESTING: usize = 32;

/// Parses a body, which is an object. The types that come here have `deny_unknown_fields`.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if body.is_empty() {
        return Err("the request has no body".into());
    }
    if nesting(body) > NESTING {
        return Err(format!("the body is nested deeper than {NESTING} levels"));
    }
    // By serde alone an array would do for a struct, and the last of two equal keys of a map would count.
    serde_json::from_slice::<Once>(body).map_err(|error| error.to_string())?;
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("the body is not an object".into());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// Any value in which no object, however deep, has a key twice.
struct Once;

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = Self;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self, A::Error> {
        while values.next_element::<Self>()?.is_some() {}
        Ok(Self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut keys: BTreeSet<String> = BTreeSet::new();
        while let Some(key) = fields.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
            }
            fields.next_value::<Self>()?;
        }
        Ok(Self)
    }
}

/// The deepest nesting, found without a stack.
fn nesting(body: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0usize, 0usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::peers::LeaveBody;

    #[test]
    fn bodies_are_parsed_strictly() {
        let id = "00000000-0000-0000-0000-000000000001";
        let good = format!(r#"{{"envelope":{{"seq":1,"audience":"{id}"}},"node":"{id}"}}"#);
        assert_eq!(parse::<LeaveBody>(good.as_bytes()).unwrap().envelope.seq, 1);
        let bad = |text: String| parse::<LeaveBody>(text.as_bytes()).unwrap_err();
        assert!(bad(good.replacen('{', r#"{"x":1,"#, 1)).contains("unknown field `x`"));
        assert!(bad(good.replacen("\"seq\":1", "\"seq\":1,\"seq\":1", 1)).contains("duplicate field `seq`"));
        assert!(bad(good.replacen("\"seq\":1", r#""seq":1,"s\u0065q":1"#, 1)).contains("duplicate field `seq`"));
        assert!(bad(good.replacen("\"seq\":1", "\"seq\":1.0", 1)).contains("floating point"));
        assert!(bad(good.clone() + "x").contains("trailing characters"));
        assert!(bad(String::new()).contains("no body"));
        let deep = "[".repeat(33) + &"]".repeat(33);
        assert!(bad(deep).contains("nested deeper"));
    }

    #[test]
    fn an_array_is_no_object_and_no_map_has_a_key_twice() {
        use crate::wire::jobs::{Completion, Held, LeaseRequest};
        let held = parse::<Held>(br#"["00"]"#).err().unwrap();
        assert!(held.contains("not an object"), "{held}");
        let lease = parse::<LeaseRequest>(br#"{"capabilities":{"a":"present","\u0061":"absent"}}"#).err().unwrap();
        assert!(lease.contains("duplicate field `a`"), "{lease}");
        let body = |result| format!(r#"{{"lease_token":"","attempt":1,"outcome":"failed","result":{result}}}"#);
        let twice = parse::<Completion>(body(r#"{"a":[{"b":1,"b":2}]}"#).as_bytes()).err().unwrap();
        assert!(twice.contains("duplicate field `b`"), "{twice}");
        let apart = r#"{"a":[{"b":1},{"b":-2.5e3}],"b":null,"c":["b","b",true]}"#;
        assert!(parse::<Completion>(body(apart).as_bytes()).is_ok());
    }

    #[test]
    fn brackets_in_texts_do_not_count() {
        assert_eq!(nesting(br#"{"a":"[[[{\"[","b":[1]}"#), 2);
        assert_eq!(nesting(b"]]]["), 1);
    }
}
