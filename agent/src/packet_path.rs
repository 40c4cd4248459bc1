//! The path of a packet from a pod, for `trunkline pods NAME --path DST`, from the kernel's route
//! look-up at each place on the path.
//!
//! ```text
//!   pod's namespace                       node
//!   rules, route, neighbour ──pair──► iif tl…: rules, route, neighbour ──► out, or into another pod, or the node itself
//!           └── IPVLAN slave ──► straight onto the link below
//!                                         ◄── iif of the uplink: rules, route ── the return path
//!                                       out by a VXLAN device: its FDB entry ──► the tunnel's own packet, with the same look-ups
//! ```
//!
//! **Nothing is derived from the plan.** So the result shows the effects of foreign rules and
//! routes, of a silent neighbour, and of a strict reverse path check. The kernel itself selects the
//! route and the next hop (RTM_GETROUTE with source and incoming interface, which runs its whole
//! input path). This module only matches the rules, to explain the table. The deciding rule is the
//! first rule that matches the packet and leads to the table of the answer. Earlier matching rules
//! had no route for the packet.
//!
//! The result does not show netfilter (except the node's own NAT), marks that other programs set on
//! the path, and eBPF programs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::route::RouteType;
use trunkline_api::control::{PacketPath, PathHop, PathRoute, PathRule, Place, RouteKind, RouteLookup};
use trunkline_datapath::attach::device::{DeviceError, Step as _};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::mac::show_mac;
use trunkline_datapath::netlink::lookup::{self, FoundRoute, Match, Packet, kind_name};
use trunkline_datapath::netlink::objects::{self, LinkInfo};
use trunkline_datapath::netlink::vxlan::{self, VxlanInfo};
use trunkline_datapath::netlink::{Batch, BatchResult, Connection, Refusal};
use trunkline_datapath::plan::{Hop, LinkKind};

const STEP: &str = "follow the packet";

/// The packet, and the known pods.
#[derive(Clone, Debug)]
pub struct PathQuery {
    /// The destination address.
    pub destination: IpAddr,
    /// The source address; the pod's kernel selects one if none.
    pub source: Option<IpAddr>,
    /// The pod's own interfaces, each with its host interface.
    pub interfaces: BTreeMap<String, String>,
    /// Pods' names, by host interface.
    pub pods: BTreeMap<String, String>,
}

/// Follows the packet and, if its route is known, the reply.
pub fn packet_path(
    host: &mut Connection,
    pod: &mut Connection,
    query: &PathQuery,
) -> Result<PacketPath, DeviceError> {
    let destination = query.destination;
    let mut path = PacketPath {
        source: query.source,
        destination,
        forth: Vec::new(),
        end: String::new(),
        masqueraded: false,
        back: Vec::new(),
        advertised_to: Vec::new(),
    };
    let mut inside = NamespaceTables { place: Place::Pod, connection: pod, query };
    if path.source.is_none() {
        path.source = inside.chosen_source()?;
    }
    let packet = Packet { destination, source: path.source, iif: None };
    let (stage, way) = inside.look_up(&packet, None)?;
    path.forth.push(stage);
    let end = |path: PacketPath, end: String| Ok(PacketPath { end, ..path });
    let Some(way) = way else { return end(path, "the packet does not leave the pod".to_owned()) };
    let Some(link) = way.link else {
        return end(path, format!("the pod itself: a {} route", kind_name(way.kind)));
    };
    let mut node = NamespaceTables { place: Place::Node, connection: host, query };
    if link.kind.as_deref() == Some("ipvlan") {
        let below = match link.peer {
            Some(index) => node.link(index)?.map(|link| link.name),
            None => None,
        };
        let below = below.unwrap_or_else(|| "a link that is not in the node's namespace".to_owned());
        return end(path, format!("directly onto {below}, without the node's routing"));
    }
    let host_end = match query.interfaces.get(&link.name) {
        Some(name) => node.link_named(name)?,
        None => {
            return end(
                path,
                format!("out by {}, which is not Trunkline's: its other end is unknown", link.name),
            );
        }
    };
    let Some(host_end) = host_end.filter(|end| end.peer == Some(link.index)) else {
        return end(path, format!("{} does not lead to this node", link.name));
    };

    let packet = Packet { iif: Some(host_end.index), ..packet };
    let (stage, way) = node.look_up(&packet, Some(&host_end.name))?;
    path.forth.push(stage);
    let Some(way) = way else { return end(path, "the node drops the packet".to_owned()) };
    let ended = match (&way.link, way.kind) {
        (_, RouteType::Local) => "the node itself".to_owned(),
        (None, kind) => format!("the node drops the packet: a {} route", kind_name(kind)),
        (Some(link), _) => match (query.pods.get(&link.name), way.gateway) {
            (Some(pod), _) => format!("into pod {pod} by {}", link.name),
            (None, Some(gateway)) => format!("out by {} to {gateway}", link.name),
            (None, None) => format!("out by {} to {destination} itself", link.name),
        },
    };
    if let Some(outer) = way.link.as_ref().and_then(|link| link.vxlan.as_ref()).zip(way.vtep).map(outer) {
        path.forth.push(node.look_up(&outer, None)?.0);
    }
    // If the packet is for the node, the node itself replies. Any other reply arrives on the uplink
    // by which the packet left.
    let back_by = way.link.filter(|_| way.kind != RouteType::Local);
    if let Some(source) = path.source
        && (back_by.is_some() || way.kind == RouteType::Local)
    {
        let answer = Packet {
            destination: source,
            source: Some(destination),
            iif: back_by.as_ref().map(|link| link.index),
        };
        let (stage, _) = node.look_up(&answer, back_by.as_ref().map(|link| link.name.as_str()))?;
        path.back.push(stage);
    }
    end(path, ended)
}

