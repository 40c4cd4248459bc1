//! The kernel, its settings, the links towards the peers, and the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

use trunkline_api::control::{AgentStatus, Peer};
use trunkline_datapath::naming::ALIAS_PREFIX;
use trunkline_datapath::netlink::lookup::{self, Packet};
use trunkline_datapath::netlink::objects::{self, LinkInfo};
use trunkline_datapath::netlink::{Batch, Connection};
use trunkline_datapath::sysctl::file;

use super::Finding;
use crate::clock::is_synchronised;

/// Minimum MTU of IPv6 (RFC 8200 §5).
const IPV6_MTU: u32 = 1280;
/// Number of neighbour entries for routers and other hosts, besides the entries of pods.
const OTHER_NEIGHBOURS: usize = 256;

/// All findings about the host.
pub(super) fn check(peers: &[Peer], status: Option<&AgentStatus>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(clock());
    findings.extend(version(&read("kernel/osrelease").unwrap_or_default()));
    let ipv6 = needs_ipv6(peers, status);
    findings.extend(WANTED.iter().filter_map(|wanted| wanted.check(read(wanted.path).as_deref(), ipv6)));
    match uplinks(peers) {
        Ok(Uplinks { links, unreachable }) => {
            findings.extend(unreachable);
            findings.extend(links.iter().flat_map(link));
            findings.extend(different_mtus(&links));
            findings.extend(reverse_path(&links));
        }
        Err(error) => findings.push(Finding::error(
            "kernel",
            format!("the kernel's links and routes cannot be read: {error}"),
            "run this as root on the host, with a kernel that has rtnetlink",
        )),
    }
    findings.extend(rewritten(&pod_links()));
    findings.extend(status.and_then(|status| neighbours(status.attachments)));
    findings
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(file(path)).ok()?.trim().to_owned())
}

/// The oldest tested kernel. It has IPv4 routes with IPv6 next hops, nexthop objects as FRR uses
/// them, and strict netlink checking.
const OLDEST: (u32, u32) = (5, 4);

fn version(release: &str) -> Option<Finding> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    let found = (numbers.next()??, numbers.next()??);
    (found < OLDEST).then(|| {
        let (major, minor) = OLDEST;
        let fix = format!("update the kernel to {major}.{minor} or later");
        Finding::error(
            "kernel",
            format!("the kernel is {release}, older than the oldest kernel that Trunkline is tested with"),
            fix,
        )
    })
}

/// A sysctl with the value that pods need.
struct RequiredSysctl {
    path: &'static str,
    good: &'static str,
    otherwise: &'static str,
    is_ipv6: bool,
}

const WANTED: [RequiredSysctl; 3] = [
    RequiredSysctl {
        path: "net/ipv4/ip_forward",
        good: "1",
        otherwise: "packets of pods are not forwarded (IPv4)",
        is_ipv6: false,
    },
    RequiredSysctl {
        path: "net/ipv6/conf/all/forwarding",
        good: "1",
        otherwise: "packets of pods are not forwarded (IPv6)",
        is_ipv6: true,
    },
    RequiredSysctl {
        path: "net/ipv6/conf/all/disable_ipv6",
        good: "0",
        otherwise: "IPv6 is switched off on this host",
        is_ipv6: true,
    },
];

impl RequiredSysctl {
    /// `ipv6`: whether the node has IPv6 peers or Subnets; none if unknown.
    fn check(&self, found: Option<&str>, ipv6: Option<bool>) -> Option<Finding> {
        let name = self.path.replace('/', ".");
        if self.is_ipv6 && ipv6 == Some(false) {
            return None;
        }
        match found {
            Some(found) if found == self.good => None,
            Some(found) => {
                let text = format!("{name} is {found}: {}", self.otherwise);
                let fix = format!(
                    "sysctl -w {name}={}, and look in /etc/sysctl.d for the file that sets another value",
                    self.good
                );
                // Without an agent it is unknown whether this host has IPv6 pods.
                let finding = if self.is_ipv6 && ipv6.is_none() { Finding::warning } else { Finding::error };
                Some(finding("sysctl", text, fix))
            }
            // A kernel without IPv6 has no such file, and no IPv6 pods.
            None if self.is_ipv6 => None,
            None => Some(Finding::error(
                "sysctl",
                format!("{name} cannot be read"),
                "mount /proc, and run this on the host",
            )),
        }
    }
}

/// Whether a peer or a Subnet of this node is IPv6; unknown without an agent.
fn needs_ipv6(peers: &[Peer], status: Option<&AgentStatus>) -> Option<bool> {
    let networks = &status?.networks;
    let mut cidrs = networks.iter().flat_map(|network| &network.subnets).filter_map(|subnet| subnet.cidr);
    Some(peers.iter().any(|peer| peer.address.is_ipv6()) || cidrs.any(|cidr| cidr.addr().is_ipv6()))
}

struct Uplinks {
    links: Vec<LinkInfo>,
    unreachable: Vec<Finding>,
}

