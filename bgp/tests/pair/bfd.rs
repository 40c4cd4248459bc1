//! The effect of BFD on a session (RFC 5882 §3.2, §4.2, §4.3). The test plays the BFD session: it
//! chooses the states and the C bit.

use std::time::Duration;

use trunkline_bgp::bfd::{BfdConfig, Cause, Down, Endpoint, SessionId, State as BfdState, Status};
use trunkline_bgp::speaker::{Change, Event, State, Stop};

use crate::net::{Net, ip, net, secs};

fn watched() -> BfdConfig {
    BfdConfig::new(Duration::from_millis(50))
}

/// Both nodes are up, and each has a BFD session.
fn settled() -> Net {
    let mut all = Net::pair();
    for node in all.nodes.values_mut() {
        node.peers.values_mut().for_each(|peer| peer.bfd = Some(watched()));
    }
    all.boot_all();
    all.run(secs(20));
    report(&mut all, BfdState::Up, None);
    assert_eq!(all.state(1, 2), State::Established);
    all
}

/// Node 1's BFD session reports this state.
fn report(all: &mut Net, state: BfdState, down: Option<Down>) {
    all.with(1, |speaker, now| {
        let mut endpoint = Endpoint::new(1);
        let peer = speaker.peer_id(ip(2)).unwrap();
        let target = speaker.peers(now)[0].address;
        let target =
            trunkline_bgp::bfd::Target { remote: target, local: None, interface: None, config: watched() };
        endpoint.set(SessionId(0), target, now).unwrap();
        let status = Status { state, ..endpoint.status(SessionId(0)).unwrap() };
        speaker.handle_bfd(peer, ip(2), down, status, now);
    });
}

fn down(all: &mut Net, cause: Cause, control_plane_independent: bool) {
    report(all, BfdState::Down, Some(Down { cause, control_plane_independent }));
}

fn has_route(all: &Net) -> bool {
    all.nodes[&1].fib.contains_key(&net("10.2.0.0/16"))
}

#[test]
fn down_ends_the_session_and_removes_its_paths() {
    for cause in [Cause::TimeExpired, Cause::NeighborDown] {
        for independent in [false, true] {
            let mut all = settled();
            assert!(has_route(&all));
            down(&mut all, cause, independent);
            assert_ne!(all.state(1, 2), State::Established);
            assert!(!has_route(&all), "graceful restart is negotiated, but not in progress");
            let sent = all.status(1, 2).notification_sent.unwrap().text;
            assert!(sent.contains("BFD Down"), "{sent}");
            all.run(secs(1));
            let received = all.status(2, 1).notification_received.unwrap().text;
            assert!(received.contains("BFD Down"), "{received}");
            all.run_until_up(1, 2);
            assert_eq!(
                all.status(1, 2).bfd.unwrap().status.state,
                BfdState::Down,
                "BGP does not wait for BFD"
            );
        }
    }
}

#[test]
fn admin_down_is_no_failure() {
    let mut all = settled();
    all.must_hold = vec![(1, net("10.2.0.0/16"))];
    down(&mut all, Cause::NeighborAdminDown, true);
    all.run(secs(10));
    assert_eq!((all.state(1, 2), all.status(1, 2).flaps), (State::Established, 0));
    let left_up = |event: &Event| matches!(event, Event::Bfd { down: Some(_), .. });
    assert_eq!(all.nodes[&1].events.iter().filter(|event| left_up(event)).count(), 1);
}

#[test]
fn in_a_graceful_restart_the_c_bit_decides() {
    for independent in [false, true] {
        let mut all = settled();
        all.kill(2);
        all.run(Duration::from_millis(100));
        assert!(has_route(&all), "the route is stale and still used");
        down(&mut all, Cause::TimeExpired, independent);
        assert_eq!(has_route(&all), !independent);
    }
}

