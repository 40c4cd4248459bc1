//! A real cluster: kubelets with containerd, kube-proxy, scheduler, controller manager, API server,
//! etcd and CoreDNS, on nodes in racks below FRR and BIRD. Trunkline is installed by its own chart.
//! Upstream's end-to-end tests run on it ([`e2e`]).
//!
//! ```text
//! build      the programs: Go builds them once per machine
//! images     archives of images, made of these programs: there is no registry
//! layout     addresses, the topology file and the routers' configurations for N nodes in R racks
//!   └─ fabric   creates the namespaces and links, starts the routers, removes everything
//! node       more namespaces for a node, its control group, containerd
//! kubelet, proxy, control, coredns, trunkline   the parts, each started as on a real machine
//! forward    the API server on the machine's loopback
//! disturb    restarts and kills of its parts
//! e2e, exclusions   upstream's tests, their results as a table; the tests that are left out, with reasons
//! cyclonus   the generated cases of network policies of cyclonus
//! ```
//!
//! [`crate::kube`] has an API server only, with the other parts of Kubernetes simulated. It starts
//! in seconds and needs no containers.

pub(crate) mod build;
mod control;
mod coredns;
mod cyclonus;
pub(crate) mod disturb;
pub(crate) mod e2e;
mod exclusions;
pub(crate) mod forward;
pub(crate) mod images;
mod kubelet;
pub(crate) mod layout;
mod node;
mod pki;
mod proxy;
mod trunkline;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use self::build::Programs;
use self::layout::{CONTROL, Layout};
use self::node::ControlGroup;
use crate::cli::Families;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::interrupt::{self, Registered};
use crate::kube::ports::Port;
use crate::kube::proxy::Mode;
use crate::progress::{say, step};
use crate::shell::{Seen, cmd, run, run_with_input, wait_for};
use crate::topology::Topology;
use crate::{evidence, packages, product, uml};

/// The name of the cluster of `cargo lab kube up`.
pub(crate) const NAME: &str = "cluster";

/// Time limit of a start; a busy machine needs half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// Size and settings of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub layout: Layout,
    pub proxy: Mode,
}

/// Stored for commands on a running cluster.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    settings: Settings,
    port: u16,
}

/// A running cluster. A drop removes it, unless [`RealCluster::leave_running`] is called.
pub(crate) struct RealCluster {
    // Dropped first: control groups can only be removed without processes.
    fabric: Fabric,
    remains: Remains,
    programs: Programs,
    settings: Settings,
    /// kubeconfigs, certificates, etcd's data.
    folder: PathBuf,
}

impl RealCluster {
    /// Creates a cluster with Trunkline and CoreDNS, and waits until every node is ready.
    pub(crate) fn up(
        place: &Place,
        name: &str,
        settings: Settings,
        programs: &Programs,
        product: &Path,
    ) -> Result<Self> {
        packages::need(build::PACKAGES.into_iter().chain(packages::ALWAYS).chain(["frr", "bird2"]))?;
        node::check_machine()?;
        if is_up(place, name) {
            bail!("{name} is up already; `cargo lab kube down` removes it");
        }
        settings.layout.write(name, &place.generated())?;
        let title = format!(
            "fabric: {} nodes, {} racks, {}, kube-proxy in mode {}",
            settings.layout.nodes,
            settings.layout.racks,
            settings.layout.families.name(),
            settings.proxy.name()
        );
        let fabric = step(&title, || Fabric::up(place, name, product))?;
        let folder = fabric.folder.join("kube");
        let remains = Remains::of(place, name, settings.layout).guarded(place, name);
        let mut cluster = Self { fabric, remains, programs: programs.clone(), settings, folder };
        match cluster.start(place, product) {
            Ok(()) => Ok(cluster),
            Err(e) => Err(cluster.with_evidence(e)),
        }
    }

    /// Opens the cluster that `cargo lab kube up` left running, if there is one.
    pub(crate) fn open(place: &Place, name: &str) -> Result<Option<Self>> {
        if !is_up(place, name) {
            return Ok(None);
        }
        let fabric = Fabric::open(place, name)?;
        let folder = fabric.folder.join("kube");
        let file = folder.join("cluster.json");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{name} is not completely up; `cargo lab kube down` removes it"))?;
        let state: State = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        let programs = match Programs::find(place)? {
            Ok(programs) => programs,
            Err(missing) => bail!("{missing}"),
        };
        let remains = Remains::of(place, name, state.settings.layout);
        Ok(Some(Self { fabric, remains, programs, settings: state.settings, folder }))
    }

