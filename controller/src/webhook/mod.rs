//! The admission webhook: writes network selections on pods, and refuses faulty objects when they
//! are applied.
//!
//! ```text
//! API server ── TLS ──► server ──► review ──┬─ rules (pure) ◄── facts: the API server itself, for resources
//!                         ▲                 └─ rules::pod   ◄── View: the rows of the watches, for pods
//!                 certificates: Served
//!                         ▲
//!            a Secret shared by the replicas, or files
//! ```
//!
//! It runs on every replica, leader or not: its only write is its own certificate.
//! [`configuration`] describes its requests and the behaviour without an answer.

mod certificates;
pub mod configuration;
mod facts;
mod log_limit;
mod metrics;
mod review;
pub mod rules;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_util::sync::CancellationToken;
use trunkline_daemon::connections::ConnectionLimiter;

pub use certificates::Source;
pub use metrics::Metrics;

use crate::cluster::ClusterReader;
use crate::selection::Policy;

/// The webhook's flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Webhook")]
pub struct Flags {
    /// Whether to answer admission requests
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true)]
    pub webhook: bool,

    /// Address for admission requests of the API server; the default is for IPv4 and IPv6
    #[arg(long, default_value = "[::]:9443")]
    pub webhook_listen: SocketAddr,

    /// Service by which the API server reaches the webhook; its names are in the certificate
    #[arg(long, default_value = "trunkline-webhook")]
    pub webhook_service: String,

    /// Further names or addresses by which the API server reaches the webhook, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub webhook_names: Vec<String>,

    /// Secret in which the replicas share the webhook's certificate
    #[arg(long, default_value = "trunkline-webhook")]
    pub webhook_secret: String,

    /// Lifetime of a webhook certificate, in seconds, 10 to 315360000; the next one is issued after
    /// two thirds of it
    #[arg(long, default_value_t = 90 * 86_400, value_parser = clap::value_parser!(u32).range(10..=10 * 365 * 86_400))]
    pub webhook_cert_lifetime_seconds: u32,

    /// Time from the publication of the next CA to the use of its certificate, in seconds, 1 to
    /// 2592000
    #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(1..=30 * 86_400))]
    pub webhook_cert_overlap_seconds: u32,

    /// Folder with tls.crt and tls.key, instead of a self-issued certificate; read again when it
    /// changes. Another program must then write the caBundle of the webhook configurations
    #[arg(long)]
    pub webhook_cert_dir: Option<PathBuf>,

    /// File with the CA (PEM) of the API server's client certificate: clients without a certificate
    /// of this CA are rejected. The API server has no client certificate unless its
    /// AdmissionConfiguration names one (docs/install.md)
    #[arg(long, value_name = "FILE")]
    pub webhook_client_ca: Option<PathBuf>,
}

impl Flags {
    /// The CA of client certificates, if clients need one.
    fn client_ca(&self) -> anyhow::Result<Option<RootCertStore>> {
        let Some(file) = &self.webhook_client_ca else { return Ok(None) };
        let read = || -> anyhow::Result<RootCertStore> {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(file)? {
                roots.add(certificate?)?;
            }
            anyhow::ensure!(!roots.is_empty(), "the file has no certificate");
            Ok(roots)
        };
        let what =
            || format!("--webhook-client-ca {}: write a file of CA certificates (PEM)", file.display());
        read().with_context(what).map(Some)
    }

    /// The source of the certificate; `namespace` is the namespace of the Service and the Secret.
    pub fn source(&self, namespace: &str) -> Source {
        if let Some(folder) = &self.webhook_cert_dir {
            return Source::Files(folder.clone());
        }
        let service = &self.webhook_service;
        let mut names = vec![format!("{service}.{namespace}.svc")];
        names.extend(self.webhook_names.iter().cloned());
        Source::Secret {
            namespace: namespace.to_owned(),
            name: self.webhook_secret.clone(),
            names,
            lifetime: Duration::from_secs(self.webhook_cert_lifetime_seconds.into()),
            overlap: Duration::from_secs(self.webhook_cert_overlap_seconds.into()),
        }
    }
}

/// Serves admission requests until shutdown, then finishes the requests under way. Fails if it
/// cannot start: the address is in use, or the folder with the certificate cannot be read.
///
/// Call it when the first lists of the watches are complete. Until then the API server cannot
/// connect, and its failure policy decides.
pub async fn serve<V: ClusterReader>(
    flags: &Flags,
    namespace: &str,
    client: Client,
    view: Arc<V>,
    policy: Policy,
    metrics: &crate::metrics::Metrics,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    if !flags.webhook {
        return Ok(());
    }
    let limiter = ConnectionLimiter::new(server::LIMITS, metrics.connections().listener("webhook"));
    let metrics = Arc::new(Metrics::register(metrics.registry()).context("the webhook's metrics")?);
    let client_ca = flags.client_ca()?;
    let address = flags.webhook_listen;
    let listener = trunkline_daemon::http::bind(address)
        .await
        .with_context(|| format!("--webhook-listen {address}: the address cannot be used"))?;
    let served = certificates::Served::new();
    let reviewer = Arc::new(review::Reviewer::new(client.clone(), view, policy, Arc::clone(&metrics)));
    tracing::info!(%address, "admission requests are answered");
    let tls = server::tls(Arc::clone(&served), client_ca).context("the webhook's TLS")?;
    // The certificate's task runs until the last requests are answered, and ends with them.
    let ended = CancellationToken::new();
    let _end = ended.clone().drop_guard();
    let keep = async {
        match flags.source(namespace) {
            Source::Files(folder) => certificates::watch_files(&folder, served, ended).await,
            source @ Source::Secret { .. } => {
                certificates::keep_secret(client, &source, served, metrics, ended).await;
                Ok(())
            }
        }
    };
    tokio::select! {
        () = server::serve(listener, limiter, tls, reviewer, shutdown) => Ok(()),
        Err(error) = keep => Err(error),
    }
}
