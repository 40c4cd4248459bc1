//! The fabric of a cluster as text: a topology for [`crate::topology`], its routers' configurations,
//! and every address.
//!
//! ```text
//!   control ── spine ── outside      control: etcd and the API server; outside: clients of Services
//!             │     │
//!           tor1   tor2 …            one ToR for each rack: FRR in odd racks, BIRD in even racks
//!           │  │   │  │
//!       node1 node3 node2 node4      node i is in rack (i - 1) % racks + 1
//! ```
//!
//! Every link has addresses of the cluster's families only, so an IPv6-only cluster has no IPv4
//! path anywhere.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cli::Families;

/// The most racks: their prefixes have one digit.
pub(crate) const MOST_RACKS: u8 = 8;
/// The most nodes: a machine has memory for few.
pub(crate) const MOST_NODES: u8 = 32;

/// Name of the namespace with etcd and the API server.
pub(crate) const CONTROL: &str = "control";
/// Name of the host beyond the fabric.
pub(crate) const OUTSIDE: &str = "outside";

impl Families {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Dual => "dual",
        }
    }

    /// The families, the default one first.
    fn all(self) -> &'static [Family] {
        match self {
            Self::Ipv4 => &[Family::V4],
            Self::Ipv6 => &[Family::V6],
            Self::Dual => &[Family::V4, Family::V6],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn digit(self) -> char {
        match self {
            Self::V4 => '4',
            Self::V6 => '6',
        }
    }

    fn ip(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip -6",
        }
    }
}

/// Number of nodes and racks, and the families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    pub nodes: u8,
    pub racks: u8,
    pub families: Families,
}

/// A LAN with a router at its first address.
#[derive(Debug, Clone, Copy)]
enum Lan {
    Rack(u8),
    Control,
    Outside,
}

impl Lan {
    fn number(self) -> u8 {
        match self {
            Self::Rack(rack) => rack,
            Self::Control => 100,
            Self::Outside => 200,
        }
    }

    /// The second octet of IPv4 addresses. One of upstream's tests takes addresses of the nodes' /16
    /// for the nodes' own, so the host beyond the fabric has another one.
    fn octet(self) -> u8 {
        match self {
            Self::Rack(_) | Self::Control => 77,
            Self::Outside => 76,
        }
    }

    /// Address number `host` of the LAN. The digits of an IPv6 address look like the number's.
    fn address(self, family: Family, host: u8) -> String {
        match family {
            Family::V4 => format!("10.{}.{}.{host}", self.octet(), self.number()),
            Family::V6 => format!("fd77:{}::{host}", self.number()),
        }
    }

    fn length(family: Family) -> u8 {
        match family {
            Family::V4 => 24,
            Family::V6 => 64,
        }
    }

    fn prefix(self, family: Family) -> String {
        match family {
            Family::V4 => format!("10.{}.{}.0/24", self.octet(), self.number()),
            Family::V6 => format!("fd77:{}::/64", self.number()),
        }
    }
}

/// The link between the spine (first) and the ToR of a rack (second).
fn uplink(rack: u8, family: Family) -> [String; 2] {
    match family {
        Family::V4 => [format!("10.78.{rack}.0"), format!("10.78.{rack}.1")],
        Family::V6 => [format!("fd78:{rack}::1"), format!("fd78:{rack}::2")],
    }
}

fn uplink_length(family: Family) -> u8 {
    match family {
        Family::V4 => 31,
        Family::V6 => 64,
    }
}

/// The addresses for Services of type LoadBalancer.
fn load_balancers(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.79.0.0/24",
        Family::V6 => "fd79::/112",
    }
}

fn pods(rack: u8, family: Family) -> String {
    match family {
        Family::V4 => format!("10.{}.0.0/20", 80 + u16::from(rack)),
        Family::V6 => format!("fd80:{rack}::/112"),
    }
}

const SPINE_AS: u32 = 65000;

fn tor_as(rack: u8) -> u32 {
    65010 + u32::from(rack)
}

/// The AS number of the nodes of a rack, and the `netID` of its Network.
fn node_as(rack: u8) -> u32 {
    65100 + u32::from(rack)
}

/// The host number of a node in its rack's LAN.
fn host_number(node: u8) -> u8 {
    10 + node
}

