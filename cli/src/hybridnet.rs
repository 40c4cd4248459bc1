//! Whether hybridnet's daemon runs on this node. Trunkline and hybridnet use rules and routes with
//! the same numbers, and each would delete the other's. A Trunkline configuration that precedes
//! hybridnet's would also disconnect hybridnet's pods before an agent of Trunkline can attach them.
//!
//! The daemon is recognized by its listening socket for its plugin, whose path ends in
//! `hybridnet.sock`. The kernel lists the listening sockets of a network namespace with their
//! paths, and daemon and agent are both in the host's namespace. So the check needs no access to
//! the daemon's folders or process from the agent's container. A socket file of a stopped daemon is
//! not a listening socket. Routes and devices are no sign, because they stay after the daemon's
//! end.

use std::fs;

use anyhow::{Context as _, bail};

/// The kernel's table of Unix sockets in this network namespace.
const SOCKETS: &str = "/proc/self/net/unix";
/// File name of the daemon's socket, in hybridnet's chart and by default.
const SOCKET_NAME: &str = "hybridnet.sock";
/// `__SO_ACCEPTCON` in a socket's flags: the socket listens.
const LISTENS: u32 = 0x1_0000;

/// Fails if a daemon of hybridnet runs.
pub fn refuse_if_running() -> anyhow::Result<()> {
    let table = fs::read_to_string(SOCKETS).with_context(|| SOCKETS.to_owned())?;
    if let Some(path) = listening(&table) {
        bail!(
            "hybridnet's daemon runs on this node: it listens on {path}, and would delete the \
             kernel objects of Trunkline's agent. Remove the node from the DaemonSet \
             hybridnet-daemon first (docs/migrate-from-hybridnet.md), or start with \
             --beside-hybridnet if another program has this socket"
        );
    }
    Ok(())
}

/// The path of the daemon's socket, if it listens.
fn listening(table: &str) -> Option<&str> {
    table.lines().skip(1).find_map(|line| {
        // The columns are: Num RefCount Protocol Flags Type St Inode Path.
        let flags = u32::from_str_radix(line.split_whitespace().nth(3)?, 16).ok()?;
        let path = line.split_whitespace().nth(7)?;
        let is_its = path.rsplit('/').next() == Some(SOCKET_NAME);
        (is_its && flags & LISTENS != 0).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn daemon_is_detected_by_its_listening_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SOCKET_NAME);
        let other = UnixListener::bind(folder.path().join("not-hybridnet.sock")).unwrap();
        refuse_if_running().unwrap();

        let daemon = UnixListener::bind(&path).unwrap();
        let error = refuse_if_running().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--beside-hybridnet"), "{error}");

        // Accepted connections have the same path and do not listen. The file stays after the
        // daemon's end.
        let _client = UnixStream::connect(&path).unwrap();
        let _accepted = daemon.accept().unwrap();
        drop(daemon);
        assert!(path.exists());
        refuse_if_running().unwrap();
        drop(other);
    }

    #[test]
    fn other_lines_are_ignored() {
        assert_eq!(listening(""), None);
        let head = "Num       RefCount Protocol Flags    Type St Inode Path\n";
        let line = |flags: &str, path: &str| {
            format!("{head}0000000000000000: 00000002 00000000 {flags} 0001 01 17 {path}\n")
        };
        assert_eq!(listening(&line("00010000", "/run/cni/hybridnet.sock")), Some("/run/cni/hybridnet.sock"));
        assert_eq!(listening(&line("00000000", "/run/cni/hybridnet.sock")), None);
        assert_eq!(listening(&line("00010000", "")), None);
    }
}
