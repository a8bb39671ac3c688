//! Who holds a UDP port.

use std::path::Path;

/// The holder of a UDP port on any address of this network namespace, in words; none if it is free.
pub fn holder(port: u16) -> Option<String> {
    let inode = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"]
        .iter()
        .find_map(|table| inode_of(&std::fs::read_to_string(table).ok()?, port))?;
    Some(match inode {
        0 => "the kernel, such as another WireGuard interface".into(),
        inode => process_with(inode).unwrap_or_else(|| "a process that cannot be seen from here".into()),
    })
}

/// The socket's inode from a table as in proc_net_udp(5): columns `sl local_address rem_address st … inode`.
fn inode_of(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = columns.get(1)?.rsplit_once(':')?;
        (u16::from_str_radix(local, 16).ok()? == port).then(|| columns.get(9)?.parse().ok())?
    })
}

fn process_with(inode: u64) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    let holds = |process: &Path| {
        std::fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str()))
    };
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        holds(&entry.path()).then(|| {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim_end())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_named() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                     21150: 0100007F:CA6C 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0\n";
        assert_eq!(inode_of(table, 51820), Some(4711));
        assert_eq!(inode_of(table, 51821), None);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let held = holder(socket.local_addr().unwrap().port()).unwrap();
        assert!(held.starts_with(&format!("process {} (", std::process::id())), "{held}");
    }
}
