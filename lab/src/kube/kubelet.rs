//! The work of a kubelet and its container runtime on a node of a fabric. Pods with the host's
//! network become podman containers. A container has the image's own root and the settings of its
//! manifest (arguments, environment, volumes, capabilities, user, read-only root, service account).
//! Other pods become a sandbox, attached by the first configuration in the node's `/etc/cni/net.d`.
//!
//! ```text
//! pods of the API server ─► sync ─┬─ hostNetwork ─► init containers, then the container: podman on the node, again when it ends
//!                                 ├─ else ────────► a network namespace, CNI ADD; DEL when the pod is deleted
//!                                 └─ status ──────► phase, addresses, readiness, what a container said last
//! ```
//!
//! The lab has stand-ins for hybridnet's programs ([`super::hybridnet`]), and one for MetalLB's
//! speaker that does nothing. A pod's own containers do not run: only a sandbox and its addresses
//! matter. An [`Observer`] sees each sandbox before its plugin runs. A manifest's folders of the host
//! are the node's folders: see [`crate::host`]. The node also gets a `/opt` of its own here.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Container, Node, Pod, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use trunkline_api::kube::Lenient;
use trunkline_api::resources::IPInstanceSpec;

use super::Cluster;
use super::daemon::Daemon;
use super::doorway::Doorway;
use super::hybridnet;
use crate::cni::{self, Identity, Sandbox};
use crate::fabric::Fabric;
use crate::host::Host;
use crate::netns::Namespace;
use crate::podman::Podman;
use crate::shell::{quoted, run};

/// Delay before an ended container is restarted.
const BACK_OFF: Duration = Duration::from_secs(2);

/// Path of a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Parts of the names of images that have a stand-in.
const STAND_INS: [&str; 2] = ["hybridnet", "metallb"];

/// Receives the starts and ends of sandboxes.
pub(crate) trait Observer: Send + Sync {
    /// A sandbox exists, and no plugin has run.
    fn created(&self, pod: &Pod, sandbox: &Sandbox, plugin: Plugin) -> Result<()>;
    /// A pod ends, and its sandbox still exists.
    fn ended(&self, uid: &str);
    /// Felix on a node enforces policies.
    fn felix_ready(&self, node: &str);
}

/// The plugin of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugin {
    Trunkline,
    /// The stand-in for hybridnet's plugin.
    Hybridnet {
        /// Whether Felix is ready on the node.
        felix_ready: bool,
    },
}

/// An image in the lab.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// The image's name in manifests.
    pub name: String,
    /// The image's root folder.
    pub root: PathBuf,
}

/// The kubelet of one node.
pub(crate) struct Kubelet<'a> {
    cluster: &'a Cluster,
    fabric: &'a Fabric,
    host: &'a Host,
    image: &'a Image,
    podman: Podman<'a>,
    pods: BTreeMap<String, Running>,
    /// The program of Felix, which runs beside the stand-in of hybridnet's daemon.
    pub(super) felix: Option<PathBuf>,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Number of the node's boots. The boot ID is derived from it.
    boots: u32,
    _doorway: Doorway,
}

/// A pod on its node.
struct Running {
    pod: Pod,
    state: State,
    /// The last status sent to the API server.
    reported: Value,
}

enum State {
    /// The pod could not be started. The next sync tries again.
    Failed(String),
    Container {
        started: Box<Started>,
        restarts: u32,
    },
    Attached {
        sandbox: Box<Sandbox>,
        plugins: Vec<Value>,
        addresses: Vec<IpAddr>,
        hybridnet: Option<hybridnet::Attachment>,
    },
    /// A stand-in for a program that the lab does not have, with hybridnet's daemon.
    StandIn(Option<hybridnet::Node>),
}

/// The result of an ADD.
struct Attached {
    plugins: Vec<Value>,
    addresses: Vec<IpAddr>,
    hybridnet: Option<hybridnet::Attachment>,
}

struct Started {
    daemon: Daemon,
    /// The container's name in podman.
    name: String,
    ended: Option<Instant>,
    /// Time and result of its last readiness probe.
    probed: Option<(Instant, bool)>,
}

