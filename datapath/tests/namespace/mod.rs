//! Network namespaces without names: each exists while its descriptor is open, so none remains
//! after a test.
#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    unsafe_code,
    reason = "unshare could also unshare file descriptors, which this code does not request"
)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde_json::Value;

/// Runs a test on its own thread in a new namespace with loopback up, or reports that it is
/// skipped.
pub(crate) fn isolated(name: &str, test: impl FnOnce(&tokio::runtime::Runtime) + Send) {
    if !rustix::process::geteuid().is_root() {
        println!("{name}: skipped, network namespaces need root");
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare();
            ip("link set lo up");
            test(&tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn unshare() {
    // SAFETY: only the network namespace of this thread changes. Rust's own state does not depend
    // on it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
}

/// Gives this thread and its later child processes their own mounts.
pub(crate) fn unshare_mounts() {
    // SAFETY: only mounts and this thread's current folder change. No code here needs a shared
    // current folder.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
}

/// Creates another namespace, with loopback up.
pub(crate) fn namespace() -> OwnedFd {
    std::thread::spawn(|| {
        unshare();
        ip("link set lo up");
        File::open("/proc/thread-self/ns/net").unwrap().into()
    })
    .join()
    .unwrap()
}

/// Runs a function inside a namespace.
pub(crate) fn inside<T: Send>(namespace: &OwnedFd, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                what()
            })
            .join()
            .unwrap()
    })
}

/// Runs `ip` in this thread's namespace; it must succeed.
pub(crate) fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `ip -j`.
pub(crate) fn ip_json(arguments: &str) -> Vec<Value> {
    let text = ip(&format!("-j -d {arguments}"));
    if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
}

/// Sends one ping; the answer must arrive within a second.
pub(crate) fn ping(address: &str) -> bool {
    Command::new("ping").args(["-c", "1", "-W", "1", address]).output().unwrap().status.success()
}

/// Waits until `holds` returns true, at most five seconds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !holds() {
        assert!(std::time::Instant::now() < until, "not within five seconds: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
