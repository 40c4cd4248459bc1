//! Graceful restart (RFC 4724) in both roles, by schedule: which side fails, when and how, and
//! which side connects first.
//!
//! Node 1 is the fabric's side, and node 2 restarts unless a test states otherwise. With
//! `must_hold`, the network checks after every step that a route is in the FIB.

use std::time::Duration;

use trunkline_bgp::config::PeerConfig;
use trunkline_bgp::speaker::{Event, State, Stop};
use trunkline_bgp::types::{Family, FamilySet};
use trunkline_bgp::wire::{Capability, MessageKind};

use crate::net::{
    LATENCY, Net, announce, announce_v6, encoded, end_of_rib, end_of_rib_v6, ip, keepalive, net, open,
    restart_capability, secs,
};

/// Both nodes have established the session and exchanged their routes. From now on no route may be
/// missing in either FIB.
fn settled(edit: impl Fn(&mut PeerConfig)) -> Net {
    let mut all = Net::pair();
    for node in all.nodes.values_mut() {
        node.peers.values_mut().for_each(&edit);
    }
    all.boot_all();
    all.run(secs(20));
    all.must_hold = vec![(1, net("10.2.0.0/16")), (2, net("10.1.0.0/16"))];
    all
}

fn stale(all: &Net, host: u8, peer: u8) -> usize {
    all.status(host, peer).families.iter().map(|family| family.stale).sum()
}

fn swept(all: &Net, host: u8) -> usize {
    let paths = |event: &Event| match event {
        Event::StaleSwept { paths, .. } => *paths,
        _ => 0,
    };
    all.nodes[&host].events.iter().map(paths).sum()
}

#[test]
fn a_killed_and_restarted_process_loses_no_route() {
    for down in [0, 1, 30, 110] {
        for silent in [false, true] {
            for passive in [0, 1, 2] {
                let mut all = settled(|_| {});
                for (host, node) in &mut all.nodes {
                    node.peers.values_mut().for_each(|peer| peer.passive = *host == passive);
                }
                all.edit(1, 2, |peer| peer.passive = passive == 1);
                all.edit(2, 1, |peer| peer.passive = passive == 2);
                match silent {
                    true => all.stop(2, Stop::Silent),
                    false => all.kill(2),
                }
                all.run(secs(down));
                let down_event = all.nodes[&1].events.iter().rev().find_map(|event| match event {
                    Event::PeerDown { retained, .. } => Some(*retained),
                    _ => None,
                });
                if down > 0 {
                    assert_eq!(stale(&all, 1, 2), 1);
                    assert_eq!(down_event, Some(FamilySet::ALL));
                }
                all.reboot(2);
                all.run_while_not("node 2 converged", secs(100), |all| {
                    all.nodes[&2].events.contains(&Event::Converged { family: Family::Ipv4Unicast })
                });
                all.run(secs(5));
                assert_eq!((stale(&all, 1, 2), swept(&all, 1)), (0, 0), "down {down}, silent {silent}");
                assert_eq!(all.state(1, 2), State::Established);
            }
        }
    }
}

#[test]
fn routes_missing_after_the_restart_are_swept_at_end_of_rib() {
    let mut all = settled(|_| {});
    let lost = net("10.2.9.0/24");
    all.with(2, |speaker, now| speaker.originate(lost, Default::default(), now));
    all.run(secs(1));
    assert!(all.nodes[&1].fib.contains_key(&lost));
    all.kill(2);
    all.run(secs(10));
    assert!(all.nodes[&1].fib.contains_key(&lost), "kept while stale");
    all.reboot(2);
    all.run_until_up(1, 2);
    all.run(secs(5));
    assert!(!all.nodes[&1].fib.contains_key(&lost));
    assert_eq!(swept(&all, 1), 1);
}

#[test]
fn a_returning_passive_peer_is_reached_soon() {
    let mut all = settled(|_| {});
    all.edit(2, 1, |peer| peer.passive = true);
    all.kill(2);
    all.run(secs(66));
    all.reboot(2);
    assert!(all.run_until_up(1, 2) <= secs(10));
}

