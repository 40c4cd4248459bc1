//! Network Layer Reachability Information: pairs of length and prefix (RFC 4271 §4.3, RFC 4760 §5).
//! In a session with ADD-PATH, each pair has a path identifier in front (RFC 7911 §3).
//!
//! A field is checked once, when the UPDATE is decoded. The result is an [`Nlri`] or [`Prefixes`].
//! It can be iterated any number of times without errors and allocations.

use std::fmt;
use std::marker::PhantomData;

use ipnet::IpNet;

use super::UpdateError;
use crate::types::{AddressFamily, Family, Ipv4, Ipv6};

/// Octets of a path identifier.
const IDENTIFIER: usize = 4;

/// The prefixes of one field, of one family.
#[derive(Clone, Copy)]
pub struct Nlri<'a, F> {
    octets: &'a [u8],
    count: usize,
    /// Octets before each length: [`IDENTIFIER`] or 0.
    lead: u8,
    family: PhantomData<F>,
}

impl<'a, F: AddressFamily> Nlri<'a, F> {
    /// A field without prefixes.
    pub const EMPTY: Nlri<'static, F> = Nlri { octets: &[], count: 0, lead: 0, family: PhantomData };

    /// Checks a field (RFC 7606 §5.3): every length is possible, and the last prefix ends with the
    /// field. `name` is for the error. `add_path`: each prefix has a path identifier.
    #[inline]
    pub(super) fn check(octets: &'a [u8], name: &'static str, add_path: bool) -> Result<Self, UpdateError> {
        if add_path {
            return Self::check_paths(octets, name);
        }
        let mut at = 0;
        let mut count = 0;
        while let Some(&length) = octets.get(at) {
            let end = at + 1 + usize::from(length).div_ceil(8);
            if usize::from(length) > 8 * F::OCTETS || end > octets.len() {
                return Err(UpdateError::Prefix { field: name, length, offset: at });
            }
            at = end;
            count += 1;
        }
        Ok(Nlri { octets, count, lead: 0, family: PhantomData })
    }

    fn check_paths(octets: &'a [u8], name: &'static str) -> Result<Self, UpdateError> {
        let mut at = 0;
        let mut count = 0;
        while at < octets.len() {
            let Some(&length) = octets.get(at + IDENTIFIER) else {
                return Err(UpdateError::Identifier { field: name, offset: at });
            };
            let end = at + IDENTIFIER + 1 + usize::from(length).div_ceil(8);
            if usize::from(length) > 8 * F::OCTETS || end > octets.len() {
                return Err(UpdateError::Prefix { field: name, length, offset: at + IDENTIFIER });
            }
            at = end;
            count += 1;
        }
        Ok(Nlri { octets, count, lead: IDENTIFIER as u8, family: PhantomData })
    }

    /// Whether each prefix has a path identifier.
    pub fn has_identifiers(&self) -> bool {
        self.lead != 0
    }

    /// The prefixes in the order of the message, with path identifiers if the session has ADD-PATH.
    pub fn paths(&self) -> impl Iterator<Item = (Option<u32>, F::Prefix)> + use<'a, F> {
        let mut iter = self.iter();
        std::iter::from_fn(move || {
            let identifier = (iter.lead != 0)
                .then(|| iter.octets.first_chunk().map(|octets| u32::from_be_bytes(*octets)))
                .flatten();
            Some((identifier, iter.next()?))
        })
    }

    /// The number of prefixes, known without iteration.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The prefixes in the order of the message, host bits cleared. A prefix may occur twice.
    pub fn iter(&self) -> NlriIter<'a, F> {
        NlriIter { octets: self.octets, left: self.count, lead: self.lead, family: PhantomData }
    }
}

impl<'a, F: AddressFamily> IntoIterator for Nlri<'a, F> {
    type Item = F::Prefix;
    type IntoIter = NlriIter<'a, F>;

    fn into_iter(self) -> NlriIter<'a, F> {
        self.iter()
    }
}

impl<F: AddressFamily> fmt::Debug for Nlri<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator over [`Nlri`].
#[derive(Clone)]
pub struct NlriIter<'a, F> {
    octets: &'a [u8],
    left: usize,
    lead: u8,
    family: PhantomData<F>,
}

impl<F: AddressFamily> Iterator for NlriIter<'_, F> {
    type Item = F::Prefix;

    #[inline]
    fn next(&mut self) -> Option<F::Prefix> {
        let (&length, rest) = self.octets.get(usize::from(self.lead)..)?.split_first()?;
        self.octets = rest.get(usize::from(length).div_ceil(8)..)?;
        self.left -= 1;
        F::prefix(rest, length)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<F: AddressFamily> ExactSizeIterator for NlriIter<'_, F> {}

/// The prefixes of one field with a family that is known at run time.
#[derive(Clone, Copy, Debug)]
pub enum Prefixes<'a> {
    /// IPv4 unicast.
    V4(Nlri<'a, Ipv4>),
    /// IPv6 unicast.
    V6(Nlri<'a, Ipv6>),
}

impl<'a> Prefixes<'a> {
    pub(super) fn check(
        family: Family,
        octets: &'a [u8],
        name: &'static str,
        add_path: bool,
    ) -> Result<Self, UpdateError> {
        Ok(match family {
            Family::Ipv4Unicast => Prefixes::V4(Nlri::check(octets, name, add_path)?),
            Family::Ipv6Unicast => Prefixes::V6(Nlri::check(octets, name, add_path)?),
        })
    }

    /// The family of the prefixes.
    pub fn family(&self) -> Family {
        match self {
            Prefixes::V4(_) => Family::Ipv4Unicast,
            Prefixes::V6(_) => Family::Ipv6Unicast,
        }
    }

    /// The number of prefixes.
    pub fn len(&self) -> usize {
        match self {
            Prefixes::V4(nlri) => nlri.len(),
            Prefixes::V6(nlri) => nlri.len(),
        }
    }

    /// Whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The prefixes with their path identifiers, of either family: for tests and display.
    pub fn paths(&self) -> impl Iterator<Item = (Option<u32>, IpNet)> + use<'a> {
        let (v4, v6) = match *self {
            Prefixes::V4(nlri) => (nlri, Nlri::EMPTY),
            Prefixes::V6(nlri) => (Nlri::EMPTY, nlri),
        };
        let v6 = v6.paths().map(|(identifier, prefix)| (identifier, IpNet::V6(prefix)));
        v4.paths().map(|(identifier, prefix)| (identifier, IpNet::V4(prefix))).chain(v6)
    }

    /// The prefixes, of either family: for tests and display. Tables use [`Nlri`].
    pub fn iter(&self) -> impl Iterator<Item = IpNet> + use<'a> {
        let (v4, v6) = match *self {
            Prefixes::V4(nlri) => (nlri, Nlri::EMPTY),
            Prefixes::V6(nlri) => (Nlri::EMPTY, nlri),
        };
        v4.iter().map(IpNet::V4).chain(v6.iter().map(IpNet::V6))
    }
}

