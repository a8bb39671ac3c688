//! Descriptors that whoever started this process left open in it. What we open ourselves no child ever gets; these would
//! go on to every child.
#![expect(unsafe_code, reason = "an inherited descriptor has no owner in this process that it could be borrowed from")]

use rustix::io::{FdFlags, fcntl_setfd};
use std::os::fd::BorrowedFd;

/// Marks every descriptor beyond the three standard ones to be closed in children. Harmless for our own, which are
/// marked already.
pub(super) fn close_in_children() {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.filter(|number| *number > 2).collect::<Vec<_>>() {
        // SAFETY: it is used for this one call, which changes a flag and fails if the descriptor is closed meanwhile.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        // One that was closed meanwhile, such as that of the listing, needs no mark.
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
}
