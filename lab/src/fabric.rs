//! A running lab: creates a topology in network namespaces and always removes it again.
//!
//! Its folder is `target/lab/<topology>/`. It has `files/`, one folder per node with logs and
//! sockets, and `state.json`. `files/` is a copy of the files next to the topology file. Nodes bind
//! these copies, so they can be edited while the lab runs. After a failure the evidence is in
//! `target/lab/failures/`. The namespaces are `tl-<topology>-<node>` for nodes and
//! `tl-<topology>-<node>-<pod>` for pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::interrupt::{self, Registered};
use crate::netns::{Namespace, has_ended};
use crate::progress::say;
use crate::shell::{cmd, run};
use crate::topology::{Link, Topology};
use crate::{daemons, evidence};

/// Paths: the repository, its target folder, and a prefix that separates two labs on one machine.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub repository: PathBuf,
    /// Folder with the topology files.
    pub topologies: PathBuf,
    /// `target/lab`.
    pub state: PathBuf,
    /// Part of the names of namespaces, for two labs of the same topology on one machine.
    pub tag: Option<String>,
}

impl Place {
    pub(crate) fn find(tag: Option<String>) -> Result<Self> {
        if let Some(tag) =
            tag.as_ref().filter(|t| t.is_empty() || t.contains(|c: char| !c.is_ascii_alphanumeric()))
        {
            bail!("--tag {tag:?}: letters and digits only");
        }
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let repository = manifest.parent().context("the repository's folder")?.to_owned();
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(repository.join("target"), PathBuf::from);
        let state = std::path::absolute(target)?.join("lab");
        for copied in ["/etc", "/var/lib"] {
            if state.starts_with(copied) {
                bail!(
                    "the lab's folder {} is below {copied}, of which every lab node has a copy; \
                     set CARGO_TARGET_DIR to a folder elsewhere",
                    state.display()
                );
            }
        }
        Ok(Self { topologies: manifest.join("topologies"), repository, state, tag })
    }

    /// The file of a topology, of the repository or generated.
    pub(crate) fn topology_file(&self, name: &str) -> Result<PathBuf> {
        let file = format!("{name}.clab.yml");
        let known = [self.topologies.join(&file), self.generated().join(&file)];
        known.into_iter().find(|file| file.exists()).with_context(|| {
            format!("there is no topology {name:?}; there are: {}", self.topology_names().join(", "))
        })
    }

    /// The names of the repository's topologies.
    pub(crate) fn topology_names(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.topologies) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".clab.yml")?.to_owned()))
            .collect();
        names.sort();
        names
    }

    /// Folder of the topologies that a cluster generates: their size is an argument.
    pub(crate) fn generated(&self) -> PathBuf {
        self.folder("topologies")
    }

    /// The command that removes a topology.
    fn removal(&self, name: &str) -> String {
        if self.generated().join(format!("{name}.clab.yml")).exists() {
            return "cargo lab kube down".to_owned();
        }
        format!("cargo lab down {name}")
    }

    /// The folder of one lab, with the name of a topology or with another unused name.
    pub(crate) fn folder(&self, topology: &str) -> PathBuf {
        match &self.tag {
            Some(tag) => self.state.join(format!("{topology}@{tag}")),
            None => self.state.join(topology),
        }
    }

    /// The name of a node's network namespace. The names of its pods' namespaces append `-` and a
    /// suffix.
    pub(crate) fn namespace(&self, topology: &str, node: &str) -> String {
        match &self.tag {
            Some(tag) => format!("tl-{tag}-{topology}-{node}"),
            None => format!("tl-{topology}-{node}"),
        }
    }
}

/// State of a running lab, stored on disk.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    nodes: BTreeMap<String, u32>,
    /// Nodes whose process has more namespaces: see [`Host::contained`].
    #[serde(default)]
    contained: BTreeSet<String>,
    product: PathBuf,
    /// The process that will remove the lab; none if the lab was left running.
    owner: Option<u32>,
}

impl State {
    fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)?;
        serde_json::from_str(&text).with_context(|| file.display().to_string())
    }

    fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, serde_json::to_string_pretty(self)?).with_context(|| file.display().to_string())
    }

    /// Whether the process that owns the lab was killed before it could remove the lab.
    fn is_orphaned(&self) -> bool {
        self.owner.is_some_and(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            // Another program may have the process number by now.
            name.trim() != "lab" || i32::try_from(pid).map_or(true, has_ended)
        })
    }
}

/// A running lab.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub topology: Topology,
    pub hosts: BTreeMap<String, Host>,
    /// `target/lab/<topology>`.
    pub folder: PathBuf,
    place: Place,
    /// Removes the lab; also works if only its name is known.
    takedown: fn(&Place, &Topology),
    /// While this exists, a drop removes the lab.
    guard: Option<Registered>,
}

