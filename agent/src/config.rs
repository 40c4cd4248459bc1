//! The agent's own configuration: one YAML file, read once at start. AgentSettings can replace some of
//! its fields ([`crate::settings`]).
//!
//! It contains only settings of this process and this host. Examples: the paths of the store, the
//! socket and the manifests, BGP's listen addresses, the log level. Networks, subnets and peers are
//! resources of the source, and may change while the agent runs. An unknown field is an error:
//! otherwise a misspelt setting would silently have no effect.

mod links;
mod overlay;
mod probes;
mod remote;
pub mod schema;
mod services;
mod sysctls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use trunkline_api::resources::LabelSelector;
pub use trunkline_api::resources::{ServiceProxyKind, UnknownOverlayAddresses, VlanArpSender};
use trunkline_bgp::bmp::StationConfig;
use trunkline_daemon::logging::Log;
use trunkline_datapath::link_check::CheckTimeouts;

pub use self::probes::ProbeConfig;
pub use self::remote::RemoteClustersConfig;
pub use self::services::{ServiceProxyConfig, ServicesConfig};
pub use self::sysctls::SysctlsConfig;
use crate::page::Access;
use crate::plan::{GuardSettings, KernelLimits, LinkChoice, ProbeSettings, RequestedSysctls, Tunnels};
use crate::probe::Settings;
use crate::source::kube::{KubeConfig, SourceKind};
use crate::telemetry::config::TelemetryConfig;
use crate::text_kinds::{AddressAndPort, FilePath, Prefix};

