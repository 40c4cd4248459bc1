//! Configuration of the controller: flags, and the two environment variables that hybridnet's
//! manager also reads.

use std::net::SocketAddr;
use std::str::FromStr as _;
use std::time::Duration;

use clap::Parser;
use trunkline_api::names;
use trunkline_api::pod::{IpFamily, read_network_type};
use trunkline_api::resources::{LabelSelector, NetworkType};
use trunkline_daemon::logging::{Log, LogFormat};

use crate::leader;
use crate::selection::Policy;
use crate::services::decide::ClassConfig;
use crate::webhook;

/// Allocates addresses to pods cluster-wide, updates networks and nodes, and answers admission
/// webhooks.
///
/// Several replicas may run: one is the leader and writes, and each answers webhooks. The
/// controller uses the cluster of KUBECONFIG, otherwise the cluster of its pod's service account.
#[derive(Clone, Debug, Parser)]
#[command(name = "trunkline-controller", version)]
#[group(id = "controller")]
pub struct Config {
    /// Default address family of a pod: IPv4, IPv6 or DualStack
    #[arg(long, env = "DEFAULT_IP_FAMILY", value_parser = family, default_value = "IPv4")]
    pub default_ip_family: IpFamily,

    /// Default type of a pod's Network: Underlay, Overlay or GlobalBGP
    #[arg(long, env = "DEFAULT_NETWORK_TYPE", value_parser = network_type, default_value = "Underlay")]
    pub default_network_type: NetworkType,

    /// Whether pods of stateful workloads keep their addresses when they are recreated; a pod's
    /// annotation ip-retain has precedence
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true)]
    pub default_ip_retain: bool,

    /// Whether virtual machines of KubeVirt keep their addresses until they are deleted, whichever pod
    /// runs them
    #[arg(long, action = clap::ArgAction::Set, default_value_t = false)]
    pub vm_ip_retain: bool,

    /// Kinds of workloads with recurring pod names, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "StatefulSet")]
    pub stateful_workload_kinds: Vec<String>,

    /// Labels of the pods that get addresses, such as `cni=trunkline,tier in (web,db)`; default: every
    /// pod. All other pods belong to another CNI plugin
    #[arg(long, default_value = "", hide_default_value = true, value_parser = LabelSelector::from_str)]
    pub pod_label_selector: LabelSelector,

    /// Restrict the pods of a Namespace with the annotation or label
    /// networking.alibaba.com/specified-network to this Network and to those of its annotation
    /// trunkline.io/allowed-networks
    #[arg(long, action = clap::ArgAction::Set, default_value_t = false)]
    pub tenancy: bool,

    /// How long the mirrored objects of a RemoteCluster stay while its API server does not answer or
    /// refuses requests, in seconds, 0 to 4294967295; 0: no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    pub remote_retention: u32,

    /// Write the annotation cni.projectcalico.org/podIPs on each pod with addresses, for Felix on
    /// nodes that still run hybridnet
    #[arg(long)]
    pub patch_calico_pod_ips_annotation: bool,

    /// Whether Services of type LoadBalancer get addresses of ServicePools
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true)]
    pub service_addresses: bool,

    /// The loadBalancerClass of the Services that get addresses
    #[arg(long, default_value = names::LOAD_BALANCER_CLASS)]
    pub load_balancer_class: String,

    /// Also give addresses to Services without a loadBalancerClass; without this flag they belong to
    /// another program
    #[arg(long)]
    pub default_load_balancer_class: bool,

    /// Namespace of the controller, its Lease, its Service and its Secret
    #[arg(long, env = "NAMESPACE", default_value = "kube-system")]
    pub namespace: String,

    /// Leader election
    #[command(flatten)]
    pub lease: leader::Config,

    /// This replica's name in the Lease and in events; default: the host's name and the process ID
    #[arg(long, env = "POD_NAME", default_value_t = default_identity(), hide_default_value = true)]
    pub identity: String,

    /// Address for /metrics; the default is for IPv4 and IPv6
    #[arg(long, default_value = "[::]:9899")]
    pub http_address: SocketAddr,

    /// Address for /healthz and /readyz, for the kubelet of this node: pods cannot reach it on
    /// loopback
    #[arg(long, default_value = "127.0.0.1:9898")]
    pub probe_address: SocketAddr,

    /// Number of pods handled at the same time, 1 to 1024
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub pod_workers: u16,

    /// Shortest interval between two writes of one Network's or Subnet's status, in milliseconds,
    /// 10 to 60000
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub status_interval_milliseconds: u32,

    /// error, warn, info, debug, trace, or a filter such as info,kube=debug
    #[arg(long, default_value = "info")]
    pub log_level: String,

    /// Format of log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// The webhook's flags. They are last, because all flags after them would appear under their
    /// heading in the help
    #[command(flatten)]
    pub webhook: webhook::Flags,
}

