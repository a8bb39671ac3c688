//! The mesh's nftables table, by the `nft` tool: read as a whole, replaced in one transaction, or changed element by
//! element. What stands in it is decided in `plan::ruleset`.

use super::names::MESH_TABLE;
use super::{KernelError, failed, tool};
use serde_json::Value;
use std::process::Output;

/// The table as `nft -j` lists it; none if there is no such table.
pub async fn observe() -> Result<Option<Value>, KernelError> {
    const DOING: &str = "reading the firewall";
    let output = nft(DOING, &["nft", "-j", "list", "table", "inet", MESH_TABLE], "").await?;
    if output.status.success() {
        return serde_json::from_slice(&output.stdout).map(Some).map_err(failed(DOING));
    }
    match tool::said(&output) {
        said if said.contains("No such file or directory") => Ok(None),
        said => Err(KernelError::new(DOING, said)),
    }
}

/// Sends commands as one transaction: all of them or none.
pub async fn apply(commands: &Value) -> Result<(), KernelError> {
    const DOING: &str = "changing the firewall";
    let output = nft(DOING, &["nft", "-j", "-f", "-"], &commands.to_string()).await?;
    if output.status.success() { Ok(()) } else { Err(KernelError::new(DOING, tool::said(&output))) }
}

async fn nft(doing: &str, line: &[&str], input: &str) -> Result<Output, KernelError> {
    let missing = || KernelError::new(doing, "the tool nft is not installed; install the package nftables");
    tool::run(line, input).await?.ok_or_else(missing)
}
