//! The real kube-proxy of a cluster's nodes, and of its control plane.

use std::path::Path;

use anyhow::Result;

use super::Part;
use super::pki::kubeconfig;
use crate::host::Host;
use crate::kube::proxy::{Mode, flags};

/// Starts kube-proxy on a node.
pub(super) fn start(node: &Host, folder: &Path, program: &Path, mode: Mode) -> Result<()> {
    start_as(node, &node.name, folder, program, mode)
}

/// Starts kube-proxy where no node is: with the name of a node. With a name that no Node has, it
/// would wait for that Node for half a minute.
pub(super) fn start_as(host: &Host, name: &str, folder: &Path, program: &Path, mode: Mode) -> Result<()> {
    let mut flags = flags(&kubeconfig(folder, "kube-proxy"), name, mode);
    // kube-proxy's default, which belongs to the node's namespace. One of upstream's tests reads it.
    flags.push("--conntrack-tcp-timeout-close-wait=1h".to_owned());
    Part::start(host, "kube-proxy", program, &flags)?;
    Ok(())
}
