//! Certificates and keys of one cluster, generated for it and deleted with its folder. There are a
//! CA, the API server's certificate, and the administrator's certificate (group system:masters). One
//! more key signs the tokens of service accounts. A cluster with nodes has more certificates.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// The certificate authority. Its files are in `folder`.
pub(crate) struct Pki {
    folder: PathBuf,
    ca: Authority,
}

/// The file with the CA of the API server's client certificate for webhooks that require one.
pub(crate) const WEBHOOK_CLIENT_CA: &str = "pki/webhook-client-ca.crt";

fn authority(name: &str) -> Result<Authority> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// A user of the API server, by the names in its certificate.
pub(crate) struct User {
    name: String,
    group: Option<String>,
}

impl User {
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), group: None }
    }

    pub(crate) fn in_group(name: &str, group: &str) -> Self {
        Self { name: name.to_owned(), group: Some(group.to_owned()) }
    }
}

impl Pki {
    /// Generates all files for the flags of an API server on loopback: ca.crt, server.{crt,key},
    /// accounts.{key,pub}.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let pki = Self::begin(folder)?;
        let names = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"];
        let params = CertificateParams::new(names.map(str::to_owned))?;
        let (certificate, key) = pki.issue(params, "kube-apiserver", ExtendedKeyUsagePurpose::ServerAuth)?;
        pki.write("server.crt", &certificate)?;
        pki.write("server.key", &key)?;
        Ok(pki)
    }

    /// Generates the CA and the key of service accounts: ca.crt, accounts.{key,pub}.
    pub(crate) fn begin(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let pki = Self { folder: folder.to_owned(), ca: authority("lab-ca")? };
        pki.write("ca.crt", &pki.ca.pem())?;
        let accounts = KeyPair::generate()?;
        pki.write("accounts.key", &accounts.serialize_pem())?;
        pki.write("accounts.pub", &accounts.public_key_pem())?;
        Ok(pki)
    }

    /// Writes a certificate and its key, `FILE.crt` and `FILE.key`: of a client, and with names or
    /// addresses also of a server. Returns both paths.
    pub(crate) fn certificate(
        &self,
        file: &str,
        user: &User,
        names: Vec<String>,
    ) -> Result<(PathBuf, PathBuf)> {
        let is_server = !names.is_empty();
        let mut params = CertificateParams::new(names)?;
        if let Some(group) = &user.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        if is_server {
            params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let (certificate, key) = self.issue(params, &user.name, ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok((self.write(&format!("{file}.crt"), &certificate)?, self.write(&format!("{file}.key"), &key)?))
    }

    /// The administrator, as the user of a kubeconfig.
    pub(super) fn admin(&self) -> Result<Value> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        let (certificate, key) = self.issue(params, "lab-admin", ExtendedKeyUsagePurpose::ClientAuth)?;
        let (crt, private) = (self.write("admin.crt", &certificate)?, self.write("admin.key", &key)?);
        Ok(json!({ "client-certificate": crt, "client-key": private }))
    }

    /// Writes the configuration by which the API server presents a client certificate to webhooks,
    /// as in docs/install.md. Returns the file of its flag.
    pub(super) fn write_admission_configuration(&self) -> Result<PathBuf> {
        let clients = authority("webhook-client-ca")?;
        self.write("webhook-client-ca.crt", &clients.pem())?;
        let (certificate, key) = issue(
            &clients,
            CertificateParams::default(),
            "kube-apiserver",
            ExtendedKeyUsagePurpose::ClientAuth,
        )?;
        let user = json!({
            "client-certificate": self.write("webhook-client.crt", &certificate)?,
            "client-key": self.write("webhook-client.key", &key)?,
        });
        // The entry applies to every webhook, because tests use various ports.
        let config =
            json!({ "apiVersion": "v1", "kind": "Config", "users": [{ "name": "*", "user": user }] });
        let kubeconfig = self.write("webhook-clients.kubeconfig", &config.to_string())?;
        let plugin = |name: &str| {
            json!({ "name": name, "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig,
            } })
        };
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [plugin("ValidatingAdmissionWebhook"), plugin("MutatingAdmissionWebhook")],
        });
        self.write("admission.json", &configuration.to_string())
    }

    /// Returns certificate and key, both PEM.
    fn issue(
        &self,
        params: CertificateParams,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String)> {
        issue(&self.ca, params, name, usage)
    }

    /// A kubeconfig for one user. The file is JSON, which is also valid YAML.
    pub(crate) fn write_kubeconfig(&self, file: &Path, server: &str, user: &Value) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "lab", "cluster": {
                "server": server, "certificate-authority": self.folder.join("ca.crt"),
            } }],
            "users": [{ "name": "lab", "user": user }],
            "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "lab" } }],
            "current-context": "lab",
        });
        write_private(file, &serde_json::to_string_pretty(&config)?)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        write_private(&path, text)?;
        Ok(path)
    }
}

fn issue(
    ca: &Authority,
    mut params: CertificateParams,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String)> {
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.insert_extended_key_usage(usage);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, ca).with_context(|| format!("a certificate for {name}"))?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let open = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    open.and_then(|mut f| f.write_all(text.as_bytes())).with_context(|| path.display().to_string())
}
