//! Annotations, labels, finalizers and conditions, with hybridnet's names, so that pods and nodes
//! need no change.

/// API group of hybridnet's kinds: Network, Subnet, NodeInfo and IPInstance.
pub const GROUP: &str = "networking.alibaba.com";
/// `apiVersion` of Network, Subnet, NodeInfo and IPInstance.
pub const API_VERSION: &str = "networking.alibaba.com/v1";
/// API group of hybridnet's kinds about other clusters: RemoteSubnet and RemoteVtep.
pub const MULTICLUSTER_GROUP: &str = "multicluster.alibaba.com";
/// `apiVersion` of the kinds about other clusters.
pub const MULTICLUSTER_API_VERSION: &str = "multicluster.alibaba.com/v1";
/// API group of Trunkline's own kinds: ServicePool, ServiceAddress, ServiceAdvertisement,
/// AnycastAddress, NodeServices and AgentSettings.
pub const OWN_GROUP: &str = "trunkline.io";
/// Version of the own kinds in their group.
pub const OWN_VERSION: &str = "v1alpha1";
/// `apiVersion` of the own kinds.
pub const OWN_API_VERSION: &str = "trunkline.io/v1alpha1";
/// `spec.loadBalancerClass` of a Service that gets its addresses from Trunkline.
pub const LOAD_BALANCER_CLASS: &str = "trunkline.io/load-balancer";

/// Value of the annotation [`annotation::POLICY_MODE`].
pub const POLICY_MODE_AUDIT: &str = "audit";

/// Value of the label [`label::MANAGED_BY`] of an EndpointSlice with endpoints of other clusters, as in
/// hybridnet: its controllers do not mirror such a slice back.
pub const REMOTE_ENDPOINTS_MANAGER: &str = "remote-endpointslice.hybridnet";

