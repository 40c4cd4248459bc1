//! Long-lived graceful restart (RFC 9494): which paths are kept after the Restart Time and for how
//! long, their preference, and their advertisement.

use trunkline_bgp::speaker::{Event, FamilyStatus, FibPath, Origination, State};
use trunkline_bgp::types::{Community, Family};
use trunkline_bgp::wire::{Capability, LongLivedFamily, MessageKind, Open, RestartFamily};

use crate::net::{
    Net, announce, announce_v6, encoded, end_of_rib, ip, keepalive, message, net, open, peer, secs,
};

/// The script's OPEN: a Restart Time, and, if given, a Long-lived Stale Time with its F bit.
fn offer(restart_time: u16, stale_time: Option<u32>, forwarding: bool) -> Open {
    let mut open = open();
    open.capabilities.retain(|capability| capability.code() != 64);
    let families = [Family::Ipv4Unicast, Family::Ipv6Unicast].map(Into::into);
    open.capabilities.push(Capability::GracefulRestart {
        restarting: false,
        notification: false,
        restart_time,
        families: families.map(|family| RestartFamily { family, forwarding: true }).to_vec(),
    });
    open.capabilities.extend(stale_time.map(|stale_time| {
        let entry = |family| LongLivedFamily { family, forwarding, stale_time };
        Capability::LongLivedGracefulRestart(families.map(entry).to_vec())
    }));
    open
}

/// A script with this OPEN has sent one route, and then TCP was closed.
fn lost(open: &Open, update: &[u8]) -> Net {
    lost_by([Some(3600); 2], open, update)
}

/// Like [`lost`], with these times configured on this side.
fn lost_by(long_lived: [Option<u32>; 2], open: &Open, update: &[u8]) -> Net {
    let mut all = Net::scripted(|peer| peer.long_lived = long_lived);
    all.boot(1);
    let pipe = all.script_accept();
    for octets in [encoded(open), keepalive(), update.to_vec(), end_of_rib()] {
        all.script_send(pipe, &octets);
    }
    all.script_close(pipe);
    all
}

fn route() -> Vec<u8> {
    announce(&[[10, 2, 0]])
}

fn is_kept(all: &Net) -> bool {
    all.nodes[&1].fib.contains_key(&net("10.2.0.0/24"))
}

fn v4(all: &Net) -> (usize, usize) {
    let v4 = v4_status(all);
    (v4.stale, v4.long_lived_stale)
}

fn v4_status(all: &Net) -> FamilyStatus {
    let families = all.status(1, 2).families;
    *families.iter().find(|family| family.family == Family::Ipv4Unicast).unwrap()
}

#[test]
fn the_long_lived_time_begins_after_the_restart_time() {
    let mut all = lost(&offer(30, Some(1000), true), &route());
    // The phases follow each other, and the remaining time is the sum of both.
    let left = |all: &Net| v4_status(all).stale_expires.map(|left| left.as_secs());
    assert!(matches!(left(&all), Some(1029..=1030)), "{:?}", left(&all));
    all.run(secs(29));
    assert_eq!(v4(&all), (1, 0));
    all.run(secs(2));
    assert_eq!(v4(&all), (1, 1));
    assert!(matches!(left(&all), Some(997..=999)), "{:?}", left(&all));
    assert!(!v4_status(&all).restartable, "there is no session");
    all.run(secs(995));
    assert!(is_kept(&all));
    all.run(secs(5));
    assert!(!is_kept(&all));
    assert_eq!(v4(&all), (0, 0));
    assert_eq!(left(&all), None);
    let reported = all.nodes[&1].events.iter().any(|event| {
        matches!(event, Event::LongLivedStale { family: Family::Ipv4Unicast, paths: 1, removed: 0, time, .. }
            if *time == secs(1000))
    });
    assert!(reported);
}

#[test]
fn both_sides_need_it_and_restart_time_0_is_skipped() {
    let mut without = lost(&offer(30, None, true), &route());
    without.run(secs(31));
    assert!(!is_kept(&without));

    let mut ours = Net::scripted(|_| {});
    ours.boot(1);
    let pipe = ours.script_accept();
    for octets in [encoded(&offer(30, Some(1000), true)), keepalive(), route()] {
        ours.script_send(pipe, &octets);
    }
    ours.script_close(pipe);
    ours.run(secs(31));
    assert!(!is_kept(&ours), "long-lived retention is not configured on this side");

    let at_once = lost(&offer(0, Some(1000), true), &route());
    assert_eq!(v4(&at_once), (1, 1));
}

