//! ADD-PATH (RFC 7911): the negotiation, and the routes that whole speakers exchange.

use std::num::NonZeroU8;

use trunkline_bgp::config::AddPath;
use trunkline_bgp::types::Family;
use trunkline_bgp::wire::{AddPathFamily, Capability, Open};

use crate::net::{Net, announce, encoded, ip, keepalive, message, net, open, peer, secs};

fn both(paths: u8) -> AddPath {
    AddPath { receive: true, send: NonZeroU8::new(paths) }
}

/// The script's OPEN, with its ADD-PATH directions for IPv4.
fn offer(receive: bool, send: bool) -> Open {
    let mut open = open();
    if receive || send {
        let family = Family::Ipv4Unicast.into();
        open.capabilities.push(Capability::AddPath(vec![AddPathFamily { family, receive, send }]));
    }
    open
}

/// An UPDATE with path identifiers and the attributes of [`announce`].
fn paths(paths: &[(u32, [u8; 3])]) -> Vec<u8> {
    let plain = announce(&[]);
    let mut body = plain[19..].to_vec();
    for (identifier, prefix) in paths {
        body.extend(identifier.to_be_bytes());
        body.push(24);
        body.extend(prefix);
    }
    message(2, &body)
}

fn session(ours: AddPath, theirs: &Open) -> (Net, usize) {
    let mut all = Net::scripted(|peer| peer.add_path = ours);
    all.nodes.get_mut(&1).unwrap().originated.insert(net("10.1.0.0/16"), Default::default());
    all.boot(1);
    let pipe = all.script_accept();
    all.script_send(pipe, &encoded(theirs));
    all.script_send(pipe, &keepalive());
    all.run(secs(1));
    (all, pipe)
}

#[test]
fn received_identifiers_need_both_sides_to_agree() {
    for (ours, theirs, identified) in [
        (both(2), offer(true, true), true),
        (AddPath { receive: true, send: None }, offer(false, true), true),
        (both(2), offer(true, false), false),
        (AddPath { receive: false, send: NonZeroU8::new(2) }, offer(true, true), false),
        (AddPath::default(), offer(true, true), false),
        (both(2), offer(false, false), false),
    ] {
        let (mut all, pipe) = session(ours, &theirs);
        let update =
            if identified { paths(&[(7, [10, 2, 0]), (8, [10, 2, 0])]) } else { announce(&[[10, 2, 0]]) };
        all.script_send(pipe, &update);
        let routes = all.nodes[&1].speaker.as_ref().unwrap().received(ip(2)).unwrap();
        let seen: Vec<_> = routes.iter().map(|route| route.path_id).collect();
        let wanted: &[_] = if identified { &[Some(7), Some(8)] } else { &[None] };
        assert_eq!(seen, wanted, "{ours:?}");
    }
}

#[test]
fn sent_identifiers_need_both_sides_to_agree() {
    for (ours, theirs, identified) in [
        (both(2), offer(true, true), true),
        (both(2), offer(false, true), false),
        (AddPath { receive: true, send: None }, offer(true, true), false),
    ] {
        let (all, pipe) = session(ours, &theirs);
        let sent = all.script_got(pipe);
        let update = sent.iter().map(|(_, body)| body).find(|body| body.ends_with(&[16, 10, 1])).unwrap();
        let length = usize::from(u16::from_be_bytes([update[2], update[3]]));
        assert_eq!(update.len() - 4 - length, if identified { 7 } else { 3 });
    }
}

#[test]
fn a_prefix_without_identifier_ends_the_session() {
    let (mut all, pipe) = session(both(2), &offer(true, true));
    // A /24 takes four octets. If they are read as an identifier, no octet is left for the prefix.
    all.script_send(pipe, &announce(&[[10, 2, 0]]));
    let notification = all.script_notification(pipe).unwrap();
    assert_eq!((notification.code, notification.subcode), (3, 10));
    let error = all.status(1, 2).last_error.unwrap().text;
    assert!(error.contains("path identifier"), "{error}");
}

/// Nodes 2 and 3 originate one prefix, and node 1 advertises both paths to node 4. The routes at
/// node 4 follow each change.
#[test]
fn a_third_node_receives_all_paths_and_each_change() {
    let mut all = Net::pair();
    let shared = net("10.9.0.0/16");
    for host in [3, 4] {
        let one = peer(1);
        all.add(host).peers.insert(one.address, one);
        let it = peer(host);
        all.nodes.get_mut(&1).unwrap().peers.insert(it.address, it);
    }
    for node in all.nodes.values_mut() {
        node.peers.values_mut().for_each(|peer| peer.add_path = both(4));
    }
    for host in [2, 3] {
        all.nodes.get_mut(&host).unwrap().originated.insert(shared, Default::default());
    }
    all.boot_all();
    all.run(secs(20));
    let ases = |all: &Net| -> Vec<String> {
        let routes = all.nodes[&4].speaker.as_ref().unwrap().received(ip(1)).unwrap();
        let mut paths: Vec<_> =
            routes.into_iter().filter(|route| route.prefix == shared).map(|route| route.as_path).collect();
        paths.sort();
        paths
    };
    assert_eq!(ases(&all), ["65001 65002", "65001 65003"]);
    all.edit(1, 4, |peer| peer.add_path.send = NonZeroU8::new(1));
    all.run(secs(1));
    assert_eq!(ases(&all), ["65001 65002"], "the number of paths needs no new session");
    assert_eq!(all.status(1, 4).established_count, 1);
    all.edit(1, 4, |peer| peer.add_path.send = NonZeroU8::new(4));
    all.run(secs(1));
    assert_eq!(ases(&all).len(), 2);
    all.with(2, |speaker, now| speaker.withdraw(shared, now));
    all.run(secs(1));
    assert_eq!(ases(&all), ["65001 65003"]);
    all.with(2, |speaker, now| speaker.originate(shared, Default::default(), now));
    all.run(secs(1));
    assert_eq!(ases(&all).len(), 2);
    all.kill(3);
    all.run(secs(130));
    assert_eq!(ases(&all), ["65001 65002"], "node 3's path is removed after the Restart Time");
}
