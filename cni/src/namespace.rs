//! The container's network namespace: opened here, in the runtime's mount namespace, and passed to
//! the agent.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::fstatfs;
use trunkline_api::attach::{Code, Failure};

use crate::environment;

/// The file system of namespace files (NSFS_MAGIC in linux/magic.h).
const NSFS: u64 = 0x6e73_6673;

/// An open network namespace that is not this process's own.
pub(crate) struct Namespace(File);

impl Namespace {
    /// Opens CNI_NETNS for ADD and CHECK.
    pub(crate) fn open(path: &str) -> Result<Self, Failure> {
        let invalid =
            |what: &str| Err(Failure::new(Code::InvalidNamespace, format!("CNI_NETNS: {path} {what}")));
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Failure::new(
                    Code::UnknownContainer,
                    format!("CNI_NETNS: {path} is not there: the container is gone"),
                ));
            }
            Err(error) => return invalid(&format!("cannot be opened: {error}")),
        };
        if !is_namespace(&file) {
            return invalid("is not a namespace: the container may be gone, or the path is wrong");
        }
        if is_own(&file) && !may_be_own() {
            return invalid(
                "is the host's own network namespace, where nothing is attached: create a \
                 namespace for the container",
            );
        }
        Ok(Namespace(file))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For DEL: the namespace, if it exists and is safe to use.
pub(crate) fn open_if_there(path: &str) -> Option<Namespace> {
    Namespace::open(path).ok()
}

fn is_namespace(file: &File) -> bool {
    fstatfs(file).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(NSFS))
}

fn is_own(file: &File) -> bool {
    let key = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let own = File::open("/proc/self/ns/net").ok();
    own.is_some_and(|own| key(&own).is_some() && key(&own) == key(file))
}

/// Whether libcni allows the plugin to run inside the container's namespace.
fn may_be_own() -> bool {
    let value = environment::variable("CNI_NETNS_OVERRIDE").ok().flatten();
    value.is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"))
}