/// The content of the `--config` file. Every field has a default; an empty file is a valid
/// configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The name of this node. Default: `NODE_NAME` from the environment, otherwise the host's name.
    pub node_name: Option<String>,
    /// Labels of this node, matched by the `nodeSelector` of a Network. Default of
    /// `kubernetes.io/hostname`: the node's name.
    pub node_labels: BTreeMap<String, String>,
    /// The source of networks, subnets and pods' addresses.
    pub source: SourceKind,
    /// Access to the API server, with `source: kube`.
    pub kube: KubeConfig,
    /// The controller's `--pod-label-selector`, with `source: kube`: the ADD of another pod fails at
    /// once, with this reason. Empty: every pod.
    pub pod_label_selector: String,
    /// Folder of Network and Subnet manifests, watched; with `source: manifests`.
    #[schemars(with = "FilePath")]
    pub manifests: PathBuf,
    /// Unix socket of the plugin and of the operator's commands.
    #[schemars(with = "FilePath")]
    pub socket: PathBuf,
    /// File of the local address allocations.
    #[schemars(with = "FilePath")]
    pub store: PathBuf,
    /// The address of `/metrics`, `/healthz`, `/readyz` and the page. The default is a loopback
    /// address, because these endpoints need no password.
    #[schemars(with = "AddressAndPort")]
    pub http_address: SocketAddr,
    /// The clients that may see the page, which is served at `httpAddress`.
    pub page: Access,
    /// Addresses and port on which BGP sessions are accepted. Empty: none, and this node opens
    /// every session.
    #[schemars(with = "Vec<AddressAndPort>")]
    pub listen: Vec<SocketAddr>,
    /// The BGP identifier. Default: the lowest IPv4 address of the links to the peers, otherwise of
    /// the host.
    #[serde(rename = "routerID")]
    pub router_id: Option<Ipv4Addr>,
    /// This node's cluster ID in CLUSTER_LIST if peers have `routeReflectorClient` (RFC 4456). All
    /// reflectors of one cluster have the same ID. Default: the BGP identifier.
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<Ipv4Addr>,
    /// Links that may carry the VLANs of VLAN networks: the first existing link is used. An entry is
    /// a name, a regular expression such as `/^eth[0-9]+$/` (the first matching link by interface
    /// index), or `can-reach=ADDRESS` (the link of the kernel's route to this address). Empty: the
    /// link of the default route.
    pub vlan_interfaces: Vec<String>,
    /// The sender of this node's ARP requests on VLAN devices. Some gateways do not answer a sender
    /// outside of their subnet: they need `pod`.
    #[serde(rename = "vlanARPSender")]
    pub vlan_arp_sender: VlanArpSender,
    /// The largest MTU of new pods, in octets. It only lowers the MTU that follows from the links.
    /// Default: the MTU of the links to the peers or of the link with the VLANs, or the tunnel's.
    #[serde(rename = "podMTU")]
    #[schemars(range(min = 1280, max = 65535))]
    pub pod_mtu: Option<u16>,
    /// Maximum time for which the first route selection after a restart of the agent waits for the
    /// peers' End-of-RIB, in seconds (RFC 4724 §4.1).
    #[schemars(range(min = 1, max = 3600))]
    pub selection_deferral_seconds: u16,
    /// Maximum number of next hops of one route.
    #[schemars(range(min = 1, max = 64))]
    pub max_paths: u8,
    /// Prefixes of Services. A pod with an IPVLAN slave reaches them through the host, which
    /// translates Services, and not in its VLAN.
    #[serde(rename = "serviceCIDRs")]
    #[schemars(with = "BTreeSet<Prefix>")]
    pub service_cidrs: BTreeSet<IpNet>,
    /// Links of the tunnels of mode VXLAN: the first existing link is used. The entries are those of
    /// `vlanInterfaces`. Default: the link of the default route.
    pub vxlan_interfaces: Vec<String>,
    /// Prefixes for this node's VTEP. The VTEP is the first address of the tunnels' link in one of
    /// these prefixes, unless the NodeInfo contains a VTEP.
    #[serde(rename = "vtepAddressCIDRs")]
    #[schemars(with = "Vec<Prefix>")]
    pub vtep_address_cidrs: Vec<IpNet>,
    /// UDP port of the tunnels, equal on every node.
    #[schemars(range(min = 1))]
    pub vxlan_port: u16,
    /// Prefixes of this node's addresses on other links than the tunnels'. With `source: kube`, the
    /// NodeInfo contains the addresses in these prefixes that the Node has too
    /// (`vtepInfo.localIPs`): overlay pods reach them through the tunnel, with their own addresses
    /// as source. `0.0.0.0/0` and `::/0` are all addresses of the Node. Default: only addresses of
    /// the tunnels' link.
    #[serde(rename = "vtepLocalAddressCIDRs")]
    #[schemars(with = "Vec<Prefix>")]
    pub vtep_local_address_cidrs: Vec<IpNet>,
    /// Prefixes of the addresses of all nodes in the overlay. The agent ignores other addresses in
    /// the NodeInfos of other nodes, because a compromised node can write any address there.
    /// Default: an entry of `localIPs` must be in a connected prefix of this node's uplinks. Write
    /// them if nodes of other racks have addresses of both families, or `vtepLocalAddressCIDRs`.
    #[serde(rename = "nodeAddressCIDRs")]
    #[schemars(with = "Vec<Prefix>")]
    pub node_address_cidrs: Vec<IpNet>,
    /// What happens to packets to an address of an overlay Subnet that no pod has.
    pub unknown_overlay_addresses: UnknownOverlayAddresses,
    /// The guard against packets that pods and foreign tunnels may not send.
    pub guard: GuardConfig,
    /// Limits of the kernel that many neighbours and IPv6 routes reach.
    pub kernel_limits: KernelLimitsConfig,
    /// Prefixes that remote clusters may use.
    pub remote_clusters: RemoteClustersConfig,
    /// Settings of the kernel that the agent writes only on request.
    pub sysctls: SysctlsConfig,
    /// BMP monitoring stations (RFC 7854), which receive the state of the BGP sessions and paths.
    pub bmp: Bmp,
    /// Probes of the routers.
    pub probes: ProbeConfig,
    /// Advertisement of Services' addresses.
    pub services: ServicesConfig,
    /// Enforcement of network policies.
    pub network_policies: NetworkPoliciesConfig,
    /// With `source: kube`: the agent writes the node, the sandbox and the pod into the status of
    /// each attached pod's IPInstances. False saves one request for each address. If two IPInstances
    /// have one address, the controller then knows its user only from the kubelet's report.
    #[serde(rename = "updateIPInstanceStatus")]
    pub update_ip_instance_status: bool,
    /// The readiness of pods.
    pub readiness: Readiness,
    /// The drain of this node.
    pub drain: DrainConfig,
    /// Checks on a VLAN before a pod uses it.
    pub vlan_check: VlanCheck,
    /// Export of telemetry data.
    pub telemetry: TelemetryConfig,
    /// The log.
    pub log: Log,
}

