//! The one registry of names and numbers that this program takes in the kernel.

use state::model::NodeId;

/// The mesh interface, unless another name was asked for.
pub const INTERFACE: &str = "hf0";
/// The longest interface name: `IFNAMSIZ` (linux/if.h) without the closing zero.
pub const INTERFACE_MAX: usize = 15;
/// Whether the kernel takes this as an interface's name (`dev_valid_name` of net/core/dev.c).
pub fn is_interface_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    (1..=INTERFACE_MAX).contains(&name.len()) && !name.contains(odd) && name != "." && name != ".."
}

/// The tunnel's UDP port, unless another was asked for.
pub const LISTEN_PORT: u16 = 51820;
/// `rtm_protocol` of our routes: unassigned in linux/rtnetlink.h and in iproute2's rt_protos.
pub const ROUTE_PROTOCOL: u8 = 117;
/// The nftables table of the mesh, in the family `inet`.
pub const MESH_TABLE: &str = "holdfast_mesh";
/// How the name of a chain begins that says whose table it is.
pub const MARK_CHAIN: &str = "node_";
/// The comment of the one rule that is put into an iptables chain of somebody else.
pub const FOREIGN_RULE_COMMENT: &str = "holdfast";

/// What marks an object of the mesh as this node's: the alias of its link, the comment of its firewall rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    text: String,
    chain: String,
}

impl Mark {
    /// The mark of a node.
    pub fn new(node: NodeId) -> Self {
        Self { text: format!("holdfast:mesh:{node}"), chain: format!("{MARK_CHAIN}{}", node.0.simple()) }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name of an empty chain that marks a table even when all its rules were flushed.
    pub fn chain(&self) -> &str {
        &self.chain
    }
}
