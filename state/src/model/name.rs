//! One kind of name for nodes, spaces, services, sites and orgs: a lower-case RFC 1123 label.
//!
//! Nothing is folded or repaired: what is refused here is refused by name, so that a name means the same in DNS, in a
//! file name, in a firewall rule, in a URL and on a page.

use serde::{Deserialize, Serialize};

/// Words that neither a node nor a space may take, because `<word>.internal` or the bare word already means something.
pub const RESERVED: &[&str] = &[
    "appliance",
    "internal",
    "localhost",
    "wpad",
    "isatap",
    "broadcasthost",
    "local",
    "arpa",
    "ns",
    "ns1",
    "ns2",
    "hostmaster",
    "all",
    "none",
    "any",
    "self",
];

/// A lower-case RFC 1123 label: 1 to 63 of `a-z`, `0-9` and inner `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// An org is named like everything else.
pub type OrgName = Name;

/// Why a text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing at all.
    #[error("the name is empty")]
    Empty,
    /// Longer than a DNS label may be (RFC 1035, 2.3.4).
    #[error("`{0}` has more than 63 characters")]
    TooLong(String),
    /// A character outside `a-z0-9-`.
    #[error("`{name}` has the character {bad:?}: only a-z, 0-9 and inner hyphens are allowed, in lower case")]
    Character {
        /// The text as given, cut to 64 characters.
        name: String,
        /// The first character that is not allowed.
        bad: char,
    },
    /// A hyphen at either end.
    #[error("`{0}` begins or ends with a hyphen")]
    Hyphen(String),
    /// One of [`RESERVED`].
    #[error("`{0}` is a reserved word")]
    Reserved(String),
}

impl Name {
    /// Checks a text. Reserved words pass here, because a service or a site may be called so; see [`Name::unreserved`].
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let shown = || text.chars().take(64).collect::<String>();
        if let Some(bad) = text.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-')) {
            return Err(NameError::Character { name: shown(), bad });
        }
        if text.len() > 63 {
            return Err(NameError::TooLong(shown()));
        }
        if text.starts_with('-') || text.ends_with('-') {
            return Err(NameError::Hyphen(shown()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name itself unless it is one of [`RESERVED`]: what nodes and spaces must pass.
    pub fn unreserved(self) -> Result<Self, NameError> {
        if RESERVED.contains(&self.0.as_str()) {
            return Err(NameError::Reserved(self.0));
        }
        Ok(self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_labels_and_nothing_else() {
        for good in ["a", "web-1", "0", &"a".repeat(63)] {
            assert_eq!(Name::new(good).map(|n| n.to_string()), Ok(good.to_owned()));
        }
        let character = |name: &str, bad| Err(NameError::Character { name: name.to_owned(), bad });
        assert_eq!(Name::new(""), Err(NameError::Empty));
        assert_eq!(Name::new(&"a".repeat(64)), Err(NameError::TooLong("a".repeat(64))));
        assert_eq!(Name::new("-a"), Err(NameError::Hyphen("-a".into())));
        assert_eq!(Name::new("a-"), Err(NameError::Hyphen("a-".into())));
        assert_eq!(Name::new("Web"), character("Web", 'W'));
        assert_eq!(Name::new("a.b"), character("a.b", '.'));
        assert_eq!(Name::new("a\0"), character("a\0", '\0'));
        assert_eq!(Name::new("é"), character("é", 'é'));
        assert_eq!(Name::new("<b>"), character("<b>", '<'));
        assert_eq!(Name::new("wpad").unwrap().unreserved(), Err(NameError::Reserved("wpad".into())));
    }
}