impl<'a> Kubelet<'a> {
    /// Registers the node, with these labels and the labels that every node has.
    pub(crate) fn register(
        cluster: &'a Cluster,
        fabric: &'a Fabric,
        node: &str,
        image: &'a Image,
    ) -> Result<Self> {
        let host = fabric.host(node)?;
        // Hides the machine's own plugins and configurations.
        host.sh("mount -t tmpfs lab /opt; rm -rf /etc/cni/net.d; mkdir -p /etc/cni/net.d")?;
        let name = host.name.as_str();
        let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": {
            "name": name, "labels": { "kubernetes.io/os": "linux", "kubernetes.io/hostname": name },
        } });
        let nodes: Api<Node> = Api::all(cluster.client());
        cluster.wait(nodes.create(&PostParams::default(), &serde_json::from_value(object)?))?;
        let kubelet = Self {
            cluster,
            fabric,
            host,
            image,
            podman: Podman::on(host, &[])?,
            pods: BTreeMap::new(),
            felix: None,
            observer: None,
            boots: 1,
            _doorway: cluster.doorway(&host.ns)?,
        };
        kubelet.report_node(true)?;
        Ok(kubelet)
    }

    pub(crate) fn node(&self) -> &str {
        &self.host.name
    }

    pub(super) fn namespace(&self) -> Namespace {
        self.host.ns.clone()
    }

    /// Reports whether the node is ready, like a kubelet's heartbeat.
    fn report_node(&self, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let patch = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": status, "reason": "Lab" }],
            "nodeInfo": { "bootID": format!("boot-{}", self.boots) },
        } });
        let nodes: Api<Node> = Api::all(self.cluster.client());
        self.cluster.wait(nodes.patch_status(
            self.node(),
            &PatchParams::default(),
            &Patch::Strategic(patch),
        ))?;
        Ok(())
    }

    /// Compares the node once with the pods of the API server, and starts, ends and reports pods.
    /// An error is reported in the pod's status, and the next sync tries again.
    pub(crate) fn sync(&mut self, all: &[Pod]) -> Result<()> {
        let here = |pod: &&Pod| {
            pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(self.host.name.as_str())
        };
        let mine: BTreeMap<String, &Pod> =
            all.iter().filter(here).filter_map(|pod| Some((pod.metadata.uid.clone()?, pod))).collect();
        let gone: Vec<String> = self.pods.keys().filter(|uid| !mine.contains_key(*uid)).cloned().collect();
        for uid in gone {
            self.end(&uid)?;
        }
        for (uid, pod) in mine {
            if pod.metadata.deletion_timestamp.is_some() {
                self.end(&uid)?;
                self.confirm_end(pod)?;
                continue;
            }
            let before = self.pods.remove(&uid);
            let reported = before.as_ref().map_or(Value::Null, |running| running.reported.clone());
            let state = match before.map(|running| running.state) {
                None | Some(State::Failed(_)) => {
                    self.start(pod).unwrap_or_else(|e| State::Failed(format!("{e:#}")))
                }
                Some(State::Container { started, restarts }) => self.watch(pod, started, restarts)?,
                Some(State::StandIn(Some(node))) => self.watch_hybridnet(node),
                Some(other) => other,
            };
            let mut running = Running { pod: pod.clone(), state, reported };
            self.report(&mut running)?;
            self.pods.insert(uid, running);
        }
        Ok(())
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), namespace(pod))
    }

    fn start(&self, pod: &Pod) -> Result<State> {
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let [container] = &spec.containers[..] else { bail!("one container") };
        if spec.host_network != Some(true) {
            return self.attach(pod);
        }
        if container.image.as_ref() != Some(&self.image.name) {
            let image = container.image.as_deref().unwrap_or_default();
            ensure!(
                STAND_INS.iter().any(|of| image.contains(of)),
                "image {image} does not exist; the built image is {}",
                self.image.name
            );
            return self.stand_in(name(pod));
        }
        for init in spec.init_containers.iter().flatten() {
            let mut command = self.podman.command(&self.run_args(pod, init)?);
            let said = run(&mut command).with_context(|| format!("init container {}", init.name))?;
            let log =
                self.cluster.folder().join(format!("log/{}-{}-{}.log", self.node(), name(pod), init.name));
            std::fs::write(log, said)?;
        }
        Ok(State::Container { started: Box::new(self.run(pod, container)?), restarts: 0 })
    }

    fn run(&self, pod: &Pod, container: &Container) -> Result<Started> {
        let args = self.run_args(pod, container)?;
        let log = format!("{}-{}", self.node(), name(pod));
        let daemon = self.cluster.daemon(&log, self.podman.command(&args))?;
        Ok(Started { daemon, name: container_name(pod, container), ended: None, probed: None })
    }

    /// Restarts a container that has ended.
    fn watch(&self, pod: &Pod, mut started: Box<Started>, restarts: u32) -> Result<State> {
        if started.daemon.still_running().is_ok() {
            return Ok(State::Container { started, restarts });
        }
        let ended = *started.ended.get_or_insert_with(Instant::now);
        if ended.elapsed() < BACK_OFF {
            return Ok(State::Container { started, restarts });
        }
        let container = &pod.spec.as_ref().context("a pod without spec")?.containers[0];
        Ok(State::Container { started: Box::new(self.run(pod, container)?), restarts: restarts + 1 })
    }

    /// `podman run …` for a container of a pod on the host's network.
    fn run_args(&self, pod: &Pod, container: &Container) -> Result<Vec<String>> {
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let mut args: Vec<String> = [
            "run",
            "--rm",
            "--name",
            &container_name(pod, container),
            "--cgroups=disabled",
            "--network=host",
        ]
        .map(str::to_owned)
        .to_vec();
        // Without these options podman would raise the limits, maybe beyond the limits of this
        // process.
        args.extend(["--ulimit=nofile=1024:4096", "--ulimit=nproc=1000:1000"].map(str::to_owned));

        let context = container.security_context.clone().unwrap_or_default();
        let pods = spec.security_context.clone().unwrap_or_default();
        ensure!(context.privileged != Some(true), "{}: privileged", container.name);
        if context.read_only_root_filesystem == Some(true) {
            // podman would mount writable folders on /tmp, /run and others, which no kubelet does.
            args.extend(["--read-only", "--read-only-tmpfs=false"].map(str::to_owned));
        }
        if context.allow_privilege_escalation == Some(false) {
            args.push("--security-opt=no-new-privileges".to_owned());
        }
        let capabilities = context.capabilities.unwrap_or_default();
        args.extend(capabilities.drop.iter().flatten().map(|c| format!("--cap-drop={c}")));
        args.extend(capabilities.add.iter().flatten().map(|c| format!("--cap-add={c}")));
        let user =
            context.run_as_user.or(pods.run_as_user).context("runAsUser: no image's user is known here")?;
        let group = context.run_as_group.or(pods.run_as_group).unwrap_or(0);
        args.push(format!("--user={user}:{group}"));

        for (key, value) in self.environment(pod, container)? {
            args.push(format!("--env={key}={value}"));
        }
        for mount in container.volume_mounts.iter().flatten() {
            let volume = spec.volumes.iter().flatten().find(|v| v.name == mount.name);
            let source = self.volume(pod, volume.with_context(|| format!("volume {}", mount.name))?)?;
            let flags = if mount.read_only == Some(true) { ":ro" } else { "" };
            args.push(format!("--volume={}:{}{flags}", source.display(), mount.mount_path));
        }
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        let files = self.cluster.account_files(namespace(pod), account, name(pod))?;
        args.push(format!("--volume={}:{ACCOUNT}:ro", files.display()));
        args.extend(["--rootfs".to_owned(), self.image.root.display().to_string()]);
        args.extend(container.command.iter().flatten().chain(container.args.iter().flatten()).cloned());
        Ok(args)
    }

    fn environment(&self, pod: &Pod, container: &Container) -> Result<Vec<(String, String)>> {
        let mut all = vec![
            ("KUBERNETES_SERVICE_HOST".to_owned(), "127.0.0.1".to_owned()),
            ("KUBERNETES_SERVICE_PORT".to_owned(), self.cluster.port().to_string()),
        ];
        for variable in container.env.iter().flatten() {
            let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
            let value = match (&variable.value, field.map(|field| field.field_path.as_str())) {
                (Some(value), None) => value.as_str(),
                (None, Some("spec.nodeName")) => self.node(),
                (None, Some("metadata.name")) => name(pod),
                (None, Some("metadata.namespace")) => namespace(pod),
                other => bail!("env {}: {other:?} is not known here", variable.name),
            };
            all.push((variable.name.clone(), value.to_owned()));
        }
        Ok(all)
    }

    /// The node's folder for a volume.
    fn volume(&self, pod: &Pod, volume: &Volume) -> Result<PathBuf> {
        if let Some(host_path) = &volume.host_path {
            if host_path.type_.as_deref() == Some("DirectoryOrCreate") {
                self.host.run("mkdir", ["-p", &host_path.path])?;
            }
            self.host
                .run("test", ["-d", &host_path.path])
                .with_context(|| format!("volume {}", volume.name))?;
            return Ok(PathBuf::from(&host_path.path));
        }
        let map = volume
            .config_map
            .as_ref()
            .with_context(|| format!("volume {} is of no known kind", volume.name))?;
        let maps: Api<k8s_openapi::api::core::v1::ConfigMap> =
            Api::namespaced(self.cluster.client(), namespace(pod));
        let data = self.cluster.wait(maps.get(&map.name))?.data.unwrap_or_default();
        // A container keeps the files from its start.
        let folder = self.host.folder.join(format!("volumes/{}/{}", name(pod), volume.name));
        std::fs::create_dir_all(&folder)?;
        for (file, text) in data {
            std::fs::write(folder.join(file), text)?;
        }
        Ok(folder)
    }

    /// One of hybridnet's or MetalLB's programs.
    fn stand_in(&self, pod: &str) -> Result<State> {
        if !pod.contains("daemon") {
            return Ok(State::StandIn(None));
        }
        let node = hybridnet::Node::start(self.host, self.cluster, self.felix.as_deref())?;
        Ok(State::StandIn(Some(node)))
    }

    /// Reports an ended Felix, which the next sync starts again.
    fn watch_hybridnet(&self, mut node: hybridnet::Node) -> State {
        if let Err(ended) = node.still_running() {
            return State::Failed(format!("{ended:#}"));
        }
        if !node.ready {
            node.probed(self.probe(hybridnet::HEALTH, "/readiness"));
            if let (true, Some(observer)) = (node.ready, &self.observer) {
                observer.felix_ready(self.node());
            }
        }
        State::StandIn(Some(node))
    }

    /// Creates a sandbox and attaches it by the first configuration, as a container runtime does.
    fn attach(&self, pod: &Pod) -> Result<State> {
        let list = self
            .host
            .sh("cd /etc/cni/net.d && ls | grep -E '[.](conflist|conf|json)$' | head -1 | xargs -r cat")?;
        ensure!(!list.is_empty(), "network plugin not ready: no configuration in /etc/cni/net.d");
        let list: Value = serde_json::from_str(&list).context("the first configuration in /etc/cni/net.d")?;
        let identity = Identity {
            namespace: namespace(pod).to_owned(),
            name: name(pod).to_owned(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        };
        let (mut plugin, mut given) = (Plugin::Trunkline, Vec::new());
        if list["plugins"][0]["type"] == "hybridnet" {
            let has_felix =
                |running: &Running| matches!(&running.state, State::StandIn(Some(node)) if node.ready);
            plugin = Plugin::Hybridnet { felix_ready: self.pods.values().any(has_felix) };
            given = self.given(&identity.uid)?;
        }
        let mut sandbox = Sandbox::create(self.fabric, self.node(), name(pod))?;
        sandbox.identity = identity;
        let observed = self.observer.as_ref().map_or(Ok(()), |it| it.created(pod, &sandbox, plugin));
        let attached = observed.and_then(|()| match plugin {
            Plugin::Trunkline => self.add(&list, &sandbox),
            Plugin::Hybridnet { .. } => self.add_by_hybridnet(&given, &sandbox),
        });
        match attached {
            Ok(Attached { plugins, addresses, hybridnet }) => {
                Ok(State::Attached { sandbox: Box::new(sandbox), plugins, addresses, hybridnet })
            }
            Err(e) => {
                self.observe_end(&sandbox.identity.uid);
                sandbox.ns.delete()?;
                Err(e)
            }
        }
    }

    fn observe_end(&self, uid: &str) {
        if let Some(observer) = &self.observer {
            observer.ended(uid);
        }
    }

    fn add(&self, list: &Value, sandbox: &Sandbox) -> Result<Attached> {
        let (mut plugins, mut result) = (Vec::new(), Value::Null);
        for plugin in list["plugins"].as_array().context("plugins")? {
            let mut conf = plugin.clone();
            conf["name"] = list["name"].clone();
            conf["cniVersion"] = list["cniVersion"].clone();
            if !result.is_null() {
                conf["prevResult"] = result;
            }
            result = self.plugin("ADD", &conf, sandbox)?.result()?;
            plugins.push(conf);
        }
        Ok(Attached { plugins, addresses: cni::addresses(&result)?, hybridnet: None })
    }

    fn add_by_hybridnet(&self, given: &[(IpAddr, String)], sandbox: &Sandbox) -> Result<Attached> {
        let [(address, mac)] = given else { bail!("{given:?} is not one address") };
        let attachment =
            hybridnet::Attachment::add(self.cluster, self.fabric, self.host, sandbox, *address, mac)?;
        Ok(Attached { plugins: Vec::new(), addresses: vec![*address], hybridnet: Some(attachment) })
    }

    /// Runs the plugin installed on the node.
    fn plugin(&self, verb: &str, conf: &Value, sandbox: &Sandbox) -> Result<cni::Answer> {
        let netns = sandbox.ns.path().display().to_string();
        self.host.within(|| cni::run_here(&[PathBuf::from("/opt/cni/bin")], verb, conf, sandbox, &netns))
    }

    /// The addresses and MACs of a pod's IPInstances.
    fn given(&self, uid: &str) -> Result<Vec<(IpAddr, String)>> {
        let instances: Api<Lenient<IPInstanceSpec>> = Api::all(self.cluster.client());
        let of_pod = ListParams::default().labels(&format!("networking.alibaba.com/pod-uid={uid}"));
        let found = self.cluster.wait(instances.list(&of_pod))?.items;
        ensure!(!found.is_empty(), "no IPInstance yet");
        let address = |found: Lenient<IPInstanceSpec>| {
            let address = found.0.map_err(|e| anyhow::anyhow!("{e}"))?.spec.address;
            let ip = address.ip.split('/').next().unwrap_or_default().parse()?;
            Ok((ip, address.mac))
        };
        found.into_iter().map(address).collect()
    }

    /// Ends the containers and the attachment of a pod.
    fn end(&mut self, uid: &str) -> Result<()> {
        match self.pods.remove(uid).map(|running| running.state) {
            Some(State::Container { mut started, .. }) => {
                // podman passes the signal on to the container, and ends with it.
                started.daemon.stop()?;
                self.remove(&started.name)
            }
            Some(State::Attached { sandbox, plugins, hybridnet, .. }) => {
                self.observe_end(uid);
                if let Some(attachment) = hybridnet {
                    attachment.delete(self.fabric, self.host)?;
                }
                for conf in plugins.iter().rev() {
                    self.plugin("DEL", conf, &sandbox)?.result()?;
                }
                sandbox.ns.delete()
            }
            Some(State::StandIn(Some(node))) => node.stop(),
            Some(State::Failed(_) | State::StandIn(None)) | None => Ok(()),
        }
    }

    /// Reports to the API server that a deleted pod's containers have ended, and deletes the pod.
    /// It stays while it has finalizers.
    fn confirm_end(&self, pod: &Pod) -> Result<()> {
        let ended = json!({ "status": { "phase": "Succeeded", "containerStatuses": [{
            "name": pod.spec.as_ref().map(|spec| &spec.containers[0].name), "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 0 } } }] } });
        let (api, name) = (self.api(pod), name(pod));
        let at_once = DeleteParams::default().grace_period(0);
        let done = self.cluster.wait(async {
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(ended)).await?;
            api.delete(name, &at_once).await
        });
        match done {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    fn remove(&self, container: &str) -> Result<()> {
        run(&mut self.podman.command(&["rm", "--force", "--ignore", "--time=0", container])).map(drop)
    }

    /// Reboots the node: the kernel's state and all processes are lost, the disk is kept.
    fn reboot(&mut self) -> Result<()> {
        self.report_node(false)?;
        for (uid, running) in std::mem::take(&mut self.pods) {
            match running.state {
                State::Container { mut started, .. } => {
                    started.daemon.kill()?;
                    self.remove(&started.name)?;
                }
                State::Attached { sandbox, hybridnet, .. } => {
                    self.observe_end(&uid);
                    if let Some(attachment) = hybridnet {
                        attachment.withdraw(self.fabric)?;
                    }
                    sandbox.ns.delete()?;
                }
                // Felix is killed when the value is dropped.
                State::Failed(_) | State::StandIn(_) => {}
            }
        }
        clear_kernel(self.host)?;
        self.report_node(true)
    }

    /// Reports a pod's status to the API server, if it has changed.
    fn report(&self, running: &mut Running) -> Result<()> {
        let (ready, addresses, restarts, waiting) = match &mut running.state {
            State::Failed(why) => (false, Vec::new(), 0, Some(why.clone())),
            State::Container { started, restarts } => match started.daemon.still_running() {
                Ok(()) => {
                    let ready = self.is_ready(&running.pod, started)?;
                    (ready, vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], *restarts, None)
                }
                Err(ended) => (false, Vec::new(), *restarts, Some(format!("{ended:#}"))),
            },
            State::Attached { addresses, .. } => (true, addresses.clone(), 0, None),
            State::StandIn(node) => (node.as_ref().is_none_or(|node| node.ready), Vec::new(), 0, None),
        };
        let host_network = running.pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let ips: Vec<Value> =
            addresses.iter().filter(|_| !host_network).map(|ip| json!({ "ip": ip })).collect();
        let state = match &waiting {
            None => json!({ "running": {} }),
            Some(why) => json!({ "waiting": { "reason": "CrashLoopBackOff", "message": why } }),
        };
        let status = json!({ "status": {
            "phase": if waiting.is_none() { "Running" } else { "Pending" },
            "podIP": ips.first().map(|ip| ip["ip"].clone()), "podIPs": ips,
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            "containerStatuses": [{ "name": running.pod.spec.as_ref().map(|spec| &spec.containers[0].name), "image": "", "imageID": "",
                "ready": ready, "restartCount": restarts, "state": state }],
        } });
        if status == running.reported {
            return Ok(());
        }
        let pod = &running.pod;
        match self.cluster.wait(self.api(pod).patch_status(
            name(pod),
            &PatchParams::default(),
            &Patch::Merge(&status),
        )) {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            other => drop(other?),
        }
        running.reported = status;
        Ok(())
    }

    /// The result of a container's readiness probe. A container without a readiness probe is ready.
    fn is_ready(&self, pod: &Pod, started: &mut Started) -> Result<bool> {
        let container = &pod.spec.as_ref().context("a pod without spec")?.containers[0];
        let Some(probe) = &container.readiness_probe else { return Ok(true) };
        if let Some(exec) = &probe.exec {
            // Each probe is a process, so it runs only as often as specified. Until the container
            // is ready, it runs more often.
            let period = probe.period_seconds.unwrap_or(10).unsigned_abs();
            let wait = |ready| Duration::from_secs(if ready { period.into() } else { 1 });
            if let Some((_, ready)) = started.probed.filter(|(at, ready)| at.elapsed() < wait(*ready)) {
                return Ok(ready);
            }
            let command = ["exec".to_owned(), started.name.clone()].into_iter();
            let command: Vec<String> = command.chain(exec.command.iter().flatten().cloned()).collect();
            let ready = run(&mut self.podman.command(&command)).is_ok();
            started.probed = Some((Instant::now(), ready));
            return Ok(ready);
        }
        let http = probe.http_get.as_ref().context("a readiness probe by HTTP or by a command")?;
        let port = port_of(container, &http.port)?;
        let path = http.path.as_deref().unwrap_or("/");
        Ok(self.probe(port, path))
    }

    /// Whether a program on the node's loopback answers a request by HTTP with 200.
    fn probe(&self, port: u16, path: &str) -> bool {
        let answer = self.host.within(|| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes(),
            )?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer)?;
            Ok(answer)
        });
        answer.is_ok_and(|answer| answer.ends_with(b" 200"))
    }

    /// Shell: runs "$@" in this node's container of a pod whose name begins with "$set", if it
    /// exists.
    pub(super) fn exec_script(&self) -> String {
        let list = shell_line(&self.podman.command(&["ps", "--format={{.Names}}"]));
        let exec = shell_line(&self.podman.command(&["exec"]));
        format!(
            "name=$({list} | grep \"^$set-\" | head -1)\n[ -z \"$name\" ] || exec {exec} \"$name\" \"$@\"\n"
        )
    }

    /// Shell: a case that runs "$@" on this node. `reboot` is left to [`Self::reboot_if_requested`].
    pub(super) fn ssh_script(&self) -> String {
        let shell = shell_line(&self.host.command("sh", ["-c"]));
        let reboot = self.reboot_file().display().to_string();
        format!("{}) exec {shell} \"reboot() {{ touch {reboot}; }}; $*\";;\n", self.node())
    }

    fn reboot_file(&self) -> PathBuf {
        self.host.folder.join("reboot")
    }

    /// Reboots the node if a shell on it requested that.
    pub(super) fn reboot_if_requested(&mut self) -> Result<()> {
        if std::fs::remove_file(self.reboot_file()).is_err() {
            return Ok(());
        }
        self.boots += 1;
        self.reboot()
    }

    /// The sandbox of an attached pod.
    pub(crate) fn sandbox(&self, pod: &str) -> Result<Sandbox> {
        let attached = self.pods.values().find(|running| name(&running.pod) == pod);
        match attached.map(|running| &running.state) {
            Some(State::Attached { sandbox, .. }) => Ok(Sandbox::clone(sandbox)),
            Some(State::Failed(why)) => bail!("pod {pod} on {}: {why}", self.node()),
            _ => bail!("pod {pod} is not attached on {}", self.node()),
        }
    }
}

/// Removes everything from a node that a reboot removes: the kernel's state, and the files in /run.
pub(crate) fn clear_kernel(host: &Host) -> Result<()> {
    host.sh(
        "for link in $(ip -o link | sed 's/^[0-9]*: //; s/[@:].*//' | grep -vE '^(lo|eth[0-9]+)$'); do ip link del $link || :; done
         for family in -4 -6; do
             ip $family rule flush; ip $family rule add priority 32766 table main; [ $family = -6 ] || ip rule add priority 32767 table default
             for table in $(ip $family -o route show table all | grep -o 'table [0-9]*' | sort -u | cut -d' ' -f2); do ip $family route flush table $table; done
         done
         nft flush ruleset; ! command -v ipset >/dev/null || ipset destroy; rm -rf /run/trunkline/* /run/cni",
    )
    .map(drop)
}

/// A command as a line of shell, with its environment.
fn shell_line(command: &std::process::Command) -> String {
    let mut words = vec!["env".to_owned()];
    for (key, value) in command.get_envs() {
        let value = value.unwrap_or_default();
        words.push(quoted(&format!("{}={}", key.to_string_lossy(), value.to_string_lossy())));
    }
    words.push(quoted(&command.get_program().to_string_lossy()));
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

/// A container's port by number or name.
pub(super) fn port_of(container: &Container, port: &IntOrString) -> Result<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            named.with_context(|| format!("no port {name}"))?.container_port
        }
    };
    Ok(u16::try_from(number)?)
}

fn container_name(pod: &Pod, container: &Container) -> String {
    format!("{}-{}", name(pod), container.name)
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}
