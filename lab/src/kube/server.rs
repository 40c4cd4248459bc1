//! etcd and kube-apiserver as processes, with their ports, folder and flags. A [`Server`] needs no
//! library of Kubernetes and no TLS library: the API server signs its own certificate, each client
//! has one token, and requests are kubectl's. The demo uses it.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::assets::Assets;
use super::daemon::{self, Daemon};
use super::doorway::Doorway;
use super::ports::Port;
use crate::fabric::Place;
use crate::netns::Namespace;
use crate::packages;
use crate::shell::{Seen, cmd, run, run_with_input, wait_for};

/// Etcd and its `etcdctl`.
const PACKAGES: [&str; 2] = ["etcd-server", "etcd-client"];

/// Time limit for a start; a busy machine needs half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// Empties the folder of a cluster with this name, and locks it. Ends the processes that a killed
/// lab left there.
pub(super) fn folder(place: &Place, name: &str) -> Result<(PathBuf, File)> {
    packages::need(PACKAGES)?;
    let folder = place.folder(&format!("kube-{name}"));
    std::fs::create_dir_all(&place.state)?;
    let lock = File::create(folder.with_extension("lock"))?;
    if lock.try_lock().is_err() {
        bail!("a cluster in {} is up already; --tag changes the folder of this one", folder.display());
    }
    if folder.exists() {
        daemon::end_left_over(&folder)?;
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok((folder, lock))
}

/// etcd's data.
pub(super) fn data(folder: &Path) -> PathBuf {
    folder.join("etcd")
}

/// The ports of etcd and of the API server.
pub(super) struct Ports {
    etcd: Port,
    etcd_peers: Port,
    pub api: Port,
}

impl Ports {
    pub(super) fn claim() -> Result<Self> {
        Ok(Self { etcd: Port::claim()?, etcd_peers: Port::claim()?, api: Port::claim()? })
    }

    /// The API server's URL.
    pub(super) fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.api.number())
    }

    fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd.number())
    }

    pub(super) fn etcd_peers_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_peers.number())
    }

    pub(super) fn etcdctl(&self, args: &[&str]) -> Result<String> {
        let endpoint = self.etcd_url();
        run(cmd("etcdctl", ["--endpoints", &endpoint]).args(args).env("ETCDCTL_API", "3"))
    }

    /// Starts etcd, and waits until it answers.
    pub(super) fn start_etcd(&self, folder: &Path) -> Result<Daemon> {
        let (clients, peers) = (self.etcd_url(), self.etcd_peers_url());
        let data = data(folder).display().to_string();
        let command = cmd(
            "etcd",
            [
                "--name=lab",
                "--data-dir",
                &data,
                "--listen-client-urls",
                &clients,
                "--advertise-client-urls",
                &clients,
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
                "--initial-cluster",
                &format!("lab={peers}"),
            ],
        );
        let mut etcd = Daemon::start(folder, "etcd", command)?;
        etcd.wait_while_running("etcd to answer", PATIENCE, || {
            self.etcdctl(&["endpoint", "health"]).map(|_| Seen::Yes(()))
        })?;
        Ok(etcd)
    }

    /// The flags of every API server.
    pub(super) fn api_flags(&self) -> Vec<String> {
        vec![
            format!("--etcd-servers={}", self.etcd_url()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.api.number()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
        ]
    }
}

/// An API server that runs. A drop ends the API server, and keeps its logs.
pub(crate) struct Server {
    folder: PathBuf,
    kubectl: PathBuf,
    ports: Ports,
    // The API server ends before etcd, because without etcd it would log many errors.
    api: Option<Daemon>,
    etcd: Option<Daemon>,
    lock: File,
}

