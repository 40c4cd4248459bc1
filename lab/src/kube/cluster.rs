//! An API server with a client of kube, for tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::{Api, Client};

use super::assets::Assets;
use super::daemon::Daemon;
use super::pki::{self, Pki};
use super::server::{self, Ports};
use super::{doorway, egress};
use crate::fabric::{Place, failure_folder};
use crate::shell::{Seen, cmd, run, run_with_input, wait_for};

/// Time limit for a start; a busy machine needs half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// Audit policy of the API server: requests of service accounts, which are the programs under test,
/// at the start and at the end of the answer.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - { level: Metadata, userGroups: ['system:serviceaccounts'] }
  - { level: None }
";

/// A file in the cluster's folder.
const AUDIT_POLICY: &str = "audit-policy.yaml";

/// Lifetime of an account's token in seconds: longer than any test.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// An API server that runs, or was stopped and can be started again. A drop ends the API server,
/// and keeps its logs.
pub(crate) struct Cluster {
    folder: PathBuf,
    place: Place,
    name: String,
    assets: Assets,
    pki: Pki,
    ports: Ports,
    /// The file of `--admission-control-config-file`.
    admission: PathBuf,
    etcd: Option<Daemon>,
    api: Option<Daemon>,
    client: Client,
    runtime: tokio::runtime::Runtime,
    /// The holder of this lock owns the folder; the lock ends with the process.
    lock: File,
}

/// etcd's content at one moment.
pub(crate) struct Snapshot(PathBuf);

impl Cluster {
    /// Starts an API server with its default objects only. Its name is also the folder's, so two
    /// clusters that run at the same time in one working tree need different names.
    pub(crate) fn up(place: &Place, name: &str, assets: &Assets) -> Result<Self> {
        let (folder, lock) = server::folder(place, name)?;
        std::fs::write(folder.join(AUDIT_POLICY), AUDIT)?;
        let ports = Ports::claim()?;
        let pki = Pki::create(&folder.join("pki"))?;
        let admission = pki.write_admission_configuration()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let server = ports.server();
        let admin = folder.join("admin.kubeconfig");
        pki.write_kubeconfig(&admin, &server, &pki.admin()?)?;
        let client = runtime.block_on(connect(&admin))?;
        let mut cluster = Self {
            folder,
            place: place.clone(),
            name: name.to_owned(),
            assets: assets.clone(),
            pki,
            ports,
            admission,
            etcd: None,
            api: None,
            client,
            runtime,
            lock,
        };
        cluster.start_etcd()?;
        cluster.start_api()?;
        Ok(cluster)
    }

    /// Runs `work` on a new cluster. On an error the logs are kept, and the error names their
    /// folder.
    pub(crate) fn with<T>(
        place: &Place,
        name: &str,
        assets: &Assets,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let mut cluster = Self::up(place, name, assets)?;
        work(&mut cluster).map_err(|e| match cluster.keep_logs(&format!("{e:#}")) {
            Ok(folder) => anyhow::anyhow!("{e:#}\n  logs and objects: {}", folder.display()),
            Err(keeping) => anyhow::anyhow!("{e:#}\n  the logs could not be kept: {keeping:#}"),
        })
    }

    /// The folder of the cluster's files: `admin.kubeconfig`, `log/`, and files of a test.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the project's sources.
    pub(crate) fn repository(&self) -> &Path {
        &self.place.repository
    }

    /// The CA of the API server's client certificate for webhooks.
    pub(crate) fn webhook_client_ca(&self) -> PathBuf {
        self.folder.join(pki::WEBHOOK_CLIENT_CA)
    }

    /// Requests of service accounts to the API server.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("log/audit.log")
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// A client of the administrator.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client with the rights of a kubeconfig.
    pub(crate) fn client_of(&self, kubeconfig: &Path) -> Result<Client> {
        self.wait(connect(kubeconfig))
    }

    /// Runs a future of kube's client to its end.
    pub(crate) fn wait<F: Future>(&self, work: F) -> F::Output {
        self.runtime.block_on(work)
    }

