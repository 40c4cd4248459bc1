//! The control plane, on a host of its own in the fabric: etcd, the API server, the controller
//! manager and the scheduler. It is no node, but kube-proxy runs there as well, because the API
//! server reaches webhooks by their Services.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::build::Programs;
use super::layout::Layout;
use super::pki::{file, kubeconfig};
use super::{PATIENCE, Part};
use crate::host::Host;
use crate::shell::{Seen, run};

/// Starts etcd and the API server, and waits until it is ready.
pub(super) fn start_api(
    host: &Host,
    folder: &Path,
    layout: &Layout,
    programs: &Programs,
    port: u16,
) -> Result<()> {
    start_etcd(host, folder)?;
    let flags = api_flags(folder, layout, port)?;
    let mut api = Part::start(host, "kube-apiserver", &programs.assets.apiserver, &flags)?;
    api.wait("the API server to be ready", PATIENCE, || {
        let mut command =
            host.command(&programs.assets.kubectl.display().to_string(), ["get", "--raw", "/readyz"]);
        let asked = run(command.env("KUBECONFIG", kubeconfig(folder, "admin")));
        Ok(Seen::when(asked.is_ok(), || asked.err().map(|e| format!("{e:#}")).unwrap_or_default()))
    })
}

fn start_etcd(host: &Host, folder: &Path) -> Result<()> {
    let data = folder.join("etcd");
    let data = data.to_str().context("the folder's name is not text")?;
    let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    let flags = [
        "--name=lab",
        &format!("--data-dir={data}"),
        // The cluster's data end with the cluster.
        "--unsafe-no-fsync",
        &format!("--listen-client-urls={clients}"),
        &format!("--advertise-client-urls={clients}"),
        &format!("--listen-peer-urls={peers}"),
        &format!("--initial-advertise-peer-urls={peers}"),
        &format!("--initial-cluster=lab={peers}"),
    ]
    .map(str::to_owned);
    let mut etcd = Part::start(host, "etcd", Path::new("etcd"), &flags)?;
    etcd.wait("etcd to answer", PATIENCE, || {
        let asked = host.run("curl", ["--silent", "--fail", &format!("{clients}/health")]);
        Ok(Seen::when(asked.is_ok(), || asked.err().map(|e| format!("{e:#}")).unwrap_or_default()))
    })
}

fn api_flags(folder: &Path, layout: &Layout, port: u16) -> Result<Vec<String>> {
    let own = layout.control_addresses()?;
    let own = own.first().context("an address of the API server")?;
    Ok(vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        // Both families: the administrator uses 127.0.0.1.
        "--bind-address=::".to_owned(),
        format!("--advertise-address={own}"),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file(folder, "server.crt")),
        format!("--tls-private-key-file={}", file(folder, "server.key")),
        format!("--client-ca-file={}", file(folder, "ca.crt")),
        format!("--kubelet-client-certificate={}", file(folder, "kubelet-client.crt")),
        format!("--kubelet-client-key={}", file(folder, "kubelet-client.key")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--requestheader-client-ca-file={}", file(folder, "ca.crt")),
        "--requestheader-allowed-names=front-proxy".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", file(folder, "front-proxy.crt")),
        format!("--proxy-client-key-file={}", file(folder, "front-proxy.key")),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-signing-key-file={}", file(folder, "accounts.key")),
        format!("--service-account-key-file={}", file(folder, "accounts.pub")),
        format!("--service-cluster-ip-range={}", layout.service_prefixes().join(",")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--profiling=false".to_owned(),
    ])
}

/// Starts the controller manager and the scheduler. They need no lease, because there is one of
/// each.
pub(super) fn start_controllers(
    host: &Host,
    folder: &Path,
    layout: &Layout,
    programs: &Programs,
) -> Result<()> {
    for (name, program, more) in [
        (
            "kube-controller-manager",
            programs.controller_manager(),
            vec![
                format!("--service-account-private-key-file={}", file(folder, "accounts.key")),
                format!("--root-ca-file={}", file(folder, "ca.crt")),
                format!("--service-cluster-ip-range={}", layout.service_prefixes().join(",")),
                "--use-service-account-credentials=true".to_owned(),
            ],
        ),
        ("kube-scheduler", programs.scheduler(), Vec::new()),
    ] {
        let config = kubeconfig(folder, name).display().to_string();
        let mut flags: Vec<String> = ["", "authentication-", "authorization-"]
            .map(|purpose| format!("--{purpose}kubeconfig={config}"))
            .to_vec();
        flags.push("--leader-elect=false".to_owned());
        flags.extend(more);
        Part::start(host, name, &program, &flags)?;
    }
    Ok(())
}
