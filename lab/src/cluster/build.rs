//! The programs of a cluster. Go builds those of Kubernetes, CoreDNS and upstream's test suite once
//! per machine ([`crate::kube::golang`]); `cargo lab kube build` does it, and so do `cargo lab kube
//! up --nodes` and `cargo lab e2e`. `cargo lab test` never does, because it takes 22 minutes on two
//! cores. containerd, runc, etcd and the CNI plugins are Debian's.
//!
//! Programs that share most of their packages are one program with several names, as Kubernetes'
//! own hyperkube was: it is linked once, and its pages are in memory once.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::images;
use crate::fabric::Place;
use crate::kube::assets::Assets;
use crate::kube::golang::{Module, find_go};
use crate::progress::{say, step};
use crate::shell::{cmd, run};

/// Debian's parts of a cluster, and the parts of its images.
pub(crate) const PACKAGES: [&str; 18] = [
    "bind9-dnsutils",
    "busybox-static",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "curl",
    "etcd-server",
    "gcc",
    "iperf",
    "iproute2",
    "iptables",
    "iputils-ping",
    "libc-bin",
    "libc6-dev",
    "netcat-openbsd",
    "nftables",
    "runc",
    "wget",
];

/// kubelet, kube-controller-manager and kube-scheduler.
const COMPONENTS: &str = "./components";
/// Upstream's test suite and ginkgo, which runs it.
const SUITE: &str = "./suite";
/// agnhost and CoreDNS, which run in pods.
const PODS: &str = "./pods";
/// A client for one of upstream's specs. It runs in a pod.
const CLIENT: &str = "k8s.io/kubernetes/test/images/regression-issue-74839";

const PACKAGES_OF_GO: [&str; 4] = [COMPONENTS, PODS, CLIENT, SUITE];

/// The names under which a program has several purposes.
const NAMES: [(&str, &[&str]); 3] = [
    (COMPONENTS, &["kubelet", "kube-controller-manager", "kube-scheduler"]),
    (SUITE, &["e2e.test", "ginkgo"]),
    (PODS, &["agnhost", "coredns"]),
];

/// Every program of a cluster, and its images.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub assets: Assets,
    pub proxy: PathBuf,
    pub helm: PathBuf,
    components: PathBuf,
    suite: PathBuf,
    pods: PathBuf,
    client: PathBuf,
    pause: PathBuf,
    /// The folder of archives.
    images: PathBuf,
}

impl Programs {
    /// Finds the programs. The inner error says that they are not built.
    pub(crate) fn find(place: &Place) -> Result<Result<Self, String>> {
        let module = Module::open(place)?;
        let built = module.is_built(&PACKAGES_OF_GO)? && files_of_kubernetes(&module)?.is_empty();
        if !built {
            return Ok(Err(
                "the programs of a cluster are not built: `cargo lab kube build` builds them (22 minutes on two cores)"
                    .to_owned(),
            ));
        }
        Self::complete(place, &module)
    }

    /// Finds the programs or builds them. The inner error names the missing part of this machine.
    pub(crate) fn build(place: &Place) -> Result<Result<Self, String>> {
        let module = Module::open(place)?;
        crate::packages::need(PACKAGES)?;
        let first = || {
            say(
                "  the programs of a cluster are built from source, once for this machine: 22 minutes on two cores",
            );
        };
        // The API server's programs are built first, because other tests need them.
        if let Err(missing) = Assets::find(place)? {
            return Ok(Err(missing));
        }
        if let Err(missing) = module.build(&PACKAGES_OF_GO, first)? {
            return Ok(Err(missing));
        }
        build_files(&module)?;
        Self::complete(place, &module)
    }