    /// Runs a task next to the test; the caller ends it.
    pub(crate) fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(task)
    }

    /// Runs kubectl as the administrator; returns its output.
    pub(crate) fn kubectl<const N: usize>(&self, args: [&str; N]) -> Result<String> {
        run(&mut self.kubectl_command(&args))
    }

    /// `kubectl apply` of one or more YAML documents, checked and merged by the server.
    pub(crate) fn apply(&self, yaml: &str) -> Result<String> {
        run_with_input(&mut self.kubectl_command(&["apply", "--server-side", "-f", "-"]), yaml)
    }

    /// `kubectl create` for one or more YAML documents, without merging.
    pub(crate) fn create(&self, yaml: &str) -> Result<String> {
        run_with_input(&mut self.kubectl_command(&["create", "-f", "-"]), yaml)
    }

    /// The path of kubectl.
    pub(crate) fn kubectl_program(&self) -> &Path {
        &self.assets.kubectl
    }

    /// kubectl as the administrator, not started yet.
    pub(crate) fn kubectl_command(&self, args: &[&str]) -> std::process::Command {
        let mut command = cmd(&self.assets.kubectl.display().to_string(), args);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Starts a program of the test, such as a controller; it ends when the returned value is
    /// dropped. Its log is `log/<name>.log`, appended to an existing one.
    pub(crate) fn daemon(&self, name: &str, command: std::process::Command) -> Result<Daemon> {
        Daemon::start(&self.folder, name, command)
    }

    /// A kubeconfig with a token of this service account, which is created if needed. The account
    /// has only the rights that a test binds to it.
    pub(crate) fn service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.token(namespace, name, None)?;
        self.write_token(&format!("{namespace}-{name}"), &token)
    }

    /// A kubeconfig with a token of this service account that is bound to a pod, as kubelets
    /// request it. The API server writes the pod's node into each request's user.
    pub(crate) fn pod_account(&self, namespace: &str, name: &str, pod: &str) -> Result<PathBuf> {
        let token = self.token(namespace, name, Some(pod))?;
        self.write_token(&format!("{namespace}-{pod}"), &token)
    }

    fn write_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let file = self.folder.join(format!("{name}.kubeconfig"));
        let user = serde_json::json!({ "token": token });
        self.pki.write_kubeconfig(&file, &self.server(), &user)?;
        Ok(file)
    }

    /// The content of `/var/run/secrets/kubernetes.io/serviceaccount` in a pod of this service
    /// account, in a folder.
    pub(crate) fn account_files(&self, namespace: &str, name: &str, pod: &str) -> Result<PathBuf> {
        let folder = self.folder.join(format!("accounts/{namespace}-{pod}"));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("token"), self.token(namespace, name, Some(pod))?)?;
        std::fs::write(folder.join("namespace"), namespace)?;
        // The copy does not have the original mode, because pods read it as different users.
        std::fs::write(folder.join("ca.crt"), std::fs::read(self.folder.join("pki/ca.crt"))?)?;
        Ok(folder)
    }

    /// A client certificate of a user without any right, and its key: files in PEM.
    pub(crate) fn client_certificate(&self, file: &str, user: &str) -> Result<(PathBuf, PathBuf)> {
        self.pki.certificate(file, &pki::User::named(user), Vec::new())
    }

    /// The certificate of the authority that signed the API server's.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("pki/ca.crt")
    }

    /// The port of the API server on the loopback.
    pub(crate) fn port(&self) -> u16 {
        self.ports.api.number()
    }

    /// A token of a service account. The account is created if needed. If a pod is named, the token
    /// is bound to it.
    fn token(&self, namespace: &str, name: &str, pod: Option<&str>) -> Result<String> {
        let token = self.wait(async {
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            if accounts.get_opt(name).await?.is_none() {
                let account = ServiceAccount { metadata, ..ServiceAccount::default() };
                accounts.create(&PostParams::default(), &account).await?;
            }
            let spec = TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: pod.map(|pod| BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(pod.to_owned()),
                    uid: None,
                }),
                ..TokenRequestSpec::default()
            };
            let request = TokenRequest { spec, ..TokenRequest::default() };
            let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
            answer.status.map(|s| s.token).context("the API server gave no token")
        });
        token.with_context(|| format!("a token of service account {namespace}/{name}"))
    }

    fn server(&self) -> String {
        self.ports.server()
    }

    /// Kills the API server, like a power failure: its clients' connections break. etcd keeps
    /// running.
    pub(crate) fn stop_api(&mut self) -> Result<()> {
        self.api.take().map_or(Ok(()), |mut api| api.kill())
    }

    /// Starts the API server with etcd's data, and waits until it is ready.
    pub(crate) fn start_api(&mut self) -> Result<()> {
        if self.api.is_some() {
            return Ok(());
        }
        let egress = egress::write_configuration(&self.folder)?;
        let mut command = cmd(&self.assets.apiserver.display().to_string(), self.api_flags());
        command.arg(format!("--egress-selector-config-file={}", egress.display()));
        // The API server searches its working folder for its defaults.
        command.current_dir(&self.folder);
        let mut api = Daemon::start(&self.folder, "kube-apiserver", command)?;
        let ready = kube::core::Request::new("").get("readyz", &GetParams::default())?;
        api.wait_while_running("the API server to be ready", PATIENCE, || {
            Ok(match self.wait(self.client.request_text(ready.clone())) {
                Ok(_) => Seen::Yes(()),
                Err(e) => Seen::NotYet(e.to_string()),
            })
        })?;
        let namespaces: Api<Namespace> = Api::all(self.client());
        wait_for("the API server to make namespace default", PATIENCE, || {
            let there = self.wait(namespaces.get_opt("default"))?.is_some();
            Ok(Seen::when(there, || "not there".to_owned()))
        })?;
        self.api = Some(api);
        Ok(())
    }

    fn api_flags(&self) -> Vec<String> {
        let pki = |file: &str| self.folder.join("pki").join(file).display().to_string();
        let own = [
            format!("--audit-policy-file={}", self.folder.join(AUDIT_POLICY).display()),
            format!("--audit-log-path={}", self.audit_log().display()),
            format!("--tls-cert-file={}", pki("server.crt")),
            format!("--tls-private-key-file={}", pki("server.key")),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--service-account-signing-key-file={}", pki("accounts.key")),
            format!("--service-account-key-file={}", pki("accounts.pub")),
            format!("--admission-control-config-file={}", self.admission.display()),
        ];
        [self.ports.api_flags(), own.to_vec()].concat()
    }

    fn start_etcd(&mut self) -> Result<()> {
        self.etcd = Some(self.ports.start_etcd(&self.folder)?);
        Ok(())
    }

    fn data(&self) -> PathBuf {
        server::data(&self.folder)
    }

    /// Saves etcd's content, as a backup does.
    pub(crate) fn snapshot(&self, name: &str) -> Result<Snapshot> {
        let file = self.folder.join(format!("{name}.snapshot"));
        self.ports.etcdctl(&["snapshot", "save", &file.display().to_string()])?;
        Ok(Snapshot(file))
    }

    /// Restores etcd from a snapshot, like an administrator after a disaster. The API server is
    /// stopped, etcd gets a data folder made from the snapshot, and both start. So resource
    /// versions are lower than before.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.stop_api()?;
        if let Some(mut etcd) = self.etcd.take() {
            etcd.kill()?;
        }
        std::fs::remove_dir_all(self.data())?;
        let peers = self.ports.etcd_peers_url();
        let (file, data) = (snapshot.0.display().to_string(), self.data().display().to_string());
        let as_member = ["--name", "lab", "--initial-cluster", &format!("lab={peers}")];
        let args =
            ["snapshot", "restore", &file, "--data-dir", &data, "--initial-advertise-peer-urls", &peers];
        self.ports.etcdctl(&[&args[..], &as_member].concat())?;
        self.start_etcd()?;
        self.start_api()
    }

    /// Makes the API server reachable on a network namespace's own loopback, until the value is
    /// dropped.
    pub(crate) fn doorway(&self, into: &crate::netns::Namespace) -> Result<doorway::Doorway> {
        self.doorway_at(into, ([127, 0, 0, 1], self.port()).into())
    }

    /// Like [`Self::doorway`], at another address of the namespace.
    pub(crate) fn doorway_at(
        &self,
        into: &crate::netns::Namespace,
        at: std::net::SocketAddr,
    ) -> Result<doorway::Doorway> {
        doorway::Doorway::open(into, at, ([127, 0, 0, 1], self.port()).into())
    }

    /// Makes Services reachable for the API server, until the value is dropped.
    pub(crate) fn egress(&self) -> Result<egress::Egress> {
        egress::Egress::open(&self.runtime, &self.folder)
    }

    fn keep_logs(&self, error: &str) -> Result<PathBuf> {
        let into = failure_folder(&self.place.state, &format!("kube-{}", self.name));
        std::fs::create_dir_all(&into)?;
        std::fs::write(into.join("error.txt"), format!("{error}\n"))?;
        crate::evidence::copy_logs(&self.folder.join("log"), &into);
        let kinds = "pods,nodes,events,leases.coordination.k8s.io";
        for (file, what) in [
            ("objects.txt", vec!["get", kinds, "-A", "-o", "wide"]),
            ("networking.yaml", vec!["get", "networks,subnets,ipinstances,nodeinfoes", "-A", "-o", "yaml"]),
            // One request for each kind, because a missing kind fails a whole request.
            ("services.yaml", vec!["get", "services,endpointslices", "-A", "-o", "yaml"]),
            ("servicepools.yaml", vec!["get", "servicepools", "-o", "yaml"]),
            ("serviceaddresses.yaml", vec!["get", "serviceaddresses", "-o", "yaml"]),
            ("serviceadvertisements.yaml", vec!["get", "serviceadvertisements", "-o", "yaml"]),
            ("anycastaddresses.yaml", vec!["get", "anycastaddresses", "-o", "yaml"]),
            ("agentsettings.yaml", vec!["get", "agentsettings", "-o", "yaml"]),
            ("nodeservices.yaml", vec!["get", "nodeservices", "-o", "yaml"]),
        ] {
            // The API server may be down, or may not have these kinds. A partial answer is still
            // useful.
            let mut command = self.kubectl_command(&what);
            let shown = command.arg("--request-timeout=10s").output();
            let text = shown.map_or_else(|e| e.to_string().into_bytes(), |o| [o.stdout, o.stderr].concat());
            std::fs::write(into.join(file), text)?;
        }
        Ok(into)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The API server ends first, because without etcd it would log many errors.
        self.api = None;
        self.etcd = None;
        let _absent = std::fs::remove_dir_all(self.data());
        // Closing the file would not be enough, because a child process that is being forked may
        // have it open too.
        let _gone = self.lock.unlock();
    }
}

async fn connect(kubeconfig: &Path) -> Result<Client> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
    // A request to a stopped server must not hang forever.
    config.connect_timeout = Some(Duration::from_secs(10));
    Ok(Client::try_from(config)?)
}

/// `cargo lab kube up`: a cluster in the foreground, until Ctrl-C.
pub(crate) fn up(place: &Place) -> Result<()> {
    let assets = match Assets::find(place)? {
        Ok(assets) => assets,
        Err(missing) => bail!("{missing}"),
    };
    let mut cluster =
        crate::progress::step("starting etcd and kube-apiserver", || Cluster::up(place, "up", &assets))?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    crate::progress::say(&format!(
        "\n  an API server is up at {}; logs and files: {}\n  kubectl: {}\n  Ctrl-C ends it",
        cluster.server(),
        cluster.folder().display(),
        assets.kubectl.display()
    ));
    // On Ctrl-C another thread ends the process. Otherwise this wait ends only if a server dies.
    let died = cluster.api.as_mut().context("the API server")?.wait()?;
    crate::interrupt::check()?;
    bail!("kube-apiserver ended by itself ({died}); its log is in {}", cluster.folder().join("log").display())
}
