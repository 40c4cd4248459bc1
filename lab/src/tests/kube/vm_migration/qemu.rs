//! A guest in QEMU, which migrates by QEMU's own live migration. It is connected to its pod as by
//! KubeVirt's bridge binding: a bridge connects the pod's interface to the guest's, and the guest has the
//! pod's addresses and MAC.
//!
//! Both machines map the same file as the guest's memory, so QEMU does not copy it: QEMU 7.2 without KVM
//! can miss pages that the guest writes during the copy, and the guest then crashes.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::Launcher;
use crate::cache;
use crate::fabric::Place;
use crate::kube::Cluster;
use crate::kube::daemon::Daemon;
use crate::packages;
use crate::progress::step;
use crate::shell::{Seen, cmd, run, run_with_input};

/// Debian's packages: QEMU, and the guest's shell.
const PACKAGES: [&str; 2] = ["busybox-static", "qemu-system-x86"];
/// Debian's package that depends on the current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The kernel's modules for a virtio interface, in the order of their dependencies.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
];
const INIT: &str = include_str!("../../../../guest/init");
const ANSWER: &str = include_str!("../../../../guest/answer.rs");

/// The guest's last line of its start.
const ANSWERS: &str = "the guest answers";
/// QEMU interprets the guest's instructions, beside everything else on the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The file with the guest's memory, and its size.
const MEMORY: &str = "guest.memory";
const MEGABYTES: &str = "96M";

/// The guest's kernel and initial file system.
pub(super) struct Image {
    kernel: PathBuf,
    files: PathBuf,
}

impl Image {
    /// Finds or builds the files, once per machine. The inner error names the missing part.
    pub(super) fn find(place: &Place) -> Result<Result<Image, String>> {
        if !cfg!(target_arch = "x86_64") {
            return Ok(Err("no guest in QEMU: it is for x86-64 only".to_owned()));
        }
        let cached = cache::folder(place)?.join("trunkline-lab");
        std::fs::create_dir_all(&cached).with_context(|| cached.display().to_string())?;
        // One process builds the files, the others use the result.
        let lock = File::create(cached.join("guest.lock"))?;
        lock.lock()?;
        for package in PACKAGES.into_iter().chain([KERNEL]) {
            if !packages::available(package)? {
                return Ok(Err(format!("no guest in QEMU: apt has no package {package}")));
            }
        }
        packages::need(PACKAGES)?;
        let folder = cached.join(format!("guest-{:016x}", cache::hash(&[INIT, ANSWER].concat())));
        if !folder.is_dir() {
            // The folder is deleted together with this value, also after a failure.
            let tree = tempfile::tempdir_in(&cached)?;
            step("the guest's kernel and files", || build(tree.path()))?;
            std::fs::rename(tree.path().join("image"), &folder)?;
        }
        Ok(Ok(Image { kernel: folder.join("vmlinuz"), files: folder.join("initrd") }))
    }
}

fn build(tree: &Path) -> Result<()> {
    let depends = run(&mut cmd("apt-cache", ["depends", "--important", KERNEL]))?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = package.with_context(|| format!("{KERNEL} depends on no kernel: {depends}"))?;
    run(cmd("apt-get", ["-q", "-o", "APT::Sandbox::User=root", "download", package]).current_dir(tree))?;
    let archive = only_file(tree)?;
    run(cmd("dpkg-deb", ["--extract"]).arg(&archive).arg(tree.join("kernel")))?;

    let (image, root) = (tree.join("image"), tree.join("root"));
    std::fs::create_dir(&image)?;
    std::fs::create_dir_all(root.join("modules"))?;
    std::fs::create_dir(root.join("dev"))?;
    let vmlinuz = std::fs::read_dir(tree.join("kernel/boot"))?
        .flatten()
        .find(|file| file.file_name().to_string_lossy().starts_with("vmlinuz"));
    std::fs::copy(vmlinuz.context("no kernel in its package")?.path(), image.join("vmlinuz"))?;
    let modules = only_file(&tree.join("kernel/lib/modules"))?.join("kernel");
    let mut order = String::new();
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        let from = modules.join(format!("{module}.ko"));
        std::fs::copy(&from, root.join(format!("modules/{name}.ko")))
            .with_context(|| from.display().to_string())?;
        order.push_str(name);
        order.push('\n');
    }
    std::fs::write(root.join("modules/order"), order)?;
    std::fs::copy("/bin/busybox", root.join("busybox"))?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755))?;
    let options = ["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-"];
    run_with_input(cmd("rustc", options).arg("-o").arg(root.join("answer")), ANSWER)?;
    let pack = "cd \"$1\" && busybox find . | busybox cpio -o -H newc > \"$2\"";
    run(cmd("sh", ["-euc", pack, "sh"]).arg(&root).arg(image.join("initrd")))?;
    Ok(())
}

/// The only file of a folder.
fn only_file(folder: &Path) -> Result<PathBuf> {
    let files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    let [file] = files.as_slice() else { bail!("{} has {} files", folder.display(), files.len()) };
    Ok(file.path())
}

/// A virtual machine in QEMU.
pub(super) struct Machine {
    daemon: Daemon,
    control: Control,
}

