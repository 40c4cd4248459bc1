//! The faults of a message, typed by the message part, and the conversion to a NOTIFICATION (RFC
//! 4271 §6).
//!
//! An error here always ends the session. The milder faults of RFC 7606 are [`AttributeFault`]s in
//! [`Update`](super::Update). The text of an error appears in the log and in the peer's last error.

use std::fmt;
use std::net::Ipv4Addr;

use super::attributes::table;
use super::{Capability, HEADER, MARKER, MessageKind, Notification};
use crate::types::{Asn, Role};

/// A message that ends the session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header.
    #[error("message header: {0}")]
    Header(#[from] HeaderError),
    /// OPEN.
    #[error("OPEN: {0}")]
    Open(#[from] OpenError),
    /// UPDATE.
    #[error("UPDATE: {0}")]
    Update(#[from] UpdateError),
    /// ROUTE-REFRESH.
    #[error("ROUTE-REFRESH: {0}")]
    Refresh(#[from] RefreshError),
}

/// A fault in a header (RFC 4271 §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The marker is not all ones: a message boundary is lost, or this is not BGP.
    #[error("the marker is not all ones; the peer does not speak BGP-4 here")]
    Marker,
    /// The length is impossible for the type or the session.
    #[error("length {length} is not possible for {}", match .kind {
        Some(kind) => format!("a message of type {kind:?}"),
        None => "this session".to_owned(),
    })]
    Length {
        /// The type, if the length is possible for other types.
        kind: Option<MessageKind>,
        /// The length in the header.
        length: u16,
    },
    /// The message type is unknown.
    #[error("message type {kind} is unknown")]
    Kind {
        /// The type code.
        kind: u8,
    },
}

/// A fault in an OPEN (RFC 4271 §6.2). The session detects the faults that depend on the
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The version is not 4.
    #[error("version {version}; only version 4 is supported")]
    Version {
        /// The peer's version.
        version: u8,
    },
    /// The AS number is 0 (RFC 7607).
    #[error("AS number 0 is reserved")]
    AsZero,
    /// The AS number differs from the configured one.
    #[error("the peer is in AS {got}, the configuration says {expected}")]
    PeerAs {
        /// The configured AS.
        expected: Asn,
        /// The peer's AS.
        got: Asn,
    },
    /// The identifier is 0, or this speaker's own within one AS (RFC 6286).
    #[error("BGP identifier {identifier} is 0 or this speaker's own")]
    Identifier {
        /// The peer's identifier.
        identifier: Ipv4Addr,
    },
    /// An optional parameter other than Capabilities.
    #[error(
        "optional parameter of type {kind} is not supported: only capabilities (type 2) are \
        allowed"
    )]
    Parameter {
        /// The parameter's type.
        kind: u8,
    },
    /// The Hold Time is 1 or 2 seconds.
    #[error("Hold Time {seconds} s, must be 0 or at least 3")]
    HoldTime {
        /// The peer's Hold Time in seconds.
        seconds: u16,
    },
    /// The peer lacks a required capability.
    #[error("the peer lacks a capability that the configuration requires: {}", .missing.iter().map(Capability::to_string).collect::<Vec<_>>().join(", "))]
    MissingCapability {
        /// The missing capabilities.
        missing: Vec<Capability>,
    },
    /// The roles of the two sides do not match (RFC 9234 §4.2), or strict mode requires a role and
    /// the peer has none.
    #[error("this side's role is {local}, so the peer's role must be {}; the peer advertises {}", .local.counterpart(), join_roles(.remote))]
    RoleMismatch {
        /// This side's role.
        local: Role,
        /// The peer's role capabilities, usually one.
        remote: Vec<Capability>,
    },
    /// The optional parameters or capabilities exceed their lengths.
    #[error("the lengths in the optional parameters are not consistent")]
    Lengths,
    /// The length of a known capability is impossible.
    #[error("capability {code} has an impossible length of {length} octets")]
    Capability {
        /// The capability's code.
        code: u8,
        /// Octets of its value.
        length: usize,
    },
}

