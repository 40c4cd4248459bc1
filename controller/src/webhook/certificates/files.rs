//! A certificate that another program writes into a folder.
//!
//! The watch is on the folder and not on the files, because a replacement is a rename. To replace a
//! mounted Secret, kubelet renames a link in the folder (`..data`). Other programs rename a new
//! file over the old one. Between the replacement of two files, key and certificate may not match.
//! Then the previous pair is still served, and the event of the other file follows.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Served, Unusable};

/// Serves the certificate in the folder, and each replacement, until shutdown. An error if the
/// folder cannot be watched, or its first content cannot be served.
pub(in super::super) async fn watch(
    folder: &Path,
    served: Arc<Served>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    // Capacity one: a pending event also covers all later events.
    let (sender, mut changes) = mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let is_read = event.as_ref().is_ok_and(|event| event.kind.is_access());
        if !is_read {
            let _ = sender.try_send(());
        }
    })
    .context("the certificate's folder cannot be watched")?;
    let show = || format!("--webhook-cert-dir {}", folder.display());
    watcher.watch(folder, RecursiveMode::NonRecursive).with_context(show)?;
    read(folder, &served).with_context(show)?;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            event = changes.recv() => if event.is_none() { return Ok(()) },
        }
        match read(folder, &served) {
            Ok(()) => tracing::info!(folder = %folder.display(), "the webhook's certificate was reloaded"),
            Err(error) => tracing::warn!(
                folder = %folder.display(),
                error = %error,
                "the webhook's certificate cannot be used: the previous one stays in use"
            ),
        }
    }
}

fn read(folder: &Path, served: &Served) -> Result<(), Unusable> {
    let file = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|error| Unusable::Read(path, error))
    };
    served.replace(&file("tls.crt")?, &file("tls.key")?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::super::issue::{IssuePolicy, Step, StoredCertificates, step};
    use super::*;

    fn certificate(name: &str) -> StoredCertificates {
        let policy = IssuePolicy {
            names: vec![name.to_owned()],
            lifetime: Duration::from_secs(3600),
            overlap: Duration::from_secs(1),
        };
        match step(None, &policy, false, Timestamp::now()).unwrap() {
            Step::Write(kept) => *kept,
            other => panic!("{other:?}"),
        }
    }

    /// Replaces the files as kubelet does: a folder with the new files, and a renamed link to it.
    fn put(folder: &Path, version: &str, kept: &StoredCertificates) {
        let files = folder.join(version);
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("tls.crt"), &kept.current.chain).unwrap();
        std::fs::write(files.join("tls.key"), &kept.current.key).unwrap();
        std::os::unix::fs::symlink(version, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }

    fn der(kept: &StoredCertificates) -> Vec<u8> {
        use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
        CertificateDer::from_pem_slice(kept.current.chain.as_bytes()).unwrap().to_vec()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn replaced_files_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (certificate("first"), certificate("second"));
        let shutdown = CancellationToken::new();
        let served = Served::new();
        let error = watch(folder.path(), Arc::clone(&served), shutdown.clone()).await.unwrap_err();
        assert!(format!("{error:#}").contains("tls.crt: cannot be read"), "{error:#}");

        put(folder.path(), "..1", &first);
        for file in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(Path::new("..data").join(file), folder.path().join(file)).unwrap();
        }
        let watching = tokio::spawn({
            let (folder, served, shutdown) =
                (folder.path().to_owned(), Arc::clone(&served), shutdown.clone());
            async move { watch(&folder, served, shutdown).await }
        });
        let is_served = async |wanted: &StoredCertificates| {
            let wanted = der(wanted);
            while served.get().is_none_or(|key| *key.cert[0] != *wanted) {
                assert!(!watching.is_finished(), "the watch ended");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let bound = Duration::from_secs(60);
        tokio::time::timeout(bound, is_served(&first)).await.expect(
            "the first certificate is \
            served",
        );

        // If the key does not match, the previous pair is still served, and the next change is
        // still noticed.
        put(
            folder.path(),
            "..2",
            &StoredCertificates { current: mixed(&second, &first), next: None, previous_ca: None },
        );
        put(folder.path(), "..3", &second);
        tokio::time::timeout(bound, is_served(&second)).await.expect(
            "the second certificate is \
            served",
        );
        assert!(served.replace(first.current.chain.as_bytes(), second.current.key.as_bytes()).is_err());
        assert_eq!(*served.get().unwrap().cert[0], *der(&second));
        shutdown.cancel();
        watching.await.unwrap().unwrap();
    }

    fn mixed(chain: &StoredCertificates, key: &StoredCertificates) -> super::super::issue::Certificate {
        super::super::issue::Certificate { key: key.current.key.clone(), ..chain.current.clone() }
    }
}
