//! A node: mount, PID and UTS namespaces below the namespaces of a lab node, a control group of its
//! own, and containerd.
//!
//! A node needs more of a machine than the lab's other nodes: all its processes end with its first
//! process, containers share mounts with it, and its control groups are visible. Some settings
//! belong to the machine and not to a namespace. The kubelet must not change these, so it finds
//! files with its wanted values at their places.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::build::Programs;
use super::{PATIENCE, Part};
use crate::host::Host;
use crate::shell::{Seen, cmd, run};

/// Where Debian installs the reference plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// The socket of containerd on every node.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// Setup by the node's first process. Arguments: the node's folder, its name, its line in
/// /etc/hosts, the program that then waits and reaps.
///
/// Mounts become shared at the end: otherwise the removal of one copy would remove the other. The
/// process number is read before /proc is mounted, so it is the machine's number. The topmost
/// /sys hides the machine's control groups. Changes of the machine's mounts still reach the node,
/// so no namespace of another lab stays because of a copy here.
const SETUP: &str = r#"
folder=$1 name=$2 hosts=$3 waiter=$4
read -r pid _ </proc/self/stat
mount -t proc proc /proc
mkdir -p "$folder/disk/groups"
umount /sys
mount --rbind /sys/fs/cgroup "$folder/disk/groups"
mount -t sysfs sysfs /sys
mount --rbind "$folder/disk/groups" /sys/fs/cgroup
umount -R -l "$folder/disk/groups"
mount -t tmpfs -o mode=755 lab /run
mkdir -p /run/lock /run/netns
mount -t tmpfs -o mode=755 lab /opt
for part in var/lib/kubelet var/lib/containerd var/lib/cni etc/cni opt/cni; do
    mkdir -p "/$part" "$folder/disk/$part"
    mount --bind "$folder/disk/$part" "/$part"
done
mkdir -p /opt/cni/bin /etc/cni/net.d "$folder/disk/sysctls"
wants() {
    file="$folder/disk/sysctls/$(echo "$1" | tr / .)"
    echo "$2" >"$file"
    mount --bind "$file" "/proc/sys/$1"
}
wants vm/overcommit_memory 1
wants vm/panic_on_oom 0
wants kernel/panic 10
wants kernel/panic_on_oops 1
wants kernel/keys/root_maxkeys 1000000
wants kernel/keys/root_maxbytes 25000000
printf '127.0.0.1 localhost\n::1 localhost\n%s\n' "$hosts" >/etc/hosts
rm -f /etc/resolv.conf
: >/etc/resolv.conf
hostname "$name"
mount --make-rshared /
echo "ready $pid"
exec "$waiter" >/dev/null
"#;

/// Creates the namespaces of a node, and returns the node with its new first process.
pub(super) fn create(host: &Host, programs: &Programs, addresses: &[String]) -> Result<Host> {
    let log = std::fs::File::create(host.folder.join("node.log"))?;
    let hosts: Vec<String> = addresses.iter().map(|address| format!("{address} {}", host.name)).collect();
    let mut first = host
        .command("unshare", ["--mount", "--pid", "--uts", "--fork", "--propagation", "slave"])
        .args(["sh", "-euc", SETUP, "sh"])
        .arg(&host.folder)
        .args([host.name.as_str(), &hosts.join("\n")])
        .arg(programs.pause())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("unshare")?;
    let mut line = String::new();
    if let Some(out) = first.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let Some(pid) = line.trim().strip_prefix("ready ").and_then(|pid| pid.parse().ok()) else {
        let said = std::fs::read_to_string(host.folder.join("node.log")).unwrap_or_default();
        bail!("node {} could not be set up: {}", host.name, said.trim());
    };
    // All later commands run in the new namespaces.
    Ok(Host { pause: pid, contained: true, ..host.clone() })
}

/// Gives the node the reference plugins that the kubelet's defaults need, as a distribution's
/// package does.
pub(super) fn install_plugins(node: &Host) -> Result<()> {
    node.sh(&format!("cp -L {PLUGINS}/loopback {PLUGINS}/portmap {PLUGINS}/bandwidth /opt/cni/bin/"))
        .map(drop)
}

const CONTAINERD: &str = r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#;

