//! The node's data path: names, netlink, nftables, the kernel owner, pods' interfaces, and link
//! checks.
//!
//! This crate does not depend on Kubernetes, BGP sessions or the agent's socket; its `Cargo.toml`
//! enforces that. The wanted state arrives as plain values ([`plan`]). A module imports only
//! modules above it in this list:
//!
//! - [`family`], [`mac`], [`naming`], [`bpf`], [`sockets`]: basic types and tools.
//! - [`plan`]: the wanted kernel state, and the found state.
//! - [`netlink`], [`nft`], [`sysctl`]: requests to the kernel.
//! - [`link_check`]: checks of the gateway and the address of a VLAN pod. [`attach`]: pods'
//!   interfaces. [`proxy_rules`]: reads the rules of the service proxy.
//! - [`kernel`]: the only owner of routes, rules, links, neighbours, nftables and sysctls.

pub mod attach;
pub mod bpf;
pub mod family;
pub mod kernel;
pub mod link_check;
pub mod mac;
pub mod naming;
pub mod netlink;
pub mod nft;
pub mod plan;
pub mod proxy_rules;
pub mod sockets;
pub mod sysctl;