/// The links to the peers, from the kernel's route look-up.
fn uplinks(peers: &[Peer]) -> Result<Uplinks, Box<dyn std::error::Error>> {
    let mut connection = Connection::open()?;
    let all: BTreeMap<u32, LinkInfo> = connection
        .list(Batch::dump_links, objects::read_link)?
        .into_iter()
        .map(|link| (link.index, link))
        .collect();
    let (mut indices, mut unreachable) = (BTreeSet::new(), Vec::new());
    for peer in peers {
        let known = peer.interface.as_ref();
        let found = match known {
            Some(name) => all.values().find(|link| link.name == *name).map(|link| link.index),
            None => leads_to(&mut connection, peer.address)?,
        };
        match found {
            Some(index) => drop(indices.insert(index)),
            None => {
                let text = match known {
                    Some(name) => format!("peer {}: there is no link {name}", peer.name()),
                    None => format!("peer {}: there is no route to it", peer.name()),
                };
                let fix = "give the link towards the peer an address of the peer's subnet, or add \
                           a route: `ip route get` shows the kernel's route";
                unreachable.push(Finding::error("route-to-peer", text, fix));
            }
        }
    }
    let links = all.into_values().filter(|link| indices.contains(&link.index)).collect();
    Ok(Uplinks { links, unreachable })
}

fn leads_to(
    connection: &mut Connection,
    destination: IpAddr,
) -> Result<Option<u32>, Box<dyn std::error::Error>> {
    let mut batch = Batch::new();
    batch.look_up(&Packet { destination, source: None, iif: None }, false);
    let outcome = connection.run(&mut batch)?;
    // The kernel refuses the request if the network is unreachable.
    let found = outcome.replies.iter().find_map(|(_, _, body)| lookup::read_found(body));
    Ok(found.and_then(|found| found.hops.first().and_then(|hop| hop.ifindex)))
}

fn link(link: &LinkInfo) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = &link.name;
    if !link.is_up() || !link.is_running() {
        let (what, fix) = match link.is_up() {
            false => ("is down", format!("ip link set {name} up")),
            true => ("has no carrier", "check the cable and the switch's port".to_owned()),
        };
        findings.push(Finding::error("links", format!("{name}, which leads to a peer, {what}"), fix));
    }
    if link.mtu < IPV6_MTU {
        findings.push(Finding::error(
            "mtu",
            format!("{name} has MTU {}: IPv6 needs {IPV6_MTU}", link.mtu),
            format!("ip link set {name} mtu 1500, or the MTU of the switch's port"),
        ));
    }
    findings
}

/// A packet that fits the MTU of one uplink can be too large for another uplink. Only some flows
/// fail then.
fn different_mtus(links: &[LinkInfo]) -> Option<Finding> {
    let mtus: BTreeSet<u32> = links.iter().map(|link| link.mtu).collect();
    (mtus.len() > 1).then(|| {
        let each: Vec<String> = links.iter().map(|link| format!("{} {}", link.name, link.mtu)).collect();
        Finding::warning(
            "mtu",
            format!("the links to the peers have different MTUs: {}", each.join(", ")),
            "set the same MTU on all: pods use the smallest, and packets from the fabric by another link may be larger",
        )
    })
}

/// The kernel uses the greater of two values: the link's value and the value of `all`. The value 1
/// means a strict check.
fn reverse_path(links: &[LinkInfo]) -> Vec<Finding> {
    let all = read("net/ipv4/conf/all/rp_filter").unwrap_or_default();
    let strict = links.iter().filter(|link| {
        let own = read(&format!("net/ipv4/conf/{}/rp_filter", link.name)).unwrap_or_default();
        own.as_str().max(all.as_str()) == "1"
    });
    strict
        .map(|link| {
            let name = &link.name;
            Finding::error(
                "rp_filter",
                format!(
                    "net.ipv4.conf.{name}.rp_filter is strict: packets that arrive on {name} are dropped if the reply would leave by another link"
                ),
                format!(
                    "sysctl -w net.ipv4.conf.{name}.rp_filter=2 (loose), and look in /etc/sysctl.d for the file that sets another value"
                ),
            )
        })
        .collect()
}

/// Settings that the agent writes for pods' links. udev or a file in /etc/sysctl.d may overwrite
/// them when a link is created.
const POD_LINK: [(&str, &str); 4] = [
    ("net/ipv6/conf/{}/accept_ra", "0"),
    ("net/ipv6/conf/{}/accept_redirects", "0"),
    ("net/ipv4/conf/{}/accept_redirects", "0"),
    ("net/ipv4/conf/{}/send_redirects", "0"),
];

/// The host interfaces of pods.
fn pod_links() -> Vec<String> {
    let links =
        Connection::open().and_then(|mut connection| connection.list(Batch::dump_links, objects::read_link));
    let own = |link: &LinkInfo| {
        let alias = link.alias.as_deref().unwrap_or_default();
        link.kind.as_deref() == Some("veth") && alias.starts_with(ALIAS_PREFIX)
    };
    links.unwrap_or_default().into_iter().filter(own).map(|link| link.name).collect()
}