#[test]
fn sessions_of_bfd_follow_the_configuration_without_a_reset() {
    let mut all = settled();
    let id = all.with(1, |speaker, _| speaker.peer_id(ip(2)).unwrap());
    assert_eq!(all.nodes[&1].bfd[&id].remote, ip(2));
    let slower = BfdConfig { multiplier: 5, ..watched() };
    assert_eq!(all.edit(1, 2, |peer| peer.bfd = Some(slower.clone())), Change::Applied);
    assert_eq!(all.nodes[&1].bfd[&id].config, slower);
    assert_eq!(all.edit(1, 2, |peer| peer.bfd = None), Change::Applied);
    assert!(all.nodes[&1].bfd.is_empty() && all.status(1, 2).bfd.is_none());
    assert_eq!((all.state(1, 2), all.status(1, 2).flaps), (State::Established, 0));
    // A late report of the old session is ignored.
    down(&mut all, Cause::TimeExpired, true);
    assert_eq!(all.state(1, 2), State::Established);
    all.edit(1, 2, |peer| peer.bfd = Some(watched()));
    assert_eq!(all.nodes[&1].bfd.len(), 1);
    all.edit(1, 2, |peer| peer.shutdown = true);
    assert!(all.nodes[&1].bfd.is_empty(), "a peer that is shut down has no BFD session");
    let refused = all.with(1, |speaker, now| {
        let mut config = crate::net::peer(2);
        config.bfd = Some(BfdConfig::new(Duration::from_millis(5)));
        speaker.update_peer(config, now).unwrap_err().to_string()
    });
    assert!(refused.contains("bfd") && refused.contains("10 ms"), "{refused}");
}

#[test]
fn a_silent_stop_sends_no_admin_down() {
    for (stop, left) in [(Stop::Silent, 1), (Stop::Cease { communication: String::new() }, 0)] {
        let mut all = settled();
        all.stop(1, stop);
        assert_eq!(all.nodes[&1].bfd.len(), left);
    }
}

#[test]
fn bfd_up_starts_an_attempt_at_once() {
    let mut all = settled();
    all.cut();
    down(&mut all, Cause::TimeExpired, true);
    // The cut stays; otherwise node 2 would connect first.
    all.run_while_not("node 1 waits", secs(60), |all| all.state(1, 2) == State::Active);
    report(&mut all, BfdState::Up, None);
    assert_eq!(all.state(1, 2), State::Connect);
}

/// Both sessions have just become Established, and BFD was Up before.
fn just_established() -> Net {
    let mut all = Net::pair();
    for node in all.nodes.values_mut() {
        node.peers.values_mut().for_each(|peer| peer.bfd = Some(watched()));
    }
    all.boot_all();
    report(&mut all, BfdState::Up, None);
    all.run_until_up(1, 2);
    all
}

#[test]
fn a_bfd_session_replaced_at_the_start_costs_no_session() {
    let mut all = just_established();
    all.run(Duration::from_millis(20));
    down(&mut all, Cause::NeighborDown, false);
    assert_eq!(all.state(1, 2), State::Established);
    all.run(secs(3));
    report(&mut all, BfdState::Up, None);
    all.run(secs(20));
    assert_eq!((all.state(1, 2), all.status(1, 2).flaps), (State::Established, 0));
}

#[test]
fn a_bfd_session_that_does_not_return_ends_the_session() {
    let mut all = just_established();
    down(&mut all, Cause::NeighborDown, false);
    all.run(secs(5));
    assert_eq!(all.state(1, 2), State::Established);
    all.run(Duration::from_millis(1500));
    let status = all.status(1, 2);
    assert_eq!(status.flaps, 1);
    assert!(status.last_down.unwrap().text.starts_with("BFD session down"));
}

#[test]
fn silence_at_the_start_ends_the_session_at_once() {
    let mut all = just_established();
    down(&mut all, Cause::TimeExpired, false);
    assert_ne!(all.state(1, 2), State::Established);
    let mut all = just_established();
    all.run(secs(2));
    down(&mut all, Cause::NeighborDown, false);
    assert_ne!(all.state(1, 2), State::Established, "this Down is no longer part of the start");
}