impl Fabric {
    /// Creates a topology. A drop, Ctrl-C or a panic removes it, unless [`Fabric::leave_running`]
    /// is called.
    pub(crate) fn up(place: &Place, name: &str, product: &Path) -> Result<Self> {
        let topology = Topology::load(&place.topology_file(name)?)?;
        let folder = place.folder(name);
        let orphaned = Self::is_orphaned(place, name);
        if let Some(running) = Self::open(place, name).ok().filter(|_| !orphaned) {
            bail!(
                "{name} is up already (since {} in {}); `{}` removes it",
                since(&running.folder.join("state.json")),
                running.folder.display(),
                place.removal(name)
            );
        }
        let left = Self::namespaces(place, &topology);
        if !left.is_empty() {
            // Every running node has a process in its namespace. A killed lab, of any working tree,
            // leaves only names, which nothing uses.
            let used = left.iter().find(|ns| !ns.pids().is_empty());
            if let Some(used) = used.filter(|_| !folder.join("files").exists()) {
                bail!(
                    "processes run in namespace {}, which no lab of this working tree created; if \
                     nobody uses it, `{}` removes it; --tag gives this lab \
                     other names",
                    used.name(),
                    place.removal(name)
                );
            }
            Self::remove(place, &topology);
        }
        let mut fabric = Self::begin(place, topology, Self::remove)?;
        fabric.build(product).inspect_err(|_| {
            say("");
        })?;
        Ok(fabric)
    }

