//! `trunkline agent --check`: reads configuration and manifests, or queries the API server, and
//! prints the faults.
//!
//! An error ends with status 1: the agent would not start, or would reject the manifests. A warning
//! does not: the agent runs, but pods on this host get no address, or the same address as pods of
//! another host.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;
use trunkline_agent::config::Config;
use trunkline_agent::plan::intent::Snapshot;
use trunkline_agent::source::folder::{self, Context, FolderContent};
use trunkline_agent::source::kube::{self, SourceKind};
use trunkline_api::resources::{Network, NetworkMode, NetworkType, Subnet};

/// Time limit of the request to the API server.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The documented example. Its names and addresses belong to no real rack.
const EXAMPLE: &str = include_str!("../../docs/agent.example.yaml");

/// Checks a configuration file, and the manifests or the API server that it refers to.
///
/// # Errors
/// The configuration, a manifest or the API server's answer is wrong.
pub fn check(config_path: &Path) -> anyhow::Result<()> {
    let config = Config::read(config_path)?;
    if config.source == SourceKind::Kube {
        return check_cluster(config_path, &config);
    }
    let labels = config.node_labels();
    match folder::read(&config.manifests, &Context { labels: labels.clone(), running: None }) {
        Ok(FolderContent { snapshot, policies }) => {
            println!(
                "{} and {} are valid: {} networks, {} subnets, {} nodes of an overlay, {} network policies",
                config_path.display(),
                config.manifests.display(),
                snapshot.networks.len(),
                snapshot.subnets.len(),
                snapshot.nodes.len(),
                policies.network.len() + policies.cluster.len()
            );
            let example = is_example(&config).into_iter();
            let manifests = warnings(&snapshot, &labels, &config.manifests);
            for warning in example.chain(manifests).chain(policies.above_bound()) {
                println!("warning: {warning}");
            }
            Ok(())
        }
        Err(refused) => anyhow::bail!("{}", refused.faults.join("\n")),
    }
}

/// Checks that the API server answers and grants this node the necessary permissions.
fn check_cluster(config_path: &Path, config: &Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection = config.kube.connect().await?;
        let answer = timeout(TIMEOUT, kube::check(&connection, &config.node_name())).await;
        let answer = answer.unwrap_or_else(|_| anyhow::bail!("no answer within {} s", TIMEOUT.as_secs()));
        let said = answer
            .with_context(|| format!("{}: the API server {}", config_path.display(), connection.server))?;
        println!(
            "{} is valid, and the API server {} answers: {said}",
            config_path.display(),
            connection.server
        );
        is_example(config).into_iter().for_each(|warning| println!("warning: {warning}"));
        Ok(())
    })
}

/// A warning if the configuration is the unchanged example.
fn is_example(config: &Config) -> Option<String> {
    let example = Config::parse(EXAMPLE, Path::new("agent.example.yaml")).ok()?;
    let Config { node_name, router_id, .. } = &example;
    (*config == example).then(|| {
        format!(
            "the configuration is the documented example, with names and addresses that are not \
             this host's (nodeName {}, routerID {}): keep only the fields that you change",
            node_name.as_deref().unwrap_or_default(),
            router_id.map(|id| id.to_string()).unwrap_or_default()
        )
    })
}

/// Warnings about valid manifests with a probably unwanted effect on this host.
fn warnings(snapshot: &Snapshot, labels: &BTreeMap<String, String>, folder: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    if snapshot.networks.is_empty() {
        warnings.push(format!("{} has no Network: pods on this host get no address", folder.display()));
    }
    let is_underlay = |network: &&Network| network.network_type() == NetworkType::Underlay;
    let underlays: Vec<&Network> = snapshot.networks.iter().filter(is_underlay).collect();
    if !underlays.is_empty() && !underlays.iter().any(|network| network.selects(labels)) {
        let selectors = underlays
            .iter()
            .map(|network| format!("{} selects {}", network.name(), words(&network.spec.node_selector)));
        warnings.push(format!(
            "no Underlay Network selects this node, whose labels are {}; {}: change nodeLabels of the configuration or \
             spec.nodeSelector of the Network",
            words(labels),
            selectors.collect::<Vec<_>>().join(", ")
        ));
    }
    for network in snapshot.networks.iter().filter(|network| network.selects(labels)) {
        let mut subnets =
            snapshot.subnets.iter().filter(|subnet| subnet.spec.network == network.name()).peekable();
        if subnets.peek().is_none() {
            warnings.push(format!("Network {} has no Subnet: its pods get no address", network.name()));
        }
        // In an overlay, each node allocates from its own blocks.
        if network.mode() != NetworkMode::VXLAN {
            warnings.extend(subnets.filter_map(shared_range));
        }
    }
    warnings
}