#[test]
fn no_llgr_paths_are_removed_after_the_restart_time() {
    // The attributes include NO_LLGR.
    let mut body = vec![0, 0, 0, 27];
    body.extend([0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xea, 0x40, 3, 4, 10, 0, 0, 2]);
    body.extend([0xc0, 8, 4, 0xff, 0xff, 0, 7]);
    body.extend([24, 10, 2, 0]);
    let mut all = lost(&offer(30, Some(1000), true), &message(2, &body));
    all.run(secs(29));
    assert!(is_kept(&all));
    all.run(secs(2));
    assert!(!is_kept(&all));
}

#[test]
fn a_returning_peer_keeps_paths_as_its_capability_states() {
    for (stale_time, forwarding, kept) in
        [(Some(1000), true, true), (Some(1000), false, false), (None, true, false)]
    {
        let mut all = lost(&offer(30, Some(1000), true), &route());
        all.run(secs(100));
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&offer(30, stale_time, forwarding)));
        all.script_send(pipe, &keepalive());
        assert_eq!(all.state(1, 2), State::Established);
        assert_eq!(is_kept(&all), kept);
        all.script_send(pipe, &route());
        all.script_send(pipe, &end_of_rib());
        assert!(is_kept(&all));
        assert_eq!(v4(&all), (0, 0), "paths that were advertised again are not stale");
        all.run(secs(60));
        all.script_send(pipe, &keepalive());
        assert!(is_kept(&all), "no timer of the previous session runs");
    }
}

#[test]
fn a_brief_return_does_not_restart_the_timer() {
    let mut all = lost(&offer(30, Some(1000), true), &route());
    all.run(secs(500));
    let pipe = all.script_connect();
    all.script_send(pipe, &encoded(&offer(30, Some(1000), true)));
    all.script_send(pipe, &keepalive());
    all.script_close(pipe);
    assert_eq!(v4(&all), (1, 1));
    assert!(is_kept(&all), "the session is lost a second time while paths are long-lived stale");
    all.run(secs(400));
    assert!(is_kept(&all));
    all.run(secs(140));
    assert!(!is_kept(&all), "the time runs from the first loss");
}

/// Whether the route of each family is in the FIB.
fn kept(all: &Net) -> (bool, bool) {
    (is_kept(all), all.nodes[&1].fib.contains_key(&net("2001:db8:2::/48")))
}

/// The script's OPEN with these families in graceful restart at 30 s, and these Long-lived Stale
/// Times.
fn mixed(restart: &[Family], stale_times: &[(Family, u32)]) -> Open {
    let mut open = offer(30, None, true);
    open.capabilities.retain(|capability| capability.code() != 64);
    let entry = |family: &Family| RestartFamily { family: (*family).into(), forwarding: true };
    open.capabilities.push(Capability::GracefulRestart {
        restarting: false,
        notification: false,
        restart_time: 30,
        families: restart.iter().map(entry).collect(),
    });
    let entry = |(family, stale_time): &(Family, u32)| LongLivedFamily {
        family: (*family).into(),
        forwarding: true,
        stale_time: *stale_time,
    };
    open.capabilities.push(Capability::LongLivedGracefulRestart(stale_times.iter().map(entry).collect()));
    open
}

#[test]
fn each_family_has_its_own_time() {
    for (v4, v6) in [(100, 200), (200, 100)] {
        let times = [(Family::Ipv4Unicast, v4), (Family::Ipv6Unicast, v6)];
        let both = [route(), announce_v6(&[2])].concat();
        let mut all = lost(&mixed(&Family::ALL, &times), &both);
        all.run(secs(30 + 99));
        assert_eq!(kept(&all), (true, true));
        all.run(secs(2));
        assert_eq!(kept(&all), (v4 > v6, v6 > v4));
        all.run(secs(98));
        assert_eq!(kept(&all), (v4 > v6, v6 > v4));
        all.run(secs(2));
        assert_eq!(kept(&all), (false, false));
    }
}

