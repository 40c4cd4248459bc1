//! Port numbers for servers that need a fixed port before they start, and need it again after a
//! restart.
//!
//! A free port from the kernel that is released again guarantees neither. It is in the range of
//! outgoing connections, and a second lab may get the same port. So the numbers are below that
//! range. A claim is a socket with an abstract name, which only one process can hold, and which
//! ends with the process in every case.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, Result};

/// Below the kernel's `ip_local_port_range` (32768 and up) and above the usual ports of daemons.
const RANGE: std::ops::Range<u16> = 21_000..31_000;

/// A TCP port of loopback that belongs to this lab until the value is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    pub(crate) fn claim() -> Result<Self> {
        // Labs that start at the same time begin with different numbers. This only saves time.
        let first = u16::try_from(std::process::id() % 97).unwrap_or_default() * 100;
        let length = RANGE.end - RANGE.start;
        let mut numbers = (0..length).map(|n| RANGE.start + (first + n) % length);
        numbers
            .find_map(|number| {
                let name = SocketAddr::from_abstract_name(format!("trunkline-lab/port/{number}")).ok()?;
                let claim = UnixListener::bind_addr(&name).ok()?;
                // A program without claims may use the port.
                let _free = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
                Some(Self { number, _claim: claim })
            })
            .with_context(|| format!("no port of {}–{} is free", RANGE.start, RANGE.end - 1))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_claimed_twice_even_without_a_listener() {
        let (a, b) = (Port::claim().expect("a port"), Port::claim().expect("another"));
        assert_ne!(a.number(), b.number());
        let number = a.number();
        drop(a);
        let claims: Vec<Port> = (0..3).map(|_| Port::claim().expect("a port")).collect();
        assert!(claims.iter().any(|c| c.number() == number), "{number} is free again");
    }

    #[test]
    fn a_port_with_a_listener_is_skipped() {
        let probe = Port::claim().expect("a port");
        let number = probe.number();
        drop(probe);
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).expect("the port was free");
        assert!((0..3).all(|_| Port::claim().expect("a port").number() != number));
        drop(listening);
    }
}
