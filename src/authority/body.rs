//! Bodies from strangers, parsed once and strictly: unknown and duplicate keys, deep nesting and trailing bytes are
//! refused.

use serde::de::DeserializeOwned;

/// Levels of `{` and `[` in a body. Ours need four.
const NESTING: usize = 32;

/// Parses a body. The types that come here have `deny_unknown_fields`, and serde refuses a key given twice.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if body.is_empty() {
        return Err("the request has no body".into());
    }
    if nesting(body) > NESTING {
        return Err(format!("the body is nested deeper than {NESTING} levels"));
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
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
    fn brackets_in_texts_do_not_count() {
        assert_eq!(nesting(br#"{"a":"[[[{\"[","b":[1]}"#), 2);
        assert_eq!(nesting(b"]]]["), 1);
    }
}
