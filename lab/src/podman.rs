//! podman on a node of the lab: containers that a real runtime creates, attaches by the plugin, and
//! removes.
//!
//! ```text
//! podman ─ libcni ── ADD, DEL ──► trunkline-cni (the node's) ──► the node's agent
//!    └─ conmon ─ crun ─ busybox, from a folder: no registry, no image
//! ```
//!
//! Each unusual setting has one reason. It uses `crun` and no cgroups, because a node's own /sys
//! has none, and the tests are about networks. Storage is `vfs`, because a node's folders are
//! overlays already. Limits are explicit, because podman would otherwise raise them, maybe beyond
//! the limits of this process. There is no podman bridge: every network is one of Trunkline's.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::host::Host;
use crate::shell::run;

/// The runtime with its helper programs, and the program in the containers.
pub(crate) const PACKAGES: [&str; 4] = ["podman", "conmon", "crun", "busybox-static"];

/// podman of one node.
pub(crate) struct Podman<'a> {
    host: &'a Host,
    folder: PathBuf,
}

/// A running container; a drop removes it.
pub(crate) struct Container<'a> {
    podman: &'a Podman<'a>,
    name: String,
    /// The addresses that podman got from the plugin.
    pub addresses: Vec<IpAddr>,
}

impl<'a> Podman<'a> {
    /// Writes podman's files: its configuration, one CNI network for each of these Networks, and
    /// the containers' root.
    pub(crate) fn on(host: &'a Host, networks: &[&str]) -> Result<Self> {
        let folder = host.folder.join("podman");
        for part in
            ["net.d", "root/bin", "root/dev", "root/etc", "root/proc", "root/run", "root/sys", "root/tmp"]
        {
            std::fs::create_dir_all(folder.join(part))?;
        }
        std::fs::copy("/bin/busybox", folder.join("root/bin/busybox")).context("busybox")?;
        let conf = format!(
            "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [{:?}]\nnetwork_config_dir = {:?}\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n",
            host.product.display(),
            folder.join("net.d").display()
        );
        std::fs::write(folder.join("containers.conf"), conf)?;
        for network in networks {
            let list = json!({
                "cniVersion": "1.0.0", "name": network, "plugins": [{ "type": "trunkline-cni", "network": network }],
            });
            std::fs::write(folder.join(format!("net.d/{network}.conflist")), list.to_string())?;
        }
        // The container runtime queries the kind of cgroups, even if it uses no cgroups.
        host.sh("[ \"$(stat -f -c %T /sys/fs/cgroup)\" != sysfs ] || mount -t cgroup2 lab /sys/fs/cgroup")?;
        Ok(Self { host, folder })
    }

    /// `podman …` on the node.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command =
            self.host.command("podman", ["--storage-driver", "vfs", "--runtime", "/usr/bin/crun", "--root"]);
        command.arg(self.folder.join("storage")).args([
            "--runroot",
            "/run/podman",
            "--tmpdir",
            "/run/podman/tmp",
        ]);
        command.args(args).env("CONTAINERS_CONF", self.folder.join("containers.conf"));
        command
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        run(&mut self.command(args)).with_context(|| format!("on {}", self.host.name))
    }

    fn start(&self, how: &[&str], network: &str, what: &[&str]) -> Result<String> {
        let root = self.folder.join("root").display().to_string();
        let limits = ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1000:1000"];
        let mut args = vec!["run", "--cgroups=disabled", "--network", network];
        args.extend(limits.into_iter().chain(how.iter().copied()).chain(["--rootfs", &root, "/bin/busybox"]));
        args.extend(what);
        self.run(&args)
    }

    /// Starts a container that does nothing until it is stopped.
    pub(crate) fn container(&'a self, name: &str, network: &str) -> Result<Container<'a>> {
        let mut container = Container { podman: self, name: name.to_owned(), addresses: Vec::new() };
        self.start(&["-d", "--name", name], network, &["sleep", "100000"])?;
        let inspected: Value = serde_json::from_str(&self.run(&["inspect", name])?)?;
        let joined = &inspected[0]["NetworkSettings"]["Networks"][network];
        for key in ["IPAddress", "GlobalIPv6Address"] {
            let address = joined[key].as_str().unwrap_or_default();
            if !address.is_empty() {
                container.addresses.push(address.parse().with_context(|| joined.to_string())?);
            }
        }
        ensure!(!container.addresses.is_empty(), "podman reports no address of {name}: {joined}");
        Ok(container)
    }

    /// Runs a busybox command in a temporary container; returns its output.
    pub(crate) fn once(&self, network: &str, what: &[&str]) -> Result<String> {
        self.start(&["--rm"], network, what)
    }
}

impl Container<'_> {
    /// Runs a busybox command in the container; returns its output.
    pub(crate) fn exec(&self, what: &[&str]) -> Result<String> {
        let mut args = vec!["exec", &self.name, "/bin/busybox"];
        args.extend(what);
        self.podman.run(&args)
    }

    /// Stops the container as a user does, and waits until it is gone.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let name = std::mem::take(&mut self.name);
        if name.is_empty() {
            return Ok(());
        }
        self.podman.run(&["rm", "--force", "--time", "0", &name]).map(drop)
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // After a failed test, the test's own error matters more than this error.
        let _gone = self.end();
    }
}
