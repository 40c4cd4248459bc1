//! Addresses of KubeVirt's virtual machines. KubeVirt is simulated: the test creates its objects, and
//! pods as it starts them. The controller has the rights of the Helm chart. The API server has no
//! garbage collector, so each release is the controller's.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Test, Verdict, cluster, crds};
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::pods::Pretended;
use crate::kube::rights::Accounts;
use crate::shell::{Seen, wait_for};
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/vms",
    about: "KubeVirt's virtual machines keep their addresses when they stop and start on another node, also those that hybridnet left, and release them when they are deleted; in a live migration both pods have them",
    run: vms,
}];

const PATIENCE: Duration = Duration::from_secs(30);
const FLAGS: &[&str] = &["--webhook=false", "--vm-ip-retain=true"];
const VM: &str = "networking.alibaba.com/vm";
/// The address and MAC that hybridnet left for a stopped virtual machine.
const LEFT: (&str, &str) = ("10.1.0.50", "02:12:34:aa:bb:cc");

/// The kinds of KubeVirt in [`CRDS`].
pub(super) const KINDS: [&str; 3] =
    ["virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations"];

/// The kinds of KubeVirt, without their schemas.
pub(crate) const CRDS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: virtualmachines.kubevirt.io }
spec:
  group: kubevirt.io
  scope: Namespaced
  names: { plural: virtualmachines, singular: virtualmachine, kind: VirtualMachine, shortNames: [vm] }
  versions:
  - name: v1
    served: true
    storage: true
    schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: virtualmachineinstances.kubevirt.io }
spec:
  group: kubevirt.io
  scope: Namespaced
  names: { plural: virtualmachineinstances, singular: virtualmachineinstance, kind: VirtualMachineInstance, shortNames: [vmi] }
  versions:
  - name: v1
    served: true
    storage: true
    schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: virtualmachineinstancemigrations.kubevirt.io }
spec:
  group: kubevirt.io
  scope: Namespaced
  names: { plural: virtualmachineinstancemigrations, singular: virtualmachineinstancemigration, kind: VirtualMachineInstanceMigration, shortNames: [vmim] }
  versions:
  - name: v1
    served: true
    storage: true
    schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
";