impl Machine {
    /// Boots the guest in a pod. Returns once it answers.
    pub(super) fn boot(cluster: &Cluster, image: &Image, pod: &Launcher) -> Result<Machine> {
        let memory = cluster.folder().join(MEMORY);
        File::create(&memory).with_context(|| memory.display().to_string())?;
        let mut machine = Self::start(cluster, image, pod, &[])?;
        let log = machine.daemon.log().to_owned();
        machine.daemon.wait_while_running("the guest's boot", PATIENCE, || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            Ok(Seen::when(said.contains(ANSWERS), || said))
        })?;
        Ok(machine)
    }

    /// Starts a machine that waits for a live migration.
    pub(super) fn wait_for_guest(cluster: &Cluster, image: &Image, pod: &Launcher) -> Result<Machine> {
        let socket = migration_socket(cluster, pod);
        Self::start(cluster, image, pod, &["-incoming", &socket])
    }

    fn start(cluster: &Cluster, image: &Image, pod: &Launcher, more: &[&str]) -> Result<Machine> {
        let (ns, name) = (pod.sandbox.ns.name(), &pod.sandbox.identity.name);
        let mac = pod.mac.map(|octet| format!("{octet:02x}")).join(":");
        let link: Value = serde_json::from_str(&pod.sandbox.ns.ip(["-j", "link", "show", "dev", "eth0"])?)?;
        let mtu = link[0]["mtu"].as_u64().context("the MTU")?;
        run(&mut cmd("ip", ["netns", "exec", ns, "sh", "-euc", BINDING]))?;

        let control = cluster.folder().join(format!("{name}.control"));
        let addresses: Vec<String> = pod.addresses.iter().map(IpAddr::to_string).collect();
        let mut command = cmd("ip", ["netns", "exec", ns, "qemu-system-x86_64"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35"]);
        command.args(["-accel", "tcg", "-smp", "1", "-m", MEGABYTES, "-machine", "memory-backend=memory"]);
        let memory = cluster.folder().join(MEMORY);
        let size = format!("memory-backend-file,id=memory,size={MEGABYTES},share=on,mem-path=");
        command.arg("-object").arg(size + &memory.display().to_string());
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.files).arg("-append");
        command.arg(format!("console=ttyS0 quiet rdinit=/init addresses={}", addresses.join(",")));
        command.args(["-netdev", "tap,id=pod,ifname=tap0,script=no,downscript=no", "-device"]);
        command.arg(format!("virtio-net-pci,netdev=pod,mac={mac},host_mtu={mtu},romfile="));
        command.args(["-serial", "file:/dev/stdout"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", control.display()));
        command.args(more);
        let mut daemon = cluster.daemon(name, command)?;
        let stream = daemon.wait_while_running("QEMU's control socket", PATIENCE, || {
            Ok(match UnixStream::connect(&control) {
                Ok(stream) => Seen::Yes(stream),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        })?;
        let mut control = Control::open(stream)?;
        let shared = json!({ "capabilities": [{ "capability": "x-ignore-shared", "state": true }] });
        control.ask("migrate-set-capabilities", &shared)?;
        Ok(Machine { daemon, control })
    }

    /// Migrates the guest. Returns the time in which neither machine ran it.
    pub(super) fn migrate(
        &mut self,
        cluster: &Cluster,
        pod: &Launcher,
        to: &mut Machine,
    ) -> Result<Duration> {
        self.control.ask("migrate", &json!({ "uri": migration_socket(cluster, pod) }))?;
        let stopped = self.control.event("STOP")?;
        let resumed = to.control.event("RESUME")?;
        self.daemon.still_running()?;
        to.daemon.still_running()?;
        resumed.checked_sub(stopped).context("the guest ran on both machines")
    }
}

/// The interface of the guest in its pod.
const BINDING: &str = "
ip link set eth0 down
ip link set eth0 name eth0-nic address 02:54:4c:00:00:01 addrgenmode none
ip link add k6t-eth0 address 02:54:4c:00:00:02 type bridge mcast_snooping 0
ip tuntap add tap0 mode tap
for link in tap0 k6t-eth0; do
    ip link set $link mtu $(cat /sys/class/net/eth0-nic/mtu) addrgenmode none
done
ip link set eth0-nic master k6t-eth0
ip link set tap0 master k6t-eth0
for link in eth0-nic tap0 k6t-eth0; do ip link set $link up; done
";

fn migration_socket(cluster: &Cluster, pod: &Launcher) -> String {
    let name = &pod.sandbox.identity.name;
    format!("unix:{}", cluster.folder().join(format!("{name}.guest")).display())
}

/// QEMU's control socket (QMP).
struct Control {
    write: UnixStream,
    read: BufReader<UnixStream>,
    events: Vec<Value>,
}

impl Control {
    fn open(stream: UnixStream) -> Result<Control> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut control =
            Control { write: stream.try_clone()?, read: BufReader::new(stream), events: Vec::new() };
        let greeting = control.line()?;
        ensure!(greeting.get("QMP").is_some(), "QEMU greets with {greeting}");
        control.ask("qmp_capabilities", &json!({}))?;
        Ok(control)
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<()> {
        writeln!(self.write, "{}", json!({ "execute": command, "arguments": arguments }))?;
        loop {
            let line = self.line()?;
            if line.get("event").is_some() {
                self.events.push(line);
                continue;
            }
            ensure!(line.get("return").is_some(), "{command}: QEMU answers {line}");
            return Ok(());
        }
    }

    /// Waits for an event. Returns its time since 1970.
    fn event(&mut self, name: &str) -> Result<Duration> {
        let place = self.events.iter().position(|event| event["event"] == name);
        let mut event = place.map(|place| self.events.swap_remove(place));
        while event.as_ref().is_none_or(|event| event["event"] != name) {
            event = Some(self.line().with_context(|| format!("no event {name}"))?);
        }
        let time = &event.unwrap_or_default()["timestamp"];
        let part = |unit: &str| time[unit].as_u64().with_context(|| format!("{name} at {time}"));
        Ok(Duration::from_secs(part("seconds")?) + Duration::from_micros(part("microseconds")?))
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.read.read_line(&mut line)? > 0, "QEMU closes its control socket");
        Ok(serde_json::from_str(&line)?)
    }
}