/// The guard against packets that pods and foreign tunnels may not send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GuardConfig {
    /// The agent maintains the nftables tables `inet trunkline-guard` and `arp trunkline-guard`.
    /// Disable this only if your own rules enforce the list in `docs/security.md`.
    pub enabled: bool,
}

impl Default for GuardConfig {
    fn default() -> Self {
        GuardConfig { enabled: true }
    }
}

/// Limits of the kernel, for both IP families and all network namespaces of the host. The agent only
/// raises a limit: a greater value stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KernelLimitsConfig {
    /// Neighbour entries (ARP, ND) of the host: `net.*.neigh.default.gc_thresh3`. `gc_thresh2` is the
    /// half of it and `gc_thresh1` a quarter. 0: the agent writes none of them.
    #[schemars(range(max = 16_777_216))]
    pub neighbours: u32,
    /// IPv6 routes and exceptions: `net.ipv6.route.max_size`. `net.ipv6.route.gc_thresh` is an eighth
    /// of it. 0: the agent writes none of them.
    #[schemars(range(max = 16_777_216))]
    pub ipv6_routes: u32,
}

impl KernelLimitsConfig {
    fn check(&self) -> Result<(), (&'static str, String)> {
        const MOST: u32 = 1 << 24;
        for (field, value) in
            [("kernelLimits.neighbours", self.neighbours), ("kernelLimits.ipv6Routes", self.ipv6_routes)]
        {
            if value > MOST {
                return Err((field, format!("{value} is out of range: write 0 to {MOST}")));
            }
        }
        Ok(())
    }
}

/// hybridnet's values.
impl Default for KernelLimitsConfig {
    fn default() -> Self {
        KernelLimitsConfig { neighbours: 4096, ipv6_routes: 524_288 }
    }
}

/// Enforcement of network policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkPoliciesConfig {
    /// The agent enforces NetworkPolicies and ClusterNetworkPolicies for the pods of this node, in
    /// the nftables table `inet trunkline-policy`. Disable this only if another program enforces
    /// them.
    pub enabled: bool,
    /// Other programs cannot change this table, and `nft flush ruleset` skips it (Linux 6.9). Disable
    /// this to change the table by hand for a diagnosis.
    pub protect_table: bool,
}

impl Default for NetworkPoliciesConfig {
    fn default() -> Self {
        NetworkPoliciesConfig { enabled: true, protect_table: true }
    }
}

/// BMP monitoring stations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Bmp {
    /// Their addresses and ports. The agent connects to them, and reconnects.
    #[schemars(with = "Vec<AddressAndPort>")]
    pub stations: Vec<SocketAddr>,
    /// Time between Stats Reports, in seconds; 0: none.
    #[schemars(range(max = 3600))]
    pub stats_seconds: u16,
}

/// The readiness of pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Readiness {
    /// Maximum time for which an ADD waits until an established peer has received the pod's
    /// addresses, in seconds.
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: u16,
}

/// The drain of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DrainConfig {
    /// Time for the fabric to use other paths in `trunkline drain`, in seconds. It starts when
    /// every peer has received GRACEFUL_SHUTDOWN (RFC 8326). It ends when this node withdraws its
    /// prefixes.
    #[schemars(range(max = 3600))]
    pub settle_seconds: u16,
    /// Whether a node that is cordoned in Kubernetes drains once its pods are gone (`kubectl
    /// drain`), and undrains at the end of the cordon (`kubectl uncordon`). Needs `source: kube`.
    pub follow_cordon: bool,
}

/// Checks on a VLAN before a pod uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VlanCheck {
    /// Time limit for the subnet's gateway to answer ARP or Neighbour Discovery, in seconds.
    #[schemars(range(min = 1, max = 60))]
    pub timeout_seconds: u16,
    /// Time for another host with the pod's address to answer, in milliseconds; 0: no duplicate
    /// address check.
    #[schemars(range(max = 10_000))]
    pub duplicate_address_wait_milliseconds: u16,
}

