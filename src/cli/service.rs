//! `holdfast service publish|withdraw`: always the agent of this machine.

use super::client::Client;
use super::failure::{Exit, Failure};
use super::globals::Globals;
use super::node::verdict_words;
use super::output::{self, Format};
use crate::wire::operator::{Done, Publish, Published};
use crate::wire::peers::ClaimVerdict;
use state::subject::services::Pair;
use state::view::records::Protocol;
use std::net::{Ipv4Addr, SocketAddr};

/// What to do.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Give a port of this node a name, and wait for the appliance's verdict
    Publish {
        /// SPACE/NAME: reached as NAME.SPACE.internal
        #[arg(value_name = "SPACE/NAME")]
        pair: Pair,
        /// The port on this node's mesh address
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        /// How it is reached
        #[arg(long, value_enum, default_value = "tcp")]
        protocol: ProtocolWord,
        /// Where the service really listens, if not on that port of the mesh address
        #[arg(long, value_name = "HOST:PORT", value_parser = target)]
        target: Option<SocketAddr>,
    },
    /// Take a name back
    Withdraw {
        /// As it was published
        #[arg(value_name = "SPACE/NAME")]
        pair: Pair,
    },
}

/// [`Protocol`] as the flag has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProtocolWord {
    Tcp,
    Udp,
    Http,
}

impl From<ProtocolWord> for Protocol {
    fn from(word: ProtocolWord) -> Self {
        match word {
            ProtocolWord::Tcp => Self::Tcp,
            ProtocolWord::Udp => Self::Udp,
            ProtocolWord::Http => Self::Http,
        }
    }
}

/// An address with a port; `localhost` stands for 127.0.0.1.
fn target(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let target = local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).or_else(|| text.parse().ok());
    target
        .filter(|target| target.port() != 0)
        .ok_or_else(|| "give an address with a port, such as 127.0.0.1:8080".into())
}

/// Does it.
pub(super) async fn run(command: Command, globals: &Globals) -> Result<(), Failure> {
    let client = Client::agent(globals);
    match command {
        Command::Publish { pair, port, protocol, target } => {
            let body = Publish { space: pair.space, name: pair.name, protocol: protocol.into(), port, target };
            report(&client.post("/v1/services", &body).await?, globals.format())
        }
        Command::Withdraw { pair } => {
            let done: Done = client.delete(&format!("/v1/services/{}/{}", pair.space, pair.name)).await?;
            super::agent::print_done(&done, globals.format());
            Ok(())
        }
    }
}

fn report(published: &Published, format: Format) -> Result<(), Failure> {
    let words = published.verdict.as_ref().map_or_else(|| "not judged yet".to_owned(), verdict_words);
    match format {
        Format::Json => output::json(published),
        Format::Table => output::line(&format!("{}: {words}", published.name)),
    }
    let what = format!("{} is not published", published.name);
    match &published.verdict {
        Some(ClaimVerdict::Routed) => Ok(()),
        Some(ClaimVerdict::Contested { .. }) => {
            output::note(&format!(
                "warning: {} is {words}: nobody is reached by it until one of them withdraws",
                published.name
            ));
            Ok(())
        }
        Some(ClaimVerdict::Refused { code, why }) => {
            let todo = "publish another name, or ask the operator who owns this one";
            Err(Failure::new(Exit::Failed, code, what, why.clone(), todo))
        }
        None => Err(Failure::new(
            Exit::Unreachable,
            "unreachable",
            format!("{} is not published yet", published.name),
            "no appliance answers; the claim is kept on this machine",
            "nothing: it is sent as soon as an appliance answers",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_targets_are_read_or_refused_with_an_example() {
        let pair: Pair = "shop/web".parse().unwrap();
        assert_eq!((pair.space.as_str(), pair.name.as_str()), ("shop", "web"));
        assert!("shop".parse::<Pair>().unwrap_err().contains("shop/web"));
        assert!("shop/Web".parse::<Pair>().unwrap_err().contains("`Web`"));
        assert_eq!(target("localhost:8080").unwrap().to_string(), "127.0.0.1:8080");
        assert_eq!(target("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert!(target("web:80").is_err() && target("127.0.0.1:0").is_err());
    }

    #[test]
    fn each_verdict_has_its_exit() {
        let exit = |verdict| {
            let published = Published { schema: 1, name: "web.shop.internal".into(), verdict };
            report(&published, Format::Json).err().map(|failure| failure.exit)
        };
        assert_eq!(exit(Some(ClaimVerdict::Routed)), None);
        assert_eq!(exit(Some(ClaimVerdict::Contested { with: vec![] })), None);
        let refused = ClaimVerdict::Refused { code: "invalid".into(), why: "x".into() };
        assert_eq!(exit(Some(refused)), Some(Exit::Failed));
        assert_eq!(exit(None), Some(Exit::Unreachable));
    }
}
