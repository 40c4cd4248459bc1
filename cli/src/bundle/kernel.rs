//! The kernel's tables over netlink: all rules, links, addresses and neighbours, and the routes of
//! the relevant tables. Only nftables needs a program (`nft`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_route::route::RouteType;
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::mac::show_mac;
use trunkline_datapath::netlink::lookup::{self, kind_name, table_name};
use trunkline_datapath::netlink::objects::{self, LinkInfo, MAIN_TABLE, PROTOCOL};
use trunkline_datapath::netlink::{Batch, Connection, vxlan};
use trunkline_datapath::plan::Hop;

use super::program;
use super::step::Sink;

/// Maximum number of listed neighbour entries, and of FDB entries of a device.
const ENTRIES: usize = 10_000;

type Links = BTreeMap<u32, LinkInfo>;

/// Collects all tables. `most`: maximum number of routes of a table.
pub(super) fn state(most: usize, sink: &Sink) -> anyhow::Result<()> {
    let mut connection = Connection::open()?;
    let listed = connection.list(Batch::dump_links, objects::read_link)?;
    let links: Links = listed.into_iter().map(|link| (link.index, link)).collect();
    sink.text("kernel/links.txt", show_links(&links))?;
    sink.either("kernel/addresses.txt", addresses(&mut connection, &links))?;
    let (rules, mut tables) = rules(&mut connection)?;
    sink.text("kernel/rules.txt", rules)?;
    tables.insert(MAIN_TABLE);
    sink.either("kernel/routes.txt", routes(&mut connection, &links, tables, most))?;
    sink.either("kernel/neighbours.txt", neighbours(&mut connection, &links))?;
    if links.values().any(|link| link.vxlan.is_some()) {
        sink.either("kernel/forwarding.txt", forwarding(&mut connection, &links))?;
    }
    Ok(())
}

fn name(links: &Links, index: u32) -> String {
    links.get(&index).map_or_else(|| format!("if{index}"), |link| link.name.clone())
}

fn show_links(links: &Links) -> String {
    let mut text = String::new();
    for link in links.values() {
        let _ = write!(text, "{}: {} mtu {}", link.index, link.name, link.mtu);
        text.push_str(if link.is_up() { " up" } else { " down" });
        text.push_str(if link.is_running() { " carrier" } else { " no-carrier" });
        let mut word = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = write!(text, " {name} {value}");
            }
        };
        word("mac", link.mac.as_ref().map(show_mac));
        word("kind", link.kind.clone());
        let other = |index| match link.peer_netns {
            Some(netns) => format!("if{index} in netns {netns}"),
            None => name(links, index),
        };
        word("link", link.peer.map(other));
        word("vlan", link.vlan_id.map(|id| id.to_string()));
        word("vrf-table", link.vrf_table.map(|table| table.to_string()));
        word(
            "vxlan",
            link.vxlan.as_ref().map(|it| format!("{} local {} port {}", it.vni, it.local, it.port)),
        );
        word("alias", link.alias.as_ref().map(|alias| format!("{alias:?}")));
        text.push('\n');
    }
    text
}

fn addresses(connection: &mut Connection, links: &Links) -> anyhow::Result<String> {
    let mut text = String::new();
    for family in IpFamily::ALL {
        for address in connection.list(|batch| batch.dump_addresses(family), objects::read_address)? {
            let own = if address.protocol == PROTOCOL { " # trunkline's" } else { "" };
            let _ = writeln!(text, "{} {}{own}", name(links, address.ifindex), address.prefix);
        }
    }
    Ok(text)
}

/// The rules, and the tables of Trunkline's rules.
fn rules(connection: &mut Connection) -> anyhow::Result<(String, BTreeSet<u32>)> {
    let (mut text, mut tables) = (String::new(), BTreeSet::new());
    for family in IpFamily::ALL {
        let _ = writeln!(text, "# {family}");
        let both = |body: &[u8]| Some((lookup::read_any_rule(body)?, objects::read_rule(body)?.protocol));
        for (rule, protocol) in connection.list(|batch| batch.dump_rules(family), both)? {
            let own = if protocol == PROTOCOL { " # trunkline's" } else { "" };
            let _ = writeln!(text, "{}: {}{own}", rule.priority, rule.text);
            tables.extend(rule.table.filter(|_| protocol == PROTOCOL));
        }
    }
    Ok((text, tables))
}