const NETWORKS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack }
spec: { type: Underlay, mode: VLAN, netID: 7, nodeSelector: { rack: r1 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack-v4 }
spec: { network: rack, range: { version: '4', cidr: 10.1.0.0/24, start: 10.1.0.10, gateway: 10.1.0.1 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack-v6 }
spec: { network: rack, range: { version: '6', cidr: 'fd00:1::/112', start: 'fd00:1::10', gateway: 'fd00:1::1' } }
";

fn vms(context: &Context) -> Result<Verdict> {
    cluster(context, "vms", |cluster| {
        let program = context.controller()?;
        crds::install(cluster)?;
        cluster.apply(CRDS)?;
        for kind in KINDS {
            let crd = format!("crd/{kind}.kubevirt.io");
            cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", &crd])?;
        }
        cluster.apply(NETWORKS)?;
        let pretended = Pretended::new(cluster.client());
        for node in ["n1", "n2"] {
            cluster.wait(pretended.node(node, &[("rack", "r1")]))?;
        }
        let lab = Vms { cluster, pretended };
        lab.create_vm("old")?;
        lab.left_by_hybridnet("old")?;
        let accounts = Accounts::create(cluster, &[])?;
        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, &program, 2, FLAGS)?;
        replicas.wait_leader(cluster)?;

        // Start, stop, start on another node: the same addresses.
        lab.create_vm("web")?;
        lab.start("web", "virt-launcher-web-1", "n1")?;
        let first = lab.bound("web", "virt-launcher-web-1", "n1", 2)?;
        lab.stop("web", "virt-launcher-web-1")?;
        lab.retained("web", 2)?;
        lab.start("web", "virt-launcher-web-2", "n2")?;
        let again = lab.bound("web", "virt-launcher-web-2", "n2", 2)?;
        ensure!(again == first, "web had {first:?} and has {again:?} after a start");

        // It stops and starts while no controller leads.
        replicas.kill_all()?;
        lab.stop("web", "virt-launcher-web-2")?;
        lab.start("web", "virt-launcher-web-3", "n1")?;
        replicas.start_all_again(cluster)?;
        let again = lab.bound("web", "virt-launcher-web-3", "n1", 2)?;
        ensure!(again == first, "web had {first:?} and has {again:?} after a change of the leader");

        lab.migrate("web", "virt-launcher-web-3", &first)?;

        // The virtual machine that hybridnet stopped.
        lab.start("old", "virt-launcher-old-1", "n2")?;
        let old = lab.bound("old", "virt-launcher-old-1", "n2", 1)?;
        ensure!(old == [format!("{}/24 {}", LEFT.0, LEFT.1)], "old has {old:?}");

        // A VirtualMachineInstance without a VirtualMachine keeps nothing.
        lab.create_instance("alone", None)?;
        lab.create_pod("alone", "virt-launcher-alone-1", "n1", &json!({}))?;
        let selector = "networking.alibaba.com/pod=virt-launcher-alone-1";
        lab.instances(selector, "those of a pod", |all| all.len() == 2)?;
        lab.stop("alone", "virt-launcher-alone-1")?;
        lab.instances(selector, "none", <[Value]>::is_empty)?;

        // Deleted while it runs: released when its pod has ended. Deleted while it is stopped.
        lab.delete("vm", "web")?;
        lab.bound("web", "virt-launcher-web-5", "n2", 2)?;
        lab.stop("web", "virt-launcher-web-5")?;
        lab.instances(&format!("{VM}=web"), "none", <[Value]>::is_empty)?;
        lab.stop("old", "virt-launcher-old-1")?;
        lab.retained("old", 1)?;
        lab.delete("vm", "old")?;
        lab.instances(&format!("{VM}=old"), "none", <[Value]>::is_empty)?;
        replicas.still_running()?;
        passed(format!("{} on both nodes, {} of hybridnet", first.join(" and "), old.join("")))
    })
}

struct Vms<'a> {
    cluster: &'a Cluster,
    pretended: Pretended,
}

