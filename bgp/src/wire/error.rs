//! What can be wrong with a message, typed by the part of the message at fault, and the one place that says
//! which NOTIFICATION it leads to (RFC 4271 §6).
//!
//! An error here always ends the session. What RFC 7606 deals with more mildly is an [`AttributeFault`] that
//! [`Update`](super::Update) carries; its text goes to the log and to the peer's last error.

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

/// What is wrong with a header (RFC 4271 §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The marker is not all ones: the streams are out of step, or this is not BGP.
    #[error("the marker is not all ones; the peer does not speak BGP-4 here")]
    Marker,
    /// Too short or too long for the type, or for the session.
    #[error("length {length} is not possible for {}", match .kind {
        Some(kind) => format!("a message of type {kind:?}"),
        None => "this session".to_owned(),
    })]
    Length {
        /// The type, if the length is possible for other types.
        kind: Option<MessageKind>,
        /// Octets, as the header has it.
        length: u16,
    },
    /// No such message type.
    #[error("message type {kind} is unknown")]
    Kind {
        /// The type code.
        kind: u8,
    },
}

/// What is wrong with an OPEN (RFC 4271 §6.2). The later ones are found by the session, which knows what was
/// configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not BGP-4.
    #[error("version {version}; only version 4 is spoken here")]
    Version {
        /// The peer's version.
        version: u8,
    },
    /// AS number 0 (RFC 7607).
    #[error("AS number 0 is reserved")]
    AsZero,
    /// Not the AS number that was configured.
    #[error("the peer is in AS {got}, the configuration says {expected}")]
    PeerAs {
        /// The configured AS.
        expected: Asn,
        /// The peer's AS.
        got: Asn,
    },
    /// 0, or this speaker's own within one AS (RFC 6286).
    #[error("BGP identifier {identifier} is 0 or this speaker's own")]
    Identifier {
        /// The peer's identifier.
        identifier: Ipv4Addr,
    },
    /// An optional parameter that is not Capabilities.
    #[error("optional parameter of type {kind} is not known; only capabilities (type 2) are")]
    Parameter {
        /// The parameter's type.
        kind: u8,
    },
    /// 1 or 2 seconds.
    #[error("Hold Time {seconds} s; it is 0 or at least 3")]
    HoldTime {
        /// The peer's Hold Time in seconds.
        seconds: u16,
    },
    /// A capability that this side cannot do without.
    #[error("the peer lacks a capability that the configuration asks for: {}", .missing.iter().map(Capability::to_string).collect::<Vec<_>>().join(", "))]
    MissingCapability {
        /// What was missing.
        missing: Vec<Capability>,
    },
    /// The two sides' roles do not go together (RFC 9234 §4.2), or the peer has none and strict mode wants one.
    #[error("this side's role is {local}, which needs the peer's to be {}; it says {}", .local.counterpart(), said(.remote))]
    RoleMismatch {
        /// This side's role.
        local: Role,
        /// The capabilities that the peer gave its role in: usually one.
        remote: Vec<Capability>,
    },
    /// Optional parameters or capabilities do not fit their lengths.
    #[error("the optional parameters do not fit their lengths")]
    Lengths,
    /// A known capability with a length that it cannot have.
    #[error("capability {code} has {length} octets, which it cannot have")]
    Capability {
        /// The capability's code.
        code: u8,
        /// Octets of its value.
        length: usize,
    },
}

fn said(roles: &[Capability]) -> String {
    match roles {
        [] => "nothing".to_owned(),
        roles => roles.iter().map(Capability::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// What is wrong with a ROUTE-REFRESH.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefreshError {
    /// A begin or end marker that is not 4 octets long (RFC 7313 §5).
    #[error("{} octets in a message with subtype {}; there are 4", .body.len(), .body.get(2).copied().unwrap_or_default())]
    Length {
        /// What follows the header.
        body: Vec<u8>,
    },
}

/// What is wrong with an UPDATE so that its routes cannot be found, or that RFC 7606 leaves at a session reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Withdrawn Routes Length or Total Path Attribute Length exceed the message (RFC 7606 §3 b).
    #[error("{field} is {length}, but only {remaining} octets of the message are left")]
    FieldLength {
        /// The field's name in RFC 4271.
        field: &'static str,
        /// Its value.
        length: usize,
        /// What is there.
        remaining: usize,
    },
    /// A prefix longer than its family has bits, or cut short (RFC 7606 §5.3).
    #[error(
        "{field}: prefix length {length} at octet {offset} is longer than an address, or the prefix is cut short"
    )]
    Prefix {
        /// Where it is.
        field: &'static str,
        /// Bits, as the message has it.
        length: u8,
        /// Octet of the field at which the prefix starts.
        offset: usize,
    },
    /// The field ends within a path identifier, or after one (RFC 7911 §3).
    #[error(
        "{field}: there is no prefix after the path identifier at octet {offset}; does the peer send any?"
    )]
    Identifier {
        /// Where it is.
        field: &'static str,
        /// Octet of the field at which the identifier starts.
        offset: usize,
    },
    /// MP_REACH_NLRI or MP_UNREACH_NLRI twice (RFC 7606 §3 g).
    #[error("{} more than once", table::name(*.code))]
    DuplicateMp {
        /// Type code.
        code: u8,
    },
    /// MP_REACH_NLRI or MP_UNREACH_NLRI too short for its fixed part, or a next hop of a wrong length: the NLRI
    /// cannot be found (RFC 7606 §5.3, §7.11).
    #[error("{}: {what}", table::name(*.code))]
    Mp {
        /// Type code.
        code: u8,
        /// What is wrong.
        what: &'static str,
        /// The attribute, from its flags on.
        attribute: Vec<u8>,
    },
    /// Not optional and not known (RFC 4271 §6.3).
    #[error("well-known attribute {code} is not known")]
    UnrecognizedWellKnown {
        /// Type code.
        code: u8,
        /// The attribute, from its flags on.
        attribute: Vec<u8>,
    },
    /// A malformed attribute in a message that announces nothing: the withdrawal would have nothing to withdraw,
    /// and the routes may well be in what could not be read (RFC 7606 §5.2).
    #[error("{fault}, in a message without reachable routes")]
    NoRoutes {
        /// The malformed attribute.
        fault: AttributeFault,
    },
}

