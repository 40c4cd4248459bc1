//! OPEN (RFC 4271 §4.2) with optional parameters of RFC 5492, and the longer lengths of RFC 9072 if
//! there are many parameters.

use std::net::Ipv4Addr;

use super::{Capability, MessageKind, OpenError, begin_message, finish_message, put_u16};
use crate::types::Asn;

/// The optional parameter for capabilities.
const CAPABILITIES: u8 = 2;
/// Replaces the first parameter's type: two-octet lengths follow (RFC 9072 §2).
const EXTENDED: u8 = 255;

/// The identity, Hold Time and capabilities of a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The BGP version, 4.
    pub version: u8,
    /// The speaker's AS number: from the capability if present, else from the field.
    pub my_as: Asn,
    /// My Autonomous System, the two-octet field: AS_TRANS for larger numbers.
    pub as_field: u16,
    /// Hold Time offered, in seconds: 0 or at least 3.
    pub hold_time: u16,
    /// BGP Identifier, not 0.
    pub router_id: Ipv4Addr,
    /// The capabilities in the order of the message.
    pub capabilities: Vec<Capability>,
}

impl Open {
    /// The OPEN of a speaker in `my_as`; the caller adds the four-octet AS capability.
    pub fn new(my_as: Asn, hold_time: u16, router_id: Ipv4Addr, capabilities: Vec<Capability>) -> Open {
        Open { version: 4, my_as, as_field: my_as.two_octet(), hold_time, router_id, capabilities }
    }

    /// Decodes the octets after the header, with the checks for every OPEN (RFC 4271 §6.2, RFC
    /// 6286, RFC 7607). The session checks whether the peer matches its configuration.
    ///
    /// # Errors
    /// For the first fault of the OPEN.
    pub fn decode(body: &[u8]) -> Result<Open, OpenError> {
        let Some((&[version, as0, as1, hold0, hold1, id0, id1, id2, id3, length], parameters)) =
            body.split_first_chunk::<10>()
        else {
            return Err(OpenError::Lengths);
        };
        if version != 4 {
            return Err(OpenError::Version { version });
        }
        let capabilities = decode_parameters(length, parameters)?;
        let as_field = u16::from_be_bytes([as0, as1]);
        let four_octet = capabilities.iter().find_map(|capability| match capability {
            Capability::FourOctetAs(asn) => Some(*asn),
            _ => None,
        });
        let my_as = four_octet.unwrap_or(Asn(u32::from(as_field)));
        if my_as.0 == 0 || as_field == 0 {
            return Err(OpenError::AsZero);
        }
        let hold_time = u16::from_be_bytes([hold0, hold1]);
        if matches!(hold_time, 1 | 2) {
            return Err(OpenError::HoldTime { seconds: hold_time });
        }
        let router_id = Ipv4Addr::new(id0, id1, id2, id3);
        if router_id.is_unspecified() {
            return Err(OpenError::Identifier { identifier: router_id });
        }
        Ok(Open { version, my_as, as_field, hold_time, router_id, capabilities })
    }

    /// Appends the message with one Capabilities parameter for all capabilities, as RFC 5492 §4
    /// recommends.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_message(out, MessageKind::Open);
        out.push(self.version);
        out.extend_from_slice(&self.as_field.to_be_bytes());
        out.extend_from_slice(&self.hold_time.to_be_bytes());
        out.extend_from_slice(&self.router_id.octets());
        let parameters = out.len();
        out.extend_from_slice(&[0, CAPABILITIES, 0]);
        let value = out.len();
        self.capabilities.iter().for_each(|capability| capability.encode(out));
        let length = out.len() - value;
        if length == 0 {
            out.truncate(parameters + 1);
        } else if length <= 255 - 2 {
            out[parameters] = (length + 2) as u8;
            out[parameters + 2] = length as u8;
        } else {
            out.splice(parameters..value, [255, EXTENDED, 0, 0, CAPABILITIES, 0, 0]);
            put_u16(out, parameters + 2, length + 3);
            put_u16(out, parameters + 5, length);
        }
        finish_message(out, start);
    }
}

