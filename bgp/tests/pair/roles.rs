//! Roles in OPEN (RFC 9234 §4): which pairs of roles establish a session, and the NOTIFICATION for
//! all other pairs.

use trunkline_bgp::speaker::State;
use trunkline_bgp::types::Role;
use trunkline_bgp::wire::{Capability, Notification};

use crate::net::{Net, encoded, keepalive, open, secs};

/// Node 1 with a role against a script with these capabilities; returns the session's state and the
/// NOTIFICATION.
fn meet(local: Option<Role>, strict: bool, advertised: &[Capability]) -> (State, Option<Notification>) {
    let mut all = Net::scripted(|peer| {
        peer.paths.local_role = local;
        peer.paths.local_role_strict = strict;
    });
    all.boot(1);
    let pipe = all.script_accept();
    let mut open = open();
    open.capabilities.extend(advertised.iter().cloned());
    all.script_send(pipe, &encoded(&open));
    all.script_send(pipe, &keepalive());
    all.run(secs(1));
    (all.state(1, 2), all.script_notification(pipe))
}

#[test]
fn a_role_accepts_its_counterpart_only() {
    for local in Role::ALL {
        for remote in Role::ALL {
            let (state, notification) = meet(Some(local), false, &[Capability::Role(remote)]);
            if remote == local.counterpart() {
                assert_eq!(state, State::Established, "{local} {remote}");
            } else {
                assert_ne!(state, State::Established, "{local} {remote}");
                assert_eq!(notification, Some(Notification::new(2, 11, [])), "{local} {remote}");
            }
        }
    }
}

#[test]
fn missing_or_ambiguous_roles_depend_on_strict_mode() {
    let customer = Some(Role::Customer);
    let (provider, peer) = (Capability::Role(Role::Provider), Capability::Role(Role::Peer));
    let unknown = Capability::Unknown { code: 9, value: vec![7] };
    for (local, strict, advertised, up) in [
        (customer, false, vec![], true),
        (customer, true, vec![], false),
        (customer, true, vec![provider.clone()], true),
        (customer, false, vec![provider.clone(), provider.clone()], true),
        (customer, false, vec![provider.clone(), peer], false),
        (customer, false, vec![unknown.clone()], false),
        (None, false, vec![provider], true),
        (None, false, vec![unknown], true),
    ] {
        let (state, notification) = meet(local, strict, &advertised);
        assert_eq!(state == State::Established, up, "{local:?} {strict} {advertised:?}");
        assert_eq!(notification.is_some_and(|sent| (sent.code, sent.subcode) == (2, 11)), !up);
    }
}

#[test]
fn two_nodes_see_each_others_role() {
    let mut all = Net::pair();
    for (host, role) in [(1, Role::Provider), (2, Role::Customer)] {
        let peers = &mut all.nodes.get_mut(&host).unwrap().peers;
        peers.values_mut().for_each(|peer| peer.paths.local_role = Some(role));
    }
    all.boot_all();
    all.run(secs(130));
    assert_eq!(all.state(1, 2), State::Established);
    let status = all.status(1, 2);
    assert_eq!(status.rules, ["local role provider"]);
    assert!(status.session.unwrap().capabilities_received.contains(&"role customer".to_owned()));
}