/// The routes of `tables` and all of Trunkline's routes. Other routes are only counted, so no full
/// foreign table is kept in memory.
fn routes(
    connection: &mut Connection,
    links: &Links,
    tables: BTreeSet<u32>,
    most: usize,
) -> anyhow::Result<String> {
    let mut text = String::new();
    for family in IpFamily::ALL {
        let listed = std::cell::RefCell::new(Listed::default());
        let mut batch = Batch::new();
        batch.dump_routes(family, false);
        connection.dump(
            &mut batch,
            || *listed.borrow_mut() = Listed::default(),
            |_, body| {
                let (Some(found), Some(route)) = (lookup::read_found(body), objects::read_route(body)) else {
                    return;
                };
                let mut listed = listed.borrow_mut();
                let count = listed.counts.entry((route.key.table, route.protocol)).or_default();
                *count += 1;
                let wanted = route.protocol == PROTOCOL || tables.contains(&route.key.table);
                if wanted && *count <= most {
                    let lines = listed.lines.entry(route.key.table).or_default();
                    show_route(lines, links, &found, route.metric, route.protocol);
                }
            },
        )?;
        let Listed { lines, counts } = listed.into_inner();
        let _ = writeln!(text, "# {family}: routes by table and protocol ({PROTOCOL} is Trunkline's)");
        for ((table, protocol), count) in &counts {
            let shown = lines.contains_key(table) && *count > most;
            let cut = if shown { format!(", of which {most} follow (--routes)") } else { String::new() };
            let _ = writeln!(text, "#   table {} proto {protocol}: {count}{cut}", table_name(*table));
        }
        for (table, lines) in lines {
            let _ = write!(text, "\ntable {}\n{lines}", table_name(table));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Routes by table, and their number by table and protocol.
#[derive(Default)]
struct Listed {
    lines: BTreeMap<u32, String>,
    counts: BTreeMap<(u32, u8), usize>,
}

fn show_route(text: &mut String, links: &Links, found: &lookup::FoundRoute, metric: u32, protocol: u8) {
    let kind = match found.kind {
        RouteType::Unicast => String::new(),
        kind => format!("{} ", kind_name(kind)),
    };
    let _ = write!(text, "  {kind}{}", found.prefix);
    for Hop { gateway, ifindex, onlink, .. } in &found.hops {
        let gateway = gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        let device = ifindex.map(|index| format!(" dev {}", name(links, index))).unwrap_or_default();
        let onlink = if *onlink { " onlink" } else { "" };
        let _ = write!(text, "{gateway}{device}{onlink}");
    }
    let source = found.source.map(|source| format!(" src {source}")).unwrap_or_default();
    let metric = if metric == 0 { String::new() } else { format!(" metric {metric}") };
    let _ = writeln!(text, "{source}{metric} proto {protocol}");
}

fn neighbours(connection: &mut Connection, links: &Links) -> anyhow::Result<String> {
    let mut text = String::new();
    for family in IpFamily::ALL {
        let read = |body: &[u8]| -> Option<(u32, IpAddr, Option<[u8; 6]>, &'static str)> {
            let (index, address) = objects::read_neighbour_address(body)?;
            let (mac, state) = lookup::read_neighbour_state(body)?;
            // Entries that need no resolution, such as those for multicast addresses, are not
            // listed.
            (state != "noarp").then_some((index, address, mac, state))
        };
        let found = connection.list(|batch| batch.dump_neighbours(family), read)?;
        let _ = writeln!(text, "# {family}: {}", found.len());
        for (index, address, mac, state) in found.iter().take(ENTRIES) {
            let mac = mac.as_ref().map_or_else(|| "-".to_owned(), show_mac);
            let _ = writeln!(text, "{address} dev {} {mac} {state}", name(links, *index));
        }
        for proxy in connection.list(|batch| batch.dump_proxies(family), objects::read_neighbour)? {
            if let objects::NeighbourEntry::Proxy(proxy) = proxy.entry {
                let _ = writeln!(text, "{} dev {} proxy", proxy.address, name(links, proxy.ifindex));
            }
        }
    }
    Ok(text)
}

/// The FDB entries of tunnels: MAC addresses and the nodes' VTEPs.
fn forwarding(connection: &mut Connection, links: &Links) -> anyhow::Result<String> {
    let mut text = String::new();
    for link in links.values().filter(|link| link.vxlan.is_some()) {
        let entries = connection.list(|batch| batch.dump_fdb(link.index), vxlan::read_fdb)?;
        let _ = writeln!(text, "# {}: {}", link.name, entries.len());
        for entry in entries.iter().take(ENTRIES) {
            let _ = writeln!(text, "{} dst {}", show_mac(&entry.mac), entry.vtep);
        }
    }
    Ok(text)
}

/// Lists the agent's tables of NAT and of network policies in nftables. Sets of network policies
/// can have very many elements, so they are left out.
pub(super) fn nftables(sink: &Sink) -> anyhow::Result<()> {
    table(sink, "kernel/nftables.txt", &[], "trunkline")?;
    table(sink, "kernel/nftables-policy.txt", &["--terse"], "trunkline-policy")
}

fn table(sink: &Sink, file: &str, options: &[&str], name: &str) -> anyhow::Result<()> {
    const WITHIN: Duration = Duration::from_secs(5);
    let arguments = [options, &["list", "table", "inet", name]].concat();
    match program::run("nft", &arguments, WITHIN) {
        Ok(printed) if printed.succeeded => sink.text(file, printed.text),
        // A table exists only if it has rules.
        Ok(printed) if printed.text.contains("No such file or directory") => {
            sink.text(file, format!("# there is no table inet {name}\n"))
        }
        Ok(printed) => sink.missing(file, format!("nft: {}", printed.text.trim())),
        Err(why) => sink.missing(file, why),
    }
}
