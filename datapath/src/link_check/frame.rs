//! Ethernet frames, and the claim of a frame about an address, for both protocols.

use std::net::IpAddr;

/// A MAC address.
pub(super) type Mac = [u8; 6];

/// The broadcast address.
pub(super) const BROADCAST: Mac = [0xff; 6];

/// Octets of an Ethernet header.
pub(super) const HEADER: usize = 14;

/// A claim of another host about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressClaim {
    /// The address.
    pub(super) address: IpAddr,
    /// The sender: the MAC address in the message, otherwise the source of the frame.
    pub(super) mac: Mac,
    /// The kind of claim.
    pub(super) kind: ClaimKind,
    /// Destination of the frame.
    pub(super) destination: Mac,
}

/// The kind of a claim about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    /// An answer of the holder: an ARP reply or a Neighbour Advertisement.
    Reply,
    /// The address is the sender of another message.
    Use,
    /// A probe: another host wants to use the address.
    Probe,
}

/// A frame with its header.
pub(super) fn encode(destination: Mac, source: Mac, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source[..], &ether_type.to_be_bytes(), payload].concat()
}

/// Destination, source and payload of a frame of this type.
pub(super) fn decode(frame: &[u8], ether_type: u16) -> Option<(Mac, Mac, &[u8])> {
    let (header, payload) = frame.split_at_checked(HEADER)?;
    let of_type = header[12..] == ether_type.to_be_bytes();
    of_type.then_some((mac(header), mac(&header[6..]), payload))
}

/// The MAC address at the beginning of at least six octets.
pub(super) fn mac(octets: &[u8]) -> Mac {
    std::array::from_fn(|index| octets[index])
}