fn decode_parameters(length: u8, octets: &[u8]) -> Result<Vec<Capability>, OpenError> {
    let (extended, mut parameters) = match octets {
        [EXTENDED, high, low, rest @ ..] if length != 0 => (
            true,
            rest.get(..usize::from(u16::from_be_bytes([*high, *low]))).filter(|all| all.len() == rest.len()),
        ),
        _ => (false, Some(octets).filter(|all| all.len() == usize::from(length))),
    };
    let mut capabilities = Vec::new();
    while let Some(parameter) = parameters.filter(|parameters| !parameters.is_empty()) {
        let (kind, length, rest) = match *parameter {
            [kind, high, low, ref rest @ ..] if extended => (kind, u16::from_be_bytes([high, low]), rest),
            [kind, length, ref rest @ ..] if !extended => (kind, u16::from(length), rest),
            _ => return Err(OpenError::Lengths),
        };
        let (mut value, rest) = rest.split_at_checked(usize::from(length)).ok_or(OpenError::Lengths)?;
        if kind != CAPABILITIES {
            return Err(OpenError::Parameter { kind });
        }
        while let [code, length, rest @ ..] = value {
            let (capability, rest) = rest.split_at_checked(usize::from(*length)).ok_or(OpenError::Lengths)?;
            capabilities.push(Capability::decode(*code, capability)?);
            value = rest;
        }
        if !value.is_empty() {
            return Err(OpenError::Lengths);
        }
        parameters = Some(rest);
    }
    parameters.map(|_| capabilities).ok_or(OpenError::Lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Family;
    use crate::wire::{MAX_MESSAGE, WireError, frame};

    fn body(open: &Open) -> Vec<u8> {
        let mut out = Vec::new();
        open.encode(&mut out);
        let frame = frame(&out, MAX_MESSAGE).unwrap().unwrap();
        assert_eq!((frame.kind, frame.len), (MessageKind::Open, out.len()));
        frame.body.to_vec()
    }

    fn open(capabilities: Vec<Capability>) -> Open {
        Open::new(Asn(4_200_000_001), 90, Ipv4Addr::new(10, 0, 0, 1), capabilities)
    }

    #[test]
    fn encoding_round_trips() {
        let four_octet = Capability::FourOctetAs(Asn(4_200_000_001));
        let many = (0..60).map(|code| Capability::Unknown { code: 128 + code, value: vec![code; 20] });
        for capabilities in [
            vec![four_octet.clone()],
            vec![
                Capability::Multiprotocol(Family::Ipv6Unicast.into()),
                Capability::RouteRefresh,
                four_octet.clone(),
            ],
            [four_octet.clone()].into_iter().chain(many).collect(), // RFC 9072
        ] {
            let open = open(capabilities);
            assert_eq!(Open::decode(&body(&open)), Ok(open));
        }
        let two_octet = Open::new(Asn(65001), 0, Ipv4Addr::new(1, 1, 1, 1), vec![]);
        assert_eq!(body(&two_octet).len(), 10);
        assert_eq!(Open::decode(&body(&two_octet)), Ok(two_octet));
        assert_eq!(Open::decode(&body(&open(vec![]))).unwrap().my_as, Asn::TRANS);
    }

    #[test]
    fn capabilities_may_come_in_several_parameters() {
        let mut body = body(&open(vec![]));
        body[9] = 8;
        body.extend_from_slice(&[2, 2, 2, 0, 2, 2, 6, 0]);
        assert_eq!(
            Open::decode(&body).unwrap().capabilities,
            [Capability::RouteRefresh, Capability::ExtendedMessage]
        );
    }

    #[test]
    fn an_invalid_open_is_rejected() {
        let good = body(&open(vec![]));
        for (at, octets, code, subcode) in [
            (0, &[3][..], 2, 1),
            (1, &[0, 0], 2, 2),
            (3, &[0, 1], 2, 6),
            (3, &[0, 2], 2, 6),
            (5, &[0, 0, 0, 0], 2, 3),
            (9, &[4, 1, 2, 0, 0], 2, 4),
            (9, &[3, 2, 1, 2], 2, 0),    // half a capability
            (9, &[4, 2, 2, 2, 1], 2, 0), // capability longer than the parameter
            (9, &[5, 2, 2, 2, 0], 2, 0), // parameters longer than the message
            (9, &[3, 2, 2, 2, 0], 2, 0), // parameters shorter than the message
            (9, &[255, 255, 0, 9, 2, 0, 0], 2, 0),
            (9, &[5, 2, 3, 65, 1, 0], 2, 0),
            (9, &[8, 2, 6, 65, 4, 0, 0, 0, 0], 2, 2),
        ] {
            let mut bad = good.clone();
            bad.truncate(at.max(10).min(bad.len()));
            bad.resize(bad.len().max(at + octets.len()), 0);
            bad[at..at + octets.len()].copy_from_slice(octets);
            let error = WireError::from(Open::decode(&bad).unwrap_err());
            let notification = error.notification();
            assert_eq!((notification.code, notification.subcode), (code, subcode), "{bad:02x?}: {error}");
        }
    }
}
