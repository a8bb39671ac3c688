//! Kernel variables under `/proc/sys` of the caller's network namespace.

use super::{KernelError, failed};

/// The variable that makes IPv4 packets from this interface be forwarded, and those of no other.
pub fn forward4(ifname: &str) -> String {
    format!("net/ipv4/conf/{ifname}/forwarding")
}

/// The same for IPv6: the interface's own switch where the kernel has one (6.17), else the machine's.
pub fn forward6(ifname: &str) -> String {
    let own = format!("net/ipv6/conf/{ifname}/force_forwarding");
    if path(&own).exists() { own } else { "net/ipv6/conf/all/forwarding".into() }
}

/// Its value, none if the kernel has no such variable.
pub fn read(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path(name)).ok()?;
    Some(text.trim_end().to_owned())
}

/// Sets it.
pub fn write(name: &str, value: &str) -> Result<(), KernelError> {
    #[expect(clippy::disallowed_methods, reason = "a kernel variable is no file that could be staged and renamed")]
    std::fs::write(path(name), value).map_err(failed(format!("setting {} to {value}", name.replace('/', "."))))
}

fn path(name: &str) -> std::path::PathBuf {
    std::path::Path::new("/proc/sys").join(name)
}