/// Starts containerd, and waits until it answers.
pub(super) fn start_containerd(node: &Host) -> Result<()> {
    let config = node.folder.join("containerd.toml");
    std::fs::write(&config, CONTAINERD)?;
    let config = config.to_str().context("the node's folder is not text")?;
    let flags = ["--config", config].map(str::to_owned);
    let mut containerd = Part::start(node, "containerd", Path::new("containerd"), &flags)?;
    containerd.wait(&format!("containerd on {}", node.name), PATIENCE, || {
        let asked = node.run("ctr", ["--address", SOCKET, "version"]);
        Ok(Seen::when(asked.is_ok(), || asked.err().map(|e| format!("{e:#}")).unwrap_or_default()))
    })
}

/// Imports an archive of images.
pub(super) fn import(node: &Host, archive: &Path) -> Result<()> {
    let archive = archive.to_str().context("the archive's path is not text")?;
    node.run("ctr", ["--address", SOCKET, "--namespace", "k8s.io", "images", "import", archive]).map(drop)
}

/// A node's control group, the same in every hierarchy of the machine. The kubelet's own groups are
/// below it.
#[derive(Debug, Clone)]
pub(super) struct ControlGroup {
    name: String,
}

impl ControlGroup {
    /// The group of a node, with the name of its network namespace.
    pub(super) fn of(host: &Host) -> Self {
        Self { name: host.ns.name().to_owned() }
    }

    pub(super) fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// The kubelet's `cgroupRoot`.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.name)
    }

    pub(super) fn create(&self) -> Result<()> {
        for hierarchy in hierarchies()? {
            let group = hierarchy.path.join(&self.name);
            std::fs::create_dir_all(&group).with_context(|| group.display().to_string())?;
            if hierarchy.unified {
                // Groups below the root have only the controllers that the root delegates.
                for folder in [&hierarchy.path, &group] {
                    delegate(folder)?;
                }
            }
            // A new group of this controller has no processor and no memory node.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (hierarchy.path.join(file), group.join(file));
                if !hierarchy.unified && from.exists() {
                    std::fs::write(&to, std::fs::read_to_string(from)?)
                        .with_context(|| to.display().to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Removes the group with all groups below it. Their processes must have been killed; the kernel
    /// needs a moment until they are gone.
    pub(super) fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        for hierarchy in hierarchies()? {
            let group = hierarchy.path.join(&self.name);
            while group.exists() {
                // This loop does not use `wait_for`, which ends at once after a termination signal.
                match remove_tree(&group) {
                    Ok(()) => {}
                    Err(e) if Instant::now() > deadline => {
                        return Err(e).with_context(|| format!("{} cannot be removed", group.display()));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        }
        Ok(())
    }
}

/// Enables in the groups below a folder every controller of the folder. A controller that the
/// kernel does not delegate here stays off.
fn delegate(folder: &Path) -> Result<()> {
    let controllers = std::fs::read_to_string(folder.join("cgroup.controllers"))?;
    for controller in controllers.split_whitespace() {
        let _stays_off = std::fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    Ok(())
}

fn remove_tree(group: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(group)
}

/// A mounted hierarchy of control groups: one of version 2, or several of version 1.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    path: PathBuf,
    unified: bool,
}

fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let found = parse_hierarchies(&mounts);
    if found.is_empty() {
        bail!("no control groups are mounted: mount -t cgroup2 none /sys/fs/cgroup");
    }
    Ok(found)
}

/// The hierarchies in /sys/fs/cgroup: of other mounts the kubelet knows nothing.
fn parse_hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(path), Some(kind)) = (words.nth(1), words.next()) else { continue };
        if path.starts_with("/sys/fs/cgroup") && matches!(kind, "cgroup" | "cgroup2") {
            found.push(Hierarchy { path: path.into(), unified: kind == "cgroup2" });
        }
    }
    found
}

/// Fails if the kernel cannot run nodes.
pub(super) fn check_machine() -> Result<()> {
    run(&mut cmd("unshare", ["--mount", "--pid", "--uts", "--fork", "true"]))
        .context("a node needs mount, PID and UTS namespaces")?;
    hierarchies().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\nproc /proc proc rw 0 0\n";
        let path = |path: &str, unified| Hierarchy { path: path.into(), unified };
        assert_eq!(
            parse_hierarchies(hybrid),
            [path("/sys/fs/cgroup/cpu", false), path("/sys/fs/cgroup/unified", true)]
        );
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(parse_hierarchies(unified), [path("/sys/fs/cgroup", true)]);
    }
}