impl Layout {
    /// Checks the numbers.
    pub(crate) fn new(nodes: u8, racks: u8, families: Families) -> Result<Self> {
        ensure!((1..=MOST_RACKS).contains(&racks), "--racks {racks}: from 1 to {MOST_RACKS}");
        ensure!(
            (racks..=MOST_NODES).contains(&nodes),
            "--nodes {nodes}: from {racks}, one for each rack, to {MOST_NODES}"
        );
        Ok(Self { nodes, racks, families })
    }

    pub(crate) fn node_names(&self) -> impl Iterator<Item = String> + use<> {
        (1..=self.nodes).map(|node| format!("node{node}"))
    }

    /// The rack of a node.
    fn rack(&self, node: u8) -> u8 {
        (node - 1) % self.racks + 1
    }

    /// The label `network` of a node: its rack.
    pub(crate) fn rack_label(&self, node: &str) -> Result<String> {
        Ok(format!("rack{}", self.rack(number(node)?)))
    }

    /// The zone of a node. There are three, as far as there are nodes, in every rack.
    pub(crate) fn zone(&self, node: &str) -> Result<String> {
        Ok(format!("zone{}", (number(node)? - 1) % 3 + 1))
    }

    /// The addresses of a node, the default family's first.
    pub(crate) fn node_addresses(&self, node: &str) -> Result<Vec<IpAddr>> {
        let node = number(node)?;
        let lan = Lan::Rack(self.rack(node));
        self.families
            .all()
            .iter()
            .map(|family| Ok(lan.address(*family, host_number(node)).parse()?))
            .collect()
    }

    /// The addresses of the API server, the default family's first.
    pub(crate) fn control_addresses(&self) -> Result<Vec<IpAddr>> {
        self.families.all().iter().map(|family| Ok(Lan::Control.address(*family, 10).parse()?)).collect()
    }

