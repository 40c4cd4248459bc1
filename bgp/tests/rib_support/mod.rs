//! A table with peers around it: UPDATEs enter and leave as octets, as in a session.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use trunkline_bgp::config::PathRules;
use trunkline_bgp::policy::Policy;
use trunkline_bgp::rib::{FibPath, Rib, RibConfig, RibPeer, SessionFacts};
use trunkline_bgp::types::{Asn, Family, FamilySet, Ipv4, NextHop, PeerId};
use trunkline_bgp::wire::{
    AsPath, DecodeContext, EncodeContext, MAX_EXTENDED, MessageKind, PathAttributes, RouteRefresh, Scratch,
    UpdateWriter, decode_update, frame,
};

pub(crate) const LOCAL_AS: Asn = Asn(65000);
pub(crate) const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(1, 1, 1, 1);

pub(crate) fn config(max_paths: usize) -> RibConfig {
    RibConfig { local_as: LOCAL_AS, router_id: ROUTER_ID, cluster_id: ROUTER_ID, max_paths }
}

/// The address of peer `number` is 10.0.0.number, which is also its identifier. The peer is in AS
/// 65000 + `number`, or in the local AS.
pub(crate) fn address(number: u32) -> IpAddr {
    IpAddr::from([10, 0, 0, number as u8])
}

pub(crate) fn remote_as(number: u32, external: bool) -> Asn {
    if external { Asn(LOCAL_AS.0 + number) } else { LOCAL_AS }
}

pub(crate) fn peer(number: u32, external: bool) -> RibPeer {
    RibPeer {
        address: address(number).into(),
        remote_as: remote_as(number, external),
        import: Policy::accept_all(),
        export: Policy::accept_all(),
        rules: PathRules::default(),
    }
}

pub(crate) fn own_v4(number: u32) -> NextHop {
    NextHop::V4(Ipv4Addr::new(10, 0, 100, number as u8))
}

pub(crate) fn own_v6(number: u32) -> NextHop {
    NextHop::V6(format!("2001:db8:100::{number}").parse().unwrap())
}

