//! The images of pods, without a registry: archives that `ctr images import` reads, made of the
//! cluster's programs and of this machine's own. Each has the name of the image that it replaces.
//!
//! An image of upstream's suite is replaced by what its tests need: agnhost's image also has the
//! tools of jessie-dnsutils and busybox, and a web server of busybox stands for nginx and httpd.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::build::Programs;
use crate::cache;
use crate::progress::step;
use crate::shell::{cmd, run};

/// Upstream's images of the release in `lab/kubernetes/go.mod`.
const UPSTREAM: &str = "registry.k8s.io/e2e-test-images";
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// CoreDNS has its own name: no image is replaced.
pub(super) const COREDNS: &str = "trunkline-lab/coredns:1";
pub(crate) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.53";
/// cyclonus' packages have this name.
const WORKER: &str = "mfenwick100/cyclonus-worker:latest";

/// What a container runs by default.
#[derive(Default)]
struct Start<'a> {
    entrypoint: &'a [&'a str],
    command: &'a [&'a str],
}

/// The archives of the folder, in the order of their import.
pub(super) fn archives(programs: &Programs) -> Vec<PathBuf> {
    ["pause", "pods", "client", "web", "iptables"]
        .map(|name| programs.images().join(format!("{name}.tar")))
        .to_vec()
}

/// The version of the archives: a hash of this file.
pub(super) fn version() -> u64 {
    cache::hash(include_str!("images.rs"))
}

/// Makes the archives that do not exist yet.
pub(super) fn make(programs: &Programs) -> Result<()> {
    if archives(programs).iter().all(|archive| archive.is_file()) {
        return Ok(());
    }
    std::fs::create_dir_all(programs.images())?;
    step("images of the cluster", || {
        pause(programs)?;
        pods(programs)?;
        client(programs)?;
        web(programs)?;
        iptables(programs)
    })
}

/// Makes the archive of the image of cyclonus' pods, if it does not exist yet: agnhost, and the
/// worker that sends a pod's probes.
pub(super) fn worker(programs: &Programs, worker: &Path) -> Result<PathBuf> {
    let folder = worker.parent().and_then(Path::file_name).context("the worker's folder")?;
    let root = Root::create(programs, &format!("cyclonus-{}", folder.to_string_lossy()))?;
    if !root.archive.is_file() {
        step("image of cyclonus' pods", || {
            root.copy(programs.pods(), "agnhost")?;
            root.copy(worker, "worker")?;
            root.folder("tmp")?;
            root.pack(&[WORKER.to_owned()], &Start { entrypoint: &["/agnhost"], command: &["pause"] })
        })?;
    }
    Ok(root.archive)
}

/// Makes the archive of Trunkline's image from its root folder.
pub(super) fn trunkline(root: &Path, name: &str, archive: &Path) -> Result<()> {
    let start = Start { entrypoint: &["/usr/bin/trunkline"], command: &[] };
    pack(root, &[name], &start, archive)
}

fn pause(programs: &Programs) -> Result<()> {
    let root = Root::create(programs, "pause")?;
    root.copy(programs.pause(), "pause")?;
    root.pack(&[PAUSE.to_owned()], &Start { entrypoint: &["/pause"], command: &[] })
}

fn client(programs: &Programs) -> Result<()> {
    let root = Root::create(programs, "client")?;
    root.copy(programs.client(), "regression-issue-74839")?;
    let names = [format!("{UPSTREAM}/regression-issue-74839:1.2")];
    root.pack(&names, &Start { entrypoint: &["/regression-issue-74839"], command: &[] })
}

/// agnhost, CoreDNS, and a shell with the tools that tests run in pods.
fn pods(programs: &Programs) -> Result<()> {
    let root = Root::create(programs, "pods")?;
    root.busybox()?;
    for tool in ["curl", "wget", "dig", "ip", "ss", "bash", "getent", "iperf", "conntrack", "ping"] {
        root.tool(tool, tool)?;
    }
    root.tool("nc.openbsd", "nc")?;
    for shell in ["sh", "bash"] {
        root.link("/usr/bin/bash", &format!("bin/{shell}"))?;
    }
    root.write(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    )?;
    root.write("etc/group", "root:x:0:\nuser-defined-in-image:x:1000:\nnogroup:x:65534:\n")?;
    root.write("etc/nsswitch.conf", "hosts: files dns\n")?;
    for folder in ["tmp", "uploads", "root", "home", "run"] {
        root.folder(folder)?;
    }
    root.copy(programs.pods(), "agnhost")?;
    for file in ["localhost.crt", "localhost.key"] {
        root.copy(&programs.tls(file), file)?;
    }
    root.link("agnhost", "agnhost-2")?;
    root.link("agnhost", "coredns")?;
    let names = [
        AGNHOST.to_owned(),
        format!("{UPSTREAM}/jessie-dnsutils:1.7"),
        format!("{UPSTREAM}/busybox:1.36.1-1"),
        COREDNS.to_owned(),
    ];
    root.pack(&names, &Start { entrypoint: &["/agnhost"], command: &["pause"] })
}

/// A web server on port 80.
fn web(programs: &Programs) -> Result<()> {
    let root = Root::create(programs, "web")?;
    root.busybox()?;
    root.folder("www")?;
    root.write("www/index.html", "hello\n")?;
    let names = ["nginx:1.14-4", "nginx:1.15-4", "httpd:2.4.38-4"].map(|name| format!("{UPSTREAM}/{name}"));
    let start =
        Start { entrypoint: &["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"], command: &[] };
    root.pack(&names, &start)
}

