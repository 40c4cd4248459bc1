//! The real kube-proxy on a node, in the node's namespaces. From the cluster it only needs
//! Services, EndpointSlices and its own Node. Any program may write these.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::daemon::Daemon;
use crate::cli::ProxyMode;
use crate::host::Host;
use crate::shell::Seen;

/// The account of kubeadm's kube-proxy.
pub(crate) const ACCOUNT: (&str, &str) = ("kube-system", "kube-proxy");

/// The rights of this account. The role exists in every API server.
pub(crate) const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: kube-proxy }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:node-proxier' }
subjects: [{ kind: ServiceAccount, name: kube-proxy, namespace: kube-system }]
";

/// kube-proxy's default of `minSyncPeriod`.
pub(crate) const MIN_SYNC_PERIOD: Duration = Duration::from_secs(1);

/// Time limit for the first rules; a busy machine needs half a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// The kind of kube-proxy's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Iptables,
    Nftables,
}

impl From<ProxyMode> for Mode {
    fn from(mode: ProxyMode) -> Self {
        match mode {
            ProxyMode::Iptables => Self::Iptables,
            ProxyMode::Nftables => Self::Nftables,
        }
    }
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }

    /// Command lines that print the rules, one for each family.
    fn rules(self) -> [&'static str; 2] {
        match self {
            Self::Iptables => ["iptables-save", "ip6tables-save"],
            Self::Nftables => ["nft list table ip kube-proxy", "nft list table ip6 kube-proxy"],
        }
    }
}

/// Starts kube-proxy on a node, with its log in the folder.
pub(crate) fn start(
    folder: &Path,
    host: &Host,
    program: &Path,
    kubeconfig: &Path,
    mode: Mode,
) -> Result<Daemon> {
    start_paced(folder, host, program, kubeconfig, mode, MIN_SYNC_PERIOD)
}

/// Like [`start`], with this `minSyncPeriod`.
pub(crate) fn start_paced(
    folder: &Path,
    host: &Host,
    program: &Path,
    kubeconfig: &Path,
    mode: Mode,
    min_sync_period: Duration,
) -> Result<Daemon> {
    let mut flags = flags(kubeconfig, &host.name, mode);
    // The default would change the time for connections of the test itself.
    flags.push("--conntrack-tcp-timeout-close-wait=0".to_owned());
    // In spite of its name, this flag also applies to the mode nftables.
    flags.push(format!("--iptables-min-sync-period={}ms", min_sync_period.as_millis()));
    let command = host.command(&program.display().to_string(), flags);
    Daemon::start(folder, &format!("kube-proxy-{}", host.name), command)
}

/// kube-proxy's flags, with the name of its Node.
pub(crate) fn flags(kubeconfig: &Path, node: &str, mode: Mode) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={node}"),
        format!("--proxy-mode={}", mode.name()),
        // Packets from these links are from pods, with any source address.
        "--detect-local-mode=InterfaceNamePrefix".to_owned(),
        "--pod-interface-name-prefix=tl".to_owned(),
        // The values 0 leave these sysctls unchanged. The first belongs to the machine and not to the
        // namespace.
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-min=0".to_owned(),
        "--conntrack-tcp-timeout-established=0".to_owned(),
        "--oom-score-adj=0".to_owned(),
        "--v=2".to_owned(),
    ]
}

/// Waits until kube-proxy's rules on a node name each of these Services of a namespace, in both families. A
/// connection before that leaves an entry without NAT in the connection table; a later connection from
/// the same port is then not translated, and kube-proxy rejects it.
pub(crate) fn wait_rules(
    proxy: &mut Daemon,
    host: &Host,
    mode: Mode,
    namespace: &str,
    services: &[String],
) -> Result<()> {
    proxy.wait_while_running(&format!("kube-proxy's rules on {}", host.name), PATIENCE, || {
        let [v4, v6] = mode.rules().map(|rules| host.sh(rules));
        let (v4, v6) = (v4?, v6?);
        let named =
            |name: &str| [&v4, &v6].iter().all(|rules| rules.contains(&format!("{namespace}/{name}")));
        let missing: Vec<&String> = services.iter().filter(|name| !named(name)).collect();
        Ok(Seen::when(missing.is_empty(), || format!("no rules of {missing:?}")))
    })
}
