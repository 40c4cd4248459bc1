//! The key of a peer: its address, with the interface of a link-local one.
//!
//! A link-local address identifies a router on one link only: fe80::1 on eth0 and fe80::1 on eth1
//! are two peers. Every other address identifies a peer on all interfaces, so its key has no
//! interface. Both types are plain values of a few octets and cheap to copy.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The name of a network interface: 1 to 15 octets, as the kernel allows (IFNAMSIZ).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName {
    // Padded with zeros, which no name contains. So names and arrays have the same equality and
    // order.
    octets: [u8; InterfaceName::MAX_OCTETS],
}

impl InterfaceName {
    /// The longest name, in octets.
    pub const MAX_OCTETS: usize = 15;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let end = self.octets.iter().position(|octet| *octet == 0).unwrap_or(Self::MAX_OCTETS);
        // The octets come from a str and were never cut.
        std::str::from_utf8(&self.octets[..end]).unwrap_or_default()
    }
}

impl FromStr for InterfaceName {
    type Err = InterfaceNameError;

    fn from_str(name: &str) -> Result<Self, InterfaceNameError> {
        let forbidden = |octet: u8| matches!(octet, 0 | b'/' | b':' | b'%') || octet.is_ascii_whitespace();
        let length = name.len();
        if !(1..=Self::MAX_OCTETS).contains(&length)
            || matches!(name, "." | "..")
            || name.bytes().any(forbidden)
        {
            return Err(InterfaceNameError { name: name.to_owned() });
        }
        let mut octets = [0; Self::MAX_OCTETS];
        octets[..length].copy_from_slice(name.as_bytes());
        Ok(InterfaceName { octets })
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A text that is not the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not the name of an interface: give 1 to 15 octets, as `ip link` shows it")]
pub struct InterfaceNameError {
    /// The text.
    pub name: String,
}

/// The key of a peer. Its text form is `10.0.0.1`, `2001:db8::1` or `fe80::1%eth0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey {
    address: IpAddr,
    interface: Option<InterfaceName>,
}

impl PeerKey {
    /// The key of a peer with this address on this interface. The interface is ignored unless the
    /// address is link-local.
    pub fn new(address: IpAddr, interface: Option<InterfaceName>) -> Self {
        let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        PeerKey { address, interface: interface.filter(|_| link_local) }
    }

    /// The peer's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The interface of a link-local address.
    pub fn interface(&self) -> Option<InterfaceName> {
        self.interface
    }
}

impl From<IpAddr> for PeerKey {
    fn from(address: IpAddr) -> Self {
        PeerKey { address, interface: None }
    }
}

impl FromStr for PeerKey {
    type Err = PeerKeyError;

    fn from_str(text: &str) -> Result<Self, PeerKeyError> {
        let fault = || PeerKeyError { text: text.to_owned() };
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface.parse().map_err(|_| fault())?)),
            None => (text, None),
        };
        let key = PeerKey::new(address.parse().map_err(|_| fault())?, interface);
        if key.interface == interface { Ok(key) } else { Err(fault()) }
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interface {
            Some(interface) => f.pad(&format!("{}%{interface}", self.address)),
            None => self.address.fmt(f),
        }
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a [`PeerKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not the address of a peer: write 10.0.0.1, 2001:db8::1, or with its interface fe80::1%eth0"
)]
pub struct PeerKeyError {
    /// The text.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_text_round_trips() {
        for text in ["10.0.0.1", "2001:db8::1", "fe80::1", "fe80::1%eth0", "fe80::1%a234567890bcdef"] {
            assert_eq!(text.parse::<PeerKey>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "tor1",
            "10.0.0.1%eth0",
            "2001:db8::1%eth0",
            "fe80::1%",
            "fe80::1%a b",
            "fe80::1%a234567890bcdefg",
        ] {
            let error = text.parse::<PeerKey>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn the_interface_matters_for_link_local_addresses_only() {
        let name = |text: &str| Some(text.parse::<InterfaceName>().unwrap());
        let key = |address: &str, interface| PeerKey::new(address.parse().unwrap(), interface);
        assert_ne!(key("fe80::1", name("eth0")), key("fe80::1", name("eth1")));
        assert_ne!(key("fe80::1", name("eth0")), key("fe80::1", None));
        assert_eq!(key("10.0.0.1", name("eth0")), key("10.0.0.1", name("eth1")));
        assert!(name("eth0") < name("eth1") && name("eth") < name("eth0"));
    }
}
