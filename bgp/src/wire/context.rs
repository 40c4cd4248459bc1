//! The effects of a session's capabilities on the decoding of UPDATE.

use crate::types::FamilySet;

/// The negotiated properties that change the meaning of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeContext {
    /// AS numbers have four octets (RFC 6793): both sides have the capability.
    pub four_octet_as: bool,
    /// IPv4 routes may have an IPv6 next hop (RFC 8950).
    pub ext_next_hop: bool,
    /// The families of the session: the families in both sides' multiprotocol capabilities, or IPv4
    /// unicast if neither side has such a capability.
    pub families: FamilySet,
    /// The families in which every prefix has a path identifier (RFC 7911), because the peer sends
    /// several paths.
    pub add_path: FamilySet,
    /// The peer is in another AS.
    pub ebgp: bool,
}
