//! Network, Subnet, NodeInfo and IPInstance as hybridnet v0.8.9 writes them, with Trunkline's
//! additions (mostly to a BGP peer).
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

mod ipinstance;
mod meta;
mod network;
mod nodeinfo;
mod subnet;

pub use crate::value::{LongLivedStale, Secret, ValueError, parse_address, parse_mac};
pub use ipinstance::{
    Address, Binding, IPInstance, IPInstanceSpec, IPInstanceStatus, ReferredObject, Stateful,
};
pub use meta::{Count, Ignored, ObjectMeta};
pub use network::{
    AddPath, AttachmentKind, Bfd, BgpPeer, Endpoint, GracefulShutdown, LocalAs, Network, NetworkConfig,
    NetworkMode, NetworkSpec, NetworkStatus, NetworkType, RemovePrivateAs, Role, SecretKeyRef,
};
pub use nodeinfo::{NodeInfo, NodeInfoConfig, NodeInfoSpec, NodeInfoStatus, NodePeer, Vtep, VtepInfo};
pub use subnet::{AddressRange, IpVersion, ParsedRange, Subnet, SubnetConfig, SubnetSpec, SubnetStatus};
