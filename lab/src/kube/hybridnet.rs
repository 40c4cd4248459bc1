//! hybridnet on a node of the lab: stand-ins for its daemon and its plugin, and the real Felix, which
//! hybridnet's chart runs in the same pod.
//!
//! ```text
//! daemon  a listening socket, its CNI configuration, and Felix on the node's network
//! ADD     a veth pair with the name that Felix derives from the pod, a route to it, a default route
//! fabric  static routes on the ToRs to the pod, in place of the daemon's BGP sessions
//! ```
//!
//! Felix only looks after devices with hybridnet's prefix. As in the chart, the plugin does not wait
//! for Felix. Its version is v3.23.0 without hybridnet's patches: hybridnet's v3.20.2 is not a Go module.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ipnet::Ipv4Net;

use super::Cluster;
use super::daemon::Daemon;
use super::golang::{Module, find_go};
use crate::cni::Sandbox;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::progress::say;
use crate::shell::quoted;

/// The configuration of hybridnet's chart.
const CONFIGURATION: &str = r#"{"name": "hybridnet", "cniVersion": "0.3.1", "plugins": [
    {"type": "hybridnet", "server_socket": "/run/cni/hybridnet.sock"}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}"#;

/// Kernel state of the daemon, which a reboot removes: the rule of the table with the routes to the
/// node's pods.
const RULE: &str = "ip rule show priority 1 | grep -q . || ip rule add priority 1 lookup 39999";

/// The next hop of pods.
const GATEWAY: &str = "169.254.1.1";
/// The MAC of each pod's next hop.
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";

/// The program of Felix, a Go package.
const FELIX: &str = "github.com/projectcalico/calico/felix/cmd/calico-felix";

/// Programs that Felix runs.
pub(crate) const FELIX_PACKAGES: [&str; 3] = ["conntrack", "ipset", "iptables"];

/// The environment of Felix in hybridnet's image, without reports to Calico's vendor. hybridnet's
/// Felix uses the default `iptables`, which has the nftables backend in the lab.
const ENVIRONMENT: [(&str, &str); 17] = [
    ("FELIX_DATASTORETYPE", "kubernetes"),
    ("DATASTORE_TYPE", "kubernetes"),
    ("FELIX_LOGSEVERITYSYS", "none"),
    ("FELIX_LOGSEVERITYSCREEN", "info"),
    ("FELIX_LOGFILEPATH", "/dev/null"),
    ("FELIX_IPTABLESREFRESHINTERVAL", "60"),
    ("FELIX_IPV6SUPPORT", "true"),
    ("FELIX_DEFAULTENDPOINTTOHOSTACTION", "ACCEPT"),
    ("FELIX_HEALTHENABLED", "true"),
    ("FELIX_BPFENABLED", "false"),
    ("FELIX_XDPENABLED", "false"),
    ("FELIX_ALLOWVXLANPACKETSFROMWORKLOADS", "true"),
    ("FELIX_ALLOWIPIPPACKETSFROMWORKLOADS", "true"),
    ("FELIX_INTERFACEPREFIX", "hybr"),
    ("FELIX_IPTABLESMANGLEALLOWACTION", "RETURN"),
    ("FELIX_IPTABLESBACKEND", "NFT"),
    ("FELIX_USAGEREPORTINGENABLED", "false"),
];

/// Felix starts this number of seconds after the daemon. Pods may return before Felix is ready, and a
/// test must notice that.
const DELAY: u32 = 3;

/// Felix can be ready for a moment at its start, before it has its rules.
const SETTLED: Duration = Duration::from_secs(1);

/// The port of Felix's probes.
pub(super) const HEALTH: u16 = 9_099;

/// Felix, built from source once per machine.
#[derive(Debug, Clone)]
pub(crate) struct Felix {
    pub program: PathBuf,
    /// The folder of Calico's CRDs, which Felix watches.
    pub crds: PathBuf,
}