/// One network namespace.
struct NamespaceTables<'a> {
    place: Place,
    connection: &'a mut Connection,
    query: &'a PathQuery,
}

/// The tunnel's packet that carries an inner packet.
fn outer((device, vtep): (&VxlanInfo, IpAddr)) -> Packet {
    Packet { destination: vtep, source: Some(device.local), iif: None }
}

/// The next step of a packet.
struct ForwardingResult {
    kind: RouteType,
    gateway: Option<IpAddr>,
    /// The other VTEP of the tunnel.
    vtep: Option<IpAddr>,
    /// None for a route without a next hop.
    link: Option<LinkInfo>,
}

impl NamespaceTables<'_> {
    fn chosen_source(&mut self) -> Result<Option<IpAddr>, DeviceError> {
        let packet = Packet { destination: self.query.destination, source: None, iif: None };
        let mut batch = Batch::new();
        batch.look_up(&packet, false);
        Ok(found(&self.connection.run(&mut batch).step(STEP)?, 0).and_then(|found| found.source))
    }

    /// One look-up. `iif` is the name of the packet's incoming interface.
    fn look_up(
        &mut self,
        packet: &Packet,
        iif: Option<&str>,
    ) -> Result<(RouteLookup, Option<ForwardingResult>), DeviceError> {
        let mut batch = Batch::new();
        batch.look_up(packet, true);
        batch.look_up(packet, false);
        let outcome = self.connection.run(&mut batch).step(STEP)?;
        // The first answer contains all next hops of the route. Only the second shows whether the
        // packet passes, and the selected next hop.
        let (route, taken) = (found(&outcome, 0), found(&outcome, 1));
        let refused = outcome.refusals.last().map(|refusal| in_words(refusal, packet));
        let table = route.as_ref().filter(|_| refused.is_none()).map(|route| route.table);
        let mut stage = RouteLookup {
            place: self.place,
            interface: iif.map(str::to_owned),
            source: packet.source,
            destination: packet.destination,
            rules: self.rules(packet, iif, table)?,
            route: None,
            refused,
        };
        let (Some(route), Some(taken)) = (route, taken) else { return Ok((stage, None)) };
        let taken_hop = taken.hops.first().copied();
        let leads_on = taken.kind == RouteType::Unicast;
        let (mut hops, mut vtep) = (Vec::new(), None);
        for hop in route.hops.iter().filter(|_| leads_on) {
            let same = |taken: Hop| (taken.ifindex, taken.gateway) == (hop.ifindex, hop.gateway);
            let is_taken = route.hops.len() == 1 || taken_hop.is_some_and(same);
            if let Some((hop, to)) = self.hop(hop, packet.destination, is_taken)? {
                hops.push(hop);
                vtep = to.filter(|_| is_taken).or(vtep);
            }
        }
        stage.route =
            Some(PathRoute { prefix: route.prefix, table: route.table, kind: route_kind(taken.kind), hops });
        if stage.refused.is_some() {
            return Ok((stage, None));
        }
        let link = match taken_hop.and_then(|hop| hop.ifindex).filter(|_| leads_on) {
            Some(index) => self.link(index)?,
            None => None,
        };
        let gateway = taken_hop.and_then(|hop| hop.gateway);
        Ok((stage, Some(ForwardingResult { kind: taken.kind, gateway, vtep, link })))
    }

    /// The rules up to the rule that led to `table`, or all rules if none did.
    fn rules(
        &mut self,
        packet: &Packet,
        iif: Option<&str>,
        table: Option<u32>,
    ) -> Result<Vec<PathRule>, DeviceError> {
        let family = IpFamily::of(&packet.destination.into());
        let there =
            self.connection.list(|batch| batch.dump_rules(family), lookup::read_any_rule).step(STEP)?;
        let mut rules = Vec::new();
        for rule in there {
            let matches = rule.matches(packet, iif);
            let decides = matches != Match::No && table.is_some() && rule.table == table;
            let standing = match matches {
                _ if decides => "decides",
                Match::Yes if rule.table.is_some() => "no route",
                Match::Yes => "for it",
                Match::No => "not for it",
                Match::Unknown => "unknown",
            };
            rules.push(PathRule { priority: rule.priority, rule: rule.text, standing: standing.to_owned() });
            if decides {
                break;
            }
        }
        Ok(rules)
    }

    /// A next hop, and the other VTEP if it is in a tunnel.
    fn hop(
        &mut self,
        hop: &Hop,
        destination: IpAddr,
        taken: bool,
    ) -> Result<Option<(PathHop, Option<IpAddr>)>, DeviceError> {
        let Some(index) = hop.ifindex else { return Ok(None) };
        let Some(link) = self.link(index)? else { return Ok(None) };
        let mut batch = Batch::new();
        batch.get_neighbour(index, hop.gateway.unwrap_or(destination));
        let outcome = self.connection.run(&mut batch).step(STEP)?;
        let neighbour = outcome.replies.iter().find_map(|(_, _, body)| lookup::read_neighbour_state(body));
        let mac = neighbour.and_then(|(mac, _)| mac);
        let mut vtep = None;
        let about = match link.planned_kind() {
            Some(LinkKind::Vlan { parent, id }) => {
                let parent = self.link(parent)?.map_or_else(|| "?".to_owned(), |parent| parent.name);
                Some(format!("VLAN {id} of {parent}"))
            }
            Some(LinkKind::Vxlan { vni, .. }) => {
                let entries = |batch: &mut Batch| batch.dump_fdb(index);
                let entries = self.connection.list(entries, vxlan::read_fdb).step(STEP)?;
                vtep = entries.iter().find(|entry| Some(entry.mac) == mac).map(|entry| entry.vtep);
                let to =
                    vtep.map_or_else(|| ", no forwarding entry".to_owned(), |vtep| format!(" to {vtep}"));
                Some(format!("VXLAN {vni}{to}"))
            }
            Some(LinkKind::Sink) => {
                Some("drops packets for addresses that no pod of this node has".to_owned())
            }
            None => link.kind.clone().filter(|kind| kind != "veth"),
        };
        let hop = PathHop {
            gateway: hop.gateway,
            pod: self.query.pods.get(&link.name).filter(|_| self.place == Place::Node).cloned(),
            link: about,
            mtu: link.mtu,
            mac: mac.map(|mac| show_mac(&mac)),
            neighbour: neighbour.map(|(_, state)| state.to_owned()),
            interface: link.name,
            taken,
        };
        Ok(Some((hop, vtep)))
    }

    fn link(&mut self, index: u32) -> Result<Option<LinkInfo>, DeviceError> {
        self.query_link(|batch| batch.get_link_at(index))
    }

    fn link_named(&mut self, name: &str) -> Result<Option<LinkInfo>, DeviceError> {
        self.query_link(|batch| batch.get_link(name))
    }

    fn query_link(&mut self, request: impl FnOnce(&mut Batch)) -> Result<Option<LinkInfo>, DeviceError> {
        let mut batch = Batch::new();
        request(&mut batch);
        let outcome = self.connection.run(&mut batch).step(STEP)?;
        Ok(outcome.replies.iter().find_map(|(_, _, body)| objects::read_link(body)))
    }
}