impl Server {
    /// Starts an API server with its default objects only, in `target/lab/kube-<name>`.
    pub(crate) fn up(place: &Place, name: &str, assets: &Assets) -> Result<Self> {
        packages::need(["openssl"])?;
        let (folder, lock) = folder(place, name)?;
        let ports = Ports::claim()?;
        let mut server = Self { folder, kubectl: assets.kubectl.clone(), ports, api: None, etcd: None, lock };
        server.etcd = Some(server.ports.start_etcd(&server.folder)?);
        let command = server.api_command(&assets.apiserver)?;
        let mut api = Daemon::start(&server.folder, "kube-apiserver", command)?;
        api.wait_while_running("the API server to be ready", PATIENCE, || {
            server.kubectl(&["get", "--raw", "/readyz"]).map(|_| Seen::Yes(()))
        })?;
        wait_for("the API server to make namespace default", PATIENCE, || {
            server.kubectl(&["get", "namespace", "default"]).map(|_| Seen::Yes(()))
        })?;
        server.api = Some(api);
        Ok(server)
    }

    /// Writes the keys, and the kubeconfig with the administrator's token.
    fn api_command(&self, program: &Path) -> Result<Command> {
        let pki = self.folder.join("pki");
        std::fs::create_dir_all(&pki)?;
        let accounts = pki.join("accounts.key");
        let curve = "ec_paramgen_curve:P-256";
        run(cmd("openssl", ["genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out"]).arg(&accounts))?;
        let public = pki.join("accounts.pub");
        run(cmd("openssl", ["pkey", "-pubout", "-in"]).arg(&accounts).arg("-out").arg(&public))?;
        let token = run(&mut cmd("openssl", ["rand", "-hex", "32"]))?.trim().to_owned();
        let tokens = pki.join("tokens.csv");
        write_private(&tokens, &format!("{token},lab-admin,lab-admin,system:masters\n"))?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{ "name": "lab", "cluster": {
                "server": self.ports.server(), "certificate-authority": pki.join("apiserver.crt"),
            } }],
            "users": [{ "name": "lab", "user": { "token": token } }],
            "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "lab" } }],
        });
        write_private(&self.kubeconfig(), &serde_json::to_string_pretty(&kubeconfig)?)?;
        let mut command = cmd(&program.display().to_string(), self.ports.api_flags());
        command.args([
            format!("--cert-dir={}", pki.display()),
            format!("--token-auth-file={}", tokens.display()),
            format!("--service-account-signing-key-file={}", accounts.display()),
            format!("--service-account-key-file={}", public.display()),
        ]);
        // The API server searches its working folder for its defaults.
        command.current_dir(&self.folder);
        Ok(command)
    }

    /// The folder of the server's files and logs.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Runs kubectl as the administrator; returns its output.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        run(&mut self.command(args))
    }

    /// `kubectl apply` of YAML documents, checked and merged by the server.
    pub(crate) fn apply(&self, yaml: &str) -> Result<String> {
        run_with_input(&mut self.command(&["apply", "--server-side", "-f", "-"]), yaml)
    }

    /// Creates objects; returns the last one with the server's fields.
    pub(crate) fn create(&self, object: &Value) -> Result<Value> {
        let text =
            run_with_input(&mut self.command(&["create", "-o", "json", "-f", "-"]), &object.to_string())?;
        serde_json::from_str(&text).with_context(|| format!("kubectl create printed: {text}"))
    }

    /// Merges fields into an object's status. The arguments name the object.
    pub(crate) fn patch_status(&self, object: &[&str], status: &Value) -> Result<()> {
        let patch = json!({ "status": status }).to_string();
        let options = ["--subresource=status", "--type=merge", "-p", &patch];
        self.kubectl(&[&["patch"][..], object, &options].concat()).map(drop)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = cmd(&self.kubectl.display().to_string(), args);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Makes the API server reachable on a network namespace's own loopback, until the value is
    /// dropped.
    pub(crate) fn doorway(&self, into: &Namespace) -> Result<Doorway> {
        let address = ([127, 0, 0, 1], self.ports.api.number()).into();
        Doorway::open(into, address, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.api = None;
        self.etcd = None;
        let _absent = std::fs::remove_dir_all(data(&self.folder));
        // Closing the file would not be enough, because a child process that is being forked may
        // have it open too.
        let _gone = self.lock.unlock();
    }
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let open = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    open.and_then(|mut file| file.write_all(text.as_bytes())).with_context(|| path.display().to_string())
}