/// A warning about overwritten settings. The guard drops such packets anyway; the warning matters
/// before an operator disables the guard.
fn rewritten(links: &[String]) -> Vec<Finding> {
    POD_LINK
        .into_iter()
        .filter_map(|(path, wanted)| {
            let differs = |link: &&String| {
                read(&path.replace("{}", link)).is_some_and(|value| value != wanted)
            };
            let found: Vec<&String> = links.iter().filter(differs).collect();
            let first = path.replace("{}", found.first()?).replace('/', ".");
            let text = format!("{first} is not {wanted}, on {} of {} pods' links", found.len(), links.len());
            let fix = "look in /etc/sysctl.d and in udev's rules for the writer of this setting for new links; the agent writes it again at its next start";
            Some(Finding::warning("pod-links", text, fix))
        })
        .collect()
}

/// Every pod has a permanent entry; a full table drops packets with "neighbour table overflow".
fn neighbours(pods: usize) -> Option<Finding> {
    let needed = pods + OTHER_NEIGHBOURS;
    ["ipv4", "ipv6"].into_iter().find_map(|family| {
        let most: usize = read(&format!("net/{family}/neigh/default/gc_thresh3"))?.parse().ok()?;
        (needed > most).then(|| {
            Finding::warning(
                "neighbours",
                format!("net.{family}.neigh.default.gc_thresh3 is {most}, and {pods} pods are attached"),
                format!(
                    "write `kernelLimits: {{neighbours: {}}}` into the agent's configuration",
                    4 * needed
                ),
            )
        })
    })
}

/// Certificates, leases and logs depend on the time of day.
fn clock() -> Option<Finding> {
    // A plausible time is after this program was written and before certificates expire.
    const SENSIBLE: std::ops::Range<i64> = 1_767_225_600..4_102_444_800;
    let now = k8s_openapi::jiff::Timestamp::now();
    if !SENSIBLE.contains(&now.as_second()) {
        return Some(Finding::error(
            "clock",
            format!("this host's clock shows {now}"),
            "set the clock, and run chrony or systemd-timesyncd: certificates of the API server \
             are not valid at the shown time",
        ));
    }
    (is_synchronised() == Some(false)).then(|| {
        Finding::warning(
            "clock",
            "this host's clock is not synchronised (according to the kernel)",
            "start chrony or systemd-timesyncd: logs and events of hosts can then be compared, and certificates stay valid",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    fn uplink(name: &str, mtu: u32, flags: i32) -> LinkInfo {
        LinkInfo { name: name.to_owned(), mtu, flags: flags as u32, ..LinkInfo::default() }
    }

    #[test]
    fn links_with_low_mtu_or_no_carrier_are_findings() {
        const WELL: i32 = libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOWER_UP;
        assert_eq!(link(&uplink("eth0", 1500, WELL)), []);
        let checks =
            |mtu, flags| link(&uplink("eth0", mtu, flags)).into_iter().map(|f| f.check).collect::<Vec<_>>();
        assert_eq!(checks(1500, 0), ["links"]);
        assert_eq!(checks(1500, libc::IFF_UP), ["links"]);
        assert_eq!(checks(1279, WELL), ["mtu"]);
        let same = [uplink("eth0", 9000, WELL), uplink("eth1", 9000, WELL)];
        assert_eq!(different_mtus(&same), None);
        let other = [uplink("eth0", 9000, WELL), uplink("eth1", 1500, WELL)];
        assert!(different_mtus(&other).unwrap().text.ends_with("eth0 9000, eth1 1500"));
    }

    #[test]
    fn ipv6_forwarding_is_required_only_with_ipv6() {
        let [ipv4, forwarding, disabled] = WANTED;
        let severity =
            |wanted: &RequiredSysctl, found, ipv6| wanted.check(found, ipv6).map(|finding| finding.severity);
        for (ipv6, expected) in
            [(Some(true), Some(Severity::Error)), (Some(false), None), (None, Some(Severity::Warning))]
        {
            assert_eq!(severity(&forwarding, Some("0"), ipv6), expected, "{ipv6:?}");
            assert_eq!(severity(&disabled, Some("1"), ipv6), expected, "{ipv6:?}");
            assert_eq!(severity(&ipv4, Some("0"), ipv6), Some(Severity::Error), "{ipv6:?}");
            assert_eq!(severity(&ipv4, None, ipv6), Some(Severity::Error), "{ipv6:?}");
            assert_eq!(severity(&forwarding, None, ipv6), None, "{ipv6:?}");
        }
        assert_eq!(severity(&forwarding, Some("1"), Some(true)), None);
    }

    #[test]
    fn old_kernels_are_a_finding() {
        for (release, old) in
            [("6.18.0-1-amd64", false), ("5.4.0", false), ("5.3.18-lp", true), ("4.19.0", true), ("x", false)]
        {
            assert_eq!(version(release).is_some(), old, "{release}");
        }
    }
}