#[test]
fn routes_are_removed_when_the_restart_time_expires() {
    let mut all = settled(|peer| peer.graceful_restart = Some(40));
    all.must_hold.clear();
    all.kill(2);
    all.run(secs(39));
    assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")));
    all.run(secs(2));
    assert!(!all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")));
    assert_eq!(swept(&all, 1), 1);
    // If the node returns later, the session and the route come back.
    all.reboot(2);
    all.run_until_up(1, 2);
    all.run(secs(5));
    assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")));
}

#[test]
fn hold_timer_expiry_is_not_a_restart() {
    let mut all = settled(|_| {});
    all.must_hold.clear();
    all.lose_power(2);
    all.run(secs(91));
    assert!(!all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")), "a NOTIFICATION was sent");
}

#[test]
fn a_power_loss_shorter_than_the_hold_time_is_a_restart() {
    let mut all = settled(|_| {});
    all.lose_power(2);
    all.run(secs(20));
    all.reboot(2);
    // Node 1 still has the dead connection in Established when the new OPEN arrives.
    assert_eq!(all.state(1, 2), State::Established);
    all.run(secs(10));
    let status = all.status(1, 2);
    assert_eq!((status.state, status.established_count), (State::Established, 2));
    assert_eq!((stale(&all, 1, 2), swept(&all, 1)), (0, 0));
}

#[test]
fn a_second_restart_loses_only_what_the_rfc_requires() {
    let mut kept = 0;
    // The first process ends at different moments: before TCP is open, during OPEN, in Established
    // before the UPDATEs, and after them.
    for first_life in (0..40).map(Duration::from_millis).chain([secs(1), secs(2), secs(3), secs(30)]) {
        let mut all = settled(|_| {});
        all.must_hold.retain(|(host, _)| *host == 2);
        all.kill(2);
        all.run(secs(10));
        let mark = all.nodes[&1].events.len();
        all.reboot(2);
        all.run(first_life);
        all.kill(2);
        all.run(secs(10));
        let life = &all.nodes[&1].events[mark..];
        let up = life.iter().any(|event| matches!(event, Event::PeerUp { .. }));
        let complete = life.iter().any(|event| matches!(event, Event::EndOfRib { .. }));
        // RFC 4724 §4.2: paths that are still stale when the session is lost again MUST be removed,
        // and only those.
        let held = all.nodes[&1].fib.contains_key(&net("10.2.0.0/16"));
        assert_eq!(held, !up || complete, "{first_life:?}");
        kept += usize::from(held);
        all.reboot(2);
        all.run(secs(30));
        assert_eq!(all.state(1, 2), State::Established, "{first_life:?}");
        assert_eq!(stale(&all, 1, 2), 0);
        assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")));
    }
    assert!(kept > 30, "kept in {kept} of 44");
}

#[test]
fn two_restarting_speakers_do_not_wait_for_each_other() {
    let mut all = settled(|_| {});
    all.kill(1);
    all.kill(2);
    all.run(secs(5));
    all.reboot(1);
    all.reboot(2);
    let converged = |all: &Net, host: u8| {
        all.nodes[&host].events.contains(&Event::Converged { family: Family::Ipv4Unicast })
    };
    // Neither FIB ever lacks a route: stale routes are swept only after the other side's table
    // arrived. A speaker does not wait for a peer that restarts itself, so the first decision
    // follows the session at once.
    all.must_hold.clear();
    let took = all.run_while_not("both converged", secs(30), |all| converged(all, 1) && converged(all, 2));
    assert!(took < secs(10), "{took:?}");
    all.run(secs(5));
    assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")));
}

#[test]
fn restart_and_forwarding_bits_follow_the_first_selection() {
    let mut all = Net::scripted(|_| {});
    all.nodes.get_mut(&1).unwrap().config.restarting = true;
    all.boot(1);
    let restart = |all: &Net, pipe: usize| {
        let open = trunkline_bgp::wire::Open::decode(&all.script_got(pipe)[0].1).unwrap();
        open.capabilities
            .into_iter()
            .find_map(|capability| match capability {
                Capability::GracefulRestart { restarting, families, restart_time, .. } => {
                    assert_eq!(restart_time, 120);
                    Some((restarting, families.iter().all(|family| family.forwarding)))
                }
                _ => None,
            })
            .unwrap()
    };
    let first = all.script_accept();
    assert_eq!(restart(&all, first), (true, true));
    all.script_close(first);
    let second = all.script_accept();
    assert_eq!(restart(&all, second), (true, true), "the previous attempt failed");
    all.script_send(second, &encoded(&open()));
    all.script_send(second, &keepalive());
    all.script_send(second, &end_of_rib());
    all.script_send(second, &end_of_rib_v6());
    all.script_close(second);
    let third = all.script_accept();
    assert_eq!(restart(&all, third), (false, true));

    // A start without kept forwarding state clears the bits. The next session, with the FIB
    // installed, sets the F bit.
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let first = all.script_accept();
    assert_eq!(restart(&all, first), (false, false));
    all.script_send(first, &encoded(&open()));
    all.script_send(first, &keepalive());
    all.script_close(first);
    let second = all.script_accept();
    assert_eq!(restart(&all, second), (false, true));
}

/// Node 1 has restarted, and its session with a script is established by this OPEN.
fn restarted(open: &trunkline_bgp::wire::Open) -> (Net, usize) {
    let mut all = Net::scripted(|_| {});
    let node = all.nodes.get_mut(&1).unwrap();
    node.config.restarting = true;
    node.originated.insert(net("10.1.0.0/16"), Default::default());
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(open));
    all.script_send(pipe, &keepalive());
    assert_eq!(all.state(1, 2), State::Established);
    (all, pipe)
}

fn updates(all: &Net, pipe: usize) -> usize {
    all.script_got(pipe).iter().filter(|(kind, _)| *kind == MessageKind::Update).count()
}

#[test]
fn only_originations_are_advertised_before_end_of_rib() {
    let (mut all, pipe) = restarted(&open());
    all.run(2 * LATENCY);
    assert_eq!(
        updates(&all, pipe),
        1,
        "the UPDATE is sent at once: a crash before it would lose \
        the route at the peer"
    );
    all.run(secs(30));
    assert_eq!(updates(&all, pipe), 1, "End-of-RIB is not sent yet");
    assert!(all.nodes[&1].fib.is_empty());
    all.script_send(pipe, &announce(&[[10, 2, 0]]));
    all.script_send(pipe, &end_of_rib());
    all.script_send(pipe, &keepalive());
    assert_eq!(updates(&all, pipe), 2, "the IPv4 route, and End-of-RIB of IPv4");
    assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/24")));
    all.script_send(pipe, &end_of_rib_v6());
    assert_eq!(updates(&all, pipe), 3, "only End-of-RIB for IPv6");
    let converged = all.nodes[&1].events.iter().filter(|event| matches!(event, Event::Converged { .. }));
    assert_eq!(converged.count(), 2);
}

#[test]
fn a_missing_end_of_rib_delays_selection_until_the_timer() {
    let (mut all, pipe) = restarted(&open());
    all.run_until(all.start + secs(59));
    all.script_send(pipe, &keepalive());
    assert_eq!(updates(&all, pipe), 1);
    all.run(secs(2));
    assert_eq!(updates(&all, pipe), 3);
}

#[test]
fn an_absent_peer_delays_selection_until_the_timer() {
    let mut all = Net::pair();
    all.add(3);
    let absent = crate::net::peer(4);
    all.nodes.get_mut(&2).unwrap().peers.insert(absent.address, absent);
    all.boot_all();
    all.run(secs(10));
    all.must_hold = vec![(1, net("10.2.0.0/16")), (2, net("10.1.0.0/16"))];
    all.kill(2);
    all.reboot(2);
    all.run(secs(59));
    let complete = |all: &Net| all.status(1, 2).families.iter().any(|family| family.end_of_rib_received);
    assert_eq!(stale(&all, 1, 2), 0, "originated routes do not wait");
    assert!(!complete(&all), "End-of-RIB waits for the peer that is down");
    all.run(secs(2));
    assert!(complete(&all));
    assert_eq!((stale(&all, 1, 2), swept(&all, 1)), (0, 0));
}

#[test]
fn selection_waits_only_for_peers_that_take_part() {
    let mut plain = open();
    plain.capabilities.retain(|capability| capability.code() != 64);
    let mut restarting = open();
    restarting.capabilities.retain(|capability| capability.code() != 64);
    restarting.capabilities.push(restart_capability(true, true));
    for open in [plain, restarting] {
        let (all, pipe) = restarted(&open);
        assert_eq!(updates(&all, pipe), 3);
    }
    let mut ipv4_only = open();
    ipv4_only
        .capabilities
        .retain(|capability| *capability != Capability::Multiprotocol(Family::Ipv6Unicast.into()));
    let (all, _) = restarted(&ipv4_only);
    assert!(all.nodes[&1].events.contains(&Event::Converged { family: Family::Ipv6Unicast }));
    assert!(!all.nodes[&1].events.contains(&Event::Converged { family: Family::Ipv4Unicast }));
}

#[test]
fn nothing_is_sent_before_originations_are_complete() {
    let mut all = Net::scripted(|_| {});
    let node = all.nodes.get_mut(&1).unwrap();
    let peer = node.peers.values().next().unwrap().clone();
    node.speaker = Some(trunkline_bgp::speaker::Speaker::new(node.config.clone(), all.now).unwrap());
    all.with(1, |speaker, now| speaker.add_peer(peer, now).unwrap());
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    all.with(1, |speaker, now| speaker.originate(net("10.1.0.0/16"), Default::default(), now));
    all.run(secs(60));
    assert_eq!(updates(&all, pipe), 0);
    all.with(1, |speaker, now| speaker.originations_complete(now));
    all.run(2 * LATENCY);
    assert_eq!(updates(&all, pipe), 3);
}

/// A script with this OPEN has sent one route, and then TCP was closed. The route is stale.
fn lost(open: &trunkline_bgp::wire::Open) -> Net {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(open));
    all.script_send(pipe, &keepalive());
    all.script_send(pipe, &announce(&[[10, 2, 0]]));
    all.script_close(pipe);
    all
}

