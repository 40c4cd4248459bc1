//! A simulated network: speakers, scripted ends and TCP between them, all on a virtual clock.
//!
//! Latency is the same in both directions. The connections of a *killed* node end as a kernel ends
//! them. A node that *lost power* sends nothing. Once it runs again, it answers segments of its
//! previous connections with a reset. A *cut* drops everything, on open connections and on new
//! ones. Each node has a FIB that outlives its process. The FIB works like an agent's: changes are
//! applied, and routes that were not reported are swept when the family has converged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use trunkline_bgp::bfd::Target;
use trunkline_bgp::speaker::{
    Action, ConnId, ConnectFailure, ConnectKind, Event, FibPath, Origination, PeerConfig, PeerRange,
    PeerStatus, SocketOptions, Speaker, SpeakerConfig, State, Stop,
};
use trunkline_bgp::types::{Asn, Family, PeerId};
use trunkline_bgp::wire::{self, Capability, MAX_EXTENDED, MessageKind, Notification, Open};

pub(crate) const LATENCY: Duration = Duration::from_millis(2);

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn ip(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
}

pub(crate) fn net(prefix: &str) -> IpNet {
    prefix.parse().unwrap()
}

/// One end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// `life` is the number of the node's process. Each process counts its connections from 0.
    Speaker {
        host: u8,
        life: u32,
        conn: ConnId,
    },
    Script,
}

#[derive(Debug)]
struct Pipe {
    hosts: [u8; 2],
    ends: [Option<End>; 2],
    /// Octets that a scripted end received.
    got: Vec<u8>,
    /// A scripted end received the other end's FIN.
    closed: bool,
    /// The connection drops all octets, and no end is notified.
    dead: bool,
    /// The scripted end does not read.
    blocked: bool,
}

#[derive(Debug)]
enum Delivery {
    Connect { pipe: usize },
    Connected { pipe: usize },
    Refused { pipe: usize },
    Bytes { pipe: usize, to: usize, bytes: Vec<u8> },
    Fin { pipe: usize, to: usize },
}

pub(crate) struct Node {
    pub(crate) config: SpeakerConfig,
    pub(crate) peers: BTreeMap<IpAddr, PeerConfig>,
    pub(crate) ranges: Vec<PeerRange>,
    pub(crate) originated: BTreeMap<IpNet, Origination>,
    pub(crate) speaker: Option<Speaker>,
    life: u32,
    pub(crate) events: Vec<Event>,
    pub(crate) options: BTreeMap<ConnId, SocketOptions>,
    /// Requested BFD sessions.
    pub(crate) bfd: BTreeMap<PeerId, Target>,
    /// The routes in the node's kernel.
    pub(crate) fib: BTreeMap<IpNet, Vec<FibPath>>,
    fresh: BTreeSet<IpNet>,
}

pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    pub(crate) nodes: BTreeMap<u8, Node>,
    pipes: Vec<Pipe>,
    queue: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    deliveries: Vec<Option<Delivery>>,
    pub(crate) cut: bool,
    /// Hosts with a listening script.
    pub(crate) scripts: BTreeSet<u8>,
    /// Connections to scripts, in order.
    pub(crate) accepted: Vec<usize>,
    /// Routes that a FIB must contain at every moment.
    pub(crate) must_hold: Vec<(u8, IpNet)>,
    port: u16,
}

