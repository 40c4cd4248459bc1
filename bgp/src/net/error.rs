//! What can go wrong between the speaker and its sockets, in words that name the address and the fix.
//!
//! Two kinds: [`ListenError`] becomes a listening address's status; a [`ConnectFailure`] becomes the
//! peer's last error. Errors of commands are the engine's own.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::ConfigError;
use crate::speaker::{ConnectFailure, ConnectKind, RefusedSegments};

/// Why a listening socket could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for BGP on {address}: {source}: {fix}", fix = fix_of_listen(*address, source))]
pub(super) struct ListenError {
    /// The address and port.
    pub(super) address: SocketAddr,
    /// What the kernel said.
    pub(super) source: io::Error,
}

impl ListenError {
    /// What to do.
    pub(super) fn fix(&self) -> String {
        fix_of_listen(self.address, &self.source)
    }
}

/// The speaker's task has ended: it was stopped, and answers no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the speaker has been stopped")]
pub struct Stopped;

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Its arguments.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The speaker is not running any more.
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
            format!("no interface has {}: add it, or listen on an address that is there", address.ip())
        }
        Some(libc::EAFNOSUPPORT) => "the kernel has no such address family: leave the address out".to_owned(),
        _ => "choose another address or port to listen on".to_owned(),
    }
}

/// Why an attempt to connect failed.
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
                 and ebgpMultihop isn't set"
            ),
        ),
        Some(libc::EADDRNOTAVAIL) => (
            ConnectKind::SourceAddress,
            "the source address of the session is on no interface of this host: add it or correct it"
                .to_owned(),
        ),
        Some(libc::ECONNRESET) => {
            (ConnectKind::Refused, format!("{remote} reset the connection while it was being made"))
        }
        Some(libc::EPERM | libc::EACCES) => {
            (ConnectKind::Firewall, format!("a firewall rule of this host forbids connecting to {remote}"))
        }
        _ => (ConnectKind::Other, format!("{remote}: {error}")),
    };
    ConnectFailure::new(kind, text)
}

/// An attempt to connect that was not answered in time.
pub(super) fn timed_out(timeout: Duration, signed: bool, refused: RefusedSegments) -> ConnectFailure {
    // Segments of another peer's that say nothing of this one are left out.
    let telling = if refused.telling(signed) > 0 { refused } else { RefusedSegments::default() };
    ConnectFailure::new(ConnectKind::NoAnswer(telling), refused.no_answer(timeout.as_secs_f32(), signed))
}

/// Why an open connection ended, in words.
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
    fn a_timeout_tells_passwords_from_silence() {
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
