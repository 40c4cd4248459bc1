//! Cluster data for the rules of resources, read from the API server for each request.
//!
//! These requests are rare (a user applies a manifest), so they read the current state and not the
//! rows of a watch. Otherwise a `kubectl apply` of one file with a Network and its Subnet would not
//! find the Network yet. Lists of IPInstances stop at the first few of interest. An unreadable
//! resource is omitted: it is not served, so it cannot contradict another one.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use trunkline_api::kube::{Kind, Lenient, NetworkObject, Object, SubnetObject, node_addresses};
use trunkline_api::names::label;
use trunkline_api::resources::{
    AgentSettingsSpec, IPInstance, IPInstanceSpec, Network, NetworkMode, NetworkSpec, NetworkType,
    RemoteSubnet, RemoteSubnetSpec, ServiceAddress, ServiceAddressSpec, ServicePool, ServicePoolSpec,
    SubnetSpec,
};

use super::rules::remote_subnet::RemotePrefix;
use super::rules::{Facts, Node};

/// Number of objects on a page.
const PAGE: u32 = 500;
/// Number of users of an object to read before its deletion is refused.
const ENOUGH: u32 = 6;

/// Reads cluster data from the API server.
#[derive(Clone)]
pub(super) struct ApiReader {
    client: Client,
}

impl ApiReader {
    pub(super) fn new(client: Client) -> ApiReader {
        ApiReader { client }
    }

    /// Facts for the creation or update of a Network.
    pub(super) async fn for_network(&self, network: &Network) -> Result<Facts, kube::Error> {
        let networks = self.all::<NetworkSpec, _>().await?;
        let mut facts = Facts { networks, nodes: self.nodes(network).await?, ..Facts::default() };
        // The prefixes of dynamic neighbours must be outside all Subnets and pools.
        let has_neighbours = network.peers().iter().any(|peer| peer.prefix.is_some());
        if has_neighbours {
            facts.subnets = self.all::<SubnetSpec, _>().await?;
        }
        if has_neighbours || network.extra_prefixes().next().is_some() {
            facts.service_pools = self.service_pools().await?;
        }
        Ok(facts)
    }

    /// Facts for the deletion of a Network.
    pub(super) async fn for_network_deletion(&self, network: &Network) -> Result<Facts, kube::Error> {
        let mut facts = Facts { subnets: self.all::<SubnetSpec, _>().await?, ..Facts::default() };
        if network.network_type() == NetworkType::Overlay {
            facts.remote_clusters = self.remote_clusters().await?;
        }
        if network.mode() == NetworkMode::BGP {
            facts.networks = self.all::<NetworkSpec, _>().await?;
            let global = facts.networks.iter().find(|other| other.network_type() == NetworkType::GlobalBGP);
            if let Some(global) = global {
                facts.nodes = self.nodes(network).await?;
                for node in &facts.nodes {
                    let labels =
                        format!("{}={},{}={}", label::NETWORK, global.name(), label::NODE, node.name);
                    let mut used = self.some::<IPInstanceSpec, _>(&labels).await?;
                    facts.instances.append(&mut used);
                    if facts.instances.len() >= ENOUGH as usize {
                        break;
                    }
                }
            }
        }
        Ok(facts)
    }

    /// Facts for the creation or update of a Subnet.
    pub(super) async fn for_subnet(&self) -> Result<Facts, kube::Error> {
        let networks = self.all::<NetworkSpec, _>().await?;
        let (subnets, service_pools) = (self.all::<SubnetSpec, _>().await?, self.service_pools().await?);
        let remote_subnets = self.remote_subnets().await?;
        Ok(Facts { networks, subnets, service_pools, remote_subnets, ..Facts::default() })
    }

    /// Facts for a RemoteSubnet.
    pub(super) async fn for_remote_subnet(&self) -> Result<Facts, kube::Error> {
        let (subnets, remote_subnets) = (self.all::<SubnetSpec, _>().await?, self.remote_subnets().await?);
        Ok(Facts { subnets, remote_subnets, ..Facts::default() })
    }

