//! The webhook's certificate: the one being served, and its two sources.
//!
//! ```text
//! the Secret, shared by the replicas ─── secret ──┐
//!   self-issued, rotated, trusted                 ├─► Served ──► the next TLS handshakes
//! a folder (cert-manager's, the operator's) files ┘
//! ```
//!
//! The next handshake uses a replaced certificate. Open connections keep theirs, so a rotation
//! fails no request.

mod files;
mod issue;
mod secret;

use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

pub(super) use files::watch as watch_files;
pub(super) use secret::keep as keep_secret;

/// Source of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Self-issued, stored in a Secret, and trusted by the webhook configurations.
    Secret {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        name: String,
        /// DNS names and addresses by which the API server calls the webhook.
        names: Vec<String>,
        /// Lifetime of a certificate. A certificate is replaced after two thirds of its lifetime.
        lifetime: Duration,
        /// The time between the trust in a new CA and the use of its certificate.
        overlap: Duration,
    },
    /// `tls.crt` and `tls.key` in a folder. The program that writes them must also write the
    /// configurations' caBundle.
    Files(PathBuf),
}

/// The reason why a certificate and key cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("{0}: cannot be read: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("it has no PEM certificate or private key: {0}")]
    Pem(#[from] tokio_rustls::rustls::pki_types::pem::Error),
    #[error("the private key does not match the certificate, or its kind is unknown: {0}")]
    Key(#[from] tokio_rustls::rustls::Error),
}

/// The certificate being served.
#[derive(Debug)]
pub(super) struct Served {
    provider: Arc<CryptoProvider>,
    current: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Served {
    pub(super) fn new() -> Arc<Served> {
        Arc::new(Served { provider: Arc::new(ring::default_provider()), current: RwLock::new(None) })
    }

    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        Arc::clone(&self.provider)
    }

    /// Replaces chain and key, both PEM. On an error the previous pair stays in use.
    pub(super) fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), Unusable> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
        let key = CertifiedKey::from_der(chain, PrivateKeyDer::from_pem_slice(key)?, &self.provider)?;
        key.keys_match()?;
        *self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Arc::new(key));
        Ok(())
    }

    fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}
