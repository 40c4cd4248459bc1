//! Peers that advertise a default route: one event for each change, whatever the cause.

use trunkline_bgp::policy::Policy;
use trunkline_bgp::speaker::{Event, Stop};
use trunkline_bgp::types::Family;

use crate::net::{Net, net, secs};

const V4: &str = "0.0.0.0/0";
const V6: &str = "::/0";

/// Two nodes with a session; node 2 is the router.
fn up() -> Net {
    let mut all = Net::pair();
    let peer = all.nodes.get_mut(&2).unwrap().peers.get_mut(&crate::net::ip(1)).unwrap();
    peer.next_hop_v6 = "2001:db8::2".parse().ok();
    all.boot_all();
    all.run(secs(20));
    all
}

fn originate(all: &mut Net, prefix: &str) {
    all.with(2, |speaker, now| speaker.originate(net(prefix), Default::default(), now));
    all.run(secs(1));
}

fn withdraw(all: &mut Net, prefix: &str) {
    all.with(2, |speaker, now| speaker.withdraw(net(prefix), now));
    all.run(secs(1));
}

/// The events since the last call, in order.
fn changes(all: &mut Net) -> Vec<&'static str> {
    let events = std::mem::take(&mut all.nodes.get_mut(&1).unwrap().events);
    let changes = events.iter().filter_map(|event| match event {
        Event::DefaultRoute { family: Family::Ipv4Unicast, offered: true, .. } => Some("offers"),
        Event::DefaultRoute { family: Family::Ipv4Unicast, offered: false, .. } => Some("withdrew"),
        Event::DefaultRoute { family: Family::Ipv6Unicast, offered: true, .. } => Some("offers v6"),
        Event::DefaultRoute { family: Family::Ipv6Unicast, offered: false, .. } => Some("withdrew v6"),
        Event::PeerUp { .. } => Some("up"),
        Event::PeerDown { .. } => Some("down"),
        Event::EndOfRib { family: Family::Ipv4Unicast, .. } => Some("end"),
        _ => None,
    });
    changes.collect()
}

#[test]
fn each_change_of_a_default_route_is_an_event() {
    let mut all = up();
    changes(&mut all);
    originate(&mut all, "10.2.7.0/24");
    assert_eq!(changes(&mut all), [""; 0], "other prefixes are no default route");
    originate(&mut all, V4);
    assert_eq!(changes(&mut all), ["offers"]);
    // The attributes of the default route change.
    all.with(2, |speaker, now| {
        let origination = trunkline_bgp::speaker::Origination { med: Some(7), ..Default::default() };
        speaker.originate(net(V4), origination, now);
    });
    all.run(secs(1));
    assert_eq!(changes(&mut all), [""; 0]);
    withdraw(&mut all, V4);
    assert_eq!(changes(&mut all), ["withdrew"]);
}

#[test]
fn a_default_route_is_reported_before_end_of_rib() {
    let mut all = Net::pair();
    all.nodes.get_mut(&2).unwrap().originated.insert(net(V4), Default::default());
    all.boot_all();
    all.run(secs(20));
    assert_eq!(changes(&mut all), ["up", "offers", "end"]);
}

#[test]
fn a_retained_default_route_counts_until_it_is_swept() {
    let mut all = up();
    originate(&mut all, V4);
    changes(&mut all);
    all.nodes.get_mut(&2).unwrap().originated.insert(net(V4), Default::default());
    all.kill(2);
    all.run(secs(5));
    all.reboot(2);
    all.run(secs(20));
    assert_eq!(changes(&mut all), ["down", "up", "end"], "the default route is advertised again");
    all.nodes.get_mut(&2).unwrap().originated.remove(&net(V4));
    all.kill(2);
    all.run(secs(5));
    all.reboot(2);
    all.run(secs(20));
    assert_eq!(changes(&mut all), ["down", "up", "withdrew", "end"], "the default route was swept");
}

#[test]
fn default_routes_are_withdrawn_after_peer_down() {
    let mut all = up();
    originate(&mut all, V4);
    originate(&mut all, V6);
    changes(&mut all);
    all.stop(2, Stop::Cease { communication: String::new() });
    all.run(secs(1));
    assert_eq!(changes(&mut all), ["down", "withdrew", "withdrew v6"]);
}

#[test]
fn a_rejected_default_route_is_not_offered() {
    let mut all = up();
    originate(&mut all, V4);
    changes(&mut all);
    all.edit(1, 2, |peer| peer.import = Policy::reject_all());
    assert_eq!(changes(&mut all), ["withdrew"]);
    all.edit(1, 2, |peer| peer.import = Policy::accept_all());
    assert_eq!(changes(&mut all), ["offers"]);
}

#[test]
fn a_removed_peer_offers_no_default_route() {
    let mut all = up();
    originate(&mut all, V4);
    changes(&mut all);
    all.with(1, |speaker, now| speaker.remove_peer(crate::net::ip(2), now).unwrap());
    assert_eq!(changes(&mut all), ["down", "withdrew"]);
}