    /// Facts for the creation of a ServicePool, and for objects with addresses of their own: all
    /// owners of addresses.
    pub(super) async fn for_owned_addresses(&self) -> Result<Facts, kube::Error> {
        let mut facts = self.for_subnet().await?;
        facts.addressed_nodes = self.addressed_nodes().await?;
        Ok(facts)
    }

    /// Facts for the update of a ServicePool.
    pub(super) async fn for_service_pool_update(&self, old: &ServicePool) -> Result<Facts, kube::Error> {
        let mut facts = self.for_owned_addresses().await?;
        let blocks = old.spec.blocks().unwrap_or_default();
        let is_in = |claim: &ServiceAddress| {
            claim.spec.address().is_ok_and(|address| blocks.iter().any(|block| block.contains(address)))
        };
        facts.claims = self.all::<ServiceAddressSpec, ServiceAddress>().await?;
        facts.claims.retain(is_in);
        Ok(facts)
    }

    /// Facts for the deletion of a ServicePool. An unreadable object has no addresses, but its
    /// claims name it.
    pub(super) async fn for_service_pool_deletion(&self, old: &ServicePool) -> Result<Facts, kube::Error> {
        let blocks = old.spec.blocks().unwrap_or_default();
        let mut claims = self.all::<ServiceAddressSpec, ServiceAddress>().await?;
        claims.retain(|claim| {
            let address = claim.spec.address();
            claim.spec.pool == old.name()
                || address.is_ok_and(|address| blocks.iter().any(|block| block.contains(address)))
        });
        claims.truncate(ENOUGH as usize);
        Ok(Facts { claims, ..Facts::default() })
    }

    /// Facts for the creation or update of an AgentSettings.
    pub(super) async fn for_agent_settings(&self) -> Result<Facts, kube::Error> {
        let agent_settings = self.all::<AgentSettingsSpec, _>().await?;
        Ok(Facts { agent_settings, nodes: self.labelled_nodes("").await?, ..Facts::default() })
    }