    /// The prefixes of cluster IPs, the default family's first.
    pub(crate) fn service_prefixes(&self) -> Vec<&'static str> {
        self.families
            .all()
            .iter()
            .map(|family| match family {
                Family::V4 => "10.96.0.0/16",
                Family::V6 => "fd00:96::/112",
            })
            .collect()
    }

    /// The cluster IPs of the API server: the first addresses of the prefixes.
    pub(crate) fn kubernetes_service(&self) -> Vec<IpAddr> {
        let address = |family: &Family| match family {
            Family::V4 => Ipv4Addr::new(10, 96, 0, 1).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1).into(),
        };
        self.families.all().iter().map(address).collect()
    }

    /// The cluster IPs of the DNS Service.
    pub(crate) fn dns_service(&self) -> Vec<IpAddr> {
        let address = |family: &Family| match family {
            Family::V4 => Ipv4Addr::new(10, 96, 0, 10).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 10).into(),
        };
        self.families.all().iter().map(address).collect()
    }

    /// The chart's `defaultIPFamily`.
    pub(crate) fn chart_family(&self) -> &'static str {
        match self.families {
            Families::Ipv4 => "IPv4",
            Families::Ipv6 => "IPv6",
            Families::Dual => "DualStack",
        }
    }

    /// A Network and its Subnets for each rack.
    pub(crate) fn networks(&self) -> String {
        let mut yaml = String::new();
        for rack in 1..=self.racks {
            let lan = Lan::Rack(rack);
            let peers: Vec<String> = self
                .families
                .all()
                .iter()
                .map(|family| format!("{{asn: {}, address: '{}'}}", tor_as(rack), lan.address(*family, 1)))
                .collect();
            yaml += &format!(
                "---
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: {{name: rack{rack}}}
spec:
  type: Underlay
  mode: BGP
  netID: {}
  nodeSelector: {{network: rack{rack}}}
  config: {{bgpPeers: [{}]}}
",
                node_as(rack),
                peers.join(", ")
            );
            for family in self.families.all() {
                yaml += &format!(
                    "---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: {{name: rack{rack}-v{0}}}
spec: {{network: rack{rack}, range: {{version: '{0}', cidr: '{1}'}}}}
",
                    family.digit(),
                    pods(rack, *family)
                );
            }
        }
        yaml
    }

    /// The pool of addresses for Services of type LoadBalancer.
    pub(crate) fn pool(&self) -> String {
        let addresses: Vec<String> =
            self.families.all().iter().map(|family| format!("'{}'", load_balancers(*family))).collect();
        format!(
            "---
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: {{name: lab}}
spec: {{addresses: [{}]}}
",
            addresses.join(", ")
        )
    }

    /// Writes the topology file `NAME.clab.yml` and the files that it binds into a folder.
    pub(crate) fn write(&self, name: &str, folder: &Path) -> Result<()> {
        for (path, text) in self.files(name) {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().context("the folder of a file")?)?;
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn files(&self, name: &str) -> Vec<(PathBuf, String)> {
        let mut files = vec![
            (PathBuf::from(format!("{name}.clab.yml")), self.topology(name)),
            (PathBuf::from(format!("{name}/spine/bird.conf")), self.spine()),
            (PathBuf::from(format!("{name}/daemons")), DAEMONS.to_owned()),
        ];
        for rack in 1..=self.racks {
            files.push(if is_frr(rack) {
                (format!("{name}/tor{rack}/frr.conf").into(), self.frr(rack))
            } else {
                (format!("{name}/tor{rack}/bird.conf").into(), self.bird(rack))
            });
        }
        files
    }

    fn topology(&self, name: &str) -> String {
        let mut yaml = format!("name: {name}\n\n{HEAD}  nodes:\n");
        let mut links = String::from("  links:\n");
        let mut link = |a: &str, b: &str| {
            let _infallible = write!(links, "    - endpoints: [\"{a}\", \"{b}\"]\n      mtu: 1500\n");
        };
        let families = self.families.all();

        yaml += &router("spine", "bird:2", &[(format!("{name}/spine/bird.conf"), "/etc/bird/bird.conf")]);
        for (interface, lan) in [("control", Lan::Control), ("outside", Lan::Outside)] {
            for family in families {
                yaml += &exec(&format!(
                    "ip addr add {}/{} dev {interface}",
                    lan.address(*family, 1),
                    Lan::length(*family)
                ));
            }
        }
        for rack in 1..=self.racks {
            for family in families {
                let [spine, _] = uplink(rack, *family);
                yaml += &exec(&format!("ip addr add {spine}/{} dev rack{rack}", uplink_length(*family)));
            }
            link(&format!("spine:rack{rack}"), &format!("tor{rack}:spine"));
        }
        for (host, lan) in [(CONTROL, Lan::Control), (OUTSIDE, Lan::Outside)] {
            yaml += &format!(
                "    {host}:\n      kind: linux\n      image: trunkline-lab/host:latest\n      exec:\n"
            );
            yaml += &self.attached(lan, 10);
            link(&format!("spine:{host}"), &format!("{host}:eth1"));
        }
        for rack in 1..=self.racks {
            yaml += &self.tor(name, rack);
        }
        for node in 1..=self.nodes {
            let rack = self.rack(node);
            yaml += &format!(
                "    node{node}:\n      kind: linux\n      image: trunkline-lab/host:latest\n      labels: {{ role: node, rack: \"{rack}\" }}\n      exec:\n"
            );
            yaml += &self.attached(Lan::Rack(rack), host_number(node));
            link(&format!("tor{rack}:node{node}"), &format!("node{node}:eth1"));
        }
        yaml + "\n" + &links
    }

    fn tor(&self, name: &str, rack: u8) -> String {
        let folder = format!("{name}/tor{rack}");
        let mut yaml = if is_frr(rack) {
            let binds = [
                (format!("{folder}/frr.conf"), "/etc/frr/frr.conf"),
                (format!("{name}/daemons"), "/etc/frr/daemons"),
            ];
            router(&format!("tor{rack}"), "frr:8.4", &binds)
        } else {
            router(&format!("tor{rack}"), "bird:2", &[(format!("{folder}/bird.conf"), "/etc/bird/bird.conf")])
        };
        yaml += &exec("ip link add rack type bridge mcast_snooping 0");
        for node in (1..=self.nodes).filter(|node| self.rack(*node) == rack) {
            yaml += &exec(&format!("ip link set node{node} master rack"));
        }
        for family in self.families.all() {
            let [_, tor] = uplink(rack, *family);
            let lan = Lan::Rack(rack).address(*family, 1);
            yaml += &exec(&format!("ip addr add {lan}/{} dev rack", Lan::length(*family)));
            yaml += &exec(&format!("ip addr add {tor}/{} dev spine", uplink_length(*family)));
        }
        yaml + &exec("ip link set rack up")
    }

    /// The addresses and default routes of a host in a LAN.
    fn attached(&self, lan: Lan, host: u8) -> String {
        let mut lines = String::new();
        for family in self.families.all() {
            lines += &exec(&format!(
                "ip addr add {}/{} dev eth1",
                lan.address(*family, host),
                Lan::length(*family)
            ));
            lines += &exec(&format!("{} route add default via {}", family.ip(), lan.address(*family, 1)));
        }
        lines
    }

    fn spine(&self) -> String {
        let mut conf =
            String::from("log \"/var/log/bird.log\" all;\nrouter id 10.78.0.1;\n\nprotocol device {\n}\n\n");
        conf += &self.bird_kernel();
        for rack in 1..=self.racks {
            for family in self.families.all() {
                let [spine, tor] = uplink(rack, *family);
                let digit = family.digit();
                conf += &format!(
                    "protocol bgp tor{rack}_v{digit} {{
    local {spine} as {SPINE_AS};
    neighbor {tor} as {};
    connect delay time 1;
    connect retry time 1;
    error wait time 1, 2;
    ipv{digit} {{
        import all;
        export all;
    }};
}}

",
                    tor_as(rack)
                );
            }
        }
        conf
    }

    /// Routes of interfaces in BIRD's tables, and BGP routes in the kernel's.
    fn bird_kernel(&self) -> String {
        let mut conf = String::from("protocol direct {\n");
        for family in self.families.all() {
            conf += &format!("    ipv{};\n", family.digit());
        }
        conf += "}\n\n";
        for family in self.families.all() {
            conf += &format!(
                "protocol kernel {{
    ipv{} {{
        export where source = RTS_BGP;
    }};
    merge paths yes limit 16;
}}

",
                family.digit()
            );
        }
        conf
    }

    fn bird(&self, rack: u8) -> String {
        let (own, nodes) = (tor_as(rack), node_as(rack));
        let mut conf = format!(
            "log \"/var/log/bird.log\" all;\nrouter id 10.78.{rack}.1;\n\nprotocol device {{\n}}\n\n"
        );
        conf += &self.bird_kernel();
        for family in self.families.all() {
            let digit = family.digit();
            let (lan, default) = match family {
                Family::V4 => (Lan::Rack(rack), "0.0.0.0/0"),
                Family::V6 => (Lan::Rack(rack), "::/0"),
            };
            let [spine, tor] = uplink(rack, *family);
            conf += &format!(
                "# The default route that the nodes receive. It does not go into the kernel.
protocol static default{digit} {{
    ipv{digit};
    route {default} blackhole;
}}

protocol bgp nodes{digit} {{
    local {address} as {own};
    neighbor range {range} as {nodes};
    dynamic name \"node{digit}_\";
    error wait time 1, 2;
    graceful restart aware;
    ipv{digit} {{
        import all;
        export where proto = \"default{digit}\";
    }};
}}

protocol bgp spine{digit} {{
    local {tor} as {own};
    neighbor {spine} as {SPINE_AS};
    connect delay time 1;
    connect retry time 1;
    error wait time 1, 2;
    ipv{digit} {{
        import all;
        export where source = RTS_BGP || source = RTS_DEVICE;
    }};
}}

",
                address = lan.address(*family, 1),
                range = lan.prefix(*family),
            );
        }
        conf
    }

    fn frr(&self, rack: u8) -> String {
        let mut conf = format!(
            "frr defaults traditional
hostname tor{rack}
log file /var/log/frr/frr.log informational
service integrated-vtysh-config
!
zebra work-queue 0
!
router bgp {}
 bgp router-id 10.78.{rack}.1
 bgp log-neighbor-changes
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp bestpath as-path multipath-relax
 timers bgp 10 30
",
            tor_as(rack)
        );
        for family in self.families.all() {
            let (digit, [spine, _]) = (family.digit(), uplink(rack, *family));
            conf += &format!(
                " neighbor NODES{digit} peer-group
 neighbor NODES{digit} remote-as {}
 bgp listen range {} peer-group NODES{digit}
 neighbor {spine} remote-as {SPINE_AS}
 neighbor {spine} timers connect 1
",
                node_as(rack),
                Lan::Rack(rack).prefix(*family)
            );
        }
        for family in self.families.all() {
            let (digit, [spine, _]) = (family.digit(), uplink(rack, *family));
            conf += &format!(
                " !
 address-family ipv{digit} unicast
  redistribute connected
  neighbor NODES{digit} activate
  neighbor NODES{digit} default-originate
  neighbor NODES{digit} prefix-list DEFAULT{digit} out
  neighbor {spine} activate
  maximum-paths 16
 exit-address-family
"
            );
        }
        conf += "exit\n!\n";
        for family in self.families.all() {
            conf += match family {
                Family::V4 => "ip prefix-list DEFAULT4 seq 10 permit 0.0.0.0/0\n",
                Family::V6 => "ipv6 prefix-list DEFAULT6 seq 10 permit ::/0\n",
            };
        }
        conf + "!\nend\n"
    }
}

