//! Docker for containerlab: the machine's daemon if it answers, otherwise the lab's own daemon.
//!
//! The lab's daemon has its data in `target/lab/docker`, its socket and state in a folder of /run,
//! and its mounts in its own mount namespace. It makes no bridge and no firewall rule. It ends with
//! this process in every case. If a lab was killed, the next lab removes its containers.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::fabric::Place;
use crate::interrupt::{self, Registered};
use crate::packages;
use crate::progress::say;
use crate::shell::{Seen, cmd, giving_way, run, wait_for};

/// The folder in /run, with the lab's tag. It is short: a socket's path has at most 107 octets.
const RUN: &str = "/run/trunkline-lab-docker";
/// The parent of the containers' cgroups.
const CGROUP: &str = "trunkline-lab";
/// Hides the settings of the machine's daemon, and the key that a daemon writes into the same
/// folder.
const HIDE: &str = "mkdir -p /etc/docker; mount -t tmpfs lab /etc/docker; exec \"$@\"";
const PACKAGE: &str = "docker.io";
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of the lab's daemon, once it answers. From then on, all commands use this socket.
static OWN: Mutex<Option<String>> = Mutex::new(None);

fn own() -> MutexGuard<'static, Option<String>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `docker …`, towards the daemon in use.
pub(crate) fn docker<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    match &*own() {
        Some(socket) => client_of(socket, args),
        None => cmd("docker", args),
    }
}

/// `docker …` of Debian's package, towards a daemon with this socket.
fn client_of<I: AsRef<OsStr>>(socket: &str, args: impl IntoIterator<Item = I>) -> Command {
    let mut command = cmd("/usr/bin/docker", args);
    towards(&mut command, socket);
    command
}

/// Directs another client of Docker towards the daemon in use.
pub(crate) fn direct(command: &mut Command) {
    if let Some(socket) = &*own() {
        towards(command, socket);
    }
}

fn towards(command: &mut Command, socket: &str) {
    // Debian's client has no buildx.
    command.env("DOCKER_HOST", socket).env("DOCKER_BUILDKIT", "0");
}

/// The reason why no daemon answers, if any.
pub(crate) fn missing() -> Option<String> {
    let asked = run(&mut docker(["info", "--format", "{{.ServerVersion}}"]));
    asked.err().map(|error| format!("Docker does not answer: {}", first_line(&error)))
}

pub(super) fn first_line(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}

/// A daemon that answers while this value exists.
pub(crate) struct Engine {
    _own: Option<Own>,
}

impl Engine {
    /// Finds the machine's daemon or starts the lab's daemon. The inner error is the reason why
    /// there is no daemon.
    pub(crate) fn find_or_start(place: &Place) -> Result<Result<Self, String>> {
        let Some(silent) = missing() else { return Ok(Ok(Self { _own: None })) };
        let program =
            || ["/usr/sbin/dockerd", "/usr/bin/dockerd"].into_iter().find(|p| Path::new(p).exists());
        if program().is_none() {
            if !packages::available(PACKAGE)? {
                return Ok(Err(format!("{silent}; and apt has no package {PACKAGE}")));
            }
            if let Err(error) = packages::need([PACKAGE]) {
                return Ok(Err(format!("{PACKAGE} cannot be installed: {}", first_line(&error))));
            }
        }
        let program = program().with_context(|| format!("the package {PACKAGE} has no dockerd"))?;
        match Own::start(place, program) {
            Ok(own) => Ok(Ok(Self { _own: Some(own) })),
            Err(error) => {
                interrupt::check()?;
                Ok(Err(format!("dockerd does not run here: {error:#}")))
            }
        }
    }
}

struct Own {
    child: Arc<Mutex<Child>>,
    folders: Folders,
    _on_stop: Registered,
}

#[derive(Clone)]
struct Folders {
    data: PathBuf,
    run: PathBuf,
}

impl Folders {
    fn of(place: &Place) -> Self {
        let tag = place.tag.as_deref().map(|tag| format!("-{tag}")).unwrap_or_default();
        Self { data: place.state.join(format!("docker{tag}")), run: PathBuf::from(format!("{RUN}{tag}")) }
    }

