//! The control packet (RFC 5880 §4.1): 24 octets, and the checks that need no session
//! (§6.8.6, first half).

use std::fmt;
use std::time::Duration;

/// Octets of a control packet without authentication.
pub(super) const LENGTH: usize = 24;

/// The states of a session with their numbers in packets (RFC 5880 §6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Disabled by an operator; not a failure.
    AdminDown = 0,
    /// No packets arrive, or the session has just failed.
    #[default]
    Down = 1,
    /// The peer's packets arrive; the peer does not receive this side's packets yet.
    Init = 2,
    /// Both sides receive each other's packets.
    Up = 3,
}

impl State {
    /// The name in the RFC.
    pub const fn name(self) -> &'static str {
        match self {
            State::AdminDown => "AdminDown",
            State::Down => "Down",
            State::Init => "Init",
            State::Up => "Up",
        }
    }

    fn of(bits: u8) -> State {
        match bits & 3 {
            0 => State::AdminDown,
            1 => State::Down,
            2 => State::Init,
            _ => State::Up,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The reason why a session last left Up (RFC 5880 §4.1): 5 bits, values above 8 are reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    /// No Diagnostic.
    pub const NONE: Diagnostic = Diagnostic(0);
    /// Control Detection Time Expired.
    pub const TIME_EXPIRED: Diagnostic = Diagnostic(1);
    /// Neighbor Signaled Session Down.
    pub const NEIGHBOR_DOWN: Diagnostic = Diagnostic(3);
    /// Administratively Down.
    pub const ADMIN_DOWN: Diagnostic = Diagnostic(7);
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "No Diagnostic",
            1 => "Control Detection Time Expired",
            2 => "Echo Function Failed",
            3 => "Neighbor Signaled Session Down",
            4 => "Forwarding Plane Reset",
            5 => "Path Down",
            6 => "Concatenated Path Down",
            7 => "Administratively Down",
            8 => "Reverse Concatenated Path Down",
            number => return write!(f, "Diagnostic {number}"),
        })
    }
}

/// A control packet, version 1. This side never sets Multipoint, Demand or Authentication Present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The reason why the sender's session last left Up.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// P: the sender requests an answer.
    pub poll: bool,
    /// F: the answer to P.
    pub final_: bool,
    /// C: the sender's BFD does not share fate with its control plane.
    pub control_plane_independent: bool,
    /// A: an authentication section follows.
    pub authenticated: bool,
    /// D: the sender needs no periodic packets.
    pub demand: bool,
    /// Detect Mult; not 0.
    pub multiplier: u8,
    /// My Discriminator; not 0.
    pub my_discriminator: u32,
    /// Your Discriminator; 0 while unknown.
    pub your_discriminator: u32,
    /// Desired Min TX Interval.
    pub desired_min_tx: Duration,
    /// Required Min RX Interval; zero: the sender accepts no packets.
    pub required_min_rx: Duration,
    /// Required Min Echo RX Interval; zero: no echo.
    pub required_min_echo_rx: Duration,
}

/// The reason why octets are not a control packet (RFC 5880 §6.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Too few octets for a control packet.
    #[error("{0} octets are too few for a control packet")]
    Short(usize),
    /// The version is not 1.
    #[error("version {0} instead of 1")]
    Version(u8),
    /// The Length field is too small, or larger than the datagram.
    #[error("length field {length} in a datagram of {octets} octets")]
    Length {
        /// The value of the field.
        length: u8,
        /// The length of the datagram.
        octets: usize,
    },
    /// Detect Mult is 0.
    #[error("detect multiplier 0")]
    Multiplier,
    /// The Multipoint bit is set.
    #[error("the multipoint bit is set")]
    Multipoint,
    /// My Discriminator is 0.
    #[error("my discriminator is 0")]
    MyDiscriminator,
    /// Your Discriminator is 0 in a state that needs one.
    #[error("your discriminator is 0 in state {0}")]
    YourDiscriminator(State),
    /// Poll and Final are both set (§6.5).
    #[error("both poll and final bits are set")]
    PollAndFinal,
}

const FINAL: u8 = 0x10;
const POLL: u8 = 0x20;
const INDEPENDENT: u8 = 0x08;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

impl Packet {
    /// Decodes a datagram's payload with the checks that need no session.
    pub fn decode(octets: &[u8]) -> Result<Packet, PacketError> {
        let Some(head) = octets.first_chunk::<LENGTH>() else { return Err(PacketError::Short(octets.len())) };
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let microseconds = |at| Duration::from_micros(u64::from(word(at)));
        let (flags, length) = (head[1], head[3]);
        if head[0] >> 5 != 1 {
            return Err(PacketError::Version(head[0] >> 5));
        }
        let least = if flags & AUTHENTICATED == 0 { LENGTH } else { LENGTH + 2 };
        if usize::from(length) < least || usize::from(length) > octets.len() {
            return Err(PacketError::Length { length, octets: octets.len() });
        }
        if head[2] == 0 {
            return Err(PacketError::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(PacketError::Multipoint);
        }
        let packet = Packet {
            diagnostic: Diagnostic(head[0] & 0x1f),
            state: State::of(flags >> 6),
            poll: flags & POLL != 0,
            final_: flags & FINAL != 0,
            control_plane_independent: flags & INDEPENDENT != 0,
            authenticated: flags & AUTHENTICATED != 0,
            demand: flags & DEMAND != 0,
            multiplier: head[2],
            my_discriminator: word(4),
            your_discriminator: word(8),
            desired_min_tx: microseconds(12),
            required_min_rx: microseconds(16),
            required_min_echo_rx: microseconds(20),
        };
        if packet.my_discriminator == 0 {
            return Err(PacketError::MyDiscriminator);
        }
        if packet.your_discriminator == 0 && packet.state >= State::Init {
            return Err(PacketError::YourDiscriminator(packet.state));
        }
        if packet.poll && packet.final_ {
            return Err(PacketError::PollAndFinal);
        }
        Ok(packet)
    }

    /// Encodes a packet without authentication. Longer intervals than 32 bits of microseconds (71
    /// minutes) are encoded as this maximum.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut octets = [0; LENGTH];
        let flag = |set, bit| if set { bit } else { 0 };
        octets[0] = 1 << 5 | self.diagnostic.0 & 0x1f;
        octets[1] = (self.state as u8) << 6
            | flag(self.poll, POLL)
            | flag(self.final_, FINAL)
            | flag(self.control_plane_independent, INDEPENDENT)
            | flag(self.demand, DEMAND);
        octets[2] = self.multiplier;
        octets[3] = LENGTH as u8;
        let microseconds = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        for (at, word) in [
            (4, self.my_discriminator),
            (8, self.your_discriminator),
            (12, microseconds(self.desired_min_tx)),
            (16, microseconds(self.required_min_rx)),
            (20, microseconds(self.required_min_echo_rx)),
        ] {
            octets[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        octets
    }
}