    fn start(&mut self, place: &Place, product: &Path) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let port = Port::claim()?;
        let layout = self.settings.layout;
        pki::Files::create(&self.folder, &layout, port.number())?;
        let nodes = std::thread::scope(|scope| -> Result<Vec<Host>> {
            let this: &Self = self;
            let preparing = scope.spawn(|| {
                crate::progress::be_quiet();
                let archive = trunkline::image(place, product, &this.folder)?;
                this.prepare_nodes(&archive)
            });
            let control = step("etcd and kube-apiserver", || {
                let host = this.fabric.host(CONTROL)?;
                control::start_api(host, &this.folder, &layout, &this.programs, port.number())?;
                control::start_controllers(host, &this.folder, &layout, &this.programs)
            });
            let prepared = step("containerd with images on each node", || {
                preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            control.and(prepared)
        })?;
        self.fabric.replace(nodes)?;

        let control = self.fabric.host(CONTROL)?;
        let lab = uml::own_program(place)?;
        let log = control.logs().join("forward.log");
        let number = port.number();
        // The forwarder needs the port itself.
        forward::start(&lab, &control.ns, number, &log)?;
        step("kubelets register their nodes", || {
            for node in self.nodes()? {
                kubelet::start(node, &self.folder, &layout, &self.programs)?;
            }
            self.wait_nodes_registered()
        })?;
        self.start_proxies()?;
        step("Trunkline by its chart, a Network for each rack", || trunkline::install(self, place))?;
        step("CoreDNS, every node ready", || {
            self.apply(&coredns::manifest(&layout))?;
            self.kubectl(&["wait", "node", "--all", "--for=condition=Ready", "--timeout=120s"])?;
            self.rolled_out("kube-system", "deployment/coredns")
        })?;
        self.wait_forwarder()?;
        let state = State { settings: self.settings, port: number };
        std::fs::write(self.folder.join("cluster.json"), serde_json::to_string_pretty(&state)?)?;
        Ok(())
    }

    /// Creates the nodes' namespaces, starts containerd on each, and imports all images.
    fn prepare_nodes(&self, trunkline: &Path) -> Result<Vec<Host>> {
        let layout = self.settings.layout;
        let prepare = |name: String| -> Result<Host> {
            let host = self.fabric.host(&name)?;
            let addresses: Vec<String> =
                layout.node_addresses(&name)?.iter().map(ToString::to_string).collect();
            let node = node::create(host, &self.programs, &addresses)?;
            node::install_plugins(&node)?;
            node::start_containerd(&node)?;
            for archive in images::archives(&self.programs).iter().map(PathBuf::as_path).chain([trunkline]) {
                node::import(&node, archive)?;
            }
            Ok(node)
        };
        std::thread::scope(|scope| {
            let prepare = &prepare;
            let threads: Vec<_> =
                layout.node_names().map(|name| scope.spawn(move || prepare(name))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    fn start_proxies(&self) -> Result<()> {
        for node in self.nodes()? {
            proxy::start(node, &self.folder, &self.programs.proxy, self.settings.proxy)?;
        }
        let control = self.fabric.host(CONTROL)?;
        proxy::start_as(control, "node1", &self.folder, &self.programs.proxy, self.settings.proxy)
    }

    fn wait_nodes_registered(&self) -> Result<()> {
        let wanted: Vec<String> = self.settings.layout.node_names().collect();
        wait_for("the kubelets to register their nodes", PATIENCE, || {
            let said = self.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
            let there = wanted.iter().all(|node| said.split_whitespace().any(|name| name == node));
            Ok(Seen::when(there, || format!("nodes: {said}")))
        })
    }

    /// Waits until the API server answers on the machine's own loopback.
    fn wait_forwarder(&self) -> Result<()> {
        wait_for("the API server on the machine's loopback", PATIENCE, || {
            let mut command =
                cmd(&self.programs.assets.kubectl.display().to_string(), ["get", "--raw", "/readyz"]);
            run(command.env("KUBECONFIG", self.kubeconfig())).map(|_| Seen::Yes(()))
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.settings.layout
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The nodes, in the order of their names.
    pub(crate) fn nodes(&self) -> Result<Vec<&Host>> {
        self.settings.layout.node_names().map(|name| self.fabric.host(&name)).collect()
    }

    /// The administrator's kubeconfig, for the machine and for the control plane.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        pki::kubeconfig(&self.folder, "admin")
    }

    /// The administrator's kubeconfig for other hosts of the fabric.
    fn outside_kubeconfig(&self) -> PathBuf {
        pki::kubeconfig(&self.folder, "outside")
    }

    /// A program on the control plane, as the administrator.
    fn control_command(&self, program: &Path, args: &[&str]) -> Result<Command> {
        let program = program.to_str().context("a program's path is not text")?;
        let mut command = self.fabric.host(CONTROL)?.command(program, args);
        command.env("KUBECONFIG", self.kubeconfig());
        Ok(command)
    }

    /// Runs kubectl as the administrator; returns its output.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        run(&mut self.control_command(&self.programs.assets.kubectl, args)?)
    }

    /// `kubectl apply` of one or more YAML documents.
    pub(crate) fn apply(&self, yaml: &str) -> Result<String> {
        let args = ["apply", "--server-side", "-f", "-"];
        run_with_input(&mut self.control_command(&self.programs.assets.kubectl, &args)?, yaml)
    }

    /// Waits until every pod of a workload runs its newest version.
    pub(crate) fn rolled_out(&self, namespace: &str, workload: &str) -> Result<()> {
        self.kubectl(&["-n", namespace, "rollout", "status", workload, "--timeout=180s"]).map(drop)
    }

    /// Keeps the cluster running after the end of this process.
    fn leave_running(self) -> Result<()> {
        let Self { fabric, mut remains, .. } = self;
        remains.keep();
        fabric.leave_running()
    }

    /// Gathers logs and objects; the error names their folder.
    fn with_evidence(&self, error: anyhow::Error) -> anyhow::Error {
        match self.gather(&format!("{error:#}")) {
            Ok(folder) => {
                anyhow::anyhow!("{error:#}\n  logs, objects and routing tables: {}", folder.display())
            }
            Err(gathering) => {
                anyhow::anyhow!("{error:#}\n  the evidence could not be gathered: {gathering:#}")
            }
        }
    }

    /// Gathers logs, objects and routing tables in a folder.
    pub(crate) fn gather(&self, error: &str) -> Result<PathBuf> {
        let folder = evidence::gather(&self.fabric, error)?;
        for (file, what) in [
            ("objects.txt", "pods,services,endpointslices,nodes,events"),
            ("networking.txt", "networks,subnets,ipinstances,nodeinfoes"),
        ] {
            // The API server may be down. A partial answer is still useful.
            let args = ["get", what, "-A", "-o", "wide", "--request-timeout=10s"];
            let shown = self.control_command(&self.programs.assets.kubectl, &args)?.output()?;
            std::fs::write(folder.join(file), [shown.stdout, shown.stderr].concat())?;
        }
        for node in self.nodes()? {
            copy_pod_logs(&kubelet::pod_logs(node), &folder.join(&node.name));
        }
        Ok(folder)
    }
}

/// Copies the logs of the pods of the system's namespaces, with their pods in their names.
fn copy_pod_logs(from: &Path, into: &Path) {
    let folders = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).map(|e| e.flatten().map(|e| e.path()).collect()).unwrap_or_default()
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for pod in folders(from) {
        let pod_name = name(&pod);
        if ![trunkline::NAMESPACE, "kube-system"].iter().any(|it| pod_name.starts_with(it)) {
            continue;
        }
        for container in folders(&pod) {
            for log in folders(&container) {
                let file = format!("{pod_name}-{}-{}", name(&container), name(&log));
                let _full_disk = std::fs::copy(&log, into.join(file));
            }
        }
    }
}

/// Parts of a cluster that are not in its namespaces: control groups, the data of containerd and
/// etcd, and its topology file. A drop removes them.
struct Remains {
    groups: Vec<String>,
    files: Vec<PathBuf>,
    /// While this exists, a drop removes the remains.
    guard: Option<Registered>,
}

impl Remains {
    fn of(place: &Place, name: &str, layout: Layout) -> Self {
        let folder = place.folder(name);
        let mut files: Vec<PathBuf> =
            layout.node_names().map(|node| folder.join(node).join("disk")).collect();
        let generated = place.generated();
        files.extend([folder.join("kube"), generated.join(name), generated.join(format!("{name}.clab.yml"))]);
        let groups = layout.node_names().map(|node| place.namespace(name, &node)).collect();
        Self { groups, files, guard: None }
    }

    /// Removes the whole cluster at Ctrl-C.
    fn guarded(mut self, place: &Place, name: &str) -> Self {
        let (place, name) = (place.clone(), name.to_owned());
        let (groups, files) = (self.groups.clone(), self.files.clone());
        self.guard = Some(interrupt::on_stop(move || {
            // Control groups can only be removed without processes.
            if let Err(e) = Fabric::remove_named(&place, &name) {
                say(&format!("could not remove {name}: {e:#}"));
            }
            remove(&groups, &files);
        }));
        self
    }

    fn keep(&mut self) {
        self.guard = None;
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            remove(&self.groups, &self.files);
        }
    }
}

fn remove(groups: &[String], files: &[PathBuf]) {
    for group in groups {
        if let Err(e) = ControlGroup::named(group).remove() {
            say(&format!("{e:#}"));
        }
    }
    for file in files {
        let removed = if file.is_dir() { std::fs::remove_dir_all(file) } else { std::fs::remove_file(file) };
        match removed {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                say(&format!("{} cannot be removed: {e}", file.display()));
            }
            _ => {}
        }
    }
}

/// Whether a cluster of this name is up, and was left running.
fn is_up(place: &Place, name: &str) -> bool {
    place.generated().join(format!("{name}.clab.yml")).exists()
        && !Fabric::is_orphaned(place, name)
        && Fabric::open(place, name).is_ok()
}

/// A started part of a cluster. It ends with its host, not with this value.
struct Part {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Part {
    /// Starts a program on a host, with its log in the host's /var/log.
    fn start(host: &Host, name: &str, program: &Path, flags: &[String]) -> Result<Self> {
        let program = program.to_str().context("a program's path is not text")?;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let file = format!("{name}.log");
        let child = host.daemon(&file, program, &flags, &[])?;
        Ok(Self { name: name.to_owned(), log: host.logs().join(file), child })
    }

    /// Like [`wait_for`], but fails at once if the program has ended.
    fn wait<T>(
        &mut self,
        what: &str,
        bound: Duration,
        mut look: impl FnMut() -> Result<Seen<T>>,
    ) -> Result<T> {
        wait_for(what, bound, || {
            if let Some(status) = self.child.try_wait()? {
                let end = last_lines(&self.log);
                return Ok(Seen::Yes(Err(anyhow::anyhow!("{} ended ({status}): {end}", self.name))));
            }
            Ok(match look()? {
                Seen::Yes(value) => Seen::Yes(Ok(value)),
                Seen::NotYet(last) => Seen::NotYet(last),
            })
        })?
    }
}

/// The last lines of a log.
fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// `cargo lab kube build`.
pub(crate) fn build(place: &Place) -> Result<()> {
    packages::need_root("cargo lab kube build")?;
    match Programs::build(place)? {
        Ok(programs) => say(&format!("  the programs of a cluster are in {}", programs.folder().display())),
        Err(missing) => bail!("{missing}"),
    }
    Ok(())
}

/// `cargo lab kube up --nodes N`: a cluster that stays.
pub(crate) fn up(place: &Place, settings: Settings) -> Result<()> {
    packages::need_root("cargo lab kube up")?;
    let programs = match Programs::build(place)? {
        Ok(programs) => programs,
        Err(missing) => bail!("{missing}"),
    };
    let (product, _) = product::build_all(place, product::Profile::Quick)?;
    let cluster = RealCluster::up(place, NAME, settings, &programs, &product)?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    say(&format!(
        "\n  the cluster is up; logs and files: {}\n  kubectl: {}\n  cargo lab exec {NAME} node1 trunkline peers\n  \
         cargo lab exec {NAME} tor1 vtysh -c 'show bgp summary'\n  cargo lab e2e --focus HostPort\n  cargo lab kube down",
        cluster.fabric.folder.display(),
        programs.assets.kubectl.display()
    ));
    cluster.leave_running()
}

/// `cargo lab kube down`. Any process may have created the cluster.
pub(crate) fn down(place: &Place) -> Result<()> {
    packages::need_root("cargo lab kube down")?;
    let removed = step("removing the cluster", || take_down(place, NAME))?;
    say(&format!("the cluster is down: {removed} namespaces removed"));
    Ok(())
}

/// Removes a cluster by its name; returns the number of its namespaces.
fn take_down(place: &Place, name: &str) -> Result<usize> {
    let topology = Topology::load(&place.topology_file(name)?)?;
    let nodes = topology.nodes.keys().filter(|node| node.starts_with("node")).count();
    let removed = Fabric::remove_named(place, name)?;
    // The remains depend on the number of nodes only.
    let layout = Layout { nodes: u8::try_from(nodes)?, racks: 1, families: Families::Dual };
    let remains = Remains::of(place, name, layout);
    remove(&remains.groups, &remains.files);
    Ok(removed)
}