/// The answer of one look-up in a batch.
fn found(outcome: &BatchResult, index: usize) -> Option<FoundRoute> {
    outcome.replies.iter().find(|(at, ..)| *at == index).and_then(|(.., body)| lookup::read_found(body))
}

/// The route's type as the control protocol names it.
fn route_kind(kind: RouteType) -> RouteKind {
    match kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Anycast => RouteKind::Anycast,
        RouteType::Multicast => RouteKind::Multicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::Throw => RouteKind::Throw,
        _ => RouteKind::Unknown,
    }
}

/// The meaning of the kernel's refusal of a packet.
fn in_words(refusal: &Refusal, packet: &Packet) -> String {
    let came_in = packet.iif.is_some();
    let meaning = match refusal.errno {
        libc::ENETUNREACH => "there is no route",
        libc::EHOSTUNREACH if came_in => "there is no route, or an unreachable route, or forwarding is off",
        libc::EHOSTUNREACH => "an unreachable route",
        libc::EACCES => "a prohibit route",
        libc::EXDEV => {
            "the reverse path check (rp_filter): the route to the source does not use this interface"
        }
        libc::EINVAL if came_in => "a blackhole route, or addresses that are invalid for received packets",
        libc::EINVAL => "a blackhole route, or a source address that this namespace does not have",
        _ => return refusal.to_string(),
    };
    format!("{meaning} ({})", std::io::Error::from_raw_os_error(refusal.errno))
}
