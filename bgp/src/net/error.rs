//! Errors of sockets, as texts that name the address and the fix.
//!
//! Two kinds: a [`ListenError`] becomes the status of a listening address; a [`ConnectFailure`]
//! becomes the peer's last error. Errors of commands come from the engine.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::ConfigError;
use crate::speaker::{ConnectFailure, ConnectKind, RefusedSegments};

/// The reason why a listening socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for BGP on {address}: {source}: {fix}", fix = fix_of_listen(*address, source))]
pub(super) struct ListenError {
    /// The address and port.
    pub(super) address: SocketAddr,
    /// The kernel's error.
    pub(super) source: io::Error,
}

impl ListenError {
    /// The fix.
    pub(super) fn fix(&self) -> String {
        fix_of_listen(self.address, &self.source)
    }
}

/// The speaker's task has ended and no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the speaker has been stopped")]
pub struct Stopped;

/// The reason why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The arguments are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The speaker has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn fix_of_listen(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => format!(
            "another BGP speaker has port {port} here: stop it (`ss -ltnp sport = :{port}` shows it), or listen on \
             another address or port"
        ),
        Some(libc::EACCES) => {
            format!("port {port} needs CAP_NET_BIND_SERVICE: grant it, or listen on a port from 1024 up")
        }
        Some(libc::EADDRNOTAVAIL) => {
            format!("no interface has {}: add it, or listen on an existing address", address.ip())
        }
        Some(libc::EAFNOSUPPORT) => "the kernel has no such address family: leave the address out".to_owned(),
        _ => "choose another address or port to listen on".to_owned(),
    }
}

/// The failure of an attempt to connect.
pub(super) fn connect_failure(remote: SocketAddr, error: &io::Error) -> ConnectFailure {
    let host = remote.ip();
    let (kind, text) = match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => (
            ConnectKind::Refused,
            format!(
                "{remote} refused the connection: no BGP speaker listens there, or a firewall rejects it"
            ),
        ),
        Some(libc::ENETUNREACH) => {
            (ConnectKind::NoRoute, format!("no route to {host}: this host has no route that covers it"))
        }
        Some(libc::EHOSTUNREACH) => (
            ConnectKind::Unreachable,
            format!(
                "{host} is unreachable: no answer to ARP or neighbour discovery, or it is more than one hop away \
                 and ebgpMultihop is not set"
            ),
        ),
        Some(libc::EADDRNOTAVAIL) => (
            ConnectKind::SourceAddress,
            "no interface of this host has the source address of the session: add it or correct it"
                .to_owned(),
        ),
        Some(libc::ECONNRESET) => {
            (ConnectKind::Refused, format!("{remote} reset the connection during the handshake"))
        }
        Some(libc::EPERM | libc::EACCES) => {
            (ConnectKind::Firewall, format!("a firewall rule of this host forbids connecting to {remote}"))
        }
        _ => (ConnectKind::Other, format!("{remote}: {error}")),
    };
    ConnectFailure::new(kind, text)
}

/// An attempt to connect without an answer in time.
pub(super) fn timed_out(timeout: Duration, signed: bool, refused: RefusedSegments) -> ConnectFailure {
    // Segments of other peers are left out, because they prove nothing about this peer.
    let evidence = if refused.mismatches(signed) > 0 { refused } else { RefusedSegments::default() };
    ConnectFailure::new(ConnectKind::NoAnswer(evidence), refused.no_answer(timeout.as_secs_f32(), signed))
}

/// The reason why an open connection ended, as text.
pub(super) fn connection_loss(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset => "the peer reset the TCP connection".to_owned(),
        io::ErrorKind::BrokenPipe => "the peer closed the TCP connection".to_owned(),
        io::ErrorKind::TimedOut => "the TCP connection timed out: the peer no longer acknowledges".to_owned(),
        _ => format!("the TCP connection failed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_error_names_address_port_and_fix() {
        let text = |number, address: &str| {
            let error = ListenError {
                address: address.parse().unwrap(),
                source: io::Error::from_raw_os_error(number),
            };
            error.to_string()
        };
        let in_use = text(libc::EADDRINUSE, "0.0.0.0:179");
        assert!(in_use.contains("0.0.0.0:179") && in_use.contains("stop it"), "{in_use}");
        let forbidden = text(libc::EACCES, "[::]:179");
        assert!(forbidden.contains("[::]:179") && forbidden.contains("CAP_NET_BIND_SERVICE"), "{forbidden}");
        let missing = text(libc::EADDRNOTAVAIL, "192.0.2.1:179");
        assert!(missing.contains("no interface has 192.0.2.1"), "{missing}");
    }

    #[test]
    fn a_failed_attempt_has_a_kind() {
        let remote = "192.0.2.1:179".parse().unwrap();
        for (number, kind) in [
            (libc::ECONNREFUSED, ConnectKind::Refused),
            (libc::ENETUNREACH, ConnectKind::NoRoute),
            (libc::EHOSTUNREACH, ConnectKind::Unreachable),
            (libc::EADDRNOTAVAIL, ConnectKind::SourceAddress),
            (libc::EPERM, ConnectKind::Firewall),
            (libc::ENOBUFS, ConnectKind::Other),
        ] {
            assert_eq!(connect_failure(remote, &io::Error::from_raw_os_error(number)).kind, kind);
        }
    }

    #[test]
    fn a_wrong_password_differs_from_silence() {
        let after = Duration::from_secs(15);
        let wrong = RefusedSegments { wrong: 2, ..RefusedSegments::default() };
        let silent = timed_out(after, true, RefusedSegments::default());
        assert_eq!(silent.kind, ConnectKind::NoAnswer(RefusedSegments::default()));
        assert_eq!(silent.text, "no answer for 15 s: it is down or filtered, or the passwords differ");
        assert_eq!(timed_out(after, true, wrong).kind, ConnectKind::NoAnswer(wrong));
        let unsigned = timed_out(after, false, wrong);
        assert_eq!(unsigned.kind, ConnectKind::NoAnswer(RefusedSegments::default()));
        assert!(unsigned.text.contains("expects a password"), "{unsigned}");
    }
}
