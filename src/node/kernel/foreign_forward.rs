//! The one exception to touching no foreign table: where somebody, such as Docker, has set the iptables FORWARD policy to
//! drop, a hub needs an accept in that table. The rule is put in by the `iptables` tool itself, so that iptables can
//! still read its own table, and is known and removed by its comment.

use super::names::FOREIGN_RULE_COMMENT;
use super::{KernelError, tool};

/// Which of the two tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

impl Family {
    fn tool(self) -> &'static str {
        match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.tool())
    }
}

/// What the tool's filter table says of forwarding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether what is not accepted is dropped.
    pub drops: bool,
    /// The chain that takes our rule: Docker's own place for such rules, else FORWARD.
    pub chain: String,
    /// Our rules: chain and the interface they are for.
    pub ours: Vec<(String, String)>,
}

/// Reads it; nothing if the tool is not installed.
pub async fn observe(family: Family) -> Result<Option<Seen>, KernelError> {
    match run(family, &["-w", "-S"]).await? {
        Some(listing) => Ok(Some(read(&listing))),
        None => Ok(None),
    }
}

/// Accepts what is forwarded from the mesh to the mesh.
pub async fn allow(family: Family, chain: &str, ifname: &str) -> Result<(), KernelError> {
    run(family, &[&["-w", "-I", chain][..], &rule(ifname)].concat()).await.map(drop)
}

/// Takes that rule away.
pub async fn withdraw(family: Family, chain: &str, ifname: &str) -> Result<(), KernelError> {
    run(family, &[&["-w", "-D", chain][..], &rule(ifname)].concat()).await.map(drop)
}

fn rule(ifname: &str) -> [&str; 10] {
    ["-i", ifname, "-o", ifname, "-m", "comment", "--comment", FOREIGN_RULE_COMMENT, "-j", "ACCEPT"]
}

fn read(listing: &str) -> Seen {
    let mut seen = Seen { chain: "FORWARD".into(), ..Seen::default() };
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('"')).collect();
        match words[..] {
            ["-P", "FORWARD", policy] => seen.drops = policy == "DROP",
            ["-N", "DOCKER-USER"] => seen.chain = "DOCKER-USER".into(),
            ["-A", chain, "-i", ifname, ..] if words.contains(&FOREIGN_RULE_COMMENT) => {
                seen.ours.push((chain.into(), ifname.into()));
            }
            _ => {}
        }
    }
    seen
}

async fn run(family: Family, arguments: &[&str]) -> Result<Option<String>, KernelError> {
    let line = [&[family.tool()], arguments].concat();
    let Some(output) = tool::run(&line, "").await? else { return Ok(None) };
    if !output.status.success() {
        return Err(KernelError::new(line.join(" "), tool::said(&output)));
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_chain_is_preferred_and_our_rules_are_known_by_their_comment() {
        let plain = read("-P INPUT ACCEPT\n-P FORWARD ACCEPT\n");
        assert_eq!(plain, Seen { drops: false, chain: "FORWARD".into(), ours: vec![] });
        let docker = read(
            "-P FORWARD DROP\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -i hf0 -o hf0 -m comment \
             --comment holdfast -j ACCEPT\n-A DOCKER-USER -i x -m comment --comment other -j RETURN\n",
        );
        assert!(docker.drops);
        assert_eq!(docker.chain, "DOCKER-USER");
        assert_eq!(docker.ours, [("DOCKER-USER".to_owned(), "hf0".to_owned())]);
    }
}