/// A warning about a Subnet without a range: every host allocates from the whole Subnet.
fn shared_range(subnet: &Subnet) -> Option<String> {
    let range = &subnet.spec.range;
    (range.start.is_empty() && range.end.is_empty()).then(|| {
        format!(
            "Subnet {}: this host allocates from the whole of {}. A second host with this Subnet allocates the same addresses: \
             write spec.range.start and spec.range.end, different on each host",
            subnet.name(),
            range.cidr
        )
    })
}

fn words(labels: &BTreeMap<String, String>) -> String {
    let words: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(",") }
}

#[cfg(test)]
mod tests {
    use trunkline_api::manifest::{self, Resource};

    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for resource in manifest::parse(text).unwrap() {
            match resource {
                Resource::Network(network) => snapshot.networks.push(*network),
                Resource::Subnet(subnet) => snapshot.subnets.push(*subnet),
                Resource::NodeInfo(node) => snapshot.nodes.push(*node),
                Resource::AnycastAddress(anycast) => snapshot.services.anycast.push(*anycast),
                Resource::AgentSettings(settings) => snapshot.agent_settings.push(*settings),
                Resource::NetworkPolicy(_)
                | Resource::ClusterNetworkPolicy(_)
                | Resource::RemoteSubnet(_)
                | Resource::RemoteVtep(_)
                | Resource::Namespace(_) => {}
            }
        }
        snapshot
    }

    fn found(text: &str, label: &str) -> Vec<String> {
        let labels = BTreeMap::from([("rack".to_owned(), label.to_owned())]);
        warnings(&snapshot(text), &labels, Path::new("/m"))
    }

    const NETWORK: &str = "apiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {name: rack1}\n\
        spec:\n  type: Underlay\n  mode: BGP\n  netID: 65101\n  nodeSelector: {rack: rack1}\n  \
        config: {bgpPeers: [{asn: 65001, address: 10.1.0.1}]}\n";

    fn subnet(range: &str) -> String {
        format!(
            "---\napiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: pods}}\n\
             spec:\n  network: rack1\n  range: {{version: \"4\", cidr: 10.201.0.0/24{range}}}\n"
        )
    }

    #[test]
    fn a_host_with_its_own_range_has_no_warning() {
        let text = NETWORK.to_owned() + &subnet(", start: 10.201.0.1, end: 10.201.0.9");
        assert_eq!(found(&text, "rack1"), [""; 0]);
    }

    #[test]
    fn no_network_for_this_node_is_a_warning() {
        let text = NETWORK.to_owned() + &subnet(", start: 10.201.0.1, end: 10.201.0.9");
        let warnings = found(&text, "rack2");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("labels are rack=rack2; rack1 selects rack=rack1"), "{warnings:?}");
        assert!(found("", "rack1")[0].contains("/m has no Network"));
    }

    #[test]
    fn a_network_without_a_subnet_is_a_warning() {
        assert_eq!(found(NETWORK, "rack1"), ["Network rack1 has no Subnet: its pods get no address"]);
    }

    #[test]
    fn a_whole_subnet_is_a_warning() {
        let warnings = found(&(NETWORK.to_owned() + &subnet("")), "rack1");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("Subnet pods: ") && warnings[0].contains("10.201.0.0/24"),
            "{warnings:?}"
        );
        // The Network does not select this host, so this host allocates nothing from it.
        let warnings = found(&(NETWORK.to_owned() + &subnet("")), "rack2");
        assert!(warnings.len() == 1 && !warnings[0].contains("Subnet"), "{warnings:?}");
    }

    #[test]
    fn the_example_is_recognised_and_the_defaults_are_not() {
        let example = Config::parse(EXAMPLE, Path::new("f")).unwrap();
        assert!(is_example(&example).unwrap().contains("nodeName rack1-node1, routerID 10.1.1.11"));
        assert_eq!(is_example(&Config::default()), None);
    }
}
