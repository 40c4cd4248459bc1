//! Source of kube-apiserver, kubectl and kube-proxy: the folder in `KUBEBUILDER_ASSETS`, as in
//! similar projects' tests. Otherwise Go builds them once per machine ([`super::golang`]). Without the
//! folder and without Go, an error of one line names the missing part. Helm is obtained in the same
//! way.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::golang::{Module, find_go};
use crate::cache;
use crate::fabric::Place;
use crate::progress::{say, step};
use crate::shell::{giving_way, run};

/// The variable that names the folder of the programs.
pub(crate) const VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Helm for `go install`. Go verifies every module's checksum with its own checksum database.
const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.21.4";

/// Programs of an API server.
const PROGRAMS: [&str; 2] = ["kube-apiserver", "kubectl"];

/// kube-proxy is not part of other projects' `KUBEBUILDER_ASSETS`.
const PROXY: &str = "kube-proxy";

/// The programs.
#[derive(Debug, Clone)]
pub(crate) struct Assets {
    pub apiserver: PathBuf,
    pub kubectl: PathBuf,
}

/// The programs of an API server, and kube-proxy.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub assets: Assets,
    pub proxy: PathBuf,
}

impl Programs {
    /// Finds or builds the programs. The inner error names the missing part.
    pub(crate) fn find(place: &Place) -> Result<Result<Self, String>> {
        let assets = match Assets::find(place)? {
            Ok(assets) => assets,
            Err(missing) => return Ok(Err(missing)),
        };
        Ok(Assets::proxy(place)?.map(|proxy| Self { assets, proxy }))
    }

    /// Like [`Self::find`], but builds nothing. The inner error names the command that does.
    pub(crate) fn find_built(place: &Place) -> Result<Result<Self, String>> {
        let named = std::env::var_os(VARIABLE);
        let has_all = |folder: &Path| PROGRAMS.iter().chain([&PROXY]).all(|it| folder.join(it).is_file());
        if named.is_some_and(|folder| has_all(Path::new(&folder)))
            || Module::open(place)?.is_built(&as_packages(&packages()))?
        {
            return Self::find(place);
        }
        Ok(Err(
            "`cargo lab kube build` builds kube-apiserver and kube-proxy, once for this machine".to_owned()
        ))
    }
}

impl Assets {
    /// Finds or builds the programs. The inner error names the missing part. With this error, a
    /// test is skipped.
    pub(crate) fn find(place: &Place) -> Result<Result<Self, String>> {
        if let Some(folder) = std::env::var_os(VARIABLE) {
            let assets = Self::in_folder(Path::new(&folder));
            for program in [&assets.apiserver, &assets.kubectl] {
                if !program.is_file() {
                    bail!(
                        "{VARIABLE} is set, but there is no {}; unset it, or put the program there",
                        program.display()
                    );
                }
            }
            return Ok(Ok(assets));
        }
        Ok(built(place)?.map(|folder| Self::in_folder(&folder)))
    }

    /// Finds or builds kube-proxy. The inner error names the missing part.
    pub(crate) fn proxy(place: &Place) -> Result<Result<PathBuf, String>> {
        let named = std::env::var_os(VARIABLE).map(|folder| Path::new(&folder).join(PROXY));
        if let Some(proxy) = named.filter(|proxy| proxy.is_file()) {
            return Ok(Ok(proxy));
        }
        Ok(built(place)?.map(|folder| folder.join(PROXY)))
    }

    /// Finds Helm next to the programs or on PATH, or lets Go build it once per machine. The inner
    /// error names the missing part.
    pub(crate) fn helm(place: &Place) -> Result<Result<PathBuf, String>> {
        let named = std::env::var_os(VARIABLE).map(|folder| Path::new(&folder).join("helm"));
        let (_, version) = HELM.rsplit_once('@').context("Helm's version")?;
        let folder = cache::folder(place)?.join(format!("trunkline/helm-{version}"));
        let own = folder.join("helm");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|folder| folder.join("helm"));
        if let Some(helm) = named.into_iter().chain([own.clone()]).chain(on_path).find(|helm| helm.is_file())
        {
            return Ok(Ok(helm));
        }
        let Some(go) = find_go() else {
            return Ok(
                Err("no helm: install it, or Go (https://go.dev/dl), which builds it once".to_owned()),
            );
        };
        std::fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        if !own.is_file() {
            let mut command = giving_way(go);
            command
                .args(["install", HELM])
                .current_dir(&folder)
                .env("CGO_ENABLED", "0")
                .env("GOBIN", &folder);
            step(&format!("go install {HELM}"), || run(&mut command))?;
        }
        Ok(Ok(own))
    }

    fn in_folder(folder: &Path) -> Self {
        Self { apiserver: folder.join(PROGRAMS[0]), kubectl: folder.join(PROGRAMS[1]) }
    }
}

/// The folder with the programs that Go built; the inner error reports the missing part.
fn built(place: &Place) -> Result<Result<PathBuf, String>> {
    let module = Module::open(place)?;
    let packages = packages();
    let packages = as_packages(&packages);
    let first = || say("  Kubernetes is built from source, once for this machine: five minutes on two cores");
    match module.build(&packages, first)? {
        Ok(()) => Ok(Ok(module.folder(packages[0])?)),
        Err(missing) => Ok(Err(format!(
            "{missing}; or set {VARIABLE} to a folder with {} and {PROXY}",
            PROGRAMS.join(", ")
        ))),
    }
}

/// The Go packages of all programs.
fn packages() -> Vec<String> {
    PROGRAMS.iter().chain([&PROXY]).map(|program| format!("k8s.io/kubernetes/cmd/{program}")).collect()
}

fn as_packages(packages: &[String]) -> Vec<&str> {
    packages.iter().map(String::as_str).collect()
}
