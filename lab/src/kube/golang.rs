//! Programs of the Go modules in `lab/kubernetes`: parts of Kubernetes itself, and the lab's own
//! programs made of such parts. Go builds each once per machine, into
//! `$XDG_CACHE_HOME/trunkline/kubernetes`. The folder has a hash of the module files, and of the
//! sources if the program is the lab's own. So working trees share programs, and a changed source
//! gives another file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cache;
use crate::fabric::Place;
use crate::progress::step;
use crate::shell::{giving_way, run};

/// The module, below the repository.
const MODULE: &str = "lab/kubernetes";

/// Packages of other projects, by their beginning, and the folder of the module that requires them.
const FOREIGN: [(&str, &str); 3] = [
    ("go.universe.tf/metallb/", "metallb"),
    ("github.com/projectcalico/calico/", "felix"),
    ("gopkg.in/k8snetworkplumbingwg/", "multus"),
];

/// The module with the CRD of ClusterNetworkPolicies. Go verifies its checksum with its own checksum
/// database.
const NETWORK_POLICY_API: &str = "sigs.k8s.io/network-policy-api@v0.3.0";

/// The source of the network policy API: its folder among Go's modules. The inner error names the
/// missing part of this machine.
#[cfg(feature = "suite")]
pub(crate) fn network_policy_api(place: &Place) -> Result<Result<PathBuf, String>> {
    let Some(go) = find_go() else {
        return Ok(Err(
            "no CRD of ClusterNetworkPolicies: install Go (https://go.dev/dl), which loads its module"
                .to_owned(),
        ));
    };
    let mut command = giving_way(go);
    command.args(["mod", "download", "-json", NETWORK_POLICY_API]).current_dir(cache::folder(place)?);
    let loaded = match run(&mut command) {
        Ok(loaded) => loaded,
        Err(e) => {
            return Ok(Err(format!("no CRD of ClusterNetworkPolicies: Go cannot load its module: {e:#}")));
        }
    };
    let module: serde_json::Value = serde_json::from_str(&loaded)?;
    Ok(Ok(PathBuf::from(module["Dir"].as_str().context("the folder of the module")?)))
}

/// Go on PATH, or in the folder of its own archive.
pub(crate) fn find_go() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
    folders.map(|f| f.join("go")).find(|go| go.is_file())
}

/// The module and its folder of programs.
pub(crate) struct Module {
    source: PathBuf,
    cache: PathBuf,
}

