//! Network, Subnet, NodeInfo and IPInstance as hybridnet v0.8.9 writes them, with Trunkline's
//! additions (mostly to a BGP peer), and Trunkline's own kinds.
//!
//! The own kinds (group `trunkline.io`) are AgentSettings (fields of the agents' configuration for a
//! group of nodes), and kinds about addresses outside of the pods' Subnets:
//!
//! ```text
//! Service ── request ──► ServicePool ── allocation ──► ServiceAddress (the claim)
//!    │                                                       │
//!    └────────── ServiceAdvertisement: prefixes, nodes, peers, attributes ──────► NodeServices
//! AnycastAddress: addresses of nodes themselves, with a health check ───────────► NodeServices
//! ```
//!
//! A manifest that hybridnet's API server accepts, or returns (`kubectl get -o yaml`), loads
//! unchanged. Names and defaults are the same; `null` and `""` mean "unset" wherever its Go structs
//! write them. Any other field is refused, so that a typing error is noticed at once.
//!
//! Addresses are stored as text, and parsed by methods. An invalid address is a fault of its field
//! ([`crate::validate`]), not of the file. After validation those methods cannot fail, and their
//! errors are propagated with `?`.
//!
//! Differences from hybridnet: AS numbers are unsigned 32-bit, and secrets are neither printed nor
//! serialized.

mod addresses;
mod agent_settings;
mod anycast;
mod ipinstance;
mod meta;
mod naming;
mod network;
mod node_services;
mod nodeinfo;
mod remote;
mod remote_cluster;
mod remote_endpoints;
mod retention;
mod selector;
mod service_address;
mod service_advertisement;
mod service_pool;
mod subnet;

pub use crate::service::AddressKind;
pub use crate::value::{LongLivedStale, Secret, ValueError, parse_address, parse_mac};
pub use addresses::{AddressBlock, AddressBlockError};
pub use agent_settings::{
    AgentConfig, AgentDrain, AgentKernelLimits, AgentProbes, AgentReadiness, AgentServiceProxy,
    AgentServices, AgentSettings, AgentSettingsSpec, AgentSysctls, AgentVlanCheck, ServiceProxyKind,
    UnknownOverlayAddresses, VlanArpSender,
};
pub use anycast::{
    AnycastAddress, AnycastAddressSpec, CheckMethod, GrpcCheck, HealthCheck, HttpCheck, TcpCheck,
};
pub use ipinstance::{
    Address, Binding, IPInstance, IPInstanceSpec, IPInstanceStatus, MigrationTarget, ReferredObject, Stateful,
};
pub use meta::{Condition, ConditionStatus, Count, Ignored, ObjectMeta};
pub use naming::{instance_name, named_address};
pub use network::{
    AddPath, AttachmentKind, Bfd, BgpPeer, Endpoint, GracefulShutdown, LocalAs, Network, NetworkConfig,
    NetworkMode, NetworkSpec, NetworkStatus, NetworkType, RemovePrivateAs, Role, SecretKeyRef,
};
pub use node_services::{
    NodeAnycastAddress, NodeServiceAddress, NodeServiceProxy, NodeServices, NodeServicesSpec,
    NodeServicesStatus,
};
pub use nodeinfo::{NodeInfo, NodeInfoConfig, NodeInfoSpec, NodeInfoStatus, NodePeer, Vtep, VtepInfo};
pub use remote::{RemoteStatus, RemoteSubnet, RemoteSubnetSpec, RemoteVtep, RemoteVtepSpec};
pub use remote_cluster::{RemoteClusterSpec, RemoteClusterState, RemoteClusterStatus};
pub use remote_endpoints::{
    RemoteConditions, RemoteEndpoint, RemoteEndpointSliceSpec, RemoteHints, RemotePort, RemoteService,
    RemoteTarget, RemoteZone,
};
pub use retention::Retention;
pub use selector::{LabelSelector, LabelSelectorError, Operator, Requirement};
pub use service_address::{ServiceAddress, ServiceAddressSpec, ServiceAddressStatus, ServiceRef};
pub use service_advertisement::{
    AggregationLength, NodeAction, ServiceAdvertisement, ServiceAdvertisementSpec,
    ServiceAdvertisementStatus, Weights,
};
pub use service_pool::{L2Settings, PoolMode, ServicePool, ServicePoolSpec, ServicePoolStatus};
pub use subnet::{
    AddressRange, IpVersion, ParsedRange, Subnet, SubnetAccess, SubnetConfig, SubnetDns, SubnetRefusal,
    SubnetSpec, SubnetStatus,
};