impl Default for Config {
    fn default() -> Self {
        let Tunnels { vteps, port, local_addresses, .. } = Tunnels::default();
        Config {
            node_name: None,
            node_labels: BTreeMap::new(),
            source: SourceKind::default(),
            kube: KubeConfig::default(),
            pod_label_selector: String::new(),
            manifests: PathBuf::from("/etc/trunkline/manifests"),
            socket: PathBuf::from("/run/trunkline/agent.sock"),
            store: PathBuf::from("/var/lib/trunkline/store.redb"),
            http_address: SocketAddr::from((Ipv4Addr::LOCALHOST, 9473)),
            page: Access::default(),
            listen: vec![
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, 179)),
                SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 179)),
            ],
            router_id: None,
            cluster_id: None,
            vlan_interfaces: Vec::new(),
            vlan_arp_sender: VlanArpSender::default(),
            pod_mtu: None,
            selection_deferral_seconds: 120,
            max_paths: 16,
            service_cidrs: BTreeSet::new(),
            vxlan_interfaces: Vec::new(),
            vtep_address_cidrs: vteps,
            vxlan_port: port,
            vtep_local_address_cidrs: local_addresses,
            node_address_cidrs: Vec::new(),
            unknown_overlay_addresses: UnknownOverlayAddresses::default(),
            guard: GuardConfig::default(),
            kernel_limits: KernelLimitsConfig::default(),
            remote_clusters: RemoteClustersConfig::default(),
            sysctls: SysctlsConfig::default(),
            bmp: Bmp::default(),
            probes: ProbeConfig::default(),
            services: ServicesConfig::default(),
            network_policies: NetworkPoliciesConfig::default(),
            update_ip_instance_status: true,
            readiness: Readiness::default(),
            drain: DrainConfig::default(),
            vlan_check: VlanCheck::default(),
            telemetry: TelemetryConfig::default(),
            log: Log::default(),
        }
    }
}

impl Default for Bmp {
    fn default() -> Self {
        Bmp { stations: Vec::new(), stats_seconds: 60 }
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Readiness { timeout_seconds: 30 }
    }
}

impl Default for DrainConfig {
    fn default() -> Self {
        DrainConfig { settle_seconds: 15, follow_cordon: false }
    }
}

impl Default for VlanCheck {
    fn default() -> Self {
        VlanCheck { timeout_seconds: 3, duplicate_address_wait_milliseconds: 200 }
    }
}

/// The reason for which a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{path}: cannot be read: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: std::io::Error,
    },
    /// The file is not YAML with these fields.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's error, with line and column.
        message: String,
    },
    /// A field's value is out of range.
    #[error("{path}: {field}: {message}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, as in the file.
        field: &'static str,
        /// The fault and the remedy.
        message: String,
    },
}

