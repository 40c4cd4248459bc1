//! The process that listens on a TCP port: the socket's inode is in `/proc/net/tcp`, its owner in
//! `/proc/PID/fd`.
//!
//! In a container the agent sees only its own processes, unless the container shares the host's PID
//! namespace. Otherwise the owner is not found, and the operator must use `ss -ltnp` on the host.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// `bgpd (process 4711)`, or none if the process is not visible. It reads the links of every
/// visible process, which may take some milliseconds: call it from a thread that may block.
pub(crate) fn port_owner(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: BTreeSet<u64> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let links: BTreeSet<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let own = std::process::id().to_string();
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_other = name.bytes().all(|octet| octet.is_ascii_digit()) && name != own;
        (is_other && holds(&entry.path(), &links)).then(|| {
            let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            // A process can set its name to any text.
            format!("{} (process {name})", comm.trim().escape_debug())
        })
    })
}

/// The inodes of the sockets in the table that listen on the port.
fn listening(table: &str, port: u16) -> Vec<u64> {
    let inode = |line: &str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?;
        let listens = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()? == port && state == LISTEN;
        if listens { inode.parse().ok() } else { None }
    };
    table.lines().skip(1).filter_map(inode).collect()
}

fn holds(process: &Path, links: &BTreeSet<String>) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let target = fs::read_link(descriptor.path());
        target.is_ok_and(|target| target.to_str().is_some_and(|target| links.contains(target)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listening_socket_is_found_by_its_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 00000000:00B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n   \
            1: 0100007F:00B3 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0\n";
        assert_eq!(listening(table, 179), [4711]);
        assert_eq!(listening(table, 180), [0; 0]);
    }

    #[test]
    fn the_kernel_shows_a_port_of_this_process() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        assert_eq!(listening(&table, port).len(), 1);
        assert_eq!(port_owner(port), None, "this process itself is not reported");
    }
}
