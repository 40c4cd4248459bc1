//! ROUTE-REFRESH (RFC 2918), with the markers for the beginning and end of the response (RFC 7313).

use super::{AfiSafi, MessageKind, RefreshError, begin_message, finish_message};
use crate::types::Family;

/// A request for the routes of a family, or a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteRefresh {
    /// The family; this speaker need not carry it.
    pub family: AfiSafi,
    /// [`Self::REQUEST`], [`Self::BEGIN`] or [`Self::END`]; others must be ignored (RFC 7313 §5).
    pub subtype: u8,
}

impl RouteRefresh {
    /// Subtype of the request.
    pub const REQUEST: u8 = 0;
    /// Subtype of BoRR: all routes of the family follow.
    pub const BEGIN: u8 = 1;
    /// Subtype of EoRR: the routes are complete. Routes that were not sent again are withdrawn.
    pub const END: u8 = 2;

    /// The request for a family.
    pub fn request(family: Family) -> RouteRefresh {
        RouteRefresh { family: family.into(), subtype: Self::REQUEST }
    }

    /// BoRR of a family.
    pub fn begin(family: Family) -> RouteRefresh {
        RouteRefresh { family: family.into(), subtype: Self::BEGIN }
    }

    /// EoRR of a family.
    pub fn end(family: Family) -> RouteRefresh {
        RouteRefresh { family: family.into(), subtype: Self::END }
    }

    /// Decodes the octets after the header. Outbound route filters (RFC 5291), which were never
    /// offered, are ignored.
    ///
    /// # Errors
    /// If a marker does not have 4 octets, or another message has fewer.
    pub fn decode(body: &[u8]) -> Result<RouteRefresh, RefreshError> {
        match *body {
            [afi0, afi1, subtype, safi, ref rest @ ..]
                if rest.is_empty() || ![Self::BEGIN, Self::END].contains(&subtype) =>
            {
                let family = AfiSafi { afi: u16::from_be_bytes([afi0, afi1]), safi };
                Ok(RouteRefresh { family, subtype })
            }
            _ => Err(RefreshError::Length { body: body.to_vec() }),
        }
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = begin_message(out, MessageKind::RouteRefresh);
        out.extend_from_slice(&self.family.afi.to_be_bytes());
        out.extend_from_slice(&[self.subtype, self.family.safi]);
        finish_message(out, start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MAX_MESSAGE, WireError, frame};

    #[test]
    fn encoding_round_trips() {
        let mut out = Vec::new();
        RouteRefresh::request(Family::Ipv6Unicast).encode(&mut out);
        let frame = frame(&out, MAX_MESSAGE).unwrap().unwrap();
        assert_eq!((frame.kind, frame.body), (MessageKind::RouteRefresh, &[0, 2, 0, 1][..]));
        assert_eq!(RouteRefresh::decode(frame.body), Ok(RouteRefresh::request(Family::Ipv6Unicast)));
    }

    #[test]
    fn filters_are_ignored_and_long_markers_are_an_error() {
        assert_eq!(RouteRefresh::decode(&[0, 1, 0, 1, 9, 9]), Ok(RouteRefresh::request(Family::Ipv4Unicast)));
        let error = WireError::from(RouteRefresh::decode(&[0, 1, 1, 1, 9]).unwrap_err());
        let notification = error.notification();
        assert_eq!((notification.code, notification.subcode, notification.data.len()), (7, 1, 24));
        assert_eq!(error.to_string(), "ROUTE-REFRESH: 5 octets in a message with subtype 1; 4 are required");
    }
}
