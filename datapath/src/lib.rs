//! The node's data path: names, netlink, nftables, the kernel owner, pods' interfaces, and link checks.
//!
//! This crate knows neither Kubernetes nor BGP sessions nor the agent's socket, and `cargo` holds it to that: what it should do comes as
//! plain values ([`plan`]). A module imports only those above it in this list:
//!
//! - [`family`], [`mac`], [`naming`], [`bpf`], [`sockets`]: words and small tools.
//! - [`plan`]: what the kernel should have, and what was found there.
//! - [`netlink`], [`nft`], [`sysctl`]: the conversations with the kernel.
//! - [`link_check`]: the neighbours of a pod in a VLAN. [`attach`]: the pods' interfaces.
//! - [`kernel`]: the one owner of routes, rules, links, neighbours, nftables and sysctls.

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
pub mod sockets;
pub mod sysctl;