impl Net {
    pub(crate) fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
        let start = Instant::now();
        Net {
            now: start,
            start,
            nodes: BTreeMap::new(),
            pipes: Vec::new(),
            queue: BinaryHeap::new(),
            deliveries: Vec::new(),
            cut: false,
            scripts: BTreeSet::new(),
            accepted: Vec::new(),
            must_hold: Vec::new(),
            port: 40000,
        }
    }

    /// Adds node `host` in AS 65000 + host; not started.
    pub(crate) fn add(&mut self, host: u8) -> &mut Node {
        let config = SpeakerConfig {
            cluster_id: None,
            local_as: Asn(65000 + u32::from(host)),
            router_id: Ipv4Addr::new(10, 0, 0, host),
            restarting: false,
            selection_deferral: secs(60),
            max_paths: 4,
            seed: u64::from(host),
        };
        let node = Node {
            config,
            peers: BTreeMap::new(),
            ranges: Vec::new(),
            originated: BTreeMap::new(),
            speaker: None,
            life: 0,
            events: Vec::new(),
            options: BTreeMap::new(),
            bfd: BTreeMap::new(),
            fib: BTreeMap::new(),
            fresh: BTreeSet::new(),
        };
        self.nodes.entry(host).or_insert(node)
    }

    /// Nodes 1 and 2, which are peers and originate `10.1.0.0/16` and `10.2.0.0/16`; not started.
    pub(crate) fn pair() -> Self {
        let mut all = Net::new();
        for (host, other) in [(1, 2), (2, 1)] {
            let peer = peer(other);
            let node = all.add(host);
            node.peers.insert(peer.address, peer);
            node.originated.insert(net(&format!("10.{host}.0.0/16")), Origination::default());
        }
        all
    }

    /// Node 1 with a scripted peer at host 2.
    pub(crate) fn scripted(edit: impl FnOnce(&mut PeerConfig)) -> Self {
        let mut all = Net::new();
        let mut peer = peer(2);
        edit(&mut peer);
        all.add(1).peers.insert(peer.address, peer);
        all.scripts.insert(2);
        all
    }

    /// Starts the process of a node with its whole configuration.
    pub(crate) fn boot(&mut self, host: u8) {
        let now = self.now;
        let node = self.nodes.get_mut(&host).unwrap();
        node.fresh.clear();
        node.events.clear();
        node.life += 1;
        let mut speaker = Speaker::new(node.config.clone(), now).unwrap();
        for peer in node.peers.values() {
            speaker.add_peer(peer.clone(), now).unwrap();
        }
        speaker.set_ranges(node.ranges.clone(), now).unwrap();
        for (prefix, origination) in &node.originated {
            speaker.originate(*prefix, origination.clone(), now);
        }
        speaker.originations_complete(now);
        node.speaker = Some(speaker);
        self.drain(host);
    }

    /// Starts all nodes.
    pub(crate) fn boot_all(&mut self) {
        for host in self.nodes.keys().copied().collect::<Vec<u8>>() {
            self.boot(host);
        }
    }

    /// Starts a node in the way it starts after a crash or an update: the FIB exists, and the R and
    /// F bits are sent.
    pub(crate) fn reboot(&mut self, host: u8) {
        self.nodes.get_mut(&host).unwrap().config.restarting = true;
        self.boot(host);
    }

    /// SIGKILL: the kernel closes the connections.
    pub(crate) fn kill(&mut self, host: u8) {
        self.nodes.get_mut(&host).unwrap().speaker = None;
        for pipe in 0..self.pipes.len() {
            for side in 0..2 {
                if matches!(self.pipes[pipe].ends[side], Some(End::Speaker { host: h, .. }) if h == host) {
                    self.close(pipe, side);
                }
            }
        }
    }

    /// No end is notified, until a segment arrives for a connection that the node no longer has.
    pub(crate) fn lose_power(&mut self, host: u8) {
        self.nodes.get_mut(&host).unwrap().speaker = None;
    }

    /// Cuts the cable. The current connections stay broken.
    pub(crate) fn cut(&mut self) {
        self.cut = true;
        self.pipes.iter_mut().for_each(|pipe| pipe.dead = true);
    }

    /// Runs `act` on a node's speaker, and carries out the resulting actions.
    pub(crate) fn with<T>(&mut self, host: u8, act: impl FnOnce(&mut Speaker, Instant) -> T) -> T {
        let now = self.now;
        let result = act(self.nodes.get_mut(&host).unwrap().speaker.as_mut().unwrap(), now);
        self.drain(host);
        result
    }

    /// Edits a peer of node `host` in its configuration and in the running speaker.
    pub(crate) fn edit(
        &mut self,
        host: u8,
        peer: u8,
        edit: impl FnOnce(&mut PeerConfig),
    ) -> trunkline_bgp::speaker::Change {
        let config = self.nodes.get_mut(&host).unwrap().peers.get_mut(&ip(peer)).unwrap();
        edit(config);
        let config = config.clone();
        self.with(host, |speaker, now| speaker.update_peer(config, now).unwrap())
    }

    pub(crate) fn stop(&mut self, host: u8, stop: Stop) {
        self.with(host, |speaker, now| speaker.stop(stop, now));
        self.nodes.get_mut(&host).unwrap().speaker = None;
    }

    /// Runs until `deadline`, which becomes the time.
    pub(crate) fn run_until(&mut self, deadline: Instant) {
        while self.step(deadline) {}
        self.now = deadline;
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        self.run_until(self.now + duration);
    }

    /// Runs until the condition holds; panics if it does not within `limit`.
    #[track_caller]
    pub(crate) fn run_while_not(
        &mut self,
        what: &str,
        limit: Duration,
        condition: impl Fn(&Net) -> bool,
    ) -> Duration {
        let started = self.now;
        while !condition(self) {
            if !self.step(started + limit) {
                let shown: Vec<_> = self.nodes.iter().map(|(host, node)| (host, &node.events)).collect();
                panic!("{what}: not reached within {limit:?}; events: {shown:#?}");
            }
        }
        self.now - started
    }

    #[track_caller]
    pub(crate) fn run_until_up(&mut self, host: u8, peer: u8) -> Duration {
        self.run_while_not(&format!("{host} to {peer} Established"), secs(300), |all| {
            all.nodes[&host].speaker.is_some() && all.status(host, peer).state == State::Established
        })
    }

    /// Runs the next step, if it is due by the deadline.
    fn step(&mut self, deadline: Instant) -> bool {
        let due = |node: &Node| node.speaker.as_ref()?.poll_timeout();
        let timer = self.nodes.iter().filter_map(|(host, node)| Some((due(node)?, *host))).min();
        let delivery = self.queue.peek().map(|Reverse((at, ..))| *at);
        match (timer, delivery) {
            (timer, Some(at)) if at <= deadline && timer.is_none_or(|(due, _)| at <= due) => {
                let Some(Reverse((_, _, index))) = self.queue.pop() else { return false };
                self.now = self.now.max(at);
                if let Some(delivery) = self.deliveries[index].take() {
                    self.deliver(delivery);
                }
                true
            }
            (Some((due, host)), _) if due <= deadline => {
                self.now = self.now.max(due);
                self.with(host, |speaker, now| speaker.handle_timeout(now));
                true
            }
            _ => false,
        }
    }

    fn send(&mut self, delivery: Delivery) {
        let index = self.deliveries.len();
        self.deliveries.push(Some(delivery));
        self.queue.push(Reverse((self.now + LATENCY, index as u64, index)));
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Connect { pipe } => self.deliver_connect(pipe),
            Delivery::Connected { pipe } => {
                let [from, to] = self.pipes[pipe].hosts;
                match self.live(self.pipes[pipe].ends[0]) {
                    Some(End::Speaker { host, conn, .. }) => {
                        let (local, remote) =
                            (SocketAddr::new(ip(from), 40000), SocketAddr::new(ip(to), 179));
                        self.with(host, |speaker, now| speaker.handle_connected(conn, local, remote, now));
                    }
                    Some(End::Script) | None => {}
                }
            }
            Delivery::Refused { pipe } => {
                let end = self.pipes[pipe].ends[0].take();
                if let Some(End::Speaker { host, conn, .. }) = self.live(end) {
                    let failure = ConnectFailure::new(ConnectKind::Refused, "connection refused");
                    self.with(host, |speaker, now| speaker.handle_connect_failed(conn, failure, now));
                }
            }
            Delivery::Bytes { pipe, to, bytes } => {
                if self.pipes[pipe].dead {
                    return;
                }
                match self.live(self.pipes[pipe].ends[to]) {
                    Some(End::Speaker { host, conn, .. }) => {
                        // Splits messages at unusual places.
                        let (one, two) = bytes.split_at(bytes.len() / 3);
                        for part in [one, two] {
                            self.with(host, |speaker, now| speaker.handle_bytes(conn, part, now));
                        }
                    }
                    Some(End::Script) => self.pipes[pipe].got.extend(bytes),
                    // A kernel resets an unknown connection; a node without power does not answer.
                    None if self.runs(self.pipes[pipe].hosts[to]) => {
                        self.send(Delivery::Fin { pipe, to: 1 - to })
                    }
                    None => {}
                }
            }
            Delivery::Fin { pipe, to } => {
                if self.pipes[pipe].dead {
                    return;
                }
                let end = self.pipes[pipe].ends[to].take();
                match self.live(end) {
                    Some(End::Speaker { host, conn, .. }) => {
                        let reason = "closed by the peer".to_owned();
                        self.with(host, |speaker, now| speaker.handle_closed(conn, reason, now));
                    }
                    Some(End::Script) => self.pipes[pipe].closed = true,
                    None => {}
                }
            }
        }
    }

    fn runs(&self, host: u8) -> bool {
        self.nodes.get(&host).is_some_and(|node| node.speaker.is_some())
    }

    /// The end, if its process still runs.
    fn live(&self, end: Option<End>) -> Option<End> {
        end.filter(|end| match end {
            End::Speaker { host, life, .. } => self.runs(*host) && self.nodes[host].life == *life,
            End::Script => true,
        })
    }

    fn deliver_connect(&mut self, pipe: usize) {
        let [from, to] = self.pipes[pipe].hosts;
        if self.cut || self.pipes[pipe].dead || self.live(self.pipes[pipe].ends[0]).is_none() {
            return;
        }
        self.port += 1;
        let remote = SocketAddr::new(ip(from), self.port);
        let end = if self.scripts.contains(&to) {
            self.accepted.push(pipe);
            Some(End::Script)
        } else if self.nodes.get(&to).is_some_and(|node| node.speaker.is_some()) {
            let local = SocketAddr::new(ip(to), 179);
            let now = self.now;
            let speaker = self.nodes.get_mut(&to).unwrap().speaker.as_mut().unwrap();
            let accepted = speaker.handle_accepted(local, remote, None, now);
            let life = self.nodes[&to].life;
            accepted.ok().map(|conn| End::Speaker { host: to, life, conn })
        } else {
            None
        };
        match (end, self.pipes[pipe].ends[0]) {
            (Some(end), _) => {
                self.pipes[pipe].ends[1] = Some(end);
                self.send(Delivery::Connected { pipe });
            }
            (None, Some(End::Speaker { .. })) => self.send(Delivery::Refused { pipe }),
            (None, _) => self.pipes[pipe].closed = true,
        }
        if self.nodes.get(&to).is_some_and(|node| node.speaker.is_some()) {
            self.drain(to);
        }
    }

    fn close(&mut self, pipe: usize, side: usize) {
        if self.pipes[pipe].ends[side].take().is_some() {
            self.send(Delivery::Fin { pipe, to: 1 - side });
        }
    }

    /// Does the work of a shell after an input.
    fn drain(&mut self, host: u8) {
        let now = self.now;
        loop {
            let node = self.nodes.get_mut(&host).unwrap();
            let Some(speaker) = node.speaker.as_mut() else { break };
            if let Some(action) = speaker.poll_action() {
                self.act(host, action);
                continue;
            }
            if let Some(conn) = speaker.poll_writable() {
                self.transmit(host, conn);
                continue;
            }
            break;
        }
        let node = self.nodes.get_mut(&host).unwrap();
        let Some(speaker) = node.speaker.as_mut() else { return };
        let mut converged = Vec::new();
        while let Some(event) = speaker.poll_event() {
            if let Event::Converged { family } = event {
                converged.push(family);
            }
            node.events.push(event);
        }
        for change in speaker.route_changes(usize::MAX) {
            node.fresh.insert(change.prefix);
            match change.paths.is_empty() {
                true => drop(node.fib.remove(&change.prefix)),
                false => drop(node.fib.insert(change.prefix, change.paths)),
            }
        }
        for family in converged {
            node.fib.retain(|prefix, _| Family::of(prefix) != family || node.fresh.contains(prefix));
        }
        for (host, prefix) in &self.must_hold {
            let held = self.nodes[host].fib.contains_key(prefix);
            assert!(held, "host {host} lost {prefix} at {:?}", now - self.start);
        }
    }

    fn act(&mut self, host: u8, action: Action) {
        match action {
            Action::Connect { conn, remote, options, .. } => {
                let IpAddr::V4(to) = remote.ip() else { panic!("{remote}") };
                self.nodes.get_mut(&host).unwrap().options.insert(conn, options);
                let life = self.nodes[&host].life;
                let pipe = self.pipe([host, to.octets()[3]], End::Speaker { host, life, conn });
                self.send(Delivery::Connect { pipe });
            }
            Action::Configure { conn, options } => {
                self.nodes.get_mut(&host).unwrap().options.insert(conn, options);
            }
            Action::Close { conn, last_words } => {
                let Some((pipe, side)) = self.find(host, conn) else { return };
                if !last_words.is_empty() && !self.pipes[pipe].dead {
                    self.send(Delivery::Bytes { pipe, to: 1 - side, bytes: last_words });
                }
                self.close(pipe, side);
            }
            Action::SetBfd { peer, target } => {
                self.nodes.get_mut(&host).unwrap().bfd.insert(peer, target);
            }
            Action::RemoveBfd { peer } => {
                self.nodes.get_mut(&host).unwrap().bfd.remove(&peer);
            }
            Action::Listen(_) | Action::ListenRanges(_) => {}
        }
    }

    fn transmit(&mut self, host: u8, conn: ConnId) {
        let now = self.now;
        let Some((pipe, side)) = self.find(host, conn) else { return };
        if self.pipes[pipe].blocked {
            return;
        }
        let speaker = self.nodes.get_mut(&host).unwrap().speaker.as_mut().unwrap();
        let mut bytes = Vec::new();
        while speaker.poll_transmit(conn, &mut bytes, 65536, now) {}
        if !bytes.is_empty() && !self.pipes[pipe].dead {
            self.send(Delivery::Bytes { pipe, to: 1 - side, bytes });
        }
    }

    fn pipe(&mut self, hosts: [u8; 2], end: End) -> usize {
        self.pipes.push(Pipe {
            hosts,
            ends: [Some(end), None],
            got: Vec::new(),
            closed: false,
            dead: false,
            blocked: false,
        });
        self.pipes.len() - 1
    }

    fn find(&self, host: u8, conn: ConnId) -> Option<(usize, usize)> {
        let end = Some(End::Speaker { host, life: self.nodes[&host].life, conn });
        let side = |pipe: &Pipe| pipe.ends.iter().position(|it| *it == end);
        self.pipes.iter().enumerate().find_map(|(index, pipe)| Some((index, side(pipe)?)))
    }

    pub(crate) fn status(&self, host: u8, peer: u8) -> PeerStatus {
        let speaker = self.nodes[&host].speaker.as_ref().unwrap();
        speaker.peers(self.now).into_iter().find(|status| status.address == ip(peer)).unwrap()
    }

    pub(crate) fn state(&self, host: u8, peer: u8) -> State {
        self.status(host, peer).state
    }

    pub(crate) fn routes_from(&self, host: u8, peer: u8) -> Vec<IpNet> {
        let routes = self.nodes[&host].speaker.as_ref().unwrap().received(ip(peer)).unwrap();
        routes.into_iter().map(|route| route.prefix).collect()
    }

    // ---- scripted ends ----

    /// The script at host 2 connects to node 1.
    pub(crate) fn script_connect(&mut self) -> usize {
        let pipe = self.pipe([2, 1], End::Script);
        self.send(Delivery::Connect { pipe });
        self.run(2 * LATENCY);
        pipe
    }

    /// The script sends, and the octets arrive.
    pub(crate) fn script_send(&mut self, pipe: usize, bytes: &[u8]) {
        let side = self.script_side(pipe);
        self.send(Delivery::Bytes { pipe, to: 1 - side, bytes: bytes.to_vec() });
        self.run(2 * LATENCY);
    }

    pub(crate) fn script_close(&mut self, pipe: usize) {
        let side = self.script_side(pipe);
        self.close(pipe, side);
        self.run(2 * LATENCY);
    }

    fn script_side(&self, pipe: usize) -> usize {
        self.pipes[pipe].ends.iter().position(|end| *end == Some(End::Script)).unwrap_or_else(|| {
            // The other side has already closed the connection, so the octets are lost.
            usize::from(self.pipes[pipe].hosts[1] == 2)
        })
    }

    /// From now on the script does not read.
    pub(crate) fn script_block(&mut self, pipe: usize) {
        self.pipes[pipe].blocked = true;
    }

    pub(crate) fn is_closed(&self, pipe: usize) -> bool {
        self.pipes[pipe].closed
    }

    /// The messages that the script received so far: kinds and bodies.
    pub(crate) fn script_got(&self, pipe: usize) -> Vec<(MessageKind, Vec<u8>)> {
        let mut octets = self.pipes[pipe].got.as_slice();
        let mut messages = Vec::new();
        while let Some(frame) = wire::frame(octets, MAX_EXTENDED).unwrap() {
            messages.push((frame.kind, frame.body.to_vec()));
            octets = &octets[frame.len..];
        }
        assert!(octets.is_empty(), "the last message is incomplete");
        messages
    }

    /// The last NOTIFICATION that the script received.
    pub(crate) fn script_notification(&self, pipe: usize) -> Option<Notification> {
        let (kind, body) = self.script_got(pipe).pop()?;
        (kind == MessageKind::Notification).then(|| Notification::decode(&body).unwrap())
    }

    /// The last connection that node 1 opened.
    #[track_caller]
    pub(crate) fn script_accept(&mut self) -> usize {
        let before = self.accepted.len();
        self.run_while_not("a connection to the script", secs(200), |all| all.accepted.len() > before);
        self.run(3 * LATENCY);
        *self.accepted.last().unwrap()
    }
}

