//! Dynamic neighbours: peers that connect from a configured prefix.

use trunkline_bgp::config::{ConfigError, PeerRange};
use trunkline_bgp::speaker::{Change, Event, PeerConfig, Refusal, State};
use trunkline_bgp::types::Asn;

use crate::net::{Net, ip, net, peer, secs};

fn range(limit: u32) -> PeerRange {
    PeerRange::new(net("10.0.0.0/24"), limit, PeerConfig::new(ip(0), Asn(65002)))
}

/// Node 1 accepts dynamic neighbours; node 2 is configured to connect.
fn waiting(limit: u32) -> Net {
    let mut all = Net::new();
    all.add(1).originated.insert(net("10.1.0.0/16"), Default::default());
    let node = all.add(2);
    node.peers.insert(ip(1), peer(1));
    node.originated.insert(net("10.2.0.0/16"), Default::default());
    all.boot(1);
    all.with(1, |speaker, now| speaker.set_ranges(vec![range(limit)], now).unwrap());
    all
}

fn peers(all: &Net) -> usize {
    all.nodes[&1].speaker.as_ref().unwrap().peers(all.now).len()
}

fn came(all: &mut Net, host: u8) -> Result<(), Refusal> {
    let [local, remote] = [1, host].map(|host| std::net::SocketAddr::new(ip(host), 179));
    all.with(1, |speaker, now| speaker.handle_accepted(local, remote, None, now).map(|_| ()))
}

fn gone(all: &Net) -> usize {
    all.nodes[&1].events.iter().filter(|event| matches!(event, Event::PeerGone { .. })).count()
}

#[test]
fn a_dynamic_neighbour_is_created_on_connect() {
    let mut all = waiting(10);
    all.run(secs(10));
    assert_eq!(peers(&all), 0, "no peer before the first connection");
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(2));
    let status = all.status(1, 2);
    assert_eq!((status.range, status.state), (Some(net("10.0.0.0/24")), State::Established));
    assert_eq!(all.routes_from(1, 2), [net("10.2.0.0/16")]);
    assert_eq!(all.routes_from(2, 1), [net("10.1.0.0/16")]);
    let ranges = all.nodes[&1].speaker.as_ref().unwrap().ranges();
    assert_eq!((ranges[0].peers, ranges[0].limit, ranges[0].refused), (1, 10, 0));
}

#[test]
fn a_dynamic_neighbour_is_removed_after_its_restart_time() {
    let mut all = waiting(10);
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(2));
    all.kill(2);
    all.run(secs(110));
    assert_eq!((peers(&all), gone(&all)), (1, 0), "stale paths are kept for 120 s");
    assert_eq!(all.nodes[&1].fib.len(), 1);
    all.run(secs(20));
    assert_eq!((peers(&all), gone(&all)), (0, 1));
    assert!(all.nodes[&1].fib.is_empty());
    assert_eq!(all.nodes[&1].speaker.as_ref().unwrap().ranges()[0].peers, 0);
    // The removed peer may connect again.
    all.boot(2);
    all.run_until_up(2, 1);
    assert_eq!(peers(&all), 1);
}

#[test]
fn a_restarted_dynamic_neighbour_keeps_its_paths() {
    let mut all = waiting(10);
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(2));
    all.must_hold.push((1, net("10.2.0.0/16")));
    all.kill(2);
    all.run(secs(5));
    all.reboot(2);
    all.run_until_up(2, 1);
    all.run(secs(200));
    assert_eq!((peers(&all), gone(&all)), (1, 0));
}

#[test]
fn the_limit_rejects_peers_until_one_is_removed() {
    let mut all = waiting(2);
    assert_eq!((came(&mut all, 3), came(&mut all, 4)), (Ok(()), Ok(())));
    for _ in 0..3 {
        let refused = came(&mut all, 5).unwrap_err();
        assert_eq!(refused, Refusal::RangeFull { peer: ip(5).into(), prefix: net("10.0.0.0/24"), limit: 2 });
    }
    let reports = |all: &Net| {
        all.nodes[&1].events.iter().filter(|event| matches!(event, Event::RangeFull { .. })).count()
    };
    assert_eq!(reports(&all), 1);
    let ranges = all.nodes[&1].speaker.as_ref().unwrap().ranges();
    assert_eq!((ranges[0].peers, ranges[0].refused), (2, 3));
    // A silent peer is removed in the end, and so is a peer that is held idle after an error.
    all.run(secs(600));
    assert_eq!(peers(&all), 0);
    assert_eq!(came(&mut all, 5), Ok(()));
    assert_eq!(reports(&all), 1);
}