impl Config {
    /// Reads and checks a configuration file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        Config::parse(&text, path)
    }

    /// Checks a configuration's text; `path` is only used in the error.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        // A file with only comments is YAML's null, which is not a struct; it means "all defaults".
        let blank = text.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || line == "---"
        });
        let config: Config = if blank {
            Config::default()
        } else {
            serde_saphyr::from_str(text)
                .map_err(|error| ConfigError::Parse { path: path.to_owned(), message: error.to_string() })?
        };
        config.check().map_err(|(field, message)| ConfigError::Field {
            path: path.to_owned(),
            field,
            message,
        })?;
        Ok(config)
    }

    /// Checks the values. The error has the field, and the fault with its fix.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let within = |field, value: u16, low: u16, high: u16| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err((field, format!("{value} is out of range: write {low} to {high}")))
            }
        };
        let selector = self.pod_label_selector.parse::<LabelSelector>();
        selector.map_err(|error| ("podLabelSelector", error.to_string()))?;
        if !self.pod_label_selector.is_empty() && self.source != SourceKind::Kube {
            return Err((
                "podLabelSelector",
                "only a cluster has labels of pods: write `source: kube`, or leave the field out".to_owned(),
            ));
        }
        within("selectionDeferralSeconds", self.selection_deferral_seconds, 1, 3600)?;
        within("maxPaths", u16::from(self.max_paths), 1, 64)?;
        within("vxlanPort", self.vxlan_port, 1, u16::MAX)?;
        if self.vtep_address_cidrs.is_empty() {
            return Err((
                "vtepAddressCIDRs",
                "is empty: write a prefix of the nodes' addresses, or leave the field out".to_owned(),
            ));
        }
        overlay::check_prefixes("vtepLocalAddressCIDRs", &self.vtep_local_address_cidrs)?;
        overlay::check_prefixes("nodeAddressCIDRs", &self.node_address_cidrs)?;
        within("bmp.statsSeconds", self.bmp.stats_seconds, 0, 3600)?;
        for (index, station) in self.bmp.stations.iter().enumerate() {
            if station.port() == 0 || station.ip().is_unspecified() {
                return Err((
                    "bmp.stations",
                    format!(
                        "{station} is no address of a station: write the station's address and \
                         port, such as 10.0.0.5:11019"
                    ),
                ));
            }
            if self.bmp.stations[..index].contains(station) {
                return Err(("bmp.stations", format!("{station} is listed twice: remove one")));
            }
        }
        for prefix in &self.service_cidrs {
            if *prefix != prefix.trunc() {
                return Err((
                    "serviceCIDRs",
                    format!("{prefix} has bits behind its length: write {}", prefix.trunc()),
                ));
            }
            if prefix.prefix_len() == 0 {
                return Err((
                    "serviceCIDRs",
                    format!(
                        "{prefix} contains every address: write the prefixes of Services, such as 10.96.0.0/12"
                    ),
                ));
            }
        }
        self.probes.check()?;
        self.services.check()?;
        within("readiness.timeoutSeconds", self.readiness.timeout_seconds, 1, 300)?;
        within("drain.settleSeconds", self.drain.settle_seconds, 0, 3600)?;
        self.kernel_limits.check()?;
        self.remote_clusters.check()?;
        if self.drain.follow_cordon && self.source != SourceKind::Kube {
            return Err((
                "drain.followCordon",
                "only a Node in Kubernetes can be cordoned: write `source: kube`, or leave the field out"
                    .to_owned(),
            ));
        }
        within("vlanCheck.timeoutSeconds", self.vlan_check.timeout_seconds, 1, 60)?;
        within(
            "vlanCheck.duplicateAddressWaitMilliseconds",
            self.vlan_check.duplicate_address_wait_milliseconds,
            0,
            10_000,
        )?;
        if self.router_id == Some(Ipv4Addr::UNSPECIFIED) {
            return Err(("routerID", "0.0.0.0 is no BGP identifier: write one of this node's IPv4 addresses, or leave the field out".to_owned()));
        }
        if self.cluster_id == Some(Ipv4Addr::UNSPECIFIED) {
            return Err((
                "clusterID",
                "0.0.0.0 is no cluster ID: write a number in the form of an \
                                      IPv4 address, or leave the field out to use the BGP \
                                      identifier"
                    .to_owned(),
            ));
        }
        links::check("vlanInterfaces", &self.vlan_interfaces)?;
        links::check("vxlanInterfaces", &self.vxlan_interfaces)?;
        if let Some(mtu) = self.pod_mtu {
            within("podMTU", mtu, 1280, u16::MAX)?;
        }
        if self.source == SourceKind::Kube && !self.node_labels.is_empty() {
            return Err((
                "nodeLabels",
                "with `source: kube` the labels are the Node's: leave the field out, and use kubectl label node".to_owned(),
            ));
        }
        if self.node_name.as_deref() == Some("") {
            return Err((
                "nodeName",
                "is empty: write a name, or leave the field out to use the host's name".to_owned(),
            ));
        }
        for (index, address) in self.listen.iter().enumerate() {
            if address.port() == 0 {
                return Err(("listen", format!("{address} has port 0: write the port (BGP: 179)")));
            }
            if self.listen[..index].contains(address) {
                return Err(("listen", format!("{address} is listed twice: remove one")));
            }
        }
        for (field, path) in [
            ("manifests", &self.manifests),
            ("socket", &self.socket),
            ("store", &self.store),
            ("kube.cache", &self.kube.cache),
        ]
        .into_iter()
        .chain(self.kube.kubeconfig.as_ref().map(|path| ("kube.kubeconfig", path)))
        {
            if !path.is_absolute() {
                return Err((field, format!("{} is relative: write an absolute path", path.display())));
            }
        }
        self.telemetry.check().map_err(|(field, error)| (field, error.to_string()))?;
        self.log.check().map_err(|error| ("log.level", error.to_string()))?;
        Ok(())
    }

    /// The node's name: from the configuration, otherwise from the environment, otherwise the
    /// host's.
    pub fn node_name(&self) -> String {
        let environment = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        match self.node_name.clone().or_else(environment) {
            Some(name) => name,
            None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// The node's labels with the well-known host name label.
    pub fn node_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.node_labels.clone();
        labels.entry("kubernetes.io/hostname".to_owned()).or_insert_with(|| self.node_name());
        labels
    }

    /// The planner's settings of the guard.
    pub fn guard(&self) -> GuardSettings {
        let bgp_ports = self.listen.iter().map(SocketAddr::port).collect();
        let own_servers = self.proxy_health_address().into_iter().collect();
        GuardSettings { enabled: self.guard.enabled, bgp_ports, own_servers }
    }

    /// The planner's limits of the kernel.
    pub fn kernel_limits(&self) -> KernelLimits {
        let KernelLimitsConfig { neighbours, ipv6_routes } = self.kernel_limits;
        KernelLimits { neighbours, ipv6_routes }
    }

    /// The planner's sysctls.
    pub fn sysctls(&self) -> RequestedSysctls {
        self.sysctls.requested()
    }

    /// The planner's settings of probes.
    pub fn probe_plan(&self) -> ProbeSettings {
        ProbeSettings { enabled: self.probes.enabled, targets: self.probes.targets.clone() }
    }

    /// The settings of the probe task.
    pub fn probes(&self) -> Settings {
        self.probes.settings()
    }

    /// Whether this node advertises Services' addresses.
    pub fn has_services(&self) -> bool {
        self.services.enabled && self.source == SourceKind::Kube
    }

    /// Whether this node enforces network policies.
    pub fn has_policies(&self) -> bool {
        self.network_policies.enabled
    }

    /// The settings of the services task.
    pub fn services(&self) -> crate::services::Settings {
        self.services.settings(&self.store, self.selection_deferral())
    }

    /// The address of the service proxy's health check; none if nothing is checked.
    pub fn proxy_health_address(&self) -> Option<SocketAddr> {
        let proxy = &self.services.proxy;
        (proxy.kind == ServiceProxyKind::Auto).then_some(proxy.health_address)
    }

    /// The links that may carry VLANs.
    pub fn vlan_interfaces(&self) -> Vec<LinkChoice> {
        links::choices(&self.vlan_interfaces)
    }

    /// The addresses whose links the agent needs to know.
    pub fn reached_addresses(&self) -> BTreeSet<IpAddr> {
        let choices = [self.vlan_interfaces(), links::choices(&self.vxlan_interfaces)].concat();
        let address = |choice: &LinkChoice| match choice {
            LinkChoice::Reaches(address) => Some(*address),
            LinkChoice::Name(_) | LinkChoice::Pattern(_) => None,
        };
        choices.iter().filter_map(address).collect()
    }

    /// The planner's settings of tunnels.
    pub fn tunnels(&self) -> Tunnels {
        Tunnels {
            interfaces: links::choices(&self.vxlan_interfaces),
            vteps: self.vtep_address_cidrs.clone(),
            port: self.vxlan_port,
            rejects_unknown: self.unknown_overlay_addresses == UnknownOverlayAddresses::Reject,
            local_addresses: self.vtep_local_address_cidrs.clone(),
            node_prefixes: self.node_address_cidrs.clone(),
        }
    }

    /// The settings of the BMP sessions.
    pub fn bmp_station(&self) -> StationConfig {
        let seconds = u64::from(self.bmp.stats_seconds);
        StationConfig {
            name: self.node_name(),
            description: concat!("trunkline ", env!("CARGO_PKG_VERSION")).to_owned(),
            stats_interval: (seconds > 0).then(|| Duration::from_secs(seconds)),
        }
    }

    /// Maximum time for which an ADD waits for the fabric.
    pub fn readiness_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.readiness.timeout_seconds))
    }

    /// Time for the fabric to use other paths during a drain.
    pub fn drain_settle(&self) -> Duration {
        Duration::from_secs(u64::from(self.drain.settle_seconds))
    }

    /// Time limits of the checks on a VLAN.
    pub fn link_check_timeouts(&self) -> CheckTimeouts {
        let VlanCheck { timeout_seconds, duplicate_address_wait_milliseconds } = self.vlan_check;
        CheckTimeouts {
            duplicate_wait: Duration::from_millis(u64::from(duplicate_address_wait_milliseconds)),
            gateway_timeout: Duration::from_secs(u64::from(timeout_seconds)),
        }
    }

    /// Selection_Deferral_Timer.
    pub fn selection_deferral(&self) -> Duration {
        Duration::from_secs(u64::from(self.selection_deferral_seconds))
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