impl Module {
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let cache = cache::folder(place)?.join("trunkline/kubernetes");
        Ok(Self { source: place.repository.join(MODULE), cache })
    }

    /// The path of a program. `package` is a path of a Go package; `./NAME` is the lab's own.
    pub(crate) fn program(&self, package: &str) -> Result<PathBuf> {
        Ok(self.folder(package)?.join(name(package)))
    }

    /// The module of a package, and the package's name there. One of the lab's own is a module
    /// itself.
    fn module(&self, package: &str) -> (PathBuf, String) {
        if let Some((_, folder)) = FOREIGN.iter().find(|(start, _)| package.starts_with(start)) {
            return (self.source.join(folder), package.to_owned());
        }
        let own = package.strip_prefix("./").map(|own| self.source.join(own));
        match own.filter(|own| own.join("go.mod").is_file()) {
            Some(own) => (own, ".".to_owned()),
            None => (self.source.clone(), package.to_owned()),
        }
    }

    /// The folder of a program: its name has the hash of its source.
    pub(crate) fn folder(&self, package: &str) -> Result<PathBuf> {
        let (module, _) = self.module(package);
        let mut files = vec![module.join("go.mod"), module.join("go.sum")];
        if let Some(own) = package.strip_prefix("./") {
            files.push(self.source.join(own).join("main.go"));
        }
        let text = files
            .iter()
            .map(|file| std::fs::read_to_string(file).with_context(|| file.display().to_string()))
            .collect::<Result<String>>()?;
        Ok(self.cache.join(format!("{:016x}", cache::hash(&text))))
    }

    /// The source of a package of Kubernetes: its folder among Go's modules.
    pub(crate) fn kubernetes_source(&self, go: &Path) -> Result<PathBuf> {
        let folder = run(&mut self.go(go, &["list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"]))?;
        Ok(PathBuf::from(folder.trim()))
    }

    /// The source of another project's module: its folder among Go's modules. `folder` is the lab's
    /// module that requires it.
    pub(crate) fn foreign_source(&self, go: &Path, folder: &str, module: &str) -> Result<PathBuf> {
        let own = self.source.join(folder);
        run(self.go(go, &["mod", "download", module]).current_dir(&own))?;
        let mut command = self.go(go, &["list", "-m", "-f", "{{.Dir}}", module]);
        let source = run(command.current_dir(own))?;
        Ok(PathBuf::from(source.trim()))
    }

    /// Builds the programs that are missing; `first` runs before a build. The inner error names the
    /// missing part of this machine: Go, or access to modules.
    pub(crate) fn build(&self, packages: &[&str], first: impl FnOnce()) -> Result<Result<(), String>> {
        if self.missing(packages)?.is_empty() {
            return Ok(Ok(()));
        }
        std::fs::create_dir_all(&self.cache).with_context(|| self.cache.display().to_string())?;
        // One process builds, the others use the result.
        let lock = File::create(self.cache.join("lock"))?;
        lock.lock()?;
        let missing = self.missing(packages)?;
        let Some(go) = find_go() else {
            return Ok(Err(
                "no Kubernetes programs: install Go (https://go.dev/dl), which builds them once".to_owned()
            ));
        };
        // This loads every module that the packages need, and no other.
        for packages in missing.values() {
            if let Err(e) = run(&mut self.go_in(&go, packages, &["list", "-deps"])) {
                return Ok(Err(format!("no Kubernetes programs: Go cannot load their modules: {e:#}")));
            }
        }
        first();
        let flags = self.version_flags(&go)?;
        for (folder, packages) in missing {
            let next = folder.join("next");
            std::fs::create_dir_all(&next)?;
            let names: Vec<&str> = packages.iter().map(|package| name(package)).collect();
            // With a slash at its end it is a folder.
            let into = format!("{}/", next.display());
            step(&format!("go build {}", names.join(" ")), || {
                run(&mut self.go_in(&go, &packages, &["build", "-trimpath", "-ldflags", &flags, "-o", &into]))
            })?;
            for name in names {
                std::fs::rename(next.join(name), folder.join(name))?;
            }
            std::fs::remove_dir(&next)?;
        }
        Ok(Ok(()))
    }

    /// The packages without a program, by folder.
    fn missing<'a>(&self, packages: &[&'a str]) -> Result<BTreeMap<PathBuf, Vec<&'a str>>> {
        let mut missing: BTreeMap<PathBuf, Vec<&str>> = BTreeMap::new();
        for package in packages {
            let folder = self.folder(package)?;
            if !folder.join(name(package)).is_file() {
                missing.entry(folder).or_default().push(package);
            }
        }
        Ok(missing)
    }

    /// Whether every program is built.
    pub(crate) fn is_built(&self, packages: &[&str]) -> Result<bool> {
        Ok(self.missing(packages)?.is_empty())
    }

    /// Clients query a server's version. Without these flags the version would be v0.0.0.
    fn version_flags(&self, go: &Path) -> Result<String> {
        let version = run(&mut self.go(go, &["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"]))?;
        let version = version.trim();
        let (major, minor) = version
            .trim_start_matches('v')
            .split_once('.')
            .and_then(|(major, rest)| Some((major, rest.split_once('.')?.0)))
            .with_context(|| format!("k8s.io/kubernetes {version:?} is no version"))?;
        let stamp = "k8s.io/component-base/version.git";
        Ok(format!("-s -w -X {stamp}Version={version} -X {stamp}Major={major} -X {stamp}Minor={minor}"))
    }

    /// Go with packages of one module.
    fn go_in(&self, go: &Path, packages: &[&str], args: &[&str]) -> Command {
        let mut command = self.go(go, args);
        for package in packages {
            let (module, name) = self.module(package);
            command.arg(name).current_dir(module);
        }
        command
    }

    fn go(&self, go: &Path, args: &[&str]) -> Command {
        let mut command = giving_way(go);
        command.args(args).current_dir(&self.source).env("CGO_ENABLED", "0");
        command
    }
}

/// The name of a package's program.
fn name(package: &str) -> &str {
    package.rsplit('/').next().unwrap_or(package)
}
