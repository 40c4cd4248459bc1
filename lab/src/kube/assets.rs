//! Source of kube-apiserver, kubectl and kube-proxy: the folder in `KUBEBUILDER_ASSETS`, as in
//! similar projects' tests. Otherwise the folder is `target/kube/bin`. Go builds its programs once
//! from the module in `lab/kube-apiserver/`; a newer module file triggers a rebuild. Without the
//! folder and without Go, an error of one line names the missing part. Helm is obtained in the same
//! way.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

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

    /// Finds Helm next to the programs or on PATH, or lets Go build it once. The inner error names
    /// the missing part.
    pub(crate) fn helm(place: &Place) -> Result<Result<PathBuf, String>> {
        let named = std::env::var_os(VARIABLE).map(|folder| Path::new(&folder).join("helm"));
        let folder = place.state.parent().context("the target folder")?.join("kube");
        let own = folder.join("bin/helm");
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
        std::fs::create_dir_all(folder.join("bin"))?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        if !own.is_file() {
            let mut command = giving_way(go);
            command
                .args(["install", HELM])
                .current_dir(&folder)
                .env("CGO_ENABLED", "0")
                .env("GOBIN", folder.join("bin"));
            step(&format!("go install {HELM}"), || run(&mut command))?;
        }
        Ok(Ok(own))
    }

    fn in_folder(folder: &Path) -> Self {
        Self { apiserver: folder.join(PROGRAMS[0]), kubectl: folder.join(PROGRAMS[1]) }
    }
}

/// Go on PATH, or in the folder of its own archive.
pub(crate) fn find_go() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
    folders.map(|f| f.join("go")).find(|go| go.is_file())
}

/// The folder with the programs that Go built; the inner error reports that Go is missing.
fn built(place: &Place) -> Result<Result<PathBuf, String>> {
    let folder = place.state.parent().context("the target folder")?.join("kube");
    let module = place.repository.join("lab/kube-apiserver");
    let programs = folder.join("bin");
    std::fs::create_dir_all(&programs)?;
    // One process builds the programs, the others use the result.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    let wanted = std::fs::read_to_string(module.join("go.sum"))?;
    let built_from = folder.join("built-from");
    if std::fs::read_to_string(&built_from).is_ok_and(|built| built == wanted) {
        return Ok(Ok(programs));
    }
    let Some(go) = find_go() else {
        return Ok(Err(format!(
            "no Kubernetes programs: set {VARIABLE} to a folder with {} and {PROXY}, or install Go (https://go.dev/dl), which builds them once",
            PROGRAMS.join(", ")
        )));
    };
    build(&go, &module, &programs)?;
    std::fs::write(built_from, wanted)?;
    Ok(Ok(programs))
}

fn build(go: &Path, module: &Path, into: &Path) -> Result<()> {
    let go = |args: &[&str]| -> Command {
        let mut command = giving_way(go);
        command.args(args).current_dir(module).env("CGO_ENABLED", "0");
        command
    };
    let version = run(&mut go(&["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"]))?;
    let version = version.trim();
    let (major, minor) = version
        .trim_start_matches('v')
        .split_once('.')
        .and_then(|(major, rest)| Some((major, rest.split_once('.')?.0)))
        .with_context(|| format!("k8s.io/kubernetes {version:?} is no version"))?;
    // Clients query a server's version. Without these flags the version would be v0.0.0.
    let stamp = "k8s.io/component-base/version.git";
    let flags = format!("-s -w -X {stamp}Version={version} -X {stamp}Major={major} -X {stamp}Minor={minor}");
    let into = format!("{}/", into.display());
    say(&format!("  Kubernetes {version} is built from source, once: five minutes on two cores"));
    step("go build kube-apiserver kubectl kube-proxy", || {
        let programs = PROGRAMS.iter().chain([&PROXY]).map(|p| format!("k8s.io/kubernetes/cmd/{p}"));
        run(go(&["build", "-trimpath", "-ldflags", &flags, "-o", &into]).args(programs))
    })?;
    Ok(())
}