/// Appends a path identifier.
#[inline]
pub(super) fn push_identifier(out: &mut Vec<u8>, identifier: u32) {
    out.extend_from_slice(&identifier.to_be_bytes());
}

/// Appends one prefix.
#[inline]
pub(super) fn push<F: AddressFamily>(out: &mut Vec<u8>, prefix: &F::Prefix) {
    let (octets, length) = F::parts(prefix);
    // Copying a fixed length and truncating the end is faster than copying a variable length.
    out.push(length);
    let end = out.len() + usize::from(length).div_ceil(8);
    out.extend_from_slice(&octets[..F::OCTETS]);
    out.truncate(end);
}

/// The encoded length of the prefix in octets.
#[inline]
pub(super) fn encoded_len<F: AddressFamily>(prefix: &F::Prefix) -> usize {
    1 + usize::from(F::parts(prefix).1).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(octets: &[u8]) -> Result<Nlri<'_, Ipv4>, UpdateError> {
        Nlri::check(octets, "NLRI", false)
    }

    #[test]
    fn prefixes_are_decoded_in_order() {
        let nlri = v4(&[0, 9, 10, 255, 32, 10, 0, 0, 1]).unwrap();
        assert_eq!(
            nlri.iter().map(|p| p.to_string()).collect::<Vec<_>>(),
            ["0.0.0.0/0", "10.128.0.0/9", "10.0.0.1/32"]
        );
        assert_eq!((nlri.len(), nlri.iter().len(), nlri.iter().skip(1).len()), (3, 3, 2));
        let mut out = Vec::new();
        nlri.iter().for_each(|prefix| push::<Ipv4>(&mut out, &prefix));
        assert_eq!(out, [0, 9, 10, 128, 32, 10, 0, 0, 1]);
    }

    #[test]
    fn path_identifiers_are_decoded_with_their_prefixes() {
        let octets = [0, 0, 0, 7, 0, 0, 0, 1, 0, 9, 10, 255, 255, 255, 255, 255, 32, 10, 0, 0, 1];
        let nlri = Nlri::<Ipv4>::check(&octets, "NLRI", true).unwrap();
        let prefixes = ["0.0.0.0/0", "10.128.0.0/9", "10.0.0.1/32"];
        assert_eq!(nlri.iter().map(|p| p.to_string()).collect::<Vec<_>>(), prefixes);
        let identifiers: Vec<_> = nlri.paths().map(|(identifier, _)| identifier.unwrap()).collect();
        assert_eq!(identifiers, [7, 256, u32::MAX]);
        assert_eq!(nlri.len(), 3);
        assert!(nlri.has_identifiers());
        let plain = v4(&[8, 10]).unwrap();
        assert_eq!(plain.paths().collect::<Vec<_>>(), [(None, "10.0.0.0/8".parse().unwrap())]);
        for (octets, error) in [
            (&[0, 0, 0][..], UpdateError::Identifier { field: "NLRI", offset: 0 }),
            (&[0, 0, 0, 1], UpdateError::Identifier { field: "NLRI", offset: 0 }),
            (&[0, 0, 0, 1, 33, 1, 2, 3, 4, 5], UpdateError::Prefix { field: "NLRI", length: 33, offset: 4 }),
            (&[0, 0, 0, 1, 8, 10, 0], UpdateError::Identifier { field: "NLRI", offset: 6 }),
            (&[0, 0, 0, 1, 16, 10], UpdateError::Prefix { field: "NLRI", length: 16, offset: 4 }),
        ] {
            assert_eq!(Nlri::<Ipv4>::check(octets, "NLRI", true).unwrap_err(), error);
        }
    }

    #[test]
    fn an_impossible_prefix_length_is_an_error() {
        for (octets, length, offset) in [
            (&[33, 1, 2, 3, 4, 5][..], 33, 0),
            (&[0, 255], 255, 1),
            (&[8, 10, 8], 8, 2),
            (&[25, 1, 2, 3], 25, 0),
        ] {
            assert_eq!(v4(octets).unwrap_err(), UpdateError::Prefix { field: "NLRI", length, offset });
        }
        assert!(Nlri::<Ipv6>::check(&[129; 18], "NLRI", false).is_err());
        assert_eq!(Nlri::<Ipv6>::check(&[128; 17], "NLRI", false).unwrap().len(), 1);
    }
}