impl Vms<'_> {
    fn uid(&self, kind: &str, name: &str) -> Result<String> {
        self.cluster.kubectl(["get", kind, name, "-o", "jsonpath={.metadata.uid}"])
    }

    fn create_vm(&self, name: &str) -> Result<()> {
        let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": "default"}, "spec": {}});
        self.cluster.apply(&vm.to_string()).map(drop)
    }

    /// The VirtualMachineInstance of a VirtualMachine, or one without.
    fn create_instance(&self, name: &str, vm: Option<&str>) -> Result<()> {
        let owners: Vec<Value> = vm.map(|uid| owner("VirtualMachine", name, uid)).into_iter().collect();
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": owners},
            "spec": {},
        });
        self.cluster.apply(&instance.to_string()).map(drop)
    }

    fn create_pod(&self, instance: &str, name: &str, node: &str, labels: &Value) -> Result<()> {
        let uid = self.uid("vmi", instance)?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "default", "ownerReferences": [owner("VirtualMachineInstance", instance, &uid)],
                "labels": labels,
                "annotations": {"networking.alibaba.com/ip-family": "DualStack"},
            },
            "spec": {"nodeName": node, "containers": [{"name": "compute", "image": "pretended"}]},
        });
        self.cluster.apply(&pod.to_string()).map(drop)
    }

    /// Starts a virtual machine as KubeVirt does.
    fn start(&self, vm: &str, pod: &str, node: &str) -> Result<()> {
        self.create_instance(vm, Some(&self.uid("vm", vm)?))?;
        self.create_pod(vm, pod, node, &json!({}))
    }

    /// Stops a virtual machine as KubeVirt does.
    fn stop(&self, instance: &str, pod: &str) -> Result<()> {
        self.cluster.wait(self.pretended.delete("default", pod))?;
        self.delete("vmi", instance)
    }

    /// Two live migrations from n1 to n2: the target's pod fails, then another one takes over. Pods with
    /// forged labels and owners get nothing.
    fn migrate(&self, vm: &str, source: &str, addresses: &[String]) -> Result<()> {
        let write = |state: &Value| {
            let status = json!({"status": state}).to_string();
            self.cluster.kubectl(["patch", "vmi", vm, "--type=merge", "-p", &status]).map(drop)
        };
        write(&json!({"nodeName": "n1"}))?;
        // No live migration has this UID.
        self.create_pod(vm, "a-forged", "n2", &json!({"kubevirt.io/migrationJobUID": "guessed"}))?;
        for (name, fails) in [("virt-launcher-web-4", true), ("virt-launcher-web-5", false)] {
            let job = create_migration(self.cluster, &format!("job-of-{name}"), vm)?;
            self.create_pod(vm, name, "n2", &json!({"kubevirt.io/migrationJobUID": job}))?;
            self.migrates(vm, source, name)?;
            // KubeVirt names the target when it is ready.
            write(
                &json!({"migrationState": {"migrationUid": job, "targetPod": name, "targetNode": "n2", "failed": false}}),
            )?;
            self.migrates(vm, source, name)?;
            if fails {
                write(&json!({"migrationState": {"failed": true}}))?;
                end_migration(self.cluster, &format!("job-of-{name}"), "Failed")?;
                let failed = json!({"status": {"phase": "Failed"}}).to_string();
                self.cluster.kubectl([
                    "patch",
                    "pod",
                    name,
                    "--subresource=status",
                    "--type=merge",
                    "-p",
                    &failed,
                ])?;
                let again = self.bound(vm, source, "n1", 2)?;
                ensure!(again == addresses, "{vm} has {again:?} after a failed migration");
                self.cluster.wait(self.pretended.delete("default", name))?;
            }
        }
        // The name of this pod sorts before that of the target.
        write(&json!({"nodeName": "n2"}))?;
        let moved = self.bound(vm, "virt-launcher-web-5", "n2", 2)?;
        ensure!(moved == addresses, "{vm} has {moved:?} after a migration");
        self.cluster.wait(self.pretended.delete("default", "a-forged"))?;
        self.cluster.wait(self.pretended.delete("default", source))
    }

    /// Waits until the agent of the target's node sees the addresses, which the source still has.
    fn migrates(&self, vm: &str, source: &str, target: &str) -> Result<()> {
        let uid = self.uid("pod", target)?;
        let selector =
            format!("{VM}={vm},networking.alibaba.com/node=n2,networking.alibaba.com/pod-uid={uid}");
        let all = self.instances(&selector, "2", |all| all.len() == 2)?;
        for instance in all {
            let binding = &instance["spec"]["binding"];
            ensure!(binding["podName"] == source && binding["nodeName"] == "n1", "the binding is {binding}");
            let target = instance["metadata"]["annotations"]["trunkline.io/migration-target"].as_str();
            ensure!(target.is_some_and(|target| target.contains(&uid)), "the target is {target:?}");
        }
        Ok(())
    }

    fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.cluster.kubectl(["delete", kind, name]).map(drop)
    }

    /// An IPInstance as hybridnet leaves it when a virtual machine stops.
    fn left_by_hybridnet(&self, vm: &str) -> Result<()> {
        let uid = self.uid("vm", vm)?;
        let (address, mac) = LEFT;
        let instance = json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "IPInstance",
            "metadata": {
                "name": address.replace('.', "-"), "namespace": "default", "ownerReferences": [owner("VirtualMachine", vm, &uid)],
                "finalizers": ["networking.alibaba.com/ip-allocated"],
                "labels": {
                    VM: vm, "networking.alibaba.com/version": "v1.2", "networking.alibaba.com/network": "rack",
                    "networking.alibaba.com/subnet": "rack-v4",
                },
            },
            "spec": {
                "network": "rack", "subnet": "rack-v4",
                "address": {"version": "4", "ip": format!("{address}/24"), "gateway": "10.1.0.1", "netID": 7, "mac": mac},
                "binding": {"referredObject": {"kind": "VirtualMachine", "name": vm, "uid": uid}, "nodeName": ""},
            },
        });
        self.cluster.apply(&instance.to_string()).map(drop)
    }

    /// Waits until the IPInstances with these labels are as wanted.
    fn instances(
        &self,
        selector: &str,
        wanted: &str,
        is_wanted: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        wait_for(&format!("the IPInstances of {selector} to be {wanted}"), PATIENCE, || {
            let text = self.cluster.kubectl(["get", "ipinstances", "-l", selector, "-o", "json"])?;
            let mut list: Value = serde_json::from_str(&text)?;
            let all = match list["items"].take() {
                Value::Array(all) => all,
                _ => Vec::new(),
            };
            Ok(if is_wanted(&all) { Seen::Yes(all) } else { Seen::NotYet(format!("{all:?}")) })
        })
    }

    /// Waits until a virtual machine's addresses are bound to this pod. Returns them with their MAC
    /// addresses.
    fn bound(&self, vm: &str, pod: &str, node: &str, count: usize) -> Result<Vec<String>> {
        let pod_uid = self.uid("pod", pod)?;
        let selector =
            format!("{VM}={vm},networking.alibaba.com/node={node},networking.alibaba.com/pod-uid={pod_uid}");
        let all = self.instances(&selector, &format!("{count}"), |all| all.len() == count)?;
        let mut addresses = Vec::new();
        for instance in &all {
            let binding = &instance["spec"]["binding"];
            let owner = &instance["metadata"]["ownerReferences"][0];
            let expected = json!({
                "referredObject": {"kind": "VirtualMachine", "name": vm, "uid": owner["uid"]},
                "nodeName": node, "podUID": pod_uid, "podName": pod,
            });
            ensure!(*binding == expected, "the binding of {vm} is {binding} and not {expected}");
            let target = &instance["metadata"]["annotations"]["trunkline.io/migration-target"];
            ensure!(target.is_null(), "{vm} has the target {target}");
            ensure!(owner["kind"] == "VirtualMachine" && owner["name"] == vm, "the owner is {owner}");
            let address = &instance["spec"]["address"];
            let text = |field: &str| address[field].as_str().map(str::to_owned).context("an address");
            addresses.push(format!("{} {}", text("ip")?, text("mac")?));
        }
        addresses.sort();
        Ok(addresses)
    }

    /// Waits until a virtual machine's addresses are retained.
    fn retained(&self, vm: &str, count: usize) -> Result<()> {
        let is_retained = |instance: &Value| {
            let (binding, labels) = (&instance["spec"]["binding"], &instance["metadata"]["labels"]);
            binding["nodeName"] == ""
                && ["podName", "podUID"].iter().all(|field| binding[field].is_null())
                && ["node", "pod", "pod-uid"]
                    .iter()
                    .all(|label| labels[format!("networking.alibaba.com/{label}")].is_null())
        };
        let wanted = |all: &[Value]| all.len() == count && all.iter().all(is_retained);
        self.instances(&format!("{VM}={vm}"), &format!("{count}, retained"), wanted).map(drop)
    }
}

/// Creates a live migration as a user does, and returns its UID.
pub(super) fn create_migration(cluster: &Cluster, name: &str, vm: &str) -> Result<String> {
    let migration = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"vmiName": vm}, "status": {"phase": "Scheduling"},
    });
    cluster.apply(&migration.to_string())?;
    cluster.kubectl(["get", "vmim", name, "-o", "jsonpath={.metadata.uid}"])
}

/// Writes the end of a live migration.
pub(super) fn end_migration(cluster: &Cluster, name: &str, phase: &str) -> Result<()> {
    let status = json!({"status": {"phase": phase}}).to_string();
    cluster.kubectl(["patch", "vmim", name, "--type=merge", "-p", &status]).map(drop)
}

pub(super) fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": uid, "controller": true,
        "blockOwnerDeletion": false,
    })
}
