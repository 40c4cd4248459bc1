//! containerlab with Docker deploys the same topology from the same file as the runner, with the
//! same behaviour. If no Docker daemon answers, the lab starts its own daemon.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Context, Test, Verdict, passed};
use crate::containerlab::docker::{Engine, docker};
use crate::containerlab::{self, images};
use crate::demo;
use crate::demo::load_balancer::NOT_IN_CONTAINERS;
use crate::fabric::Place;
use crate::shell::{Seen, cmd, run, wait_for};
use crate::topology::Topology;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "containerlab/two-racks",
        about: "containerlab deploys two-racks from the unchanged file: every promise of the demo \
                is kept in containers, and nothing is left",
        run: two_racks,
    },
    Test {
        name: "containerlab/images",
        about: "the images of the nodes are built, a container of each image runs its daemons, and nothing is left",
        run: node_images,
    },
];

const PATIENCE: Duration = Duration::from_secs(60);

fn two_racks(context: &Context) -> Result<Verdict> {
    if let Some(why) = containerlab::missing() {
        return Ok(Verdict::Skipped(why));
    }
    let engine = match Engine::find_or_start(&context.place)? {
        Ok(engine) => engine,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    crate::progress::say("");
    let topology = Topology::load(&context.place.topology_file(demo::TOPOLOGY)?)?;
    images::build(&context.place, [&topology], &context.product()?)?;
    if let Some(why) = topology.nodes.values().next().and_then(|node| unprivileged(&node.image_name)) {
        return Ok(Verdict::Skipped(why));
    }
    let summary = demo::tour(
        || containerlab::deploy(&context.place, demo::TOPOLOGY),
        &Err(NOT_IN_CONTAINERS.to_owned()),
    )?;
    let faults = summary.faults();
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    let left = containerlab::containers(&context.place, &topology)?;
    ensure!(left.is_empty(), "left: {left:?}");
    drop(engine);
    passed(format!(
        "{}/{} pairs, {} routes, 0 of {} and 0 of {} packets lost",
        summary.pairs_ok,
        summary.pairs_total,
        summary.spine_pod_routes,
        summary.restart_sent_packets,
        summary.kill_sent_packets
    ))
}

/// The reason for which this machine starts no privileged containers, if any. containerlab's nodes
/// are privileged.
fn unprivileged(image: &str) -> Option<String> {
    let args = ["run", "--rm", "--privileged", "--network", "none", "--entrypoint", "/bin/true", image];
    let error = run(&mut docker(args)).err()?;
    Some(format!("no privileged container starts here, and containerlab's nodes are privileged: {error:#}"))
}

/// For each image with a daemon: the image, a node, a command to the daemon, and a part of the
/// answer.
const NODES: [(&str, &str, &[&str], &str); 4] = [
    (demo::TOPOLOGY, "tor1a", &["vtysh", "-c", "show bgp summary"], "65011"),
    (demo::TOPOLOGY, "spine1", &["birdc", "show", "protocols"], "BGP"),
    (demo::TOPOLOGY, "node1a", &["trunkline", "peers"], "10.11.0.1"),
    ("interop", "gobgp", &["gobgp", "global"], "AS:"),
];

fn node_images(context: &Context) -> Result<Verdict> {
    let place = &context.place;
    let links = || run(&mut cmd("ip", ["-o", "link"]));
    let engine = match Engine::find_or_start(place)? {
        Ok(engine) => engine,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    let before = links()?;
    let load = |name: &str| -> Result<Topology> { Ok(Topology::load(&place.topology_file(name)?)?) };
    let topologies = [load(demo::TOPOLOGY)?, load("interop")?];
    let built = images::build(place, &topologies, &context.product()?)?;
    for (topology, node, command, words) in NODES {
        let topology = topologies.iter().find(|t| t.name == topology).context("a topology")?;
        let name = format!("{}-image", place.namespace(&topology.name, node));
        let container = Container::start(place, topology, node, &name)?;
        wait_for(&format!("an answer in {node}"), PATIENCE, || {
            let answer = run(docker(["exec", container.0.as_str()]).args(command))?;
            Ok(Seen::when(answer.contains(words), || answer))
        })?;
    }
    let after = links()?;
    ensure!(before == after, "interfaces changed from {before} to {after}");
    drop(engine);
    passed(format!("{built} images, {} containers answered", NODES.len()))
}

/// The rights that the daemons use. Some machines cannot grant all rights of a privileged
/// container.
const RIGHTS: [&str; 8] = [
    "--cap-add",
    "NET_ADMIN",
    "--cap-add",
    "SYS_ADMIN",
    "--security-opt",
    "seccomp=unconfined",
    "--security-opt",
    "systempaths=unconfined",
];

/// A container; a drop removes it.
struct Container(String);

impl Container {
    /// Starts a node of a topology with its files and sysctls, and without links.
    fn start(place: &Place, topology: &Topology, node: &str, name: &str) -> Result<Self> {
        let node = topology.nodes.get(node).with_context(|| format!("no node {node}"))?;
        let mut start = docker(["run", "--detach", "--network", "none", "--name", name]);
        start.args(RIGHTS);
        for (source, target) in &node.binds {
            let source = copied(place, &topology.folder.join(source))?;
            start.args(["--volume", &format!("{}:{}", source.display(), target.display())]);
        }
        for (key, value) in &node.sysctls {
            start.args(["--sysctl", &format!("{key}={value}")]);
        }
        let container = Self(name.to_owned());
        run(start.arg(&node.image_name))?;
        Ok(container)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(error) = run(&mut docker(["rm", "--force", "--volumes", &self.0])) {
            crate::progress::say(&format!("could not remove the container {}: {error:#}", self.0));
        }
    }
}

/// The container gets a copy, because daemons change the owner of their files.
fn copied(place: &Place, source: &Path) -> Result<std::path::PathBuf> {
    let name = source.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy().into_owned());
    let to = place.state.join("images-files").join(name.collect::<Vec<_>>().join("-"));
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    run(cmd("cp", ["-r", "-T"]).arg(source).arg(&to))?;
    Ok(to)
}
