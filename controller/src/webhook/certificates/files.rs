//! A certificate that somebody else puts into a folder.
//!
//! The folder is watched, not the files: kubelet replaces a mounted Secret by renaming a link beside them (`..data`), and others rename a new
//! file over the old one. Between two files' replacement key and certificate may not belong together; then what was served goes on, and the
//! event of the other file comes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Served, Unusable};

/// Serves what is in the folder, and what comes into it, until the end. An error if the folder cannot be watched, or if nothing in it can be
/// served at the start.
pub(in super::super) async fn watch(
    folder: &Path,
    served: Arc<Served>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    // One place: an event that nobody has looked at yet stands for those after it.
    let (tell, mut told) = mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let is_read = event.as_ref().is_ok_and(|event| event.kind.is_access());
        if !is_read {
            let _ = tell.try_send(());
        }
    })
    .context("the certificate's folder cannot be watched")?;
    let show = || format!("--webhook-cert-dir {}", folder.display());
    watcher.watch(folder, RecursiveMode::NonRecursive).with_context(show)?;
    read(folder, &served).with_context(show)?;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            event = told.recv() => if event.is_none() { return Ok(()) },
        }
        match read(folder, &served) {
            Ok(()) => tracing::info!(folder = %folder.display(), "the webhook's certificate was read again"),
            Err(error) => tracing::warn!(
                folder = %folder.display(),
                error = %error,
                "the webhook's certificate cannot be used: the one before is served on"
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

    use super::super::issue::{Kept, Step, Terms, step};
    use super::*;

    fn certificate(name: &str) -> Kept {
        let terms = Terms {
            names: vec![name.to_owned()],
            lifetime: Duration::from_secs(3600),
            overlap: Duration::from_secs(1),
        };
        match step(None, &terms, false, Timestamp::now()).unwrap() {
            Step::Write(kept) => *kept,
            other => panic!("{other:?}"),
        }
    }

    /// As kubelet does: a folder of the new files, and a link to it that is renamed over the old one.
    fn put(folder: &Path, version: &str, kept: &Kept) {
        let files = folder.join(version);
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("tls.crt"), &kept.current.chain).unwrap();
        std::fs::write(files.join("tls.key"), &kept.current.key).unwrap();
        std::os::unix::fs::symlink(version, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }

    fn der(kept: &Kept) -> Vec<u8> {
        use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
        CertificateDer::from_pem_slice(kept.current.chain.as_bytes()).unwrap().to_vec()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_comes_into_the_folder_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (certificate("first"), certificate("second"));
        let shutdown = CancellationToken::new();
        let served = Served::new();
        let error = watch(folder.path(), Arc::clone(&served), shutdown.clone()).await.unwrap_err();
        assert!(format!("{error:#}").contains("tls.crt: it cannot be read"), "{error:#}");

        put(folder.path(), "..1", &first);
        for file in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(Path::new("..data").join(file), folder.path().join(file)).unwrap();
        }
        let watching = tokio::spawn({
            let (folder, served, shutdown) =
                (folder.path().to_owned(), Arc::clone(&served), shutdown.clone());
            async move { watch(&folder, served, shutdown).await }
        });
        let is_served = async |wanted: &Kept| {
            let wanted = der(wanted);
            while served.get().is_none_or(|key| *key.cert[0] != *wanted) {
                assert!(!watching.is_finished(), "the watch ended");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let bound = Duration::from_secs(60);
        tokio::time::timeout(bound, is_served(&first)).await.expect("what was there");

        // A key that is another's: what was served goes on, and the next change is heard all the same.
        put(folder.path(), "..2", &Kept { current: mixed(&second, &first), next: None, previous_ca: None });
        put(folder.path(), "..3", &second);
        tokio::time::timeout(bound, is_served(&second)).await.expect("what came");
        assert!(served.replace(first.current.chain.as_bytes(), second.current.key.as_bytes()).is_err());
        assert_eq!(*served.get().unwrap().cert[0], *der(&second));
        shutdown.cancel();
        watching.await.unwrap().unwrap();
    }

    fn mixed(chain: &Kept, key: &Kept) -> super::super::issue::Certificate {
        super::super::issue::Certificate { key: key.current.key.clone(), ..chain.current.clone() }
    }
}
