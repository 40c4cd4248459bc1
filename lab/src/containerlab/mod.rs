//! A topology deployed by containerlab itself, from the same file that the runner reads:
//!
//! ```text
//! images      Debian's FRR, BIRD and GoBGP, and the agent and plugin of this tree, as containers (lab/images)
//!   └─ deploy    `containerlab deploy`: containers, links, exec lines ─► the same Fabric and Hosts that the runner makes
//!        └─ demo, tests   see no difference: a container is a network and a mount namespace too
//! ```
//!
//! Difficulties:
//!
//! - Daemons start with their container, before the container has links. So Trunkline must handle
//!   links that appear later.
//! - A container's mounts are its own. So the lab creates a pod's namespace in the container, at
//!   the path that the plugin gets. On the machine its name is a symbolic link to
//!   `/proc/PID/root/run/netns/NAME`; PID is the container's first process.
//! - A container that ends loses the links that containerlab made, so its first process outlives
//!   the daemons.
//! - containerlab only logs an `exec` line that failed. The missing effect of the line then makes a
//!   test fail.
//! - containerlab itself creates a management network (unused: every node has `network-mode: none`)
//!   and turns the machine's own `rp_filter` off.

pub(crate) mod docker;
pub(crate) mod images;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use self::docker::docker;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::netns::Namespace;
use crate::progress::say;
use crate::shell::{cmd, run};
use crate::topology::Topology;

/// The reason for which containerlab cannot be used here, if any. `go install` refuses
/// containerlab, because its go.mod has `replace` lines. Debian has no package.
pub(crate) fn missing() -> Option<String> {
    let error = run(&mut cmd("containerlab", ["version"])).err()?;
    Some(format!(
        "containerlab cannot be run ({}); install it: https://containerlab.dev/install",
        docker::first_line(&error)
    ))
}

/// Deploys a topology with existing images. A drop, Ctrl-C or a panic destroys it.
pub(crate) fn deploy(place: &Place, name: &str) -> Result<Fabric> {
    let place = tagged(place);
    let file = place.topology_file(name)?;
    let topology = Topology::load(&file)?;
    if Fabric::is_orphaned(&place, name) {
        destroy(&place, &topology);
    }
    ensure!(
        containers_of(&place, &topology)?.is_empty(),
        "a lab called {} is deployed already; `containerlab destroy --name {0}` removes it, --tag changes the name of this one",
        lab_name(&place, &topology)
    );
    let mut fabric = Fabric::begin(&place, topology, destroy)?;
    std::fs::copy(&file, topology_file(&fabric.folder, name))?;
    let said = run(&mut containerlab(&place, &fabric.topology, "deploy"))?;
    std::fs::write(fabric.folder.join("deploy.log"), &said)?;
    fabric.adopt(hosts(&place, &fabric)?)?;
    Ok(fabric)
}

/// The existing containers of a lab, running or not.
pub(crate) fn containers(place: &Place, topology: &Topology) -> Result<Vec<String>> {
    containers_of(&tagged(place), topology)
}

fn containers_of(place: &Place, topology: &Topology) -> Result<Vec<String>> {
    let label = format!("label=containerlab={}", lab_name(place, topology));
    let names = run(&mut docker(["ps", "--all", "--format", "{{.Names}}", "--filter", &label]))?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// A separate place for files and pods. The same topology in namespaces has other files and pods.
fn tagged(place: &Place) -> Place {
    Place { tag: Some(format!("clab{}", place.tag.as_deref().unwrap_or_default())), ..place.clone() }
}

fn hosts(place: &Place, fabric: &Fabric) -> Result<BTreeMap<String, Host>> {
    let lab = lab_name(place, &fabric.topology);
    let mut hosts = BTreeMap::new();
    for node in fabric.topology.nodes.keys() {
        let container = format!("clab-{lab}-{node}");
        let pid = run(&mut docker(["inspect", "--format", "{{.State.Pid}}", &container]))?;
        let pid: u32 =
            pid.trim().parse().with_context(|| format!("the first process of {container}: {pid:?}"))?;
        ensure!(
            pid != 0 && Path::new(&format!("/proc/{pid}/ns/net")).exists(),
            "{container} does not run on this machine: `docker logs {container}` may show the reason"
        );
        let ns = Namespace::named(&container);
        ensure!(ns.exists(), "containerlab has not named the network namespace of {container}");
        let host = Host {
            name: node.clone(),
            ns,
            folder: fabric.folder.join(node),
            pause: pid,
            product: PathBuf::from(images::PROGRAMS),
            contained: true,
        };
        std::fs::create_dir_all(host.logs())?;
        hosts.insert(node.clone(), host);
    }
    Ok(hosts)
}

/// Destroys the lab, and removes the names of its pods on the machine. Any process may have
/// deployed it.
fn destroy(place: &Place, topology: &Topology) {
    if let Err(e) = run(containerlab(place, topology, "destroy").arg("--cleanup")) {
        say(&format!("could not destroy {}: {e:#}", lab_name(place, topology)));
    }
    for ns in
        Namespace::all().into_iter().filter(|ns| ns.name().starts_with(&place.namespace(&topology.name, "")))
    {
        // The namespace is gone with its container; only a name is left.
        let _gone = std::fs::remove_file(ns.path());
    }
}

fn lab_name(place: &Place, topology: &Topology) -> String {
    match place.tag.as_deref().and_then(|tag| tag.strip_prefix("clab")).filter(|tag| !tag.is_empty()) {
        Some(tag) => format!("{}-{tag}", topology.name),
        None => topology.name.clone(),
    }
}

fn topology_file(folder: &Path, name: &str) -> PathBuf {
    folder.join("files").join(format!("{name}.clab.yml"))
}

/// `containerlab VERB` for this lab. The topology file is a copy, next to copies of the files that
/// the nodes bind. So the lab changes nothing in the repository.
fn containerlab(place: &Place, topology: &Topology, verb: &str) -> Command {
    let folder = place.folder(&topology.name);
    let mut command = cmd("containerlab", [verb, "--name", &lab_name(place, topology), "--topo"]);
    command.arg(topology_file(&folder, &topology.name)).env("CLAB_LABDIR_BASE", &folder);
    docker::direct(&mut command);
    command
}