/// RFC 9494 §4.2: a family that graceful restart does not list has no Restart Time, even if the
/// other family has one.
#[test]
fn a_family_without_graceful_restart_skips_the_first_phase() {
    let times = [(Family::Ipv6Unicast, 100)];
    let both = [route(), announce_v6(&[2])].concat();
    let mut all = lost(&mixed(&[Family::Ipv4Unicast], &times), &both);
    let long_lived = |all: &Net, wanted: Family| {
        all.nodes[&1]
            .events
            .iter()
            .filter(|event| matches!(event, Event::LongLivedStale { family, .. } if *family == wanted))
            .count()
    };
    assert_eq!(kept(&all), (true, true));
    assert_eq!(long_lived(&all, Family::Ipv6Unicast), 1, "at once");
    all.run(secs(29));
    assert_eq!(kept(&all), (true, true));
    all.run(secs(2));
    assert_eq!(kept(&all), (false, true), "the other family ends after its Restart Time");
    all.run(secs(68));
    assert_eq!(kept(&all), (false, true));
    all.run(secs(2));
    assert_eq!(kept(&all), (false, false));
    assert_eq!((long_lived(&all, Family::Ipv4Unicast), long_lived(&all, Family::Ipv6Unicast)), (0, 1));
}

/// RFC 9494 §5: the configuration enables each family separately.
#[test]
fn an_unconfigured_family_is_neither_offered_nor_kept() {
    let times = [(Family::Ipv4Unicast, 100), (Family::Ipv6Unicast, 100)];
    let both = [route(), announce_v6(&[2])].concat();
    let mut all = lost_by([None, Some(3600)], &mixed(&Family::ALL, &times), &both);
    all.run(secs(29));
    assert_eq!(kept(&all), (true, true));
    all.run(secs(2));
    assert_eq!(kept(&all), (false, true), "the Restart Time is over");
    all.run(secs(98));
    assert_eq!(kept(&all), (false, true));
    all.run(secs(2));
    assert_eq!(kept(&all), (false, false));

    let mut all = Net::scripted(|peer| peer.long_lived = [None, Some(3600)]);
    all.boot(1);
    let pipe = all.script_accept();
    let (_, body) = all.script_got(pipe).remove(0);
    let family = Family::Ipv6Unicast.into();
    let offered = vec![LongLivedFamily { family, forwarding: false, stale_time: 3600 }];
    let open = Open::decode(&body).unwrap();
    assert!(open.capabilities.contains(&Capability::LongLivedGracefulRestart(offered)));
}

/// RFC 9494 §4.2: the time runs until End-of-RIB. When it expires, paths that were not advertised
/// again are removed. If the session is then lost before End-of-RIB, the paths that were advertised
/// again are removed too.
#[test]
fn expiry_before_end_of_rib_ends_all_retention() {
    for synchronized in [false, true] {
        let mut all = lost(&offer(30, Some(100), true), &announce(&[[10, 2, 0], [10, 2, 1]]));
        let has = |all: &Net, prefix: &str| all.nodes[&1].fib.contains_key(&net(prefix));
        all.run(secs(100));
        let pipe = all.script_connect();
        for octets in [encoded(&offer(30, Some(100), true)), keepalive(), route()] {
            all.script_send(pipe, &octets);
        }
        all.run(secs(20));
        assert!(has(&all, "10.2.1.0/24"), "a moment more");
        all.run(secs(15));
        assert_eq!((has(&all, "10.2.0.0/24"), has(&all, "10.2.1.0/24")), (true, false));
        assert_eq!(all.state(1, 2), State::Established);
        if synchronized {
            all.script_send(pipe, &end_of_rib());
        }
        all.script_close(pipe);
        assert_eq!(has(&all, "10.2.0.0/24"), synchronized);
    }
}

/// During the Restart Time the F bit of graceful restart applies (RFC 4724 §4.2), afterwards the F
/// bit of the long-lived capability.
#[test]
fn each_phase_has_its_own_f_bit() {
    let times = [(Family::Ipv4Unicast, 1000), (Family::Ipv6Unicast, 1000)];
    for (away, kept) in [(10, false), (100, true)] {
        let mut all = lost(&offer(30, Some(1000), true), &route());
        all.run(secs(away));
        let pipe = all.script_connect();
        all.script_send(pipe, &encoded(&mixed(&[Family::Ipv6Unicast], &times)));
        all.script_send(pipe, &keepalive());
        assert_eq!(all.state(1, 2), State::Established);
        assert_eq!(is_kept(&all), kept, "back after {away} s without graceful restart for IPv4");
    }
}