    fn complete(place: &Place, module: &Module) -> Result<Result<Self, String>> {
        let assets = match Assets::find(place)? {
            Ok(assets) => assets,
            Err(missing) => return Ok(Err(missing)),
        };
        let (proxy, helm) = match (Assets::proxy(place)?, Assets::helm(place)?) {
            (Ok(proxy), Ok(helm)) => (proxy, helm),
            (Err(missing), _) | (_, Err(missing)) => return Ok(Err(missing)),
        };
        for (package, names) in NAMES {
            let program = module.program(package)?;
            let folder = module.folder(package)?;
            for name in names {
                link(&program, &folder.join(name))?;
            }
        }
        let pods = module.folder(PODS)?;
        let programs = Self {
            assets,
            proxy,
            helm,
            components: module.folder(COMPONENTS)?,
            suite: module.folder(SUITE)?,
            pause: pods.join("pause"),
            images: pods.join(format!("images-{:016x}", images::version())),
            pods: module.program(PODS)?,
            client: module.program(CLIENT)?,
        };
        images::make(&programs)?;
        Ok(Ok(programs))
    }

    /// The folder of the first program, for the user.
    pub(crate) fn folder(&self) -> &Path {
        &self.components
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.components.join("kubelet")
    }

    pub(crate) fn controller_manager(&self) -> PathBuf {
        self.components.join("kube-controller-manager")
    }

    pub(crate) fn scheduler(&self) -> PathBuf {
        self.components.join("kube-scheduler")
    }

    pub(crate) fn ginkgo(&self) -> PathBuf {
        self.suite.join("ginkgo")
    }

    /// Upstream's test suite. ginkgo requires the ending of its name.
    pub(crate) fn suite(&self) -> PathBuf {
        self.suite.join("e2e.test")
    }

    /// The program that is agnhost and CoreDNS, by its name.
    pub(super) fn pods(&self) -> &Path {
        &self.pods
    }

    pub(super) fn client(&self) -> &Path {
        &self.client
    }

    /// A file with which agnhost serves TLS.
    pub(super) fn tls(&self, name: &str) -> PathBuf {
        self.pause.with_file_name(name)
    }

    /// The first process of pods and of nodes: it waits, and reaps ended processes.
    pub(crate) fn pause(&self) -> &Path {
        &self.pause
    }

    pub(super) fn images(&self) -> &Path {
        &self.images
    }
}

/// Files that come from Kubernetes' sources, with their sources: pause, and the certificate with
/// which agnhost serves TLS.
const FILES: [(&str, &str); 3] = [
    ("localhost.crt", "test/images/agnhost/porter/localhost.crt"),
    ("localhost.key", "test/images/agnhost/porter/localhost.key"),
    ("pause", "build/pause/linux/pause.c"),
];

/// The missing ones.
fn files_of_kubernetes(module: &Module) -> Result<Vec<(PathBuf, &'static str)>> {
    let folder = module.folder(PODS)?;
    let all = FILES.map(|(name, source)| (folder.join(name), source));
    Ok(all.into_iter().filter(|(file, _)| !file.is_file()).collect())
}

fn build_files(module: &Module) -> Result<()> {
    let missing = files_of_kubernetes(module)?;
    if missing.is_empty() {
        return Ok(());
    }
    let kubernetes = module.kubernetes_source(&find_go().context("Go")?)?;
    for (file, source) in missing {
        let (next, source) = (file.with_extension("next"), kubernetes.join(source));
        ensure!(source.is_file(), "{} does not exist", source.display());
        if source.extension().is_some_and(|extension| extension == "c") {
            let flags = ["-Os", "-static", "-s", "-DVERSION=lab", "-o"];
            step("cc pause.c", || run(cmd("gcc", flags).arg(&next).arg(&source)))?;
        } else {
            // The copy does not have the original mode: Go's modules are read-only.
            std::fs::write(&next, std::fs::read(&source)?)?;
        }
        std::fs::rename(next, file)?;
    }
    Ok(())
}

/// A symbolic link, made atomically: another process may need it now.
fn link(to: &Path, at: &Path) -> Result<()> {
    if at.is_symlink() {
        return Ok(());
    }
    let next = at.with_extension(format!("next{}", std::process::id()));
    symlink(to.file_name().context("a program's name")?, &next)?;
    std::fs::rename(&next, at)?;
    Ok(())
}
