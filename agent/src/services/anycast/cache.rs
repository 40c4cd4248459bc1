//! The addresses of this run, for the next one: `anycast.json` in the folder of the store.
//!
//! After a restart the agent advertises the same addresses at once, and the first result of each
//! check confirms them. After a reboot nothing is retained. The file also names the addresses on the
//! loopback interface, because kernels before 5.18 do not record their owner. A file that cannot be
//! read counts as empty.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AnycastCache {
    /// The boot of the host: the kernel's addresses of another boot are gone.
    pub boot: String,
    /// The addresses on the loopback interface.
    pub addresses: BTreeSet<IpAddr>,
    /// The advertised addresses.
    pub advertised: BTreeSet<IpAddr>,
}

/// The path of the file of an agent with this store.
pub fn path_for_store(store: &Path) -> PathBuf {
    store.with_file_name("anycast.json")
}

/// The identifier of the host's boot; empty if the kernel does not tell it.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

impl AnycastCache {
    /// The state of the last run in the boot `boot`.
    pub fn read(path: &Path, boot: &str) -> AnycastCache {
        let empty = || AnycastCache { boot: boot.to_owned(), ..AnycastCache::default() };
        let Ok(text) = fs::read(path) else { return empty() };
        match serde_json::from_slice::<AnycastCache>(&text) {
            Ok(cache) if cache.boot == boot && !boot.is_empty() => cache,
            Ok(_) => empty(),
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the file of anycast addresses cannot be used");
                empty()
            }
        }
    }

    /// Writes the file. A crash leaves the old file or the new one.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        let new = path.with_extension("json.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        fs::rename(&new, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_boot_reads_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_for_store(&folder.path().join("store.redb"));
        let none = |boot: &str| AnycastCache { boot: boot.to_owned(), ..AnycastCache::default() };
        assert_eq!(AnycastCache::read(&path, "b1"), none("b1"));
        let addresses: BTreeSet<IpAddr> = ["192.0.2.53", "2001:db8::53"].map(|it| it.parse().unwrap()).into();
        let cache = AnycastCache { advertised: addresses.clone(), addresses, ..none("b1") };
        cache.write(&path).unwrap();
        assert_eq!(AnycastCache::read(&path, "b1"), cache);
        assert_eq!(AnycastCache::read(&path, "b2"), none("b2"));
        fs::write(&path, "{\"boot\":\"b1\",\"advertised\":[\"x\"]}").unwrap();
        assert_eq!(AnycastCache::read(&path, "b1"), none("b1"));
        assert!(!boot().is_empty());
    }
}
