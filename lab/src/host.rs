//! One node of a running lab: a network namespace, and a mount namespace with its own /run, /etc,
//! /var/lib/trunkline and /var/log. So all files of daemons and commands have the same paths as in
//! a container or on a real host. A sleeping process keeps the mount namespace alive, as in a pod
//! sandbox.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::netns::{Namespace, enter_mounts_of};
use crate::shell::{cmd, run};
use crate::topology::Node;

/// Setup by the sleeping process. Arguments: the node's folder, then pairs of bind source and
/// target. /etc is an overlay over a tmpfs, which works on any file system below. The rest are
/// plain folders on disk, because the time of a write to disk is part of the measurements.
const SETUP: &str = r#"
folder=$1; shift
mkdir -p "$folder/run/netns" "$folder/lib" "$folder/log/frr" "$folder/tmp"
chmod 1777 "$folder/tmp"
if getent passwd frr >/dev/null; then
    mkdir -p "$folder/run/frr"; chown frr:frr "$folder/run/frr" "$folder/log/frr"
fi
mkdir -p "$folder/run/bird" "$folder/run/trunkline"
mount -t tmpfs lab "$folder/tmp"
mkdir "$folder/tmp/etc" "$folder/tmp/etc.work" "$folder/tmp/lib" "$folder/tmp/lib.work"
mount -t overlay lab -o "lowerdir=/etc,upperdir=$folder/tmp/etc,workdir=$folder/tmp/etc.work" /etc
while [ $# -gt 0 ]; do
    if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "$(dirname "$2")"; [ -e "$2" ] || : >"$2"; fi
    mount --bind "$1" "$2"
    shift 2
done
mount -t overlay lab -o "lowerdir=/var/lib,upperdir=$folder/tmp/lib,workdir=$folder/tmp/lib.work" /var/lib
mkdir -p /var/lib/trunkline
mount --bind "$folder/lib" /var/lib/trunkline
mount --bind "$folder/log" /var/log
mount --rbind /run/netns "$folder/run/netns"
mount --rbind "$folder/run" /run
mount -t sysfs sysfs /sys
echo ready
exec sleep infinity >/dev/null
"#;

/// A running node.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The node's name in the topology.
    pub name: String,
    pub ns: Namespace,
    /// State, logs and sockets of this node.
    pub folder: PathBuf,
    /// The sleeping process that holds the mount namespace.
    pub pause: u32,
    /// Folder with the product's binaries, first in PATH.
    pub product: PathBuf,
    /// Whether the node is a container (`containerlab/`), or a cluster's node (`cluster/`). Then its
    /// files exist only in its mount namespace, and its processes have their own numbers.
    pub contained: bool,
}

