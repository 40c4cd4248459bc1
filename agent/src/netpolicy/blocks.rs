//! Address blocks as ranges: the union of prefixes, each without its exceptions.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::input::IpBlock;
use super::rules::Element;

/// Ranges of numbers, both ends included, of one IP family.
type Ranges = Vec<(u128, u128)>;

/// The addresses of these blocks, as ranges that do not overlap or touch. The kernel's interval
/// sets refuse ranges that overlap.
pub(super) fn ranges<'a>(blocks: impl Iterator<Item = &'a IpBlock>) -> BTreeSet<Element> {
    let (mut v4, mut v6) = (Ranges::new(), Ranges::new());
    for block in blocks {
        let ranges = if block.cidr.addr().is_ipv4() { &mut v4 } else { &mut v6 };
        ranges.extend(without(&block.cidr, &block.except));
    }
    let v4 = merge(v4).into_iter().map(|(first, last)| Element::Range(address_v4(first), address_v4(last)));
    let v6 = merge(v6).into_iter().map(|(first, last)| Element::Range(address_v6(first), address_v6(last)));
    v4.chain(v6).collect()
}

fn without(cidr: &IpNet, except: &[IpNet]) -> Ranges {
    let (mut first, last) = bounds(cidr);
    let same_family = except.iter().filter(|net| net.addr().is_ipv4() == cidr.addr().is_ipv4());
    let mut ranges = Ranges::new();
    for (hole_first, hole_last) in merge(same_family.map(bounds).collect()) {
        if hole_last < first || hole_first > last {
            continue;
        }
        if hole_first > first {
            ranges.push((first, hole_first - 1));
        }
        if hole_last >= last {
            return ranges;
        }
        first = hole_last + 1;
    }
    ranges.push((first, last));
    ranges
}

/// Sorts ranges, and joins those that overlap or touch.
fn merge(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    let mut merged = Ranges::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn bounds(net: &IpNet) -> (u128, u128) {
    (number(net.network()), number(net.broadcast()))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address_v4(number: u128) -> IpAddr {
    // The bounds of IPv4 prefixes have 32 bits.
    IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)))
}

fn address_v6(number: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(blocks: &[(&str, &[&str])]) -> Vec<String> {
        let net = |text: &&str| text.parse().unwrap();
        let blocks: Vec<IpBlock> = blocks
            .iter()
            .map(|(cidr, except)| IpBlock { cidr: net(cidr), except: except.iter().map(net).collect() })
            .collect();
        let text = |element: &Element| match element {
            Element::Range(first, last) => format!("{first}-{last}"),
            other => panic!("{other:?} is no range"),
        };
        ranges(blocks.iter()).iter().map(text).collect()
    }

    #[test]
    fn exceptions_are_cut_out_and_neighbours_joined() {
        assert_eq!(text(&[("10.0.0.0/24", &[])]), ["10.0.0.0-10.0.0.255"]);
        assert_eq!(text(&[("10.0.0.77/24", &["10.0.0.0/25"])]), ["10.0.0.128-10.0.0.255"]);
        assert_eq!(
            text(&[("10.0.0.0/24", &["10.0.0.8/29", "10.0.0.12/32", "10.0.0.255/32"])]),
            ["10.0.0.0-10.0.0.7", "10.0.0.16-10.0.0.254"]
        );
        assert_eq!(text(&[("10.0.0.0/24", &["10.0.0.0/8"])]), [""; 0]);
        assert_eq!(text(&[("10.0.0.0/25", &[]), ("10.0.0.128/25", &[])]), ["10.0.0.0-10.0.0.255"]);
        assert_eq!(text(&[("10.0.0.0/24", &["10.0.0.1/32"]), ("10.0.0.1/32", &[])]), ["10.0.0.0-10.0.0.255"]);
        assert_eq!(text(&[("0.0.0.0/0", &["::/0"])]), ["0.0.0.0-255.255.255.255"]);
        assert_eq!(
            text(&[("::/0", &["8000::/1"]), ("255.255.255.255/32", &[])]),
            ["255.255.255.255-255.255.255.255", "::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]
        );
    }
}
