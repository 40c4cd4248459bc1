//! Annotations, labels, finalizers and conditions: hybridnet's names, so that pods and nodes need no new ones.

/// API group of Network, Subnet, NodeInfo and IPInstance.
pub const GROUP: &str = "networking.alibaba.com";
/// `apiVersion` of Network, Subnet, NodeInfo and IPInstance.
pub const API_VERSION: &str = "networking.alibaba.com/v1";

/// What a pod, or its namespace, may ask for.
pub mod annotation {
    /// Addresses to choose from, by ordinal of a stateful pod: `10.0.0.1,10.0.0.2`, dual stack as `v4/v6`.
    pub const IP_POOL: &str = "networking.alibaba.com/ip-pool";
    /// `IPv4`, `IPv6` or `DualStack`.
    pub const IP_FAMILY: &str = "networking.alibaba.com/ip-family";
    /// MAC addresses to choose from, by ordinal of a stateful pod.
    pub const MAC_POOL: &str = "networking.alibaba.com/mac-pool";
    /// `"false"`: a stateful pod does not keep its address over a restart.
    pub const IP_RETAIN: &str = "networking.alibaba.com/ip-retain";
    /// A Service that other clusters reach too.
    pub const GLOBAL_SERVICE: &str = "networking.alibaba.com/global-service";
    /// The Network to take the address from.
    pub const SPECIFIED_NETWORK: &str = "networking.alibaba.com/specified-network";
    /// The Subnet to take the address from, for dual stack as `v4/v6`.
    pub const SPECIFIED_SUBNET: &str = "networking.alibaba.com/specified-subnet";
    /// `Underlay`, `Overlay` or `GlobalBGP`.
    pub const NETWORK_TYPE: &str = "networking.alibaba.com/network-type";
    /// Most that may go to the pod, in bits per second as a Kubernetes quantity: `10M`.
    pub const INGRESS_BANDWIDTH: &str = "kubernetes.io/ingress-bandwidth";
    /// Most that may come from the pod, likewise.
    pub const EGRESS_BANDWIDTH: &str = "kubernetes.io/egress-bandwidth";
    /// Prefixes that the pod may send from besides its addresses: `10.9.0.0/16,fd00:9::/64`. A pod's own only, and within its Network's
    /// `extraPrefixes`. On an IPInstance: those of its pod.
    pub const EXTRA_PREFIXES: &str = "trunkline.io/extra-prefixes";
    /// Written by the webhook once it has dealt with a pod.
    pub const HANDLED_BY_WEBHOOK: &str = "networking.alibaba.com/handled-by-webhook";
    /// On a Node: addresses besides those in its status that the node may claim in its NodeInfo, separated by commas.
    pub const EXTRA_LOCAL_IPS: &str = "networking.alibaba.com/extra-local-ips";
    /// Written on pods for a policy-only Calico beside this network.
    pub const CALICO_POD_IPS: &str = "cni.projectcalico.org/podIPs";
}

/// Labels of resources, nodes and pods.
pub mod label {
    /// Cluster of a remote resource.
    pub const CLUSTER: &str = "networking.alibaba.com/cluster";
    /// Subnet of an IPInstance.
    pub const SUBNET: &str = "networking.alibaba.com/subnet";
    /// Marks a virtual machine's pod.
    pub const VM: &str = "networking.alibaba.com/vm";
    /// Network of an IPInstance.
    pub const NETWORK: &str = "networking.alibaba.com/network";
    /// Node of an IPInstance.
    pub const NODE: &str = "networking.alibaba.com/node";
    /// Pod of an IPInstance.
    pub const POD: &str = "networking.alibaba.com/pod";
    /// UID of the pod of an IPInstance.
    pub const POD_UID: &str = "networking.alibaba.com/pod-uid";
    /// Layout version of an IPInstance.
    pub const VERSION: &str = "networking.alibaba.com/version";
    /// As the annotation of the same name.
    pub const SPECIFIED_NETWORK: &str = "networking.alibaba.com/specified-network";
    /// As the annotation of the same name.
    pub const SPECIFIED_SUBNET: &str = "networking.alibaba.com/specified-subnet";
    /// Whether a node's Network has an address left: [`super::QUOTA_NONEMPTY`] or [`super::QUOTA_EMPTY`].
    pub const ADDRESS_QUOTA: &str = "networking.alibaba.com/address-quota";
    /// The same for IPv4 alone.
    pub const IPV4_ADDRESS_QUOTA: &str = "networking.alibaba.com/ipv4-address-quota";
    /// The same for IPv6 alone.
    pub const IPV6_ADDRESS_QUOTA: &str = "networking.alibaba.com/ipv6-address-quota";
    /// The same for a pair of IPv4 and IPv6.
    pub const DUAL_STACK_ADDRESS_QUOTA: &str = "networking.alibaba.com/dualstack-address-quota";
    /// `Underlay`, `Overlay` or `GlobalBGP`.
    pub const NETWORK_TYPE: &str = "networking.alibaba.com/network-type";
    /// The node is in an Underlay Network.
    pub const UNDERLAY_NETWORK_ATTACHMENT: &str = "networking.alibaba.com/underlay-network-attachment";
    /// The node is in the Overlay Network.
    pub const OVERLAY_NETWORK_ATTACHMENT: &str = "networking.alibaba.com/overlay-network-attachment";
    /// The node is in a Network of mode BGP.
    pub const BGP_NETWORK_ATTACHMENT: &str = "networking.alibaba.com/bgp-network-attachment";
    /// The remote cluster that a resource belongs to.
    pub const REMOTE_CLUSTER: &str = "networking.alibaba.com/remote-cluster";
    /// Objects with this label are left alone by the webhook.
    pub const WEBHOOK_IGNORE: &str = "webhook.hybridnet.io/ignore";
}

/// What holds an object back from deletion.
pub mod finalizer {
    /// An IPInstance whose address is not yet given back.
    pub const IP_ALLOCATED: &str = "networking.alibaba.com/ip-allocated";
    /// A Network whose metrics are still shown.
    pub const METRICS_REGISTERED: &str = "networking.alibaba.com/metrics-registered";
}

/// Conditions of nodes.
pub mod condition {
    /// Kubernetes' own: the node's network cannot be used. It makes a taint of it.
    pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
    /// The controller's reason for it: the node is in no Network.
    pub const NO_NETWORK: &str = "NoNetwork";
}

/// Value of the quota labels: an address is left.
pub const QUOTA_NONEMPTY: &str = "nonempty";
/// Value of the quota labels: no address is left.
pub const QUOTA_EMPTY: &str = "empty";
/// Value of the attachment labels.
pub const ATTACHED: &str = "true";