/// `namespace/name`, only the name without a namespace, and empty without a name.
pub fn full_name(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        (_, "") => String::new(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// Annotations of a pod or its namespace, of a Node and of a Service.
pub mod annotation {
    /// Addresses by the ordinal of a stateful pod: `10.0.0.1,10.0.0.2`, dual stack as `v4/v6`.
    pub const IP_POOL: &str = "networking.alibaba.com/ip-pool";
    /// `IPv4`, `IPv6` or `DualStack`.
    pub const IP_FAMILY: &str = "networking.alibaba.com/ip-family";
    /// MAC addresses by the ordinal of a stateful pod.
    pub const MAC_POOL: &str = "networking.alibaba.com/mac-pool";
    /// `"false"`: a stateful pod does not keep its address when it is recreated.
    pub const IP_RETAIN: &str = "networking.alibaba.com/ip-retain";
    /// A Service that is also reachable from other clusters.
    pub const GLOBAL_SERVICE: &str = "networking.alibaba.com/global-service";
    /// Of a global Service: `local` uses the endpoints of other clusters only while this cluster has
    /// none that serves.
    pub const GLOBAL_SERVICE_AFFINITY: &str = "trunkline.io/global-service-affinity";
    /// The Network of the address.
    pub const SPECIFIED_NETWORK: &str = "networking.alibaba.com/specified-network";
    /// On a Namespace: Networks that its pods may use besides that of [`SPECIFIED_NETWORK`], separated
    /// by commas: [`crate::tenancy::NetworkBinding`].
    pub const ALLOWED_NETWORKS: &str = "trunkline.io/allowed-networks";
    /// The Subnet of the address, for dual stack as `v4/v6`. Several Subnets as `a,b`, in order of
    /// preference.
    pub const SPECIFIED_SUBNET: &str = "networking.alibaba.com/specified-subnet";
    /// `Underlay`, `Overlay` or `GlobalBGP`.
    pub const NETWORK_TYPE: &str = "networking.alibaba.com/network-type";
    /// Rate limit towards the pod, in bits per second as a Kubernetes quantity: `10M`.
    pub const INGRESS_BANDWIDTH: &str = "kubernetes.io/ingress-bandwidth";
    /// Rate limit from the pod, likewise.
    pub const EGRESS_BANDWIDTH: &str = "kubernetes.io/egress-bandwidth";
    /// Prefixes from which the pod may send in addition to its addresses:
    /// `10.9.0.0/16,fd00:9::/64`. Only on the pod itself, and within its Network's `extraPrefixes`.
    /// On an IPInstance: those of its pod.
    pub const EXTRA_PREFIXES: &str = "trunkline.io/extra-prefixes";
    /// How long a stateful pod's address is retained after the pod has ended: `72h`, or `never` (it
    /// is never released). On an IPInstance: that of its pod.
    pub const IP_RETENTION: &str = "trunkline.io/ip-retention";
    /// On an IPInstance: the time since which the address is retained, RFC 3339.
    pub const RETAINED_SINCE: &str = "trunkline.io/retained-since";
    /// On an IPInstance that outlives its workload, and so has no owner: the `apiVersion` of the
    /// workload in its binding.
    pub const WORKLOAD_API_VERSION: &str = "trunkline.io/workload-api-version";
    /// The further interfaces of a pod besides `eth0`, a JSON list: [`crate::interfaces::Interface`].
    pub const INTERFACES: &str = "networking.alibaba.com/interfaces";
    /// On an IPInstance of another interface than `eth0`: the interface, in JSON:
    /// [`crate::interfaces::InterfaceSettings`].
    pub const INTERFACE: &str = "trunkline.io/interface";
    /// On an IPInstance of `eth0`: the names of the pod's other interfaces, separated by commas.
    pub const OTHER_INTERFACES: &str = "trunkline.io/other-interfaces";
    /// On an IPInstance of a virtual machine during its live migration: the pod to which it moves, in
    /// JSON: [`crate::resources::MigrationTarget`].
    pub const MIGRATION_TARGET: &str = "trunkline.io/migration-target";
    /// On an IPInstance of a virtual machine: the UID of the pod from which its last live migration
    /// began. That pod is never the target of a later one.
    pub const MIGRATION_SOURCE_POD: &str = "trunkline.io/migration-source-pod";
    /// Multus': the networks of a pod besides the cluster's default network.
    pub const MULTUS_NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
    /// Marks a pod that the webhook has handled.
    pub const HANDLED_BY_WEBHOOK: &str = "networking.alibaba.com/handled-by-webhook";
    /// On a Node: addresses in addition to those in its status that the node may claim in its
    /// NodeInfo, separated by commas.
    pub const EXTRA_LOCAL_IPS: &str = "networking.alibaba.com/extra-local-ips";
    /// Written on pods for a policy-only Calico.
    pub const CALICO_POD_IPS: &str = "cni.projectcalico.org/podIPs";
    /// On a Service: its addresses, at most one of each IP family, separated by commas.
    pub const ADDRESSES: &str = "trunkline.io/addresses";
    /// On a Service: the ServicePool of its addresses.
    pub const POOL: &str = "trunkline.io/pool";
    /// On a Service: it shares its address with the Services of the same key.
    pub const SHARING_KEY: &str = "trunkline.io/sharing-key";

    /// On a Namespace: [`super::POLICY_MODE_AUDIT`] only observes the network policies of its pods.
    pub const POLICY_MODE: &str = "trunkline.io/policy-mode";
    /// Kubernetes' own, on the API server's copy of a static pod: the UID of the static pod.
    pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

    /// MetalLB's annotations of a Service. Each list has the name of today first, then that of
    /// MetalLB before 0.15.
    pub mod metallb {
        /// Means [`ADDRESSES`](super::ADDRESSES).
        pub const ADDRESSES: [&str; 2] =
            ["metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"];
        /// Means [`POOL`](super::POOL).
        pub const POOL: [&str; 2] = ["metallb.io/address-pool", "metallb.universe.tf/address-pool"];
        /// Means [`SHARING_KEY`](super::SHARING_KEY).
        pub const SHARING_KEY: [&str; 2] =
            ["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"];
    }
}

/// Labels of resources, nodes and pods.
pub mod label {
    /// Kubernetes' own, on a Namespace: its name. The API server adds it.
    pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
    /// Cluster of a remote resource.
    pub const CLUSTER: &str = "networking.alibaba.com/cluster";
    /// Subnet of an IPInstance.
    pub const SUBNET: &str = "networking.alibaba.com/subnet";
    /// The virtual machine of an IPInstance: KubeVirt's VirtualMachine in its namespace.
    pub const VM: &str = "networking.alibaba.com/vm";
    /// KubeVirt's own, on a pod: the live migration for which it was created.
    pub const MIGRATION_JOB: &str = "kubevirt.io/migrationJobUID";
    /// Network of an IPInstance.
    pub const NETWORK: &str = "networking.alibaba.com/network";
    /// Node of an IPInstance.
    pub const NODE: &str = "networking.alibaba.com/node";
    /// Pod of an IPInstance.
    pub const POD: &str = "networking.alibaba.com/pod";
    /// On an IPInstance of a virtual machine: the node from which its last live migration began. The
    /// agent of that node sees the IPInstance.
    pub const MIGRATION_SOURCE: &str = "trunkline.io/migration-source";
    /// UID of the pod of an IPInstance.
    pub const POD_UID: &str = "networking.alibaba.com/pod-uid";
    /// Layout version of an IPInstance.
    pub const VERSION: &str = "networking.alibaba.com/version";
    /// The same value as the annotation of this name.
    pub const SPECIFIED_NETWORK: &str = "networking.alibaba.com/specified-network";
    /// The same value as the annotation of this name.
    pub const SPECIFIED_SUBNET: &str = "networking.alibaba.com/specified-subnet";
    /// Whether a node's Network has a free address: [`super::QUOTA_NONEMPTY`] or
    /// [`super::QUOTA_EMPTY`].
    pub const ADDRESS_QUOTA: &str = "networking.alibaba.com/address-quota";
    /// Whether a node's Network has a free IPv4 address.
    pub const IPV4_ADDRESS_QUOTA: &str = "networking.alibaba.com/ipv4-address-quota";
    /// Whether a node's Network has a free IPv6 address.
    pub const IPV6_ADDRESS_QUOTA: &str = "networking.alibaba.com/ipv6-address-quota";
    /// Whether a node's Network has a free pair of an IPv4 and an IPv6 address.
    pub const DUAL_STACK_ADDRESS_QUOTA: &str = "networking.alibaba.com/dualstack-address-quota";
    /// `Underlay`, `Overlay` or `GlobalBGP`.
    pub const NETWORK_TYPE: &str = "networking.alibaba.com/network-type";
    /// Set on nodes in an Underlay Network.
    pub const UNDERLAY_NETWORK_ATTACHMENT: &str = "networking.alibaba.com/underlay-network-attachment";
    /// Set on nodes in the Overlay Network.
    pub const OVERLAY_NETWORK_ATTACHMENT: &str = "networking.alibaba.com/overlay-network-attachment";
    /// Set on nodes in a Network of mode BGP.
    pub const BGP_NETWORK_ATTACHMENT: &str = "networking.alibaba.com/bgp-network-attachment";
    /// The remote cluster of a resource.
    pub const REMOTE_CLUSTER: &str = "networking.alibaba.com/remote-cluster";
    /// The webhook ignores objects with this label.
    pub const WEBHOOK_IGNORE: &str = "webhook.hybridnet.io/ignore";
    /// Kubernetes' own, on a Node: load balancers send it no traffic. The value has no effect.
    pub const EXCLUDE_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    /// Kubernetes' own, on a Service: another program than kube-proxy forwards it.
    pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
    /// Kubernetes' own, on an EndpointSlice: the name of its Service.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// Kubernetes' own, on an EndpointSlice: the program that writes it.
    pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
    /// Kubernetes' own, on an EndpointSlice of a headless Service.
    pub const HEADLESS: &str = "service.kubernetes.io/headless";
}

/// Finalizers, which delay the deletion of an object.
pub mod finalizer {
    /// On an IPInstance whose address is not released yet.
    pub const IP_ALLOCATED: &str = "networking.alibaba.com/ip-allocated";
    /// On a Network with exported metrics.
    pub const METRICS_REGISTERED: &str = "networking.alibaba.com/metrics-registered";
}

/// Conditions of Nodes, Services and the own kinds.
pub mod condition {
    /// Kubernetes' own: the node's network is unavailable. Kubernetes turns it into a taint.
    pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
    /// The controller's reason: the node is in no Network.
    pub const NO_NETWORK: &str = "NoNetwork";
    /// On a Service: it has its addresses.
    pub const ADDRESS_ALLOCATED: &str = "trunkline.io/AddressAllocated";
    /// On a ServicePool and a ServiceAdvertisement: it is in force.
    pub const READY: &str = "Ready";
    /// On a ServicePool: no address is free.
    pub const FULL: &str = "Full";
    /// On a ServiceAddress: at least one node advertises it.
    pub const ADVERTISED: &str = "Advertised";
}

/// Value of the quota labels: an address is free.
pub const QUOTA_NONEMPTY: &str = "nonempty";
/// Value of the quota labels: no address is free.
pub const QUOTA_EMPTY: &str = "empty";
/// Value of the attachment labels.
pub const ATTACHED: &str = "true";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_needs_no_namespace() {
        assert_eq!(full_name("default", "web"), "default/web");
        assert_eq!(full_name("", "web"), "web");
        assert_eq!((full_name("default", ""), full_name("", "")), (String::new(), String::new()));
    }
}
