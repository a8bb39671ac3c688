//! What this machine can do, as far as looking tells: reported to the appliance with each question for work.

use crate::node::jobs;
use crate::node::kernel::wireguard::Backend;
use crate::node::lanes::Groups;
use crate::wire::jobs::Capability;
use std::collections::BTreeMap;

/// Looks. `cgroup`: work is ended whole, whatever it does; `kernel-wireguard`: packets of the mesh take the kernel's way;
/// `job-…`: each kind of job that this program does, with hyphens for dots.
pub(super) fn found(groups: &Groups, backend: Backend) -> BTreeMap<String, Capability> {
    let can = |able| if able { Capability::Present } else { Capability::Absent };
    // Where the kernel does not even say which cgroup this process is in, nothing is known of what could be made.
    let told = std::fs::read("/proc/self/cgroup").is_ok();
    let cgroup = if told { can(groups.are_tight()) } else { Capability::Unknown };
    let machine = [("cgroup", cgroup), ("kernel-wireguard", can(backend == Backend::Kernel))];
    let machine = machine.map(|(name, held)| (name.to_owned(), held));
    let kinds = jobs::KINDS.map(|kind| (format!("job-{}", kind.replace('.', "-")), Capability::Present));
    machine.into_iter().chain(kinds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use state::model::{Name, NodeId};

    #[test]
    fn what_is_reported_is_what_is_there_under_names_that_an_appliance_takes() {
        let dir = tempfile::tempdir().unwrap();
        let groups = Groups::open(dir.path(), NodeId(crate::entropy::uuid())).unwrap();
        let told = found(&groups, Backend::Userspace);
        let cgroup = if groups.are_tight() { Capability::Present } else { Capability::Absent };
        assert_eq!((told["cgroup"], told["kernel-wireguard"]), (cgroup, Capability::Absent));
        assert_eq!(found(&groups, Backend::Kernel)["kernel-wireguard"], Capability::Present);
        assert_eq!(told["job-service-check"], Capability::Present);
        assert!(told.keys().all(|name| Name::new(name).is_ok()) && told.len() <= state::subject::jobs::CAPABILITIES);
        assert!(!told.contains_key("build"), "nothing builds here");
    }
}
