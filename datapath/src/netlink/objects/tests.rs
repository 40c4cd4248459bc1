//! Objects are encoded and parsed without loss.

use super::*;
use crate::netlink::message::messages;

fn round_trip(prefix: &str, target: RouteTarget) -> RouteInfo {
    let key = RouteKey { table: 10_000, prefix: prefix.parse().unwrap() };
    let mut batch = Batch::new();
    batch.put_route(&key, &target);
    let message = messages(&batch.buffer).next().unwrap();
    let read = read_route(message.body).unwrap();
    assert_eq!(read.key, key);
    assert_eq!(read.protocol, PROTOCOL);
    read
}

#[test]
fn route_is_parsed_as_encoded() {
    let hop = |gateway: &str, ifindex| Hop::by(gateway.parse().unwrap(), ifindex);
    for (prefix, target) in [
        ("10.0.0.0/8", RouteTarget::Blackhole),
        ("10.0.0.0/8", RouteTarget::Throw),
        ("10.0.0.0/8", RouteTarget::Unreachable),
        ("2001:db8::/64", RouteTarget::Unreachable),
        ("2001:db8::/64", RouteTarget::Throw),
        (
            "10.2.0.0/24",
            RouteTarget::via(vec![Hop { source: Some("192.0.2.7".parse().unwrap()), ..hop("fe80::1", 3) }]),
        ),
        ("0.0.0.0/0", RouteTarget::via(vec![hop("192.0.2.1", 3), hop("192.0.2.9", 4)])),
        ("0.0.0.0/0", RouteTarget::via(vec![hop("fe80::1", 3), hop("fe80::1", 4)])),
        ("10.1.2.3/32", RouteTarget::via(vec![Hop::link(9)])),
        ("::/0", RouteTarget::via(vec![hop("fe80::1", 3)])),
        ("2001:db8::/64", RouteTarget::via(vec![hop("fe80::1", 3), hop("2001:db8::1", 3)])),
        ("0.0.0.0/0", RouteTarget::via(vec![Hop { onlink: true, ..hop("192.0.2.1", 3) }])),
        ("::/0", RouteTarget::via(vec![Hop { onlink: true, ..hop("2001:db8::1", 3) }, hop("fe80::1", 4)])),
    ] {
        assert_eq!(round_trip(prefix, target.clone()).target, Some(target), "{prefix}");
    }
}

#[test]
fn rule_is_parsed_as_encoded() {
    for rule in [
        Rule::always(IpFamily::V4, 1000, 39_999),
        Rule::from_prefix(1100, "2001:db8::/64".parse().unwrap(), 10_000),
        Rule::from_link(IpFamily::V4, "eth1", 39_998),
        Rule { mark: Some(Mark::bits(0x1_0000)), ..Rule::always(IpFamily::V6, 960, 39_999) },
        Rule {
            mark: Some(Mark { value: 0x4_0000, mask: 0x1e_0000 }),
            ..Rule::always(IpFamily::V4, 1024, 1_170_003)
        },
        Rule {
            to: Some("10.1.0.0/24".parse().unwrap()),
            ..Rule::from_prefix(980, "10.2.0.0/16".parse().unwrap(), 39_997)
        },
    ] {
        let mut batch = Batch::new();
        batch.add_rule(&rule);
        let message = messages(&batch.buffer).next().unwrap();
        assert_eq!(read_rule(message.body), Some(RuleInfo { protocol: PROTOCOL, rule }));
    }
}

#[test]
fn host_address_is_parsed_as_encoded() {
    for text in ["192.0.2.7", "2001:db8::7"] {
        let address: IpAddr = text.parse().unwrap();
        let mut batch = Batch::new();
        batch.put_host_address(1, address);
        batch.delete_host_address(1, address);
        let read: Vec<_> = messages(&batch.buffer).filter_map(|it| read_address(it.body)).collect();
        let info = |protocol| AddressInfo { ifindex: 1, prefix: address.into(), protocol };
        assert_eq!(read, [info(PROTOCOL), info(0)]);
    }
}

#[test]
fn short_messages_are_rejected() {
    for length in 0..12 {
        let body = vec![2; length];
        assert_eq!(read_route(&body), None);
        assert_eq!(read_rule(&body), None);
        assert_eq!(read_neighbour(&body), None);
        assert_eq!(read_link(&body), None);
        if length < 8 {
            assert_eq!(read_address(&body), None);
        }
    }
}
