//! Bounds of Services and EndpointSlices. Users write these objects, and every agent keeps parts of
//! them. `docs/limits.md` lists the bounds.
//!
//! A Service above a bound has no effect on its addresses: they are withheld, unless another Service
//! has them too.

use trunkline_api::kept::MAX_SERVICE_PORTS;

/// Most addresses of a Service that an agent keeps: those of all kinds together.
pub const MAX_ADDRESSES: usize = 64;
/// Most endpoints of a Service on this node, in one IP family. Ports that are in different
/// EndpointSlices count their endpoints separately.
pub const MAX_ENDPOINTS: usize = 4096;

/// A bound that a Service exceeds, with the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Ports of the Service.
    #[error(
        "the Service has {0} ports, and at most {MAX_SERVICE_PORTS} are allowed: distribute the ports to several \
         Services"
    )]
    Ports(usize),
    /// Ports of an EndpointSlice.
    #[error(
        "an EndpointSlice of the Service has {0} ports, and at most {MAX_SERVICE_PORTS} are allowed: write fewer"
    )]
    SlicePorts(usize),
    /// Addresses of the Service.
    #[error(
        "the Service has {0} addresses, and at most {MAX_ADDRESSES} are allowed: distribute spec.externalIPs to \
         several Services"
    )]
    Addresses(usize),
    /// Endpoints on this node.
    #[error(
        "the EndpointSlices of the Service have {0} endpoints on this node, counted for each different set of ports, \
         and at most {MAX_ENDPOINTS} are allowed: write fewer endpoints, or the same ports in every EndpointSlice"
    )]
    Endpoints(usize),
}
