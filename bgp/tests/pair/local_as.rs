//! A different AS number towards one peer (RFC 7705 §3): OPEN, AS_PATHs, and the edits that need a
//! new session.

use trunkline_bgp::config::LocalAs;
use trunkline_bgp::speaker::{Change, ConfigError, State};
use trunkline_bgp::types::Asn;
use trunkline_bgp::wire::{Capability, MAX_MESSAGE, MessageKind, Open, frame};

use crate::net::{Net, ip, message, net, peer, secs};

pub(crate) fn local_as(asn: u32) -> LocalAs {
    LocalAs { asn: Asn(asn), no_prepend: false, replace_as: false }
}

/// Node 1 has two peers. Node 2 sees node 1 as AS 4200000001, node 3 sees it as AS 65001.
fn merged() -> Net {
    let mut all = Net::pair();
    all.nodes.get_mut(&2).unwrap().peers.get_mut(&ip(1)).unwrap().remote_as = Asn(4_200_000_001);
    all.nodes.get_mut(&1).unwrap().peers.get_mut(&ip(2)).unwrap().paths.local_as =
        Some(local_as(4_200_000_001));
    let (one, three) = (peer(1), peer(3));
    all.add(3).peers.insert(one.address, one);
    all.nodes.get_mut(&1).unwrap().peers.insert(three.address, three);
    all.boot_all();
    all.run(secs(20));
    all
}

/// AS_PATHs of a prefix at a node, as received from node 1.
fn as_path(all: &Net, at: u8, prefix: &str) -> Vec<String> {
    let routes = all.nodes[&at].speaker.as_ref().unwrap().received(ip(1)).unwrap();
    let of_prefix = routes.into_iter().filter(|route| route.prefix == net(prefix));
    of_prefix.map(|route| route.as_path).collect()
}

#[test]
fn open_carries_the_local_as_in_both_places() {
    let mut all = Net::scripted(|peer| peer.paths.local_as = Some(local_as(4_200_000_001)));
    all.boot(1);
    let pipe = all.script_accept();
    let (kind, body) = all.script_got(pipe).remove(0);
    assert_eq!(kind, MessageKind::Open);
    let octets = message(1, &body);
    let open = Open::decode(frame(&octets, MAX_MESSAGE).unwrap().unwrap().body).unwrap();
    assert_eq!(open.my_as, Asn(4_200_000_001));
    assert!(open.capabilities.contains(&Capability::FourOctetAs(Asn(4_200_000_001))));
    assert_eq!(body[1..3], 23456_u16.to_be_bytes());
}

#[test]
fn a_peer_with_the_old_as_establishes_and_receives_both() {
    let mut all = merged();
    assert_eq!((all.state(1, 2), all.state(2, 1)), (State::Established, State::Established));
    let status = all.status(1, 2);
    assert_eq!((status.local_as, status.rules), (Asn(4_200_000_001), vec!["local AS 4200000001".to_owned()]));
    assert_eq!(all.status(1, 3).local_as, Asn(65001));
    assert_eq!(as_path(&all, 2, "10.1.0.0/16"), ["4200000001 65001"]);
    assert_eq!(as_path(&all, 3, "10.2.0.0/16"), ["65001 4200000001 65002"]);

    // A change of AS_PATHs needs no new session.
    let change = all.edit(1, 2, |peer| {
        peer.paths.local_as.as_mut().unwrap().no_prepend = true;
        peer.paths.local_as.as_mut().unwrap().replace_as = true;
    });
    all.run(secs(1));
    assert_eq!((change, all.status(1, 2).flaps), (Change::Applied, 0));
    assert_eq!(as_path(&all, 2, "10.1.0.0/16"), ["4200000001"]);
    assert_eq!(as_path(&all, 3, "10.2.0.0/16"), ["65001 65002"]);
    assert_eq!(
        all.status(1, 2).rules,
        ["local AS 4200000001, not prepended, in place of the \
        speaker's own"]
    );
}

/// The end of a merger: both sides change to the new number.
#[test]
fn changing_the_local_as_resets_the_session() {
    let mut all = merged();
    assert_eq!(all.edit(1, 2, |peer| peer.paths.local_as = None), Change::Reset);
    all.run(secs(20));
    assert_ne!(all.state(1, 2), State::Established, "node 2 still expects the old AS number");
    all.edit(2, 1, |peer| peer.remote_as = Asn(65001));
    all.run_until_up(1, 2);
    all.run(secs(1));
    assert_eq!(as_path(&all, 2, "10.1.0.0/16"), ["65001"]);
    assert_eq!(as_path(&all, 3, "10.2.0.0/16"), ["65001 65002"]);
    assert_eq!(all.status(1, 3).flaps, 0);
}

#[test]
fn an_invalid_local_as_is_rejected() {
    let mut all = Net::pair();
    all.boot_all();
    for (remote, asn, words) in [
        (65002, 0, "0 is reserved"),
        (65002, 65001, "this speaker's own AS"),
        (65002, 65002, "the peer's AS"),
        (65001, 64999, "an internal peer"),
    ] {
        let mut config = peer(2);
        config.remote_as = Asn(remote);
        config.paths.local_as = Some(local_as(asn));
        let refused = all.with(1, |speaker, now| speaker.update_peer(config, now)).unwrap_err();
        assert!(matches!(refused, ConfigError::Peer { field: "local_as", .. }), "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
}