    /// All ServicePools; none in a cluster without Trunkline's own kinds.
    async fn service_pools(&self) -> Result<Vec<ServicePool>, kube::Error> {
        match self.all::<ServicePoolSpec, _>().await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            answer => answer,
        }
    }

    /// All RemoteSubnets with their prefixes; none in a cluster without the kind.
    async fn remote_subnets(&self) -> Result<Vec<RemotePrefix>, kube::Error> {
        let all: Vec<RemoteSubnet> = match self.all::<RemoteSubnetSpec, _>().await {
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            answer => answer?,
        };
        Ok(all.into_iter().filter_map(RemotePrefix::of).collect())
    }

    /// All Nodes with their addresses.
    async fn addressed_nodes(&self) -> Result<Vec<(String, Vec<IpAddr>)>, kube::Error> {
        let api: Api<KubeNode> = Api::all(self.client.clone());
        let mut parameters = ListParams::default().limit(PAGE);
        let mut nodes = Vec::new();
        loop {
            let page = api.list(&parameters).await?;
            nodes.extend(page.items.iter().map(|node| (node.name_any(), node_addresses(node))));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(nodes),
            }
        }
    }

    /// Facts for the deletion of a Subnet.
    pub(super) async fn for_subnet_deletion(&self, name: &str) -> Result<Facts, kube::Error> {
        let labels = format!("{}={name}", label::SUBNET);
        let instances = self.some::<IPInstanceSpec, _>(&labels).await?;
        Ok(Facts { instances, ..Facts::default() })
    }

    /// Facts for the creation or update of an IPInstance.
    pub(super) async fn for_ipinstance(&self, instance: &IPInstance) -> Result<Facts, kube::Error> {
        let mut facts = Facts::default();
        if !instance.spec.subnet.is_empty() {
            let api: Api<Lenient<SubnetSpec>> = Api::all(self.client.clone());
            let found = api.get_opt(&instance.spec.subnet).await?;
            facts.subnets = found.and_then(|found| Some(found.0.ok()?.into())).into_iter().collect();
        }
        Ok(facts)
    }

    /// Facts for the NodeInfo of this name.
    pub(super) async fn for_nodeinfo(&self, name: &str) -> Result<Facts, kube::Error> {
        let api: Api<KubeNode> = Api::all(self.client.clone());
        // The controller has the right to list Nodes, for its watch, but not the right to get one.
        let named = ListParams::default().fields(&format!("metadata.name={name}")).limit(1);
        let node_addresses = api.list(&named).await?.items.first().map(node_addresses);
        let (networks, subnets) = (self.all::<NetworkSpec, _>().await?, self.all::<SubnetSpec, _>().await?);
        let service_pools = self.service_pools().await?;
        Ok(Facts { node_addresses, networks, subnets, service_pools, ..Facts::default() })
    }

    /// Whether a Network of this name exists.
    pub(super) async fn has_network(&self, name: &str) -> Result<bool, kube::Error> {
        let api: Api<NetworkObject> = Api::all(self.client.clone());
        Ok(api.get_metadata_opt(name).await?.is_some())
    }

    /// Whether a Subnet of this name exists.
    pub(super) async fn has_subnet(&self, name: &str) -> Result<bool, kube::Error> {
        let api: Api<SubnetObject> = Api::all(self.client.clone());
        Ok(api.get_metadata_opt(name).await?.is_some())
    }

    async fn nodes(&self, network: &Network) -> Result<Vec<Node>, kube::Error> {
        let selector = &network.spec.node_selector;
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        self.labelled_nodes(&labels.join(",")).await
    }

    /// The Nodes that a selector selects; all for an empty one.
    async fn labelled_nodes(&self, selector: &str) -> Result<Vec<Node>, kube::Error> {
        let api: Api<KubeNode> = Api::all(self.client.clone());
        let mut parameters = ListParams::default().labels(selector).limit(PAGE);
        let mut nodes = Vec::new();
        loop {
            let page = api.list_metadata(&parameters).await?;
            nodes.extend(page.items.into_iter().map(|node| Node {
                name: node.metadata.name.unwrap_or_default(),
                labels: node.metadata.labels.unwrap_or_default(),
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(nodes),
            }
        }
    }

    /// The number of RemoteClusters; 0 in a cluster without hybridnet's multi-cluster kinds.
    async fn remote_clusters(&self) -> Result<usize, kube::Error> {
        let kind = GroupVersionKind::gvk("multicluster.alibaba.com", "v1", "RemoteCluster");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind));
        match api.list_metadata(&ListParams::default().limit(PAGE)).await {
            Ok(list) => Ok(list.items.len()),
            Err(kube::Error::Api(error)) if error.code == 404 => Ok(0),
            Err(error) => Err(error),
        }
    }

    async fn all<S, T>(&self) -> Result<Vec<T>, kube::Error>
    where
        S: Kind,
        T: From<Object<S>>,
    {
        let api: Api<Lenient<S>> = Api::all(self.client.clone());
        let mut parameters = ListParams::default().limit(PAGE);
        let mut found = Vec::new();
        loop {
            let page = api.list(&parameters).await?;
            let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
            found.extend(readable(page.items));
            match next {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// The first few objects with these labels.
    async fn some<S, T>(&self, labels: &str) -> Result<Vec<T>, kube::Error>
    where
        S: Kind,
        T: From<Object<S>>,
    {
        let api: Api<Lenient<S>> = Api::all(self.client.clone());
        let page = api.list(&ListParams::default().labels(labels).limit(ENOUGH)).await?;
        Ok(readable(page.items).collect())
    }
}

fn readable<S: Kind, T: From<Object<S>>>(objects: Vec<Lenient<S>>) -> impl Iterator<Item = T> {
    objects.into_iter().filter_map(|object| {
        let name = object.name_any();
        object
            .0
            .map(T::from)
            .inspect_err(|error| {
                tracing::debug!(name, %error, "an unreadable \
            object is ignored in a verdict")
            })
            .ok()
    })
}