/// The configuration of a peer `host`.
pub(crate) fn peer(host: u8) -> PeerConfig {
    PeerConfig::new(ip(host), Asn(65000 + u32::from(host)))
}

/// The script's OPEN: host 2 in AS 65002, every capability.
pub(crate) fn open() -> Open {
    let families = Family::ALL.into_iter();
    let mut capabilities: Vec<Capability> =
        families.map(|family| Capability::Multiprotocol(family.into())).collect();
    capabilities.extend([
        Capability::RouteRefresh,
        Capability::EnhancedRouteRefresh,
        Capability::ExtendedMessage,
        restart_capability(false, true),
        Capability::FourOctetAs(Asn(65002)),
    ]);
    Open::new(Asn(65002), 90, Ipv4Addr::new(10, 0, 0, 2), capabilities)
}

pub(crate) fn restart_capability(restarting: bool, forwarding: bool) -> Capability {
    let families = Family::ALL.into_iter();
    Capability::GracefulRestart {
        restarting,
        notification: false,
        restart_time: 120,
        families: families.map(|family| wire::RestartFamily { family: family.into(), forwarding }).collect(),
    }
}

pub(crate) fn encoded(open: &Open) -> Vec<u8> {
    let mut out = Vec::new();
    open.encode(&mut out);
    out
}

