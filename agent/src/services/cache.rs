//! What this node advertises, on disk for the next run: `services.json` beside the store.
//!
//! After a restart, the agent advertises these addresses again before the API server answers, as
//! far as the kernel confirms them. So a restart withdraws nothing that is still true.
//!
//! The file has one JSON value for each line: a header, then addresses. A later line of an address
//! replaces an earlier one, and a line without `members` removes it. So a change costs one short
//! line however many addresses there are. Sometimes the file is written anew, to another name, and
//! renamed. There is no fsync: after a loss of power the boot ID is another one, and the file is
//! ignored. Only root can read it (mode 0600): it names every Service with an address.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trunkline_api::service::{AddressKind, PortKey, TrafficPolicy};

use super::LocalEndpoint;

/// The version of the format. A file of another version is ignored like a missing one.
const VERSION: u32 = 1;
/// The file is written anew if it has this many more lines than twice the number of addresses.
const SPARE: usize = 500;

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u32,
    /// `/proc/sys/kernel/random/boot_id`.
    boot: String,
}

/// An address that this node advertises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedAddress {
    /// The address.
    pub(super) address: IpAddr,
    /// Names of its advertisements; empty text: the default one.
    #[serde(default)]
    pub(super) advertisements: Vec<String>,
    /// Whether it has GRACEFUL_SHUTDOWN.
    #[serde(default)]
    pub(super) shutting_down: bool,
    /// The Services. Empty: the address is not advertised.
    #[serde(default)]
    pub(super) members: Vec<CachedMember>,
}

/// A Service of a cached address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedMember {
    /// The Service's namespace.
    pub(super) namespace: String,
    /// The Service's name.
    pub(super) name: String,
    /// The kind of the address.
    pub(super) kind: AddressKind,
    /// The traffic policy.
    pub(super) policy: TrafficPolicy,
    /// Its ports with endpoints.
    pub(super) ports: Vec<CachedPort>,
}

/// A port of a cached Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedPort {
    /// The port.
    #[serde(flatten)]
    pub(super) key: PortKey,
    /// Its endpoints on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) local: Vec<LocalEndpoint>,
}

/// The reason for which the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// This version cannot read its content.
    #[error("{}: line {line}: this version cannot read the file: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The reason.
        source: serde_json::Error,
    },
}

/// Reads the addresses of the last run. `None` if there is no file, or a file of another boot.
///
/// # Errors
/// The file exists and cannot be used.
pub(super) fn read(path: &Path, boot: &str) -> Result<Option<BTreeMap<IpAddr, CachedAddress>>, CacheError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CacheError::Read { path: path.to_owned(), source }),
    };
    let fault = |line, source| CacheError::Content { path: path.to_owned(), line, source };
    // The last line may be incomplete, if the agent was killed while it wrote. Then the line has no
    // end, and the change that it describes was not advertised yet.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = complete.lines().enumerate().map(|(index, line)| (index + 1, line));
    let Some((_, first)) = lines.next() else { return Ok(None) };
    let header: Header = serde_json::from_str(first).map_err(|source| fault(1, source))?;
    if header.version != VERSION || header.boot != boot {
        return Ok(None);
    }
    let mut addresses = BTreeMap::new();
    for (number, line) in lines {
        let address: CachedAddress = serde_json::from_str(line).map_err(|source| fault(number, source))?;
        if address.members.is_empty() {
            addresses.remove(&address.address);
        } else {
            addresses.insert(address.address, address);
        }
    }
    Ok(Some(addresses))
}

/// The open file.
#[derive(Debug)]
pub(super) struct CacheFile {
    path: PathBuf,
    boot: String,
    /// The file, once this run has written it anew.
    file: Option<File>,
    /// Lines in the file.
    lines: usize,
    /// The line of each address.
    current: BTreeMap<IpAddr, String>,
}

impl CacheFile {
    /// A file that has these addresses of the last run. Nothing is written yet.
    pub(super) fn new(path: PathBuf, boot: String, former: &BTreeMap<IpAddr, CachedAddress>) -> CacheFile {
        let line = |address: &CachedAddress| serde_json::to_string(address).unwrap_or_default();
        let current = former.iter().map(|(key, address)| (*key, line(address))).collect();
        CacheFile { path, boot, file: None, lines: 0, current }
    }