/// What a fault leads to (RFC 7606 §2), the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The attribute is dropped, the routes stay.
    AttributeDiscard,
    /// The routes of the message are withdrawn.
    TreatAsWithdraw,
    /// NOTIFICATION and the end of the session.
    SessionReset,
}

/// One path attribute that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeFault {
    /// Type code; 0 if the fault is in the list of attributes itself.
    pub code: u8,
    /// What is wrong with it.
    pub kind: AttributeFaultKind,
}

/// What is wrong with a path attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeFaultKind {
    /// Optional or Transitive bit against the specification (RFC 7606 §3 c).
    #[error("flags {flags:#04x}, the specification has {expected:#04x}")]
    Flags {
        /// As received.
        flags: u8,
        /// The Optional and Transitive bits that it has.
        expected: u8,
    },
    /// A length that the attribute cannot have.
    #[error("length {length}, it is {expected}")]
    Length {
        /// Octets.
        length: usize,
        /// What would be right, in words.
        expected: &'static str,
    },
    /// A value that the attribute cannot have.
    #[error("value {value}, it is {expected}")]
    Value {
        /// As received.
        value: u32,
        /// What would be right, in words.
        expected: &'static str,
    },
    /// A path segment of an unknown type, or one of a confederation (RFC 5065) outside one.
    #[error("path segment of type {kind}; AS_SET (1) and AS_SEQUENCE (2) are known")]
    SegmentKind {
        /// The segment's type.
        kind: u8,
    },
    /// A path segment that is empty, or does not fit the attribute (RFC 7606 §7.2).
    #[error("path segment of {count} AS numbers with {remaining} octets left")]
    SegmentLength {
        /// The segment's count.
        count: u8,
        /// Octets that follow the count.
        remaining: usize,
    },
    /// AS number 0 (RFC 7607).
    #[error("holds AS number 0")]
    AsZero,
    /// Not an address that a host can have.
    #[error("{address} is not the address of a host")]
    NextHop {
        /// The address.
        address: std::net::IpAddr,
    },
    /// A mandatory attribute is not there (RFC 7606 §3 d).
    #[error("is missing")]
    Missing,
    /// Not the first of its type (RFC 7606 §3 g).
    #[error("is there more than once; the first counts")]
    Duplicate,
    /// Not in the ascending order that a canonical block has; never of a message.
    #[error("is not in ascending order of type codes")]
    Order,
    /// In a canonical block, which never has it; never of a message.
    #[error("is never part of a canonical block")]
    OutOfPlace,
    /// Only internal peers may send it (RFC 7606 §7.5, 7.9, 7.10).
    #[error("comes from an external peer, to whom it does not belong")]
    FromExternalPeer,
    /// Only two-octet speakers may send it (RFC 6793 §4.1).
    #[error("comes from a peer with four-octet AS numbers")]
    FromFourOctetPeer,
    /// The attribute exceeds the list of attributes (RFC 7606 §4).
    #[error("length {length}, but only {remaining} octets of the attributes are left")]
    Overrun {
        /// Octets, as the attribute has it.
        length: usize,
        /// What is there.
        remaining: usize,
    },
    /// Octets after the last attribute that are too few for another (RFC 7606 §4).
    #[error("{octets} octets after the last attribute")]
    Trailing {
        /// How many.
        octets: usize,
    },
    /// A family that was not agreed on; its routes are ignored.
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
    /// The NOTIFICATION that tells the peer (RFC 4271 §6, RFC 7313 §5).
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
    /// The subcode of an UPDATE Message Error that RFC 4271 §6.3 has for the fault.
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