    fn socket(&self) -> String {
        format!("unix://{}/docker.sock", self.run.display())
    }
}

impl Own {
    fn start(place: &Place, program: &str) -> Result<Self> {
        let folders = Folders::of(place);
        std::fs::create_dir_all(&folders.data)?;
        std::fs::create_dir_all(&folders.run)?;
        let log_path = place.state.join("dockerd.log");
        let log = File::create(&log_path)?;
        let mut command = giving_way("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--", "unshare", "--mount", "--", "sh", "-ec", HIDE, "sh", program])
            .arg("--data-root")
            .arg(&folders.data)
            .arg("--exec-root")
            .arg(folders.run.join("exec"))
            .arg("--pidfile")
            .arg(folders.run.join("pid"))
            .args(["--host", &folders.socket(), "--cgroup-parent", &format!("/{CGROUP}")])
            .args(["--bridge", "none", "--iptables=false", "--ip6tables=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // The terminal's Ctrl-C only reaches the lab.
            .process_group(0);
        let child = Arc::new(Mutex::new(command.spawn().context("setpriv")?));
        let (child_at_stop, folders_at_stop) = (Arc::clone(&child), folders.clone());
        let on_stop = interrupt::on_stop(move || stop(&child_at_stop, &folders_at_stop));
        let started = Self { child, folders, _on_stop: on_stop };
        started.wait_answering(&log_path)?;
        *own() = Some(started.folders.socket());
        remove_containers(&started.folders.socket()).context("containers of an earlier lab")?;
        Ok(started)
    }

    fn wait_answering(&self, log: &Path) -> Result<()> {
        let answered = wait_for("dockerd to answer", PATIENCE, || {
            if let Some(status) = lock(&self.child).try_wait()? {
                return Ok(Seen::Yes(Err(format!("it ended ({status}): {}", reason(log)))));
            }
            run(&mut client_of(&self.folders.socket(), ["info"])).map(|_| Seen::Yes(Ok(())))
        });
        match answered {
            Ok(Ok(())) => Ok(()),
            Ok(Err(ended)) => bail!("{ended}"),
            Err(error) => Err(error).with_context(|| reason(log)),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        stop(&self.child, &self.folders);
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log's line about the failed start, or its last line.
fn reason(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let failed = text.lines().rev().find(|line| line.contains("failed to start daemon"));
    failed.or(text.lines().last()).unwrap_or_default().to_owned()
}

fn remove_containers(socket: &str) -> Result<()> {
    let all = run(&mut client_of(socket, ["ps", "--all", "--quiet"]))?;
    let all: Vec<&str> = all.split_whitespace().collect();
    if !all.is_empty() {
        run(client_of(socket, ["rm", "--force", "--volumes"]).args(all))?;
    }
    Ok(())
}

/// Removes the containers, ends the daemon and removes its files.
fn stop(child: &Mutex<Child>, folders: &Folders) {
    let answering = own().take();
    if let Some(Err(error)) = answering.map(|socket| remove_containers(&socket)) {
        say(&format!("could not remove the containers of the lab's dockerd: {error:#}"));
    }
    let mut child = lock(child);
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        && matches!(child.try_wait(), Ok(None))
    {
        // dockerd ends its containerd; a killed dockerd would leave it running.
        let _gone = kill_process(pid, Signal::TERM);
        // This loop does not use `wait_for`, which ends at once after a termination signal.
        let deadline = Instant::now() + PATIENCE;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let _gone = child.kill();
    let _gone = child.wait();
    for folder in [&folders.data, &folders.run] {
        if let Err(error) = std::fs::remove_dir_all(folder) {
            say(&format!("could not remove {}: {error}", folder.display()));
        }
    }
    remove_cgroups();
}

/// Removes the empty cgroups: one in each hierarchy of version 1, or one of version 2.
fn remove_cgroups() {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in hierarchies.chain([root.to_owned()]) {
        let _absent = std::fs::remove_dir(folder.join(CGROUP));
    }
}
