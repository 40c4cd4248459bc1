//! Certificates and kubeconfigs of a cluster's parts, as kubeadm names their users.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::layout::{CONTROL, Layout};
use crate::kube::pki::{Pki, User};

/// The files of a cluster's parts.
pub(super) struct Files {
    folder: PathBuf,
    pki: Pki,
    /// The API server's address for every part except the administrator.
    server: String,
}

impl Files {
    /// Creates the CA and everything for the API server. `port` is its port at every address.
    pub(super) fn create(folder: &Path, layout: &Layout, port: u16) -> Result<Self> {
        let pki = Pki::begin(&folder.join("pki"))?;
        let addresses = layout.control_addresses()?;
        let own = addresses.first().context("an address of the API server")?;
        let server = format!("https://{}", std::net::SocketAddr::new(*own, port));

        let mut names: Vec<String> = [
            "127.0.0.1",
            "::1",
            "localhost",
            CONTROL,
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        .map(str::to_owned)
        .to_vec();
        names.extend(addresses.iter().chain(&layout.kubernetes_service()).map(ToString::to_string));
        pki.certificate("server", &User::named("kube-apiserver"), names)?;
        pki.certificate("kubelet-client", &User::in_group("kube-apiserver", "system:masters"), Vec::new())?;
        pki.certificate("front-proxy", &User::named("front-proxy"), Vec::new())?;
        let files = Self { folder: folder.to_owned(), pki, server };
        // The administrator's works on the machine too, where a forwarder has the same port.
        let admin = User::in_group("lab-admin", "system:masters");
        files.kubeconfig_at("admin", &admin, &format!("https://127.0.0.1:{port}"))?;
        files.kubeconfig("outside", &admin)?;
        for part in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
            files.kubeconfig(part, &User::named(&format!("system:{part}")))?;
        }
        for node in layout.node_names() {
            files.kubeconfig(&node, &User::in_group(&format!("system:node:{node}"), "system:nodes"))?;
            let mut names: Vec<String> = vec![node.clone()];
            names.extend(layout.node_addresses(&node)?.iter().map(ToString::to_string));
            files.pki.certificate(&format!("{node}-server"), &User::named(&node), names)?;
        }
        Ok(files)
    }

    fn kubeconfig(&self, name: &str, user: &User) -> Result<()> {
        self.kubeconfig_at(name, user, &self.server)
    }

    fn kubeconfig_at(&self, name: &str, user: &User, server: &str) -> Result<()> {
        let (certificate, key) = self.pki.certificate(&format!("{name}-client"), user, Vec::new())?;
        let user = serde_json::json!({ "client-certificate": certificate, "client-key": key });
        self.pki.write_kubeconfig(&kubeconfig(&self.folder, name), server, &user)
    }
}

/// The kubeconfig of a part, of a node's kubelet, of the administrator (`admin`), or of the
/// administrator on the host outside (`outside`).
pub(super) fn kubeconfig(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.kubeconfig"))
}

/// A file of the PKI.
pub(super) fn file(folder: &Path, name: &str) -> String {
    folder.join("pki").join(name).display().to_string()
}