#[test]
fn without_the_capability_routes_end_with_the_session() {
    let mut plain = open();
    plain.capabilities.retain(|capability| capability.code() != 64);
    let all = lost(&plain);
    assert!(all.nodes[&1].fib.is_empty());

    let mut zero = open();
    zero.capabilities.retain(|capability| capability.code() != 64);
    zero.capabilities.push(Capability::GracefulRestart {
        restarting: false,
        notification: false,
        restart_time: 120,
        families: Vec::new(), // helper only
    });
    assert!(lost(&zero).nodes[&1].fib.is_empty());
    assert!(
        lost(&open()).nodes[&1].fib.contains_key(&net("10.2.0.0/24")),
        "with the long-lived \
        capability the paths stay"
    );
}

#[test]
fn a_return_without_forwarding_state_ends_retention() {
    let with_restart = |capability: Option<Capability>| {
        let mut open = open();
        open.capabilities.retain(|capability| capability.code() != 64);
        open.capabilities.extend(capability);
        open
    };
    let ipv6_only = Capability::GracefulRestart {
        restarting: true,
        notification: false,
        restart_time: 120,
        families: vec![trunkline_bgp::wire::RestartFamily {
            family: Family::Ipv6Unicast.into(),
            forwarding: true,
        }],
    };
    for (capability, kept) in [
        (Some(restart_capability(true, true)), true),
        (Some(restart_capability(false, true)), true),
        (Some(restart_capability(true, false)), false),
        (Some(ipv6_only), false),
        (None, false),
    ] {
        let mut all = lost(&open());
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&with_restart(capability.clone())));
        assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/24")));
        all.script_send(pipe, &keepalive());
        assert_eq!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/24")), kept, "{capability:?}");
    }
}