/// Odd racks have FRR, even racks BIRD.
fn is_frr(rack: u8) -> bool {
    rack % 2 == 1
}

/// The number of `nodeN`.
fn number(node: &str) -> Result<u8> {
    let digits = node.strip_prefix("node").with_context(|| format!("{node} is no node of the cluster"))?;
    digits.parse().with_context(|| format!("{node} is no node of the cluster"))
}

fn exec(line: &str) -> String {
    format!("        - {line}\n")
}

fn router(name: &str, image: &str, binds: &[(String, &str)]) -> String {
    let mut yaml =
        format!("    {name}:\n      kind: linux\n      image: trunkline-lab/{image}\n      binds:\n");
    for (source, target) in binds {
        yaml += &format!("        - {source}:{target}\n");
    }
    yaml + "      exec:\n"
}

/// Settings of every node. The routers choose a path by the two addresses only: Services with
/// session affinity need this.
const HEAD: &str = "topology:
  defaults:
    network-mode: none
  kinds:
    linux:
      sysctls:
        net.ipv4.ip_forward: 1
        net.ipv4.fib_multipath_hash_policy: 3
        net.ipv4.fib_multipath_hash_fields: 3
        net.ipv6.conf.all.forwarding: 1
        net.ipv6.fib_multipath_hash_policy: 3
        net.ipv6.fib_multipath_hash_fields: 3
        net.ipv6.conf.all.accept_dad: 0
        net.ipv6.conf.default.accept_dad: 0
        net.ipv6.conf.all.keep_addr_on_down: 1
