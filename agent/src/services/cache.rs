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

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Whether it is of an L2 pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) l2: bool,
    /// The Services. Empty: the address is not advertised.
    #[serde(default)]
    pub(super) members: Vec<CachedMember>,
}

/// A Service of a cached address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CachedPort {
    /// The port.
    #[serde(flatten)]
    pub(super) key: PortKey,
    /// Its endpoints on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) local: Vec<LocalEndpoint>,
    /// The index of an earlier port of the Service with the same endpoints. Then `local` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) like: Option<usize>,
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
    // A map that is built at once has full nodes.
    Ok(Some(addresses.into_iter().collect()))
}

/// The open file. It keeps no line: with 10,000 addresses the lines are some megabytes.
#[derive(Debug)]
pub(super) struct CacheFile {
    path: PathBuf,
    boot: String,
    /// The file, once this run has written it anew.
    file: Option<File>,
    /// Lines in the file.
    lines: usize,
    /// The hash of each address's line.
    current: BTreeMap<IpAddr, u64>,
    /// Lines that the file does not have yet.
    unwritten: BTreeMap<IpAddr, String>,
}

/// A line, as far as its place in the file needs it.
#[derive(Deserialize)]
struct Line {
    address: IpAddr,
    #[serde(default)]
    members: Vec<IgnoredAny>,
}

impl CacheFile {
    /// A file without addresses. Nothing is written yet.
    pub(super) fn new(path: PathBuf, boot: String) -> CacheFile {
        let (current, unwritten) = (BTreeMap::new(), BTreeMap::new());
        CacheFile { path, boot, file: None, lines: 0, current, unwritten }
    }

    /// A file with the addresses of the last run. Nothing is written yet.
    pub(super) fn of_last_run(path: PathBuf, boot: String) -> CacheFile {
        let mut file = CacheFile::new(path, boot);
        let mut current = BTreeMap::new();
        file.each_line(|line, text| {
            match line.members.is_empty() {
                true => current.remove(&line.address),
                false => current.insert(line.address, hash(text)),
            };
            Ok(())
        })
        // The next write has the changes only.
        .unwrap_or_else(|error| tracing::warn!(%error, "service addresses of the last run cannot be read"));
        file.current = current;
        file
    }

    /// Writes changes: addresses with their new state, or none. The disk may delay it.
    ///
    /// # Errors
    /// The kernel's. The next call writes the whole file.
    pub(super) fn write(&mut self, changes: &BTreeMap<IpAddr, Option<CachedAddress>>) -> io::Result<()> {
        for (address, change) in changes {
            let (line, is_other) = match change {
                Some(state) => {
                    let line = serde_json::to_string(state).map_err(io::Error::other)?;
                    let new = hash(&line);
                    (line, self.current.insert(*address, new) != Some(new))
                }
                None => {
                    let gone = CachedAddress::gone(*address);
                    let line = serde_json::to_string(&gone).map_err(io::Error::other)?;
                    (line, self.current.remove(address).is_some())
                }
            };
            if is_other {
                self.unwritten.insert(*address, line);
            }
        }
        let added = self.unwritten.len();
        let written = match &mut self.file {
            Some(_) if added == 0 => Ok(()),
            Some(file) if self.lines + added <= 2 * self.current.len() + SPARE => {
                self.lines += added;
                let text: String = self.unwritten.values().flat_map(|line| [line.as_str(), "\n"]).collect();
                file.write_all(text.as_bytes())
            }
            _ => self.write_all(),
        };
        match &written {
            Ok(()) => self.unwritten.clear(),
            Err(_) => self.file = None,
        }
        written
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
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&new)?;
        let mut writer = BufWriter::new(file);
        let header = Header { version: VERSION, boot: self.boot.clone() };
        writeln!(writer, "{}", serde_json::to_string(&header).map_err(io::Error::other)?)?;
        let mut done = HashSet::new();
        for (address, line) in self.unwritten.iter().filter(|(address, _)| self.current.contains_key(address))
        {
            done.insert(*address);
            writeln!(writer, "{line}")?;
        }
        // The other lines are in the former file. Equal lines of an address are written once.
        self.each_line(|line, text| {
            let is_current = self.current.get(&line.address) == Some(&hash(text));
            if is_current && done.insert(line.address) {
                writeln!(writer, "{text}")?;
            }
            Ok(())
        })?;
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&new, &self.path)?;
        self.file = Some(file);
        self.lines = done.len() + 1;
        Ok(())
    }

    /// Reads the addresses' lines of a file of this boot.
    fn each_line(&self, mut line: impl FnMut(Line, &str) -> io::Result<()>) -> io::Result<()> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut reader = BufReader::new(file);
        let mut text = String::new();
        let mut is_first = true;
        // A line without an end is incomplete.
        while reader.read_line(&mut text)? > 0 && text.ends_with('\n') {
            let of = text.trim_end_matches('\n');
            if std::mem::take(&mut is_first) {
                let header = serde_json::from_str::<Header>(of).ok();
                if !header.is_some_and(|header| header.version == VERSION && header.boot == self.boot) {
                    return Ok(());
                }
            } else if let Ok(read) = serde_json::from_str(of) {
                line(read, of)?;
            }
            text.clear();
        }
        Ok(())
    }
}