impl Felix {
    /// Finds or builds Felix. The inner error names the missing part of this machine.
    pub(crate) fn find(place: &Place) -> Result<Result<Self, String>> {
        let module = Module::open(place)?;
        let first = || say("  Felix is built from source, once for this machine: three minutes on two cores");
        if let Err(missing) = module.build(&[FELIX], first)? {
            return Ok(Err(missing));
        }
        let Some(go) = find_go() else {
            return Ok(Err(
                "no CRDs of Calico: install Go (https://go.dev/dl), which loads their module".to_owned()
            ));
        };
        let source = module.foreign_source(&go, "felix", "github.com/projectcalico/calico")?;
        Ok(Ok(Self { program: module.program(FELIX)?, crds: source.join("libcalico-go/config/crd") }))
    }
}

/// The stand-in for the daemon of a node, with Felix beside it.
pub(super) struct Node {
    _socket: UnixListener,
    felix: Option<Daemon>,
    /// Whether Felix has been ready for [`SETTLED`].
    pub ready: bool,
    /// The first of the last consecutive probes that found Felix ready.
    since: Option<Instant>,
}

/// Starts the stand-in for the daemon of a node: its socket is open until the returned value is dropped.
pub(crate) fn listen(host: &Host) -> Result<UnixListener> {
    let socket = host.within(|| {
        std::fs::create_dir_all("/run/cni")?;
        let _left = std::fs::remove_file("/run/cni/hybridnet.sock");
        // hybridnet's init container does the same.
        std::fs::create_dir_all("/etc/cni/net.d")?;
        std::fs::write("/etc/cni/net.d/06-hybridnet.conflist", CONFIGURATION)?;
        Ok(UnixListener::bind("/run/cni/hybridnet.sock")?)
    })?;
    host.sh(RULE)?;
    Ok(socket)
}

impl Node {
    pub(super) fn start(host: &Host, cluster: &Cluster, felix: Option<&Path>) -> Result<Self> {
        let socket = listen(host)?;
        let felix = felix.map(|program| {
            cluster.daemon(&format!("{}-felix", host.name), Self::felix(host, cluster, program))
        });
        let felix = felix.transpose()?;
        Ok(Self { _socket: socket, ready: felix.is_none(), felix, since: None })
    }

    fn felix(host: &Host, cluster: &Cluster, program: &Path) -> Command {
        let line = format!("sleep {DELAY}; exec {}", quoted(&program.display().to_string()));
        let mut command = host.command("sh", ["-c", &line]);
        command
            .envs(ENVIRONMENT)
            .env("FELIX_FELIXHOSTNAME", &host.name)
            .env("KUBECONFIG", cluster.kubeconfig());
        command
    }

    /// Takes the result of a probe.
    pub(super) fn probed(&mut self, is_ready: bool) {
        self.since = is_ready.then(|| self.since.unwrap_or_else(Instant::now));
        self.ready = self.since.is_some_and(|since| since.elapsed() >= SETTLED);
    }

    /// If Felix has ended, fails with the end of its log.
    pub(super) fn still_running(&mut self) -> Result<()> {
        self.felix.as_mut().map_or(Ok(()), Daemon::still_running)
    }

    /// Ends Felix as a kubelet does. The rules of Felix stay in the kernel.
    pub(super) fn stop(mut self) -> Result<()> {
        if let Some(felix) = &mut self.felix {
            felix.stop()?;
        }
        Ok(())
    }
}

/// The VLAN of pods.
pub(crate) struct Vlan<'a> {
    pub parent: &'a str,
    pub id: u16,
    pub subnet: Ipv4Net,
    pub gateway: Ipv4Addr,
}

/// A pod that the stand-in of the plugin attached.
pub(crate) struct Attachment {
    device: String,
    address: Ipv4Addr,
}

impl Attachment {
    /// Attaches a sandbox, as hybridnet's plugin and daemon do for a pod of a BGP network. Without a
    /// BGP peer, the pod uses the routes of the host: the stand-in has no tunnels.
    pub(super) fn add(
        cluster: &Cluster,
        fabric: &Fabric,
        host: &Host,
        sandbox: &Sandbox,
        address: IpAddr,
        mac: &str,
    ) -> Result<Self> {
        let IpAddr::V4(address) = address else { bail!("{address}: the stand-in only has IPv4") };
        let peers = ["get", "networks", "-o", "jsonpath={.items[*].spec.config.bgpPeers[*].address}"];
        let hops: String =
            cluster.kubectl(peers)?.split_whitespace().map(|peer| format!(" nexthop via {peer}")).collect();
        let way_out = if hops.is_empty() {
            String::new()
        } else {
            format!(
                "ip route replace default table 40000{hops}; ip rule add priority 2 from {address} lookup 40000"
            )
        };
        let attachment = Self::connect(host, sandbox, address, mac)?;
        host.sh(&format!("set -e\n{way_out}"))?;
        let nodes =
            host.sh("ip -4 -o address show scope global | grep ' eth' | sed 's/.* inet //; s:/.*::'")?;
        for tor in attachment.routers(fabric)? {
            let ways = nodes.split_whitespace().map(|via| format!("ip route replace {address}/32 via {via}"));
            tor.sh(&ways.collect::<Vec<_>>().join(" 2>/dev/null || "))?;
        }
        Ok(attachment)
    }

