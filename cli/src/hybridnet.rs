//! Whether hybridnet's daemon runs on this node: two of them would undo each other's rules and routes, which have the same numbers. And a
//! configuration of ours that stands before its own would take its pods' network away, before any agent of ours can give them one.
//!
//! It is known by the socket that its plugin asks it over, `hybridnet.sock` wherever it was told to put it, as long as somebody listens
//! there. The kernel shows the listening sockets of a network namespace with the paths they were bound to, and daemon and agent are both in the
//! host's: this needs neither the daemon's folders nor its process to be seen from the agent's container. A file that a daemon left behind is no
//! listening socket. Its routes and devices say nothing either: they stay when it ends.

use std::fs;

use anyhow::{Context as _, bail};

/// The kernel's table of this network namespace's Unix sockets.
const SOCKETS: &str = "/proc/self/net/unix";
/// File name of the daemon's socket, in hybridnet's chart and by default.
const SOCKET_NAME: &str = "hybridnet.sock";
/// `__SO_ACCEPTCON` among a socket's flags: it listens.
const LISTENS: u32 = 0x1_0000;

/// Refuses to go on beside a live daemon of hybridnet.
pub fn refuse_if_running() -> anyhow::Result<()> {
    let table = fs::read_to_string(SOCKETS).with_context(|| SOCKETS.to_owned())?;
    if let Some(path) = listening(&table) {
        bail!(
            "hybridnet's daemon runs on this node: it listens on {path}, and would undo what Trunkline's agent puts into the kernel. Take the node \
             out of the DaemonSet hybridnet-daemon first (docs/migrate-from-hybridnet.md), or start with --beside-hybridnet if that is not its daemon"
        );
    }
    Ok(())
}

/// The path of the daemon's socket, if somebody listens there.
fn listening(table: &str) -> Option<&str> {
    table.lines().skip(1).find_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
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
    fn a_daemon_is_known_by_the_socket_that_it_listens_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SOCKET_NAME);
        let other = UnixListener::bind(folder.path().join("not-hybridnet.sock")).unwrap();
        refuse_if_running().unwrap();

        let daemon = UnixListener::bind(&path).unwrap();
        let error = refuse_if_running().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--beside-hybridnet"), "{error}");

        // Its connections have the same path and do not listen; its file stays when it ends.
        let _client = UnixStream::connect(&path).unwrap();
        let _accepted = daemon.accept().unwrap();
        drop(daemon);
        assert!(path.exists());
        refuse_if_running().unwrap();
        drop(other);
    }

    #[test]
    fn lines_that_are_something_else_are_passed_over() {
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