impl CachedAddress {
    /// A hash, to find changes.
    pub(super) fn digest(&self) -> u64 {
        hash(self)
    }

    /// The state of an address that is not advertised any more.
    fn gone(address: IpAddr) -> CachedAddress {
        CachedAddress {
            address,
            advertisements: Vec::new(),
            shutting_down: false,
            l2: false,
            members: Vec::new(),
        }
    }
}

fn hash(of: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
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
        let port =
            CachedPort { key: PortKey { protocol: Protocol::Tcp, port: 80 }, local: vec![local], like: None };
        CachedAddress {
            address: [10, 9, 0, last].into(),
            advertisements: vec![String::new()],
            shutting_down,
            l2: false,
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
        let mut file = CacheFile::new(path.clone(), "b1".to_owned());
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
        let mut file = CacheFile::of_last_run(path.clone(), "b1".to_owned());
        file.write(&changes(&[(7, Some(cached(7, false)))])).unwrap();
        assert_eq!(read(&path, "b1").unwrap().unwrap().len(), 2);
        let mut file = CacheFile::of_last_run(path.clone(), "b1".to_owned());
        file.write(&changes(&[(1, None)])).unwrap();
        assert_eq!(
            read(&path, "b1").unwrap().unwrap().into_keys().collect::<Vec<_>>(),
            [cached(7, false).address]
        );
    }

    #[test]
    fn the_file_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("services.json");
        let mut file = CacheFile::new(path.clone(), "b1".to_owned());
        for round in 0..2 * SPARE {
            file.write(&changes(&[(1, Some(cached(1, round % 2 == 0)))])).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!((2..=SPARE + 3).contains(&lines), "{lines}");
        assert_eq!(read(&path, "b1").unwrap().unwrap().len(), 1);
    }

    #[test]
    fn after_a_failed_write_the_whole_file_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("services.json");
        let mut file = CacheFile::new(path.clone(), "b1".to_owned());
        file.write(&changes(&[(1, Some(cached(1, false))), (2, Some(cached(2, false)))])).unwrap();
        file.file = Some(File::open("/dev/null").unwrap());
        file.write(&changes(&[(1, Some(cached(1, true))), (2, None)])).unwrap_err();
        file.write(&changes(&[(3, Some(cached(3, false)))])).unwrap();
        let expected: BTreeMap<IpAddr, CachedAddress> =
            [cached(1, true), cached(3, false)].map(|of| (of.address, of)).into();
        assert_eq!(read(&path, "b1").unwrap(), Some(expected));
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_other_faults_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("services.json");
        let mut file = CacheFile::new(path.clone(), "b1".to_owned());
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