pub(crate) fn keepalive() -> Vec<u8> {
    let mut out = Vec::new();
    wire::encode_keepalive(&mut out);
    out
}

/// A message of this kind with this body.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend_from_slice(&((19 + body.len()) as u16).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    out
}

/// An UPDATE of AS 65002 that advertises IPv4 prefixes of 24 bits.
pub(crate) fn announce(prefixes: &[[u8; 3]]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 20];
    body.extend([0x40, 1, 1, 0]); // ORIGIN
    body.extend([0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xea]); // AS_PATH 65002
    body.extend([0x40, 3, 4, 10, 0, 0, 2]); // NEXT_HOP
    prefixes.iter().for_each(|prefix| body.extend([&[24], &prefix[..]].concat()));
    message(2, &body)
}

/// An UPDATE of AS 65002 that advertises IPv6 prefixes of 48 bits in 2001:db8::/32.
pub(crate) fn announce_v6(prefixes: &[u16]) -> Vec<u8> {
    let mut reach = vec![0, 2, 1, 16];
    reach.extend(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).octets());
    reach.push(0);
    prefixes.iter().for_each(|prefix| {
        reach.extend([48, 0x20, 1, 0x0d, 0xb8]);
        reach.extend(prefix.to_be_bytes());
    });
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xea];
    attributes.extend([0x80, 14, reach.len() as u8]);
    attributes.extend(reach);
    let mut body = vec![0, 0, 0, attributes.len() as u8];
    body.extend(attributes);
    message(2, &body)
}

pub(crate) fn end_of_rib() -> Vec<u8> {
    message(2, &[0, 0, 0, 0])
}

pub(crate) fn end_of_rib_v6() -> Vec<u8> {
    message(2, &[0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1])
}