/// Forwarding continued for one family, or the new OPEN lists only one: the other's paths are
/// removed. End-of-RIB of a family sweeps that family only.
#[test]
fn each_family_is_retained_and_swept_separately() {
    let families = |of: &[(Family, bool)]| {
        let entry = |(family, forwarding): &(Family, bool)| trunkline_bgp::wire::RestartFamily {
            family: (*family).into(),
            forwarding: *forwarding,
        };
        let mut open = open();
        open.capabilities.retain(|capability| capability.code() != 64);
        open.capabilities.push(Capability::GracefulRestart {
            restarting: true,
            notification: false,
            restart_time: 120,
            families: of.iter().map(entry).collect(),
        });
        open
    };
    let (v4, v6) = (Family::Ipv4Unicast, Family::Ipv6Unicast);
    let kept = |all: &Net| {
        let fib = &all.nodes[&1].fib;
        (fib.contains_key(&net("10.2.0.0/24")), fib.contains_key(&net("2001:db8:2::/48")))
    };
    let mut v6_alone = families(&[(v6, true)]);
    v6_alone.capabilities.retain(|capability| *capability != Capability::Multiprotocol(v4.into()));
    for (open, expected) in [
        (families(&[(v4, true), (v6, true)]), (true, true)),
        (families(&[(v4, true), (v6, false)]), (true, false)),
        (families(&[(v4, false), (v6, true)]), (false, true)),
        (families(&[(v4, true)]), (true, false)),
        (v6_alone, (false, true)),
    ] {
        let mut all = Net::scripted(|_| {});
        all.boot(1);
        let pipe = all.script_accept();
        for octets in [encoded(&crate::net::open()), keepalive(), announce(&[[10, 2, 0]]), announce_v6(&[2])]
        {
            all.script_send(pipe, &octets);
        }
        all.script_close(pipe);
        assert_eq!(kept(&all), (true, true));
        let pipe = all.script_accept();
        all.script_send(pipe, &encoded(&open));
        all.script_send(pipe, &keepalive());
        assert_eq!(all.state(1, 2), State::Established);
        assert_eq!(kept(&all), expected);
        all.script_send(pipe, &end_of_rib_v6());
        assert_eq!(kept(&all), (expected.0, false), "its paths were not advertised again");
    }
}

