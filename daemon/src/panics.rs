//! Reaction to a panic: the process ends, unless the panic comes from a library that panics on
//! damaged input.
//!
//! A panic in one task must not leave a half-dead daemon. A restart is better, and loses no packet.
//! But redb panics on some files that another program damaged, and the daemon would end at every
//! start. So the build unwinds, [`abort_on_panic`] turns every panic into an abort, and [`caught`]
//! is the only exception.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Installs the hook: a panic outside [`caught`] logs its message and aborts the process.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        if !CATCHING.get() {
            tracing::error!(panic = %info, "internal error: aborting for a restart");
            std::process::abort();
        }
    }));
}

/// The message of a caught panic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Panic {
    message: String,
}

/// Runs `work`, and turns a panic into an error with its message. State that `work` changed must
/// not be used after an error.
///
/// # Errors
/// `work` panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    let before = CATCHING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(before);
    outcome.map_err(|panic| Panic { message: words(panic.as_ref()) })
}

fn words(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_panic_is_an_error_with_its_message() {
        assert_eq!(caught(|| 3), Ok(3));
        let index = std::hint::black_box(4);
        let error = caught(|| [1, 2, 3][index]).unwrap_err();
        assert!(error.to_string().contains("index is 4"), "{error}");
    }
}