";

const DAEMONS: &str = "zebra=yes
bgpd=yes
vtysh_enable=yes
zebra_options=\"-A 127.0.0.1 -s 16777216\"
bgpd_options=\"-A 127.0.0.1\"
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Image, Topology};

    fn load(layout: Layout) -> Topology {
        let folder = tempfile::tempdir().expect("a folder");
        layout.write("cluster", folder.path()).expect("files");
        Topology::load(&folder.path().join("cluster.clab.yml")).expect("a topology")
    }

    #[test]
    fn every_size_and_family_is_a_valid_topology() {
        for families in [Families::Ipv4, Families::Ipv6, Families::Dual] {
            for (nodes, racks) in [(1, 1), (2, 1), (4, 2), (5, 3), (MOST_NODES, MOST_RACKS)] {
                let layout = Layout::new(nodes, racks, families).expect("numbers");
                let topology = load(layout);
                assert_eq!(topology.nodes.len(), usize::from(3 + racks + nodes));
                assert_eq!(topology.links.len(), usize::from(2 + racks + nodes));
                let frr = topology.with_image(Image::Frr).count();
                assert_eq!(frr, usize::from(racks.div_ceil(2)));
            }
        }
    }

    #[test]
    fn an_ipv6_only_cluster_has_no_ipv4_address() {
        let layout = Layout::new(2, 2, Families::Ipv6).expect("numbers");
        let text: String = layout.files("cluster").into_iter().map(|(_, text)| text).collect();
        assert!(!text.contains("10.77.") && !text.contains("10.76."), "{text}");
        assert!(!layout.networks().contains("10."), "{}", layout.networks());
        assert_eq!(layout.service_prefixes(), ["fd00:96::/112"]);
    }

    #[test]
    fn nodes_are_spread_over_the_racks() {
        let layout = Layout::new(5, 2, Families::Dual).expect("numbers");
        let racks: Vec<String> =
            layout.node_names().map(|node| layout.rack_label(&node).expect("a rack")).collect();
        assert_eq!(racks, ["rack1", "rack2", "rack1", "rack2", "rack1"]);
        let addresses = layout.node_addresses("node4").expect("addresses");
        assert_eq!(addresses, ["10.77.2.14".parse::<IpAddr>().unwrap(), "fd77:2::14".parse().unwrap()]);
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused() {
        for (nodes, racks) in [(0, 1), (1, 0), (1, 2), (40, 1), (20, 9)] {
            let error = Layout::new(nodes, racks, Families::Dual).expect_err("refused").to_string();
            assert!(error.starts_with("--"), "{error}");
        }
    }
}