    /// Prepares an empty folder with the files that the nodes bind, and a lab without hosts. It is
    /// removed in every case.
    pub(crate) fn begin(place: &Place, topology: Topology, takedown: fn(&Place, &Topology)) -> Result<Self> {
        let folder = place.folder(&topology.name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        std::fs::create_dir_all(&folder)?;
        copy_files(&topology, &folder.join("files"))?;
        let mut fabric =
            Self { topology, hosts: BTreeMap::new(), folder, place: place.clone(), takedown, guard: None };
        let (guard_place, guard_topology) = (place.clone(), fabric.topology.clone());
        fabric.guard = Some(interrupt::on_stop(move || {
            // The lab is removed twice, because the building thread may have created one more
            // namespace after the first removal.
            takedown(&guard_place, &guard_topology);
            takedown(&guard_place, &guard_topology);
        }));
        Ok(fabric)
    }

    /// Adopts nodes with running daemons that another program has created.
    pub(crate) fn adopt(&mut self, hosts: BTreeMap<String, Host>) -> Result<()> {
        self.hosts = hosts;
        self.write_state(Path::new(""))
    }

    /// Replaces nodes by the same nodes with more namespaces.
    pub(crate) fn replace(&mut self, nodes: Vec<Host>) -> Result<()> {
        let Some(product) = nodes.first().map(|node| node.product.clone()) else { return Ok(()) };
        self.hosts.extend(nodes.into_iter().map(|node| (node.name.clone(), node)));
        self.write_state(&product)
    }

    /// Whether the process that created a lab was killed before it could remove the lab.
    pub(crate) fn is_orphaned(place: &Place, name: &str) -> bool {
        State::read(&place.folder(name).join("state.json")).is_ok_and(|state| state.is_orphaned())
    }

    fn build(&mut self, product: &Path) -> Result<()> {
        let files = &self.folder.join("files");
        for (name, node) in &self.topology.nodes {
            interrupt::check()?;
            let ns = self.place.namespace(&self.topology.name, name);
            let host = Host::create(name, &ns, &self.folder.join(name), files, product, node)?;
            self.hosts.insert(name.clone(), host);
        }
        for link in &self.topology.links {
            self.connect(link)?;
        }
        for (name, node) in &self.topology.nodes {
            for line in &node.exec {
                let (program, args) = line.split_first().context("a command")?;
                self.host(name)?.run(program, args).with_context(|| format!("topology.nodes.{name}.exec"))?;
            }
        }
        self.write_state(product)?;
        daemons::start_all(self)
    }

    fn write_state(&self, product: &Path) -> Result<()> {
        let state = State {
            nodes: self.hosts.values().map(|h| (h.name.clone(), h.pause)).collect(),
            contained: self.hosts.values().filter(|h| h.contained).map(|h| h.name.clone()).collect(),
            product: product.to_owned(),
            owner: Some(std::process::id()),
        };
        state.write(&self.state_file())
    }

    fn connect(&self, link: &Link) -> Result<()> {
        let (a, b) = (self.host(&link.a.node)?, self.host(&link.b.node)?);
        let mtu = link.mtu.to_string();
        // Both ends are created in their own namespaces; nothing passes through the machine's own.
        run(cmd("ip", ["link", "add", "name", &link.a.interface, "mtu", &mtu, "netns", a.ns.name()])
            .args(["type", "veth", "peer", "name", &link.b.interface, "mtu", &mtu, "netns", b.ns.name()]))?;
        a.ns.ip(["link", "set", &link.a.interface, "up"])?;
        b.ns.ip(["link", "set", &link.b.interface, "up"])?;
        Ok(())
    }

    /// Opens a lab that an earlier `cargo lab up` left running.
    pub(crate) fn open(place: &Place, name: &str) -> Result<Self> {
        let topology = Topology::load(&place.topology_file(name)?)?;
        let folder = place.folder(name);
        let file = folder.join("state.json");
        let not_up = || format!("{name} is not up; `cargo lab up {name}` brings it up");
        let state = State::read(&file).with_context(not_up)?;
        let mut hosts = BTreeMap::new();
        for (node, pause) in state.nodes {
            let host = Host {
                ns: Namespace::named(&place.namespace(name, &node)),
                folder: folder.join(&node),
                name: node.clone(),
                pause,
                product: state.product.clone(),
                contained: state.contained.contains(&node),
            };
            if !host.is_up() {
                bail!(not_up());
            }
            hosts.insert(node, host);
        }
        Ok(Self { topology, hosts, folder, place: place.clone(), takedown: Self::remove, guard: None })
    }

    /// Keeps the lab running after the end of this process.
    pub(crate) fn leave_running(mut self) -> Result<()> {
        let state = State { owner: None, ..State::read(&self.state_file())? };
        state.write(&self.state_file())?;
        self.guard = None;
        Ok(())
    }

    fn state_file(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// Removes a lab by its names. Any process may have created it.
    pub(crate) fn down(place: &Place, name: &str) -> Result<usize> {
        let removal = place.removal(name);
        if removal != format!("cargo lab down {name}") {
            bail!("{name} is a cluster; `{removal}` removes it");
        }
        Self::remove_named(place, name)
    }

    /// Like [`Fabric::down`], also for the fabric of a cluster.
    pub(crate) fn remove_named(place: &Place, name: &str) -> Result<usize> {
        let topology = Topology::load(&place.topology_file(name)?)?;
        let there = Self::namespaces(place, &topology).len();
        Self::remove(place, &topology);
        let state = place.folder(name).join("state.json");
        if state.exists() {
            std::fs::remove_file(state)?;
        }
        Ok(there)
    }

    /// Every existing namespace of this lab, of nodes and of pods.
    fn namespaces(place: &Place, topology: &Topology) -> Vec<Namespace> {
        let nodes: Vec<String> = topology.nodes.keys().map(|n| place.namespace(&topology.name, n)).collect();
        let mut found: Vec<Namespace> = Namespace::all()
            .into_iter()
            .filter(|ns| {
                nodes.iter().any(|node| {
                    ns.name()
                        .strip_prefix(node.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
                })
            })
            .collect();
        // Pods are removed before their nodes.
        found.sort_by_key(|ns| std::cmp::Reverse(ns.name().len()));
        found
    }

    fn remove(place: &Place, topology: &Topology) {
        for ns in Self::namespaces(place, topology) {
            if let Err(e) = ns.delete() {
                say(&format!("could not remove {}: {e:#}", ns.name()));
            }
        }
    }

    pub(crate) fn host(&self, name: &str) -> Result<&Host> {
        let known = || self.hosts.keys().cloned().collect::<Vec<_>>().join(", ");
        self.hosts
            .get(name)
            .with_context(|| format!("{} has no node {name:?}; it has: {}", self.topology.name, known()))
    }

    /// The name of a pod's namespace on a node.
    pub(crate) fn pod_namespace(&self, node: &str, pod: &str) -> String {
        format!("{}-{pod}", self.place.namespace(&self.topology.name, node))
    }

    /// The running copy of a file next to the topology.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.folder.join("files").join(path)
    }

    /// The folder for the evidence of a failure. It is outside of the lab's own folder, which the
    /// next run empties.
    pub(crate) fn failure_folder(&self) -> PathBuf {
        failure_folder(&self.place.state, &self.topology.name)
    }

    /// Runs `work`; if it fails, collects logs and tables in one folder and adds its path to the
    /// error.
    pub(crate) fn watched<T>(&self, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        work(self).map_err(|e| match evidence::gather(self, &format!("{e:#}")) {
            Ok(folder) => anyhow::anyhow!("{e:#}\n  logs, captures and routing tables: {}", folder.display()),
            Err(gathering) => anyhow::anyhow!("{e:#}\n  the evidence could not be gathered: {gathering:#}"),
        })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            (self.takedown)(&self.place, &self.topology);
            let _absent = std::fs::remove_file(self.state_file());
        }
    }
}

/// The folder with the evidence of all failures.
pub(crate) fn failures(state: &Path) -> PathBuf {
    state.join("failures")
}

/// A new folder for the evidence of a failure.
pub(crate) fn failure_folder(state: &Path, name: &str) -> PathBuf {
    let folder = |n: u32| failures(state).join(format!("{name}-{n}"));
    (1..).map(folder).find(|f| !f.exists()).unwrap_or_else(|| folder(0))
}

/// Copies the files that the nodes bind, so that a lab's edits never reach the repository.
fn copy_files(topology: &Topology, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for (source, _) in topology.nodes.values().flat_map(|n| &n.binds) {
        copy_tree(&topology.folder.join(source), &to.join(source))
            .with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    if from.is_dir() {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::copy(from, to).map(|_| ())
}

fn since(file: &Path) -> String {
    let age = std::fs::metadata(file).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    age.map_or("unknown".to_owned(), |a| format!("{} ago", crate::progress::seconds(a.as_secs_f64())))
}
