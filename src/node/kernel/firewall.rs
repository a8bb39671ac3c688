//! The mesh's nftables table, by the `nft` tool: read as a whole, replaced in one transaction, or changed element by
//! element. What stands in it is decided in `plan::ruleset`.

use super::names::MESH_TABLE;
use super::{KernelError, failed};
use crate::tasks;
use nftables::helper::{self, DEFAULT_ARGS, DEFAULT_NFT, NftablesError};
use serde_json::Value;

/// The table as `nft -j` lists it; none if there is no such table.
pub async fn observe() -> Result<Option<Value>, KernelError> {
    let listed =
        tasks::blocking(|| helper::get_current_ruleset_raw(DEFAULT_NFT, [&"list", &"table", &"inet", &MESH_TABLE]))
            .await;
    match listed {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(failed("reading the firewall")),
        Err(NftablesError::NftFailed { stderr, .. }) if stderr.contains("No such file or directory") => Ok(None),
        Err(error) => Err(refused("reading the firewall", error)),
    }
}

/// Sends commands as one transaction: all of them or none.
pub async fn apply(commands: &Value) -> Result<(), KernelError> {
    let text = commands.to_string();
    let applied = tasks::blocking(move || helper::apply_ruleset_raw(&text, DEFAULT_NFT, DEFAULT_ARGS)).await;
    applied.map(drop).map_err(|error| refused("changing the firewall", error))
}

fn refused(doing: &str, error: NftablesError) -> KernelError {
    match error {
        NftablesError::NftFailed { stderr, .. } => KernelError::new(doing, stderr.trim()),
        NftablesError::NftExecution { inner, .. } if inner.kind() == std::io::ErrorKind::NotFound => {
            KernelError::new(doing, "the tool nft is not installed; install the package nftables")
        }
        error => KernelError::new(doing, error),
    }
}