/// RFC 9494 §4.1: without graceful restart the capability is ignored.
#[test]
fn the_capability_needs_graceful_restart() {
    for (alone, advertised) in [(false, true), (true, false)] {
        let mut all = Net::scripted(|_| {});
        let it = peer(3);
        all.nodes.get_mut(&1).unwrap().peers.insert(it.address, it);
        let one = peer(1);
        let third = all.add(3);
        third.peers.insert(one.address, one);
        let stale = Origination { communities: vec![Community::LLGR_STALE], ..Origination::default() };
        third.originated.insert(net("10.3.0.0/16"), stale);
        all.boot_all();
        let pipe = all.script_accept();
        let mut open = offer(30, Some(1000), true);
        if alone {
            open.capabilities.retain(|capability| capability.code() != 64);
        }
        all.script_send(pipe, &encoded(&open));
        all.script_send(pipe, &keepalive());
        all.run(secs(30));
        assert!(all.nodes[&1].fib.contains_key(&net("10.3.0.0/16")));
        let updates = all
            .script_got(pipe)
            .into_iter()
            .filter(|(kind, body)| *kind == MessageKind::Update && body.ends_with(&[16, 10, 3]));
        assert_eq!(updates.count() == 1, advertised);
    }
}

/// Nodes 2 and 3 are peers of node 1; node 4 receives all routes from node 1.
fn star(anycast: bool, fourth_supports: bool) -> Net {
    let mut all = Net::pair();
    for host in [3, 4] {
        let one = peer(1);
        all.add(host).peers.insert(one.address, one);
        let it = peer(host);
        all.nodes.get_mut(&1).unwrap().peers.insert(it.address, it);
    }
    for node in all.nodes.values_mut() {
        for peer in node.peers.values_mut() {
            (peer.graceful_restart, peer.long_lived) = (Some(30), [Some(1000); 2]);
        }
    }
    if !fourth_supports {
        all.nodes.get_mut(&4).unwrap().peers.get_mut(&ip(1)).unwrap().long_lived = [None; 2];
    }
    let shared = net("10.9.0.0/16");
    all.nodes.get_mut(&2).unwrap().originated.insert(shared, Default::default());
    if anycast {
        all.nodes.get_mut(&3).unwrap().originated.insert(shared, Default::default());
    }
    all.boot_all();
    all.run(secs(20));
    all
}

#[test]
fn any_other_path_is_preferred() {
    let mut all = star(true, true);
    let from = |all: &Net| -> Vec<std::net::IpAddr> {
        all.nodes[&1].fib[&net("10.9.0.0/16")].iter().map(|path: &FibPath| path.peer.address()).collect()
    };
    assert_eq!(from(&all), [ip(2), ip(3)]);
    all.kill(2);
    all.run(secs(29));
    assert_eq!(from(&all), [ip(2), ip(3)], "a stale path is as good as a fresh path");
    all.run(secs(2));
    assert_eq!(from(&all), [ip(3)], "a long-lived stale path is worse than a fresh path");
    all.kill(3);
    all.run(secs(31));
    assert_eq!(from(&all).len(), 2, "a long-lived stale path is better than no path");
}

#[test]
fn stale_paths_are_advertised_to_supporting_peers_only() {
    for knows in [true, false] {
        let mut all = star(false, knows);
        let has = |all: &Net| all.nodes[&4].fib.contains_key(&net("10.9.0.0/16"));
        all.kill(2);
        all.run(secs(29));
        assert!(has(&all));
        all.run(secs(3));
        assert_eq!(has(&all), knows);
        if knows {
            let marked = all.with(4, |speaker, _| {
                let routes = speaker.routes();
                let route = routes.iter().find(|route| route.prefix == net("10.9.0.0/16")).unwrap();
                route.communities.contains(&Community::LLGR_STALE)
            });
            assert!(marked);
        }
        all.reboot(2);
        all.run_until_up(1, 2);
        all.run(secs(10));
        assert!(has(&all), "the path is as good as before");
        assert_eq!(all.status(1, 2).families.iter().map(|it| it.stale).sum::<usize>(), 0);
    }
}