pub(crate) fn session(number: u32) -> SessionFacts {
    SessionFacts {
        families: FamilySet::ALL,
        router_id: Ipv4Addr::new(10, 0, 0, number as u8),
        local_address: own_v4(number).address(),
        next_hop_v4: Some(own_v4(number)),
        next_hop_v6: Some(own_v6(number)),
        four_octet_as: true,
        ext_next_hop: false,
        add_path: FamilySet::EMPTY,
        paths: 1,
        long_lived_stale: false,
        max_message: 4096,
    }
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(crate) fn path(asns: &[u32]) -> PathAttributes {
    PathAttributes { as_path: AsPath::sequence(asns.iter().copied().map(Asn)), ..PathAttributes::default() }
}

/// The default next hop of peer `number` for a prefix.
pub(crate) fn next_hop(number: u32, prefix: &IpNet) -> NextHop {
    match prefix {
        IpNet::V4(_) => NextHop::V4(Ipv4Addr::new(10, 0, 0, number as u8)),
        IpNet::V6(_) => NextHop::V6(format!("2001:db8::{number}").parse().unwrap()),
    }
}

pub(crate) struct Bench {
    pub(crate) rib: Rib,
    external: BTreeMap<u32, bool>,
    pub(crate) receivers: BTreeMap<u32, Receiver>,
    pub(crate) fib: BTreeMap<IpNet, Vec<FibPath>>,
}

impl Bench {
    /// A table with these peers (number, external), all established.
    pub(crate) fn new(max_paths: usize, peers: &[(u32, bool)]) -> Bench {
        let mut bench = Bench::down(max_paths, peers);
        for (number, _) in peers {
            bench.up(*number);
        }
        bench
    }

    pub(crate) fn down(max_paths: usize, peers: &[(u32, bool)]) -> Bench {
        let mut rib = Rib::new(config(max_paths));
        for (number, external) in peers {
            rib.add_peer(PeerId(*number), peer(*number, *external));
        }
        Bench {
            rib,
            external: peers.iter().copied().collect(),
            receivers: BTreeMap::new(),
            fib: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, number: u32, external: bool) {
        self.rib.add_peer(PeerId(number), peer(number, external));
        self.external.insert(number, external);
    }

    /// Adds a peer with this key.
    pub(crate) fn add_at(&mut self, number: u32, key: &str) {
        self.rib.add_peer(PeerId(number), RibPeer { address: key.parse().unwrap(), ..peer(number, true) });
        self.external.insert(number, true);
    }

    pub(crate) fn up(&mut self, number: u32) {
        self.up_with(number, session(number));
    }

    pub(crate) fn up_with(&mut self, number: u32, facts: SessionFacts) {
        self.receivers.insert(number, Receiver::new(self.external[&number], &facts));
        self.rib.peer_up(PeerId(number), facts);
    }

    pub(crate) fn lose(&mut self, number: u32, retain: FamilySet) {
        self.lose_for_long(number, retain, FamilySet::EMPTY);
    }

    /// In the families of `long_lived`, stale paths stay stale (RFC 9494 §4.2).
    pub(crate) fn lose_for_long(&mut self, number: u32, retain: FamilySet, long_lived: FamilySet) {
        self.receivers.remove(&number);
        self.rib.peer_down(PeerId(number), retain, long_lived);
    }

    pub(crate) fn announce(&mut self, number: u32, prefix: &str, attributes: &PathAttributes) {
        let prefix = net(prefix);
        self.announce_via(number, prefix, next_hop(number, &prefix), attributes);
    }

    pub(crate) fn announce_via(
        &mut self,
        number: u32,
        prefix: IpNet,
        hop: NextHop,
        attributes: &PathAttributes,
    ) {
        let mut block = Vec::new();
        attributes.encode(&mut block);
        self.feed(number, |writer| {
            match prefix {
                IpNet::V4(prefix) => writer.announce::<Ipv4>(hop, &block, [prefix]),
                IpNet::V6(prefix) => writer.announce::<trunkline_bgp::types::Ipv6>(hop, &block, [prefix]),
            }
            .unwrap();
        });
    }

    /// Handles an advertised or withdrawn path of a peer with ADD-PATH.
    pub(crate) fn feed_path(
        &mut self,
        number: u32,
        prefix: &str,
        identifier: u32,
        attributes: Option<&PathAttributes>,
    ) {
        let IpNet::V4(v4) = net(prefix) else { panic!("{prefix} is not IPv4") };
        let mut octets = Vec::new();
        let mut writer =
            UpdateWriter::new(&mut octets, EncodeContext { add_path: true, ..EncodeContext::default() });
        match attributes {
            Some(attributes) => {
                let mut block = Vec::new();
                attributes.encode(&mut block);
                let hop = next_hop(number, &net(prefix));
                writer.announce_paths::<Ipv4>(hop, &block, [(identifier, v4)]).unwrap();
            }
            None => _ = writer.withdraw_paths::<Ipv4>([(identifier, v4)]),
        }
        let message = frame(&octets, MAX_EXTENDED).unwrap().unwrap();
        let facts = SessionFacts { add_path: FamilySet::ALL, ..session(number) };
        let context = decode_context(self.external[&number], &facts);
        let mut scratch = Scratch::default();
        let update = decode_update(message.body, &context, &mut scratch).unwrap();
        self.rib.handle_update(PeerId(number), &update);
    }

    /// Advertises a route if it fits into a message of 4096 octets; returns whether it does.
    pub(crate) fn try_announce(&mut self, number: u32, prefix: &str, attributes: &PathAttributes) -> bool {
        let prefix = net(prefix);
        let mut block = Vec::new();
        attributes.encode(&mut block);
        let mut octets = Vec::new();
        let IpNet::V4(v4) = prefix else { panic!("{prefix} is not IPv4") };
        let fits = UpdateWriter::new(&mut octets, EncodeContext::default())
            .announce::<Ipv4>(next_hop(number, &prefix), &block, [v4])
            .is_ok();
        if fits {
            self.announce_via(number, prefix, next_hop(number, &prefix), attributes);
        }
        fits
    }

    pub(crate) fn withdraw(&mut self, number: u32, prefix: &str) {
        let prefix = net(prefix);
        self.feed(number, |writer| {
            match prefix {
                IpNet::V4(prefix) => writer.withdraw::<Ipv4>([prefix]),
                IpNet::V6(prefix) => writer.withdraw::<trunkline_bgp::types::Ipv6>([prefix]),
            };
        });
    }

    fn feed(&mut self, number: u32, write: impl FnOnce(&mut UpdateWriter<'_>)) {
        let mut octets = Vec::new();
        write(&mut UpdateWriter::new(&mut octets, EncodeContext::default()));
        let message = frame(&octets, MAX_EXTENDED).unwrap().unwrap();
        let context = decode_context(self.external[&number], &session(number));
        let mut scratch = Scratch::default();
        let update = decode_update(message.body, &context, &mut scratch).unwrap();
        assert_eq!(update.treat_as_withdraw, None);
        self.rib.handle_update(PeerId(number), &update);
    }

    /// Writes all pending routes to every peer, and applies the FIB's changes.
    pub(crate) fn flush(&mut self) {
        self.flush_by(4096);
    }

    /// Like [`Self::flush`], with about `budget` octets per write.
    pub(crate) fn flush_by(&mut self, budget: usize) {
        while let Some(PeerId(number)) = self.rib.poll_writable() {
            let mut writes = 0;
            while self.write(number, budget) {
                writes += 1;
                assert!(writes < 10_000, "the output to peer {number} does not end");
            }
        }
        while self.rib.has_route_changes() {
            for change in self.rib.route_changes(3) {
                if change.paths.is_empty() {
                    assert!(
                        self.fib.remove(&change.prefix).is_some(),
                        "{} was not in the FIB",
                        change.prefix
                    );
                } else {
                    self.fib.insert(change.prefix, change.paths);
                }
            }
        }
    }

    /// Writes to a peer once; returns whether more is pending.
    pub(crate) fn write(&mut self, number: u32, budget: usize) -> bool {
        let mut octets = Vec::new();
        let more = self.rib.write_updates(PeerId(number), &mut octets, budget);
        assert_eq!(more, self.rib.pending(PeerId(number)));
        self.receivers
            .get_mut(&number)
            .expect(
                "the tables write only to peers that are \
            up",
            )
            .take(&octets);
        more
    }

    /// The prefixes advertised to peer `number`, in order, after writing all pending routes.
    pub(crate) fn advertised(&mut self, number: u32) -> Vec<String> {
        self.flush();
        self.receivers[&number].routes.keys().map(ToString::to_string).collect()
    }

    /// The attributes advertised to peer `number` for a prefix.
    pub(crate) fn advertised_path(&mut self, number: u32, prefix: &str) -> Option<(NextHop, PathAttributes)> {
        self.flush();
        self.receivers[&number].routes.get(&net(prefix)).cloned()
    }

    /// The peers of a prefix's next hops in the FIB, best first.
    pub(crate) fn fib(&mut self, prefix: &str) -> Vec<IpAddr> {
        self.flush();
        self.fib
            .get(&net(prefix))
            .map_or_else(Vec::new, |paths| paths.iter().map(|path| path.peer.address()).collect())
    }
}

pub(crate) fn decode_context(external: bool, facts: &SessionFacts) -> DecodeContext {
    DecodeContext {
        four_octet_as: facts.four_octet_as,
        ext_next_hop: facts.ext_next_hop,
        families: facts.families,
        add_path: facts.add_path,
        ebgp: external,
    }
}

/// The other end of a session, with the routes that it received.
pub(crate) struct Receiver {
    context: DecodeContext,
    max_message: usize,
    pub(crate) routes: BTreeMap<IpNet, (NextHop, PathAttributes)>,
    /// The routes with path identifiers, by prefix and identifier.
    pub(crate) paths: BTreeMap<(IpNet, u32), (NextHop, PathAttributes)>,
    pub(crate) end_of_rib: Vec<Family>,
    /// The number of routes at End-of-RIB, by family.
    pub(crate) initial: BTreeMap<Family, usize>,
    /// Routes that were not repeated since BoRR, by family.
    refreshing: BTreeMap<Family, BTreeSet<IpNet>>,
    pub(crate) announced: usize,
    pub(crate) withdrawn: usize,
}

impl Receiver {
    fn new(external: bool, facts: &SessionFacts) -> Receiver {
        Receiver {
            context: decode_context(external, facts),
            max_message: facts.max_message,
            routes: BTreeMap::new(),
            paths: BTreeMap::new(),
            end_of_rib: Vec::new(),
            initial: BTreeMap::new(),
            refreshing: BTreeMap::new(),
            announced: 0,
            withdrawn: 0,
        }
    }

    pub(crate) fn take(&mut self, mut octets: &[u8]) {
        let mut scratch = Scratch::default();
        while let Some(message) = frame(octets, self.max_message).unwrap() {
            octets = &octets[message.len..];
            if message.kind == MessageKind::RouteRefresh {
                self.take_marker(RouteRefresh::decode(message.body).unwrap());
                continue;
            }
            let update = decode_update(message.body, &self.context, &mut scratch).unwrap();
            assert_eq!(update.treat_as_withdraw, None);
            assert!(update.discarded.is_empty(), "{:?}", update.discarded);
            for prefixes in update.withdrawn() {
                for (identifier, prefix) in prefixes.paths() {
                    self.withdrawn += 1;
                    if let Some(identifier) = identifier {
                        let gone = self.paths.remove(&(prefix, identifier));
                        assert!(
                            gone.is_some(),
                            "withdrawn without having been advertised: {prefix} {identifier}"
                        );
                        continue;
                    }
                    self.refreshing.values_mut().for_each(|left| left.retain(|left| *left != prefix));
                    assert!(
                        self.routes.remove(&prefix).is_some(),
                        "withdrawn without having been advertised: {prefix}"
                    );
                }
            }
            for reach in update.announced() {
                let attributes = PathAttributes::parse(update.attributes.unwrap()).unwrap();
                for (identifier, prefix) in reach.prefixes.paths() {
                    self.announced += 1;
                    if let Some(identifier) = identifier {
                        self.paths.insert((prefix, identifier), (reach.next_hop, attributes.clone()));
                        continue;
                    }
                    self.refreshing.values_mut().for_each(|left| left.retain(|left| *left != prefix));
                    self.routes.insert(prefix, (reach.next_hop, attributes.clone()));
                }
            }
            if let Some(family) = update.end_of_rib {
                self.end_of_rib.push(family);
                let routes = self.routes.keys().filter(|prefix| Family::of(prefix) == family).count();
                self.initial.insert(family, routes);
            }
        }
        assert!(octets.is_empty(), "only whole messages are written");
    }

    /// Checks that BoRR comes after End-of-RIB, and that every route is repeated or withdrawn
    /// before EoRR.
    fn take_marker(&mut self, marker: RouteRefresh) {
        let family = marker.family.family().unwrap();
        match marker.subtype {
            RouteRefresh::BEGIN => {
                assert!(self.end_of_rib.contains(&family), "BoRR before End-of-RIB");
                let routes = self.routes.keys().copied().filter(|prefix| Family::of(prefix) == family);
                assert!(
                    self.refreshing.insert(family, routes.collect()).is_none(),
                    "a refresh within another"
                );
            }
            RouteRefresh::END => {
                let left = self.refreshing.remove(&family).expect("EoRR comes after BoRR");
                assert!(left.is_empty(), "not advertised again: {left:?}");
            }
            subtype => panic!("subtype {subtype}"),
        }
    }
}
