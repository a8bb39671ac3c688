//! Secrets on the command line: given as they are, on stdin, or in a file.

use super::failure::{Exit, Failure};
use std::io::Read;
use zeroize::Zeroizing;

/// No token is longer, in bytes.
const LIMIT: u64 = 64 * 1024;

/// The text of a `TOKEN | - | @FILE` argument. Several words are a token that was broken in the middle: they are joined,
/// so that it is refused as that and no part of it is taken for something else and shown.
pub(super) fn token(words: &[String]) -> Result<Zeroizing<String>, Failure> {
    match words {
        [one] if one == "-" => read("standard input", std::io::stdin().lock()),
        [one] if one.starts_with('@') => {
            let path = &one[1..];
            let file = std::fs::File::open(path).map_err(|error| unreadable(path, &error))?;
            read(path, file)
        }
        words => Ok(Zeroizing::new(words.join(" "))),
    }
}

fn read(name: &str, from: impl Read) -> Result<Zeroizing<String>, Failure> {
    let mut bytes = Zeroizing::new(Vec::new());
    from.take(LIMIT).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
    Ok(Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned()))
}

fn unreadable(name: &str, error: &std::io::Error) -> Failure {
    let why = format!("{name}: {error}");
    Failure::new(Exit::Failed, "file", "the token cannot be read", why, "give the token, - for stdin, or @FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_as_it_is_or_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t");
        crate::files::replace(&file, b"hfj1_abc\n").unwrap();
        let read = |words: &[&str]| token(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(read(&["hfj1_abc"]).unwrap().as_str(), "hfj1_abc");
        assert_eq!(read(&[&format!("@{}", file.display())]).unwrap().as_str(), "hfj1_abc\n");
        assert_eq!(read(&["hfj1_ab", "c"]).unwrap().as_str(), "hfj1_ab c", "refused as broken, and never shown");
        assert!(read(&["@/nonexistent/t"]).unwrap_err().why.contains("/nonexistent/t"));
    }
}
