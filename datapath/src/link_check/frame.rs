//! Frames of Ethernet, and what one of them says of an address, whichever protocol it is of.

use std::net::IpAddr;

/// A MAC address.
pub(super) type Mac = [u8; 6];

/// The address of everybody on the link.
pub(super) const BROADCAST: Mac = [0xff; 6];

/// Octets of an Ethernet header.
pub(super) const HEADER: usize = 14;

/// What a frame of another host says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressClaim {
    /// The address.
    pub(super) address: IpAddr,
    /// The sender: the MAC address that the message itself gives, else that of the frame.
    pub(super) mac: Mac,
    /// In which way.
    pub(super) kind: ClaimKind,
    /// Whom the frame was for.
    pub(super) destination: Mac,
}

/// In which way a frame speaks of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    /// "I have it": an ARP reply, a Neighbour Advertisement.
    Reply,
    /// It is the sender of another message.
    Use,
    /// "Has anybody got it? I would take it."
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