fn join_roles(roles: &[Capability]) -> String {
    match roles {
        [] => "no role".to_owned(),
        roles => roles.iter().map(Capability::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// A fault in a ROUTE-REFRESH.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefreshError {
    /// A begin or end marker that does not have 4 octets (RFC 7313 §5).
    #[error("{} octets in a message with subtype {}; 4 are required", .body.len(), .body.get(2).copied().unwrap_or_default())]
    Length {
        /// The octets after the header.
        body: Vec<u8>,
    },
}

/// A fault in an UPDATE that ends the session. The routes cannot be read, or RFC 7606 requires a
/// session reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Withdrawn Routes Length or Total Path Attribute Length exceed the message (RFC 7606 §3 b).
    #[error("{field} is {length}, but only {remaining} octets of the message are left")]
    FieldLength {
        /// The field's name in RFC 4271.
        field: &'static str,
        /// The value of the field.
        length: usize,
        /// The octets left in the message.
        remaining: usize,
    },
    /// A prefix is longer than its family allows, or is cut short (RFC 7606 §5.3).
    #[error(
        "{field}: prefix length {length} at octet {offset} is longer than an address, or the prefix is cut short"
    )]
    Prefix {
        /// The name of the field.
        field: &'static str,
        /// The prefix length in bits, as received.
        length: u8,
        /// The offset of the prefix in the field, in octets.
        offset: usize,
    },
    /// The field ends within or directly after a path identifier (RFC 7911 §3).
    #[error(
        "{field}: there is no prefix after the path identifier at octet {offset}: perhaps \
         the peer sends no path identifiers"
    )]
    Identifier {
        /// The name of the field.
        field: &'static str,
        /// The offset of the identifier in the field, in octets.
        offset: usize,
    },
    /// MP_REACH_NLRI or MP_UNREACH_NLRI is present twice (RFC 7606 §3 g).
    #[error("{} more than once", table::name(*.code))]
    DuplicateMp {
        /// Type code.
        code: u8,
    },
    /// MP_REACH_NLRI or MP_UNREACH_NLRI is too short for its fixed part, or its next hop has a
    /// wrong length: the NLRI cannot be located (RFC 7606 §5.3, §7.11).
    #[error("{}: {what}", table::name(*.code))]
    Mp {
        /// Type code.
        code: u8,
        /// The fault.
        what: &'static str,
        /// The attribute, starting with its flags.
        attribute: Vec<u8>,
    },
    /// An unknown attribute without the Optional bit (RFC 4271 §6.3).
    #[error("well-known attribute {code} is not known")]
    UnrecognizedWellKnown {
        /// Type code.
        code: u8,
        /// The attribute, starting with its flags.
        attribute: Vec<u8>,
    },
    /// A malformed attribute in a message without announced routes. Treat-as-withdraw would
    /// withdraw nothing, and the unreadable part may contain the routes (RFC 7606 §5.2).
    #[error("{fault}, in a message without reachable routes")]
    NoRoutes {
        /// The malformed attribute.
        fault: AttributeFault,
    },
}

/// The handling of a malformed attribute (RFC 7606 §2), the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorHandling {
    /// The attribute is discarded; the routes stay.
    AttributeDiscard,
    /// The routes of the message are withdrawn.
    TreatAsWithdraw,
    /// The session ends with a NOTIFICATION.
    SessionReset,
}

/// A fault in one path attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeFault {
    /// Type code; 0 if the fault is in the list of attributes itself.
    pub code: u8,
    /// The fault.
    pub kind: AttributeFaultKind,
}

/// The kind of a fault in a path attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeFaultKind {
    /// The Optional or Transitive bit contradicts the specification (RFC 7606 §3 c).
    #[error("flags {flags:#04x}, must be {expected:#04x}")]
    Flags {
        /// The received flags.
        flags: u8,
        /// The specified Optional and Transitive bits.
        expected: u8,
    },
    /// The length is impossible for the attribute.
    #[error("length {length}, must be {expected}")]
    Length {
        /// The received length in octets.
        length: usize,
        /// The correct length, in words.
        expected: &'static str,
    },
    /// The value is impossible for the attribute.
    #[error("value {value}, must be {expected}")]
    Value {
        /// The received value.
        value: u32,
        /// The correct values, in words.
        expected: &'static str,
    },
    /// A path segment of an unknown type, or a confederation segment (RFC 5065) from a peer outside
    /// the confederation.
    #[error("path segment of type {kind}, must be AS_SET (1) or AS_SEQUENCE (2)")]
    SegmentKind {
        /// The segment's type.
        kind: u8,
    },
    /// A path segment is empty or exceeds the attribute (RFC 7606 §7.2).
    #[error("path segment of {count} AS numbers with {remaining} octets left")]
    SegmentLength {
        /// The segment's count.
        count: u8,
        /// The octets after the count.
        remaining: usize,
    },
    /// The AS number is 0 (RFC 7607).
    #[error("holds AS number 0")]
    AsZero,
    /// The address cannot be the address of a host.
    #[error("{address} is not the address of a host")]
    NextHop {
        /// The address.
        address: std::net::IpAddr,
    },
    /// A mandatory attribute is missing (RFC 7606 §3 d).
    #[error("is missing")]
    Missing,
    /// A repeated attribute (RFC 7606 §3 g).
    #[error("occurs more than once; the first counts")]
    Duplicate,
    /// The attributes are not in ascending order. Only a canonical block, the form in which this
    /// speaker stores attributes, can have this fault; a message cannot.
    #[error("is not in ascending order of type codes")]
    Order,
    /// The attribute is not allowed in a canonical block. This fault does not occur in messages.
    #[error("is never part of a canonical block")]
    OutOfPlace,
    /// Only internal peers may send the attribute (RFC 7606 §7.5, 7.9, 7.10).
    #[error("only internal peers may send it")]
    FromExternalPeer,
    /// Only two-octet speakers may send the attribute (RFC 6793 §4.1).
    #[error("comes from a peer with four-octet AS numbers")]
    FromFourOctetPeer,
    /// The attribute exceeds the list of attributes (RFC 7606 §4).
    #[error("length {length}, but only {remaining} octets of the attributes are left")]
    Overrun {
        /// The length in the attribute.
        length: usize,
        /// The octets left in the list.
        remaining: usize,
    },
    /// Octets after the last attribute, too few for another one (RFC 7606 §4).
    #[error("{octets} octets after the last attribute")]
    Trailing {
        /// The number of octets.
        octets: usize,
    },
    /// A family that was not negotiated; its routes are ignored.
    #[error("AFI {afi} SAFI {safi} was not negotiated")]
    Family {
        /// Address Family Identifier.
        afi: u16,
        /// Subsequent Address Family Identifier.
        safi: u8,
    },
}

