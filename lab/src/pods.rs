//! `cargo lab pod`: pods of a lab that is up, attached through the CNI plugin as a container
//! runtime does it. `cargo lab down` removes them with their nodes.

use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::client;
use crate::cni::{self, Sandbox};
use crate::fabric::Fabric;
use crate::netns::Namespace;
use crate::shell::{Seen, cmd, wait_for};
use crate::topology::Image;

/// The longest wait for a node that can attach pods: sessions of a new fabric need seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest name of a pod. The namespace's name also contains the names of the topology and the
/// node.
const LONGEST: usize = 63;

/// Attaches a pod to a network of a node, or to the network that the agent chooses.
pub(crate) fn add(fabric: &Fabric, node: &str, name: &str, network: Option<&str>) -> Result<Vec<IpAddr>> {
    let pod = sandbox(fabric, node, name)?;
    let topology = &fabric.topology.name;
    ensure!(
        !pod.ns.exists(),
        "{node} has a pod {name:?} already; `cargo lab pod del {topology} {node} {name}` removes it"
    );
    let host = fabric.host(node)?;
    client::wait_answering(host)?;
    wait_for(&format!("{node} to be ready for pods"), PATIENCE, || {
        let status = client::status(host)?;
        Ok(Seen::when(status.ready, || status.not_ready.join("; ")))
    })
    .with_context(|| format!("look at `cargo lab exec {topology} {node} trunkline peers`"))?;
    let namespace = host.sandbox(pod.ns.name())?;
    match cni::add(fabric, &cni::trunkline(network), &pod) {
        Ok(attached) => Ok(attached.addresses),
        Err(error) => {
            // A runtime also runs DEL after a failed ADD. An error of this DEL equals the ADD's
            // error or follows from it.
            let _failed = cni::del(fabric, &cni::trunkline(None), &pod);
            namespace.delete()?;
            let other = if network.is_none() { "; `--network` names a network" } else { "" };
            Err(error.context(format!("{name} cannot be attached to {node}{other}")))
        }
    }
}

/// Detaches a pod and removes its namespace.
pub(crate) fn del(fabric: &Fabric, node: &str, name: &str) -> Result<()> {
    let pod = existing(fabric, node, name)?;
    cni::del(fabric, &cni::trunkline(None), &pod).with_context(|| {
        format!(
            "{name} is not detached; repeat this command when the agent answers \
             `cargo lab exec {} {node} trunkline status`",
            fabric.topology.name
        )
    })?;
    pod.ns.delete()
}

/// Becomes a command in a pod's namespace; returns only the error.
pub(crate) fn exec(fabric: &Fabric, node: &str, name: &str, command: &[String]) -> Result<std::io::Error> {
    let pod = existing(fabric, node, name)?;
    Ok(cmd("ip", ["netns", "exec", pod.ns.name()]).args(command).exec())
}

/// Attaches `count` pods to every Trunkline node: pod1, pod2 and so on. Returns a table of them.
pub(crate) fn add_everywhere(fabric: &Fabric, count: u16) -> Result<Vec<Vec<String>>> {
    let nodes = fabric.topology.with_image(Image::Node);
    let pods = nodes.flat_map(|node| (1..=count).map(move |number| (node, format!("pod{number}"))));
    let rows = pods.map(|(node, name)| {
        let addresses = add(fabric, node, &name, None)?;
        Ok(vec![node.to_owned(), name, line(&addresses)])
    });
    let mut table = vec![["NODE", "POD", "ADDRESSES"].map(str::to_owned).to_vec()];
    table.extend(rows.collect::<Result<Vec<_>>>()?);
    Ok(table)
}

/// Addresses in one line.
pub(crate) fn line(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn existing(fabric: &Fabric, node: &str, name: &str) -> Result<Sandbox> {
    let pod = sandbox(fabric, node, name)?;
    if !pod.ns.exists() {
        let prefix = fabric.pod_namespace(node, "");
        let all = Namespace::all();
        let mut there: Vec<&str> = all.iter().filter_map(|ns| ns.name().strip_prefix(&prefix)).collect();
        there.sort_unstable();
        let there = if there.is_empty() { "no pods".to_owned() } else { there.join(", ") };
        let topology = &fabric.topology.name;
        bail!(
            "{node} has no pod {name:?}; it has: {there}; \
             `cargo lab pod add {topology} {node} {name}` attaches one"
        );
    }
    Ok(pod)
}

/// The sandbox of a pod with a valid name on a Trunkline node; its namespace need not exist.
fn sandbox(fabric: &Fabric, node: &str, name: &str) -> Result<Sandbox> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    ensure!(
        !name.is_empty() && name.len() <= LONGEST && name.chars().all(plain) && !name.starts_with('-'),
        "pod {name:?}: use at most {LONGEST} lower-case letters, digits and dashes, and no dash in front"
    );
    fabric.host(node)?;
    if !fabric.topology.with_image(Image::Node).any(|n| n == node) {
        let nodes: Vec<&str> = fabric.topology.with_image(Image::Node).collect();
        let topology = &fabric.topology.name;
        let nodes = if nodes.is_empty() { "none".to_owned() } else { nodes.join(", ") };
        bail!("{node} runs no agent, so it has no pods; Trunkline nodes of {topology}: {nodes}");
    }
    let ns = Namespace::named(&fabric.pod_namespace(node, name));
    let mut pod = Sandbox::of(ns, node, name);
    name.clone_into(&mut pod.identity.name);
    Ok(pod)
}