#[test]
fn stale_paths_are_swept_by_timer_without_end_of_rib() {
    let mut all = lost(&open());
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    for _ in 0..5 {
        all.run(secs(70));
        all.script_send(pipe, &keepalive());
    }
    assert!(all.nodes[&1].fib.contains_key(&net("10.2.0.0/24")));
    all.run(secs(11));
    assert!(all.nodes[&1].fib.is_empty());
    assert_eq!(all.state(1, 2), State::Established);
}

#[test]
fn a_cease_is_not_a_restart() {
    let mut all = settled(|_| {});
    all.must_hold.clear();
    all.stop(2, Stop::Cease { communication: "rack 7 moves, back at noon".to_owned() });
    all.run(3 * LATENCY);
    assert!(!all.nodes[&1].fib.contains_key(&net("10.2.0.0/16")));
    assert_eq!(
        all.status(1, 2).last_error.unwrap().text,
        "received NOTIFICATION Cease/Administrative Shutdown: \"rack 7 moves, back at noon\""
    );
    // The node that stopped keeps its FIB; its owner must sweep it.
    assert!(all.nodes[&2].fib.contains_key(&net("10.1.0.0/16")));
}

#[test]
fn a_silent_stop_sends_nothing_and_rejects_connections() {
    let mut all = Net::scripted(|_| {});
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(&open()));
    all.script_send(pipe, &keepalive());
    all.run(secs(1));
    let before = all.script_got(pipe).len();
    all.with(1, |speaker, now| speaker.stop(Stop::Silent, now));
    all.run(secs(1));
    assert!(all.is_closed(pipe));
    assert_eq!(all.script_got(pipe).len(), before);
    let refused = all.script_connect();
    assert!(all.is_closed(refused));
    let reported = all.nodes[&1].events.iter().any(|event| matches!(event, Event::PeerDown { .. }));
    assert!(!reported, "the session will continue");
    let speaker = all.nodes[&1].speaker.as_ref().unwrap();
    assert_eq!(speaker.poll_timeout(), None, "no deadline is left");
    assert_eq!(speaker.peer_id(ip(2)).map(|peer| peer.0), Some(0));
}

/// Found by fuzzing: a stop during the deferral left an expired deadline for ever. A shell that
/// sleeps until the deadline would never have slept.
#[test]
fn a_stop_during_deferral_leaves_no_deadline() {
    let mut all = Net::pair();
    all.nodes.get_mut(&1).unwrap().config.restarting = true;
    all.boot(1);
    all.with(1, |speaker, now| {
        assert!(speaker.poll_timeout().is_some());
        speaker.stop(Stop::Silent, now);
        assert_eq!(speaker.poll_timeout(), None);
    });
}