impl Config {
    /// How long the objects of a RemoteCluster stay while its API server does not answer; none: no limit.
    pub fn remote_retention(&self) -> Option<Duration> {
        (self.remote_retention != 0).then(|| Duration::from_secs(self.remote_retention.into()))
    }

    /// The defaults for pods without annotations.
    pub fn policy(&self) -> Policy {
        Policy {
            family: self.default_ip_family,
            network_type: self.default_network_type,
            retain: self.default_ip_retain,
            stateful_kinds: self.stateful_workload_kinds.clone(),
            pod_selector: self.pod_label_selector.clone(),
            tenancy: self.tenancy,
        }
    }

    /// The Services that get addresses.
    pub fn service_classes(&self) -> ClassConfig {
        ClassConfig { class: self.load_balancer_class.clone(), default: self.default_load_balancer_class }
    }

    /// The log settings.
    pub fn log(&self) -> Log {
        Log { level: self.log_level.clone(), format: self.log_format }
    }

    /// The shortest interval between two writes of one status.
    pub fn status_interval(&self) -> Duration {
        Duration::from_millis(self.status_interval_milliseconds.into())
    }
}

/// An unknown value of a flag.
#[derive(Debug, thiserror::Error)]
#[error("write {0}")]
struct UnknownValue(&'static str);

fn family(text: &str) -> Result<IpFamily, UnknownValue> {
    IpFamily::read(text).ok_or(UnknownValue("IPv4, IPv6 or DualStack"))
}

fn network_type(text: &str) -> Result<NetworkType, UnknownValue> {
    read_network_type(text).ok_or(UnknownValue("Underlay, Overlay or GlobalBGP"))
}

/// Host name and process number, so that two controllers on one machine differ.
fn default_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_are_parsed_and_wrong_values_name_the_fix() {
        Config::command().debug_assert();
        let read = |flags: &[&str]| Config::try_parse_from([&["trunkline-controller"], flags].concat());
        let config =
            read(&["--default-ip-family", "dualstack", "--stateful-workload-kinds", "StatefulSet,CloneSet"]);
        let policy = config.unwrap().policy();
        assert_eq!(policy.family, IpFamily::DualStack);
        assert!(policy.is_stateful_kind("CloneSet") && policy.retain);
        assert!(!read(&["--default-ip-retain", "false"]).unwrap().policy().retain);
        for (flag, value, hint) in [
            ("--default-ip-family", "v4", "write IPv4, IPv6 or DualStack"),
            ("--default-network-type", "VLAN", "write Underlay, Overlay or GlobalBGP"),
            ("--pod-workers", "0", "1..=1024"),
            ("--pod-label-selector", "cni>1", "`cni>1` is not a condition on a label"),
        ] {
            let error = read(&[flag, value]).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
    }

    /// The help of a bounded number has its bounds, such as "1 to 1024".
    #[test]
    fn help_names_the_bounds() {
        let takes = |flag: &str, value: u64| {
            Config::try_parse_from(["trunkline-controller", flag, &value.to_string()]).is_ok()
        };
        let mut bounded = 0;
        for arg in Config::command().get_arguments() {
            let (Some(flag), Some(help)) = (arg.get_long(), arg.get_help()) else { continue };
            let (flag, help) = (format!("--{flag}"), help.to_string());
            let words: Vec<&str> = help.split([' ', ',', ';']).collect();
            let range = words.windows(3).find(|words| words[1] == "to" && words[0].parse::<u64>().is_ok());
            let Some(range) = range else {
                let number = takes(&flag, 100) && !takes(&flag, u64::MAX);
                assert!(!number, "{flag}: the help has no bounds, such as 1 to 1024: {help}");
                continue;
            };
            let (low, high): (u64, u64) = (range[0].parse().unwrap(), range[2].parse().unwrap());
            assert!(takes(&flag, low) && takes(&flag, high), "{flag}: {help}");
            let is_lower = |below| takes(&flag, below);
            assert!(!low.checked_sub(1).is_some_and(is_lower) && !takes(&flag, high + 1), "{flag}: {help}");
            bounded += 1;
        }
        assert!(bounded >= 5, "{bounded}");
    }
}