impl fmt::Display for AttributeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => write!(f, "path attributes: {}", self.kind),
            code => write!(f, "{} ({code}): {}", table::name(code), self.kind),
        }
    }
}

impl std::error::Error for AttributeFault {}

impl WireError {
    /// The NOTIFICATION for the error (RFC 4271 §6, RFC 7313 §5).
    pub fn notification(&self) -> Notification {
        match self {
            WireError::Header(error) => match error {
                HeaderError::Marker => Notification::new(1, 1, []),
                HeaderError::Length { length, .. } => Notification::new(1, 2, length.to_be_bytes()),
                HeaderError::Kind { kind } => Notification::new(1, 3, [*kind]),
            },
            WireError::Open(error) => match error {
                OpenError::Lengths | OpenError::Capability { .. } => Notification::new(2, 0, []),
                OpenError::Version { .. } => Notification::new(2, 1, 4u16.to_be_bytes()),
                OpenError::AsZero | OpenError::PeerAs { .. } => Notification::new(2, 2, []),
                OpenError::Identifier { .. } => Notification::new(2, 3, []),
                OpenError::Parameter { .. } => Notification::new(2, 4, []),
                OpenError::HoldTime { .. } => Notification::new(2, 6, []),
                OpenError::RoleMismatch { .. } => Notification::new(2, 11, []),
                OpenError::MissingCapability { missing } => {
                    let mut data = Vec::new();
                    missing.iter().for_each(|capability| capability.encode(&mut data));
                    Notification::new(2, 7, data)
                }
            },
            WireError::Update(error) => match error {
                UpdateError::FieldLength { .. } | UpdateError::DuplicateMp { .. } => {
                    Notification::new(3, 1, [])
                }
                UpdateError::Prefix { .. } | UpdateError::Identifier { .. } => Notification::new(3, 10, []),
                UpdateError::Mp { attribute, .. } => Notification::new(3, 9, attribute.as_slice()),
                UpdateError::UnrecognizedWellKnown { attribute, .. } => {
                    Notification::new(3, 2, attribute.as_slice())
                }
                UpdateError::NoRoutes { fault } => Notification::new(3, fault.subcode(), []),
            },
            WireError::Refresh(RefreshError::Length { body }) => {
                // The data is the whole message.
                let mut data = MARKER.to_vec();
                data.extend_from_slice(&((HEADER + body.len()) as u16).to_be_bytes());
                data.push(MessageKind::RouteRefresh as u8);
                data.extend_from_slice(body);
                Notification::new(7, 1, data)
            }
        }
    }
}

impl AttributeFault {
    /// The UPDATE Message Error subcode for the fault (RFC 4271 §6.3).
    fn subcode(&self) -> u8 {
        use AttributeFaultKind::*;
        match (self.kind, self.code) {
            (Flags { .. }, _) => 4,
            (Overrun { .. }, _) => 5,
            (Missing, _) => 3,
            (SegmentKind { .. } | SegmentLength { .. } | AsZero, table::AS_PATH) => 11,
            (NextHop { .. }, table::NEXT_HOP) => 8,
            (Value { .. }, table::ORIGIN) => 6,
            (Length { .. }, code) if table::is_well_known(code) => 5,
            (Length { .. } | Value { .. } | NextHop { .. }, _) => 9,
            _ => 1,
        }
    }
}
