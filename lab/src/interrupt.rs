//! Ctrl-C and SIGTERM: everything is cleaned up before the process ends. Code that creates
//! something registers its cleanup. A drop guard does the same on normal exit and in a panic, and
//! unregisters it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

type Cleanup = Box<dyn FnOnce() + Send>;

static STOPPED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU64 = AtomicU64::new(0);
static CLEANUPS: Mutex<BTreeMap<u64, Cleanup>> = Mutex::new(BTreeMap::new());

/// A registration; a drop unregisters it without running it.
#[derive(Debug)]
pub(crate) struct Registered(u64);

/// Registers a cleanup for the termination of the process.
pub(crate) fn on_stop(cleanup: impl FnOnce() + Send + 'static) -> Registered {
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    CLEANUPS.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Box::new(cleanup));
    Registered(key)
}

impl Drop for Registered {
    fn drop(&mut self) {
        CLEANUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Installs the signal handler. Called once, at the start of the process.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if STOPPED.swap(true, Ordering::SeqCst) {
            return;
        }
        let cleanups = std::mem::take(&mut *CLEANUPS.lock().unwrap_or_else(PoisonError::into_inner));
        eprintln!("\n{}", words(cleanups.len()));
        // The newest cleanup is first, because it may need objects that an older cleanup removes.
        for cleanup in cleanups.into_values().rev() {
            cleanup();
        }
        std::process::exit(130);
    })
    .context("cannot listen for Ctrl-C")
}

/// Fails once a termination signal was received, so that loops end.
pub(crate) fn check() -> Result<()> {
    if STOPPED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

fn words(cleanups: usize) -> &'static str {
    if cleanups == 0 { "interrupted" } else { "interrupted: removing the running labs …" }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn without_registration_nothing_is_removed() {
        assert_eq!(words(0), "interrupted");
        assert!(words(1).contains("removing"));
    }
}