    /// Writes changes: addresses with their new state, or none. The disk may delay it.
    ///
    /// # Errors
    /// The kernel's. The next call writes the whole file.
    pub(super) fn write(&mut self, changes: &BTreeMap<IpAddr, Option<CachedAddress>>) -> io::Result<()> {
        let mut text = String::new();
        let mut added = 0;
        for (address, change) in changes {
            let gone = CachedAddress {
                address: *address,
                advertisements: Vec::new(),
                shutting_down: false,
                members: Vec::new(),
            };
            let line = serde_json::to_string(change.as_ref().unwrap_or(&gone)).map_err(io::Error::other)?;
            let former = match change {
                Some(_) => self.current.insert(*address, line.clone()),
                None => self.current.remove(address),
            };
            if former.as_ref() == Some(&line) || (former.is_none() && change.is_none()) {
                continue;
            }
            text.push_str(&line);
            text.push('\n');
            added += 1;
        }
        if added == 0 && self.file.is_some() {
            return Ok(());
        }
        match &mut self.file {
            Some(file) if self.lines + added <= 2 * self.current.len() + SPARE => {
                let written = file.write_all(text.as_bytes());
                if written.is_err() {
                    self.file = None;
                }
                self.lines += added;
                written
            }
            _ => self.write_all(),
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        self.file = None;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let new = self.path.with_extension("new");
        // A `.new` file from before a crash may have other permissions.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let header = Header { version: VERSION, boot: self.boot.clone() };
        let mut text = serde_json::to_string(&header).map_err(io::Error::other)?;
        text.push('\n');
        for line in self.current.values() {
            text.push_str(line);
            text.push('\n');
        }
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)?;
        self.file = Some(file);
        self.lines = self.current.len() + 1;
        Ok(())
    }
}

/// The ID of this boot of the kernel.
///
/// # Errors
/// The kernel's.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use trunkline_api::service::Protocol;

    use super::*;
    use crate::services::EndpointCondition;

    fn cached(last: u8, shutting_down: bool) -> CachedAddress {
        let local = LocalEndpoint { address: [10, 1, 0, 5].into(), condition: EndpointCondition::Ready };
        let port = CachedPort { key: PortKey { protocol: Protocol::Tcp, port: 80 }, local: vec![local] };
        CachedAddress {
            address: [10, 9, 0, last].into(),
            advertisements: vec![String::new()],
            shutting_down,
            members: vec![CachedMember {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                kind: AddressKind::LoadBalancer,
                policy: TrafficPolicy::Local,
                ports: vec![port],
            }],
        }
    }

    fn changes(changes: &[(u8, Option<CachedAddress>)]) -> BTreeMap<IpAddr, Option<CachedAddress>> {
        changes.iter().map(|(last, change)| ([10, 9, 0, *last].into(), change.clone())).collect()
    }

    #[test]
    fn a_change_is_one_line_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/services.json");
        assert!(read(&path, "b1").unwrap().is_none());
        let mut file = CacheFile::new(path.clone(), "b1".to_owned(), &BTreeMap::new());
        file.write(&changes(&[(1, Some(cached(1, false))), (2, Some(cached(2, false)))])).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let size = || fs::read_to_string(&path).unwrap().lines().count();
        assert_eq!(size(), 3);
        file.write(&changes(&[(1, Some(cached(1, true))), (3, None)])).unwrap();
        assert_eq!(size(), 4);
        file.write(&changes(&[(1, Some(cached(1, true)))])).unwrap();
        assert_eq!(size(), 4, "an unchanged address is not written");
        file.write(&changes(&[(2, None)])).unwrap();
        let expected: BTreeMap<IpAddr, CachedAddress> = [([10, 9, 0, 1].into(), cached(1, true))].into();
        assert_eq!(read(&path, "b1").unwrap(), Some(expected.clone()));
        assert_eq!(read(&path, "b2").unwrap(), None, "another boot");

        // The next run keeps what it does not change.
        let mut file = CacheFile::new(path.clone(), "b1".to_owned(), &expected);
        file.write(&changes(&[(7, Some(cached(7, false)))])).unwrap();
        assert_eq!(read(&path, "b1").unwrap().unwrap().len(), 2);
    }

    #[test]
    fn the_file_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("services.json");
        let mut file = CacheFile::new(path.clone(), "b1".to_owned(), &BTreeMap::new());
        for round in 0..2 * SPARE {
            file.write(&changes(&[(1, Some(cached(1, round % 2 == 0)))])).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!((2..=SPARE + 3).contains(&lines), "{lines}");
        assert_eq!(read(&path, "b1").unwrap().unwrap().len(), 1);
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_other_faults_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("services.json");
        let mut file = CacheFile::new(path.clone(), "b1".to_owned(), &BTreeMap::new());
        file.write(&changes(&[(1, Some(cached(1, false)))])).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{good}{{\"address\": \"10.9")).unwrap();
        assert_eq!(read(&path, "b1").unwrap().unwrap().len(), 1);
        fs::write(&path, format!("{good}{{\"address\": \"10.9\n")).unwrap();
        let error = read(&path, "b1").unwrap_err().to_string();
        assert!(error.contains("services.json: line 3"), "{error}");
        fs::write(&path, "").unwrap();
        assert!(read(&path, "b1").unwrap().is_none());
    }
}