#[test]
fn an_address_outside_every_range_is_rejected() {
    let mut all = waiting(2);
    let local = std::net::SocketAddr::new(ip(1), 179);
    for stranger in ["10.0.1.1:179", "[fe80::1%7]:179", "[2001:db8::1]:179"] {
        let stranger: std::net::SocketAddr = stranger.parse().unwrap();
        let answer = all.with(1, |speaker, now| speaker.handle_accepted(local, stranger, None, now));
        assert!(matches!(answer, Err(Refusal::UnknownPeer(_))), "{answer:?}");
    }
    assert_eq!(peers(&all), 0);
}

#[test]
fn editing_a_range_edits_its_peers() {
    let mut all = waiting(10);
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(2));
    let mut edited = range(1);
    edited.template.max_prefixes = Some(100);
    all.with(1, |speaker, now| speaker.set_ranges(vec![edited.clone()], now).unwrap());
    all.run(secs(2));
    let status = all.status(1, 2);
    assert_eq!((status.established_count, status.flaps), (1, 0), "no reset");
    assert_eq!(status.max_prefixes, Some(100));
    // A peer with its own configuration continues, and the range does not count it.
    let own = PeerConfig { passive: true, ..edited.template.clone() };
    let own = PeerConfig { address: ip(2), ..own };
    all.with(1, |speaker, now| {
        speaker.add_peer(own.clone(), now).unwrap();
        assert_eq!(speaker.update_peer(own, now), Ok(Change::Unchanged));
        assert_eq!(speaker.ranges()[0].peers, 0);
        speaker.set_ranges(Vec::new(), now).unwrap();
    });
    all.run(secs(2));
    assert_eq!((all.status(1, 2).range, all.status(1, 2).flaps), (None, 0));
}

#[test]
fn removing_a_range_removes_its_peers() {
    let mut all = waiting(10);
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(2));
    all.with(1, |speaker, now| speaker.set_ranges(Vec::new(), now).unwrap());
    all.run(secs(1));
    assert_eq!((peers(&all), gone(&all)), (0, 1));
    assert!(all.nodes[&1].fib.is_empty());
    let received = all.status(2, 1).notification_received.unwrap();
    assert!(received.text.contains("De-configured"), "{}", received.text);
}

#[test]
fn after_a_restart_the_decision_waits_for_dynamic_neighbours() {
    let mut all = waiting(10);
    all.boot(2);
    all.run_until_up(2, 1);
    all.run(secs(2));
    all.must_hold.push((1, net("10.2.0.0/16")));
    all.kill(1);
    {
        let node = all.nodes.get_mut(&1).unwrap();
        node.config.restarting = true;
        node.ranges = vec![range(10)];
    }
    all.boot(1);
    all.run_until_up(2, 1);
    all.run(secs(200));
    assert_eq!(all.nodes[&1].fib.len(), 1);
    assert_eq!(all.status(2, 1).flaps, 1);
}

#[test]
fn a_range_may_set_a_local_as() {
    let mut all = waiting(10);
    let mut merged = range(10);
    merged.template.paths.local_as = Some(crate::local_as::local_as(64999));
    all.with(1, |speaker, now| speaker.set_ranges(vec![merged], now).unwrap());
    all.nodes.get_mut(&2).unwrap().peers.get_mut(&ip(1)).unwrap().remote_as = Asn(64999);
    all.boot(2);
    all.run_until_up(2, 1);
    assert_eq!(all.status(1, 2).local_as, Asn(64999));
}

#[test]
fn an_invalid_range_is_rejected_with_its_field() {
    let mut all = waiting(10);
    let fault = |all: &mut Net, range: PeerRange| {
        all.with(1, |speaker, now| speaker.set_ranges(vec![range], now).unwrap_err().to_string())
    };
    assert!(fault(&mut all, range(0)).starts_with("peers of 10.0.0.0/24: limit: "));
    let link_local = PeerRange::new(net("fe80::/64"), 1, range(1).template);
    assert!(fault(&mut all, link_local).starts_with("peers of fe80::/64: prefix: "));
    let mut own_as = range(1);
    own_as.template.paths.local_as = Some(crate::local_as::local_as(65001));
    assert!(
        fault(&mut all, own_as).starts_with("peers of 10.0.0.0/24: local_as: 65001 is this speaker's own")
    );
    let mut no_time = range(1);
    no_time.template.hold_time = secs(2);
    assert!(fault(&mut all, no_time).starts_with("peers of 10.0.0.0/24: hold_time: "));
    let twice = all.with(1, |speaker, now| speaker.set_ranges(vec![range(1), range(2)], now));
    assert_eq!(twice, Err(ConfigError::DuplicateRange(net("10.0.0.0/24"))));
}