/// iptables and nft, with which tests read a service proxy's rules.
fn iptables(programs: &Programs) -> Result<()> {
    let root = Root::create(programs, "iptables")?;
    root.busybox()?;
    for tool in ["bash", "conntrack", "nft", "xtables-nft-multi"] {
        root.tool(tool, tool)?;
    }
    for shell in ["sh", "bash"] {
        root.link("/usr/bin/bash", &format!("bin/{shell}"))?;
    }
    for name in
        ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"]
    {
        root.link("../bin/xtables-nft-multi", &format!("usr/sbin/{name}"))?;
    }
    root.plugins("xtables")?;
    for folder in ["tmp", "run", "etc"] {
        root.folder(folder)?;
    }
    let names = ["registry.k8s.io/build-image/distroless-iptables:v0.8.11".to_owned()];
    root.pack(&names, &Start { entrypoint: &[], command: &["/bin/sh"] })
}

/// A root folder in the making. Its archive is its name with `.tar`.
struct Root {
    folder: tempfile::TempDir,
    archive: PathBuf,
}

impl Root {
    fn create(programs: &Programs, name: &str) -> Result<Self> {
        let folder = tempfile::tempdir_in(programs.images())?;
        Ok(Self { folder, archive: programs.images().join(format!("{name}.tar")) })
    }

    /// A path inside, with its folder.
    fn path(&self, inside: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(inside.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        Ok(path)
    }

    fn folder(&self, inside: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path(inside)?;
        std::fs::create_dir_all(&path)?;
        // Containers of any user write there.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o1777))?;
        Ok(())
    }

    fn write(&self, inside: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.path(inside)?, text)?)
    }

    fn copy(&self, from: &Path, inside: &str) -> Result<()> {
        std::fs::copy(from, self.path(inside)?).with_context(|| from.display().to_string())?;
        Ok(())
    }

    /// A symbolic link, in place of an existing one.
    fn link(&self, to: &str, inside: &str) -> Result<()> {
        let path = self.path(inside)?;
        if path.is_symlink() {
            std::fs::remove_file(&path)?;
        }
        Ok(std::os::unix::fs::symlink(to, path)?)
    }

    /// Busybox, with a name for each of its programs.
    fn busybox(&self) -> Result<()> {
        self.copy(&which("busybox")?, "bin/busybox")?;
        for applet in run(&mut cmd("busybox", ["--list"]))?.lines().filter(|applet| *applet != "busybox") {
            self.link("busybox", &format!("bin/{applet}"))?;
        }
        Ok(())
    }

    /// A program of this machine with its libraries, in place of busybox's.
    fn tool(&self, program: &str, name: &str) -> Result<()> {
        let from = which(program)?;
        let own = self.path(&format!("bin/{name}"))?;
        if own.is_symlink() {
            std::fs::remove_file(own)?;
        }
        self.copy(&from, &format!("usr/bin/{name}"))?;
        self.libraries(&from)
    }

    /// The libraries that the loader finds for a program.
    fn libraries(&self, program: &Path) -> Result<()> {
        let said = run(cmd("ldd", [""; 0]).arg(program))?;
        for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
            let inside = library.trim_start_matches('/');
            if !self.folder.path().join(inside).exists() {
                self.copy(Path::new(library), inside)?;
            }
        }
        Ok(())
    }

    /// A folder of plugins, next to the libraries of this machine.
    fn plugins(&self, name: &str) -> Result<()> {
        let said = run(&mut cmd("ldd", [which("bash")?]))?;
        let libc = said.split_whitespace().find(|word| word.starts_with('/') && word.contains("libc.so"));
        let folder = Path::new(libc.context("no C library: ldd bash")?).parent().context("a folder")?;
        let plugins = Path::new("/usr").join(folder.strip_prefix("/").unwrap_or(folder)).join(name);
        let inside = plugins.to_str().context("the folder's name is not text")?;
        for entry in std::fs::read_dir(&plugins).with_context(|| inside.to_owned())? {
            let path = entry?.path();
            let file = path.file_name().and_then(|file| file.to_str()).context("a file's name")?.to_owned();
            self.copy(&path, &format!("{inside}/{file}"))?;
        }
        Ok(())
    }

    fn pack(&self, names: &[String], start: &Start<'_>) -> Result<()> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        pack(self.folder.path(), &names, start, &self.archive)
    }
}

/// The path of a program of this machine.
fn which(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into(), "/bin".into()]);
    folders
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .with_context(|| format!("{program} is not installed"))
}

/// Writes an archive with one image of one layer, in the format of `docker save`.
fn pack(root: &Path, names: &[&str], start: &Start<'_>, archive: &Path) -> Result<()> {
    let parts = tempfile::tempdir_in(archive.parent().context("the archive's folder")?)?;
    let layer = parts.path().join("layer.tar");
    let tar = |file: &Path, folder: &Path| {
        let mut command =
            cmd("tar", ["--create", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]);
        command.arg("--mtime=@0").arg("--file").arg(file).arg("--directory").arg(folder);
        command
    };
    run(tar(&layer, root).arg("."))?;
    let sum = run(cmd("sha256sum", [""; 0]).arg(&layer))?;
    let digest = sum.split_whitespace().next().context("sha256sum printed nothing")?;
    std::fs::write(parts.path().join("config.json"), configuration(digest, start).to_string())?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }]);
    std::fs::write(parts.path().join("manifest.json"), manifest.to_string())?;
    let next = archive.with_extension("next");
    run(tar(&next, parts.path()).args(["manifest.json", "config.json", "layer.tar"]))?;
    std::fs::rename(&next, archive)?;
    Ok(())
}

fn configuration(digest: &str, start: &Start<'_>) -> Value {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": start.entrypoint,
            "Cmd": start.command,
            "WorkingDir": "/",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    })
}