    /// Attaches a sandbox, as hybridnet's plugin and daemon do for a pod of a VLAN. The daemon puts an
    /// address of a local pod on the VLAN device, without its routes: an "enhanced" address.
    pub(crate) fn add_to_vlan(
        host: &Host,
        sandbox: &Sandbox,
        address: Ipv4Addr,
        mac: &str,
        vlan: &Vlan<'_>,
    ) -> Result<Self> {
        let Vlan { parent, id, subnet, gateway } = vlan;
        let attachment = Self::connect(host, sandbox, address, mac)?;
        let (device, length) = (format!("{parent}.{id}"), subnet.prefix_len());
        host.sh(&format!(
            "set -e
             ip link add link {parent} name {device} up type vlan id {id}
             ip address add {address}/{length} dev {device} scope link noprefixroute
             ip route flush table local dev {device}
             ip neighbor add proxy {address} dev {device}
             ip route add {subnet} dev {device} scope link table 10000
             ip route add default via {gateway} dev {device} table 10000
             ip rule add priority 2 lookup 40000
             ip rule add priority 3 fwmark 0x20/0x20 lookup 40001
             ip rule add priority 4 from {subnet} fwmark 0/0x4040 lookup 10000"
        ))?;
        Ok(attachment)
    }

    /// Connects a sandbox to its node.
    fn connect(host: &Host, sandbox: &Sandbox, address: Ipv4Addr, mac: &str) -> Result<Self> {
        let pod = format!("{}.{}", sandbox.identity.namespace, sandbox.identity.name);
        let device = host.sh(&format!("printf hybr%s $(printf %s {pod} | sha1sum | cut -c1-11)"))?;
        let (inside, pod_ns) = (&sandbox.ns, sandbox.ns.name());
        host.ns.ip([
            "link",
            "add",
            &device,
            "address",
            GATEWAY_MAC,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            mac,
            "netns",
            pod_ns,
        ])?;
        inside.ip(["address", "add", &format!("{address}/32"), "dev", "eth0"])?;
        inside.ip(["link", "set", "eth0", "up"])?;
        inside.ip(["neighbor", "add", GATEWAY, "lladdr", GATEWAY_MAC, "dev", "eth0"])?;
        inside.ip(["route", "add", "default", "via", GATEWAY, "dev", "eth0", "onlink"])?;
        host.sh(&format!(
            "set -e
             ip link set {device} up
             ip route replace {address}/32 dev {device} table 39999"
        ))?;
        Ok(Self { device, address })
    }

    /// Detaches the pod.
    pub(super) fn delete(&self, fabric: &Fabric, host: &Host) -> Result<()> {
        host.sh(&format!(
            "ip rule del priority 2 from {} lookup 40000 2>/dev/null || :; ip link del {}",
            self.address, self.device
        ))?;
        self.withdraw(fabric)
    }

    /// Removes the routes of the ToRs, as at the end of the daemon's BGP sessions.
    pub(super) fn withdraw(&self, fabric: &Fabric) -> Result<()> {
        for tor in self.routers(fabric)? {
            tor.sh(&format!("ip route del {}/32 proto boot", self.address))?;
        }
        Ok(())
    }

    fn routers<'a>(&self, fabric: &'a Fabric) -> Result<Vec<&'a Host>> {
        let routers: Vec<&Host> =
            fabric.topology.with_role("tor").map(|tor| fabric.host(tor)).collect::<Result<_>>()?;
        ensure!(!routers.is_empty(), "no ToR has a route to {}", self.address);
        Ok(routers)
    }
}