impl Host {
    /// Creates the namespaces. Links, addresses and daemons follow later.
    pub(crate) fn create(
        name: &str,
        ns_name: &str,
        folder: &Path,
        files: &Path,
        product: &Path,
        node: &Node,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let ns = Namespace::create(ns_name)?;
        let sysctls: String = node.sysctls.iter().fold(String::new(), |script, (key, value)| {
            script + &format!("echo '{value}' >/proc/sys/{}\n", key.replace('.', "/"))
        });
        let log = std::fs::File::create(folder.join("setup.log"))?;
        let mut sleeper = cmd("nsenter", [format!("--net={}", ns.path().display())]);
        sleeper
            .args(["unshare", "--mount", "--propagation", "slave", "sh", "-euc"])
            .args([&format!("{sysctls}{SETUP}"), "sh"])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0);
        for (source, target) in &node.binds {
            sleeper.arg(files.join(source)).arg(target);
        }
        let mut sleeper = sleeper.spawn().context("nsenter")?;
        let mut line = String::new();
        if let Some(out) = sleeper.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line != "ready\n" {
            let said = std::fs::read_to_string(folder.join("setup.log")).unwrap_or_default();
            bail!("node {name} could not be set up: {}", said.trim());
        }
        Ok(Self {
            name: name.to_owned(),
            ns,
            folder: folder.to_owned(),
            pause: sleeper.id(),
            product: product.to_owned(),
            contained: false,
        })
    }

    /// The node's /var/log, in the machine's view.
    pub(crate) fn logs(&self) -> PathBuf {
        if self.contained { self.root().join("var/log") } else { self.folder.join("log") }
    }

    /// The root of a container, in the machine's view.
    fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pause))
    }

    /// Creates a pod's network namespace, with this name on the node and on the machine.
    pub(crate) fn sandbox(&self, name: &str) -> Result<Namespace> {
        if !self.contained {
            return Namespace::create(name);
        }
        self.run("ip", ["netns", "add", name])?;
        self.run("ip", ["-n", name, "link", "set", "lo", "up"])?;
        let ns = Namespace::named(name);
        std::os::unix::fs::symlink(self.root().join("run/netns").join(name), ns.path())
            .with_context(|| format!("{} cannot be made", ns.path().display()))?;
        Ok(ns)
    }

    /// Whether the namespaces still exist and belong to this lab.
    pub(crate) fn is_up(&self) -> bool {
        let (Ok(own), Ok(process)) =
            (std::fs::metadata(self.ns.path()), std::fs::metadata(format!("/proc/{}/ns/net", self.pause)))
        else {
            return false;
        };
        (own.dev(), own.ino()) == (process.dev(), process.ino())
    }

    /// A command that runs on this node.
    pub(crate) fn command<I: AsRef<std::ffi::OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = cmd("nsenter", [format!("--net={}", self.ns.path().display())]);
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.pause));
        if self.contained {
            for kind in ["pid", "uts"] {
                command.arg(format!("--{kind}=/proc/{}/ns/{kind}", self.pause));
            }
        }
        command.args(["--", program]).args(args);
        command.env("PATH", self.path_variable());
        command
    }

    fn path_variable(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:/usr/sbin:/sbin:/usr/bin:/bin:{path}", self.product.display())
    }

    /// Runs a command on this node and returns what it printed.
    pub(crate) fn run<I: AsRef<std::ffi::OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = I>,
    ) -> Result<String> {
        run(&mut self.command(program, args)).with_context(|| format!("on {}", self.name))
    }

    /// Runs a command line through the shell, as `exec` lines are.
    pub(crate) fn sh(&self, line: &str) -> Result<String> {
        self.run("sh", ["-c", line])
    }

    /// Makes the node silent: it neither receives nor sends nor forwards an IP packet, while its
    /// links stay up and its processes run. This simulates a router that fails silently, in one
    /// transaction of the kernel.
    pub(crate) fn silence(&self) -> Result<()> {
        self.run(
            "nft",
            ["add table inet silence; \
              add chain inet silence in { type filter hook prerouting priority -500; policy drop; }; \
              add chain inet silence out { type filter hook output priority -500; policy drop; }"],
        )
        .map(drop)
    }

    /// Ends [`Host::silence`].
    pub(crate) fn end_silence(&self) -> Result<()> {
        self.run("nft", ["delete table inet silence"]).map(drop)
    }

    /// Starts a daemon in the foreground, in its own process group, with its outputs in a log file.
    pub(crate) fn daemon(
        &self,
        log: &str,
        program: &str,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Child> {
        let path = self.logs().join(log);
        let out = std::fs::File::options().create(true).append(true).open(&path)?;
        let err = out.try_clone()?;
        self.command(program, args)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .with_context(|| format!("{}: cannot start {program}", self.name))
    }

    /// Moves the calling thread onto this node permanently: programs that it starts run there
    /// without nsenter.
    pub(crate) fn enter(&self) -> Result<()> {
        self.ns.enter()?;
        enter_mounts_of(self.pause)
    }

    /// Runs `work` on a thread of its own on this node.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| self.enter().and_then(|()| work()));
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
