//! The records on disk: one redb file, one transaction per batch of changes.
//!
//! redb writes pages copy-on-write and switches the root last. So a process that is killed at any
//! point leaves the previous or the next state, never a mixture. redb gives no guarantee if the
//! disk is full or if another program writes to the file. After such a failure [`Store::commit`]
//! fails and the agent allocates no more addresses, because a lost record could lead to a duplicate
//! address. Running pods do not change. The next commit opens the file again, because redb refuses
//! all work after an I/O error. A damaged file makes redb panic in places, which counts as damage
//! ([`caught`]).
//!
//! Values are JSON, which an operator can read. The cost is low, because the agent reads a thousand
//! records once at start.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};

use trunkline_daemon::panics::caught;

use super::record::{AttachmentKey, Record};

const META: TableDefinition<&str, &str> = TableDefinition::new("meta");
const ATTACHMENTS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("attachments");
const CURSORS: TableDefinition<&str, &str> = TableDefinition::new("cursors");
const SCHEMA: &str = "1";
/// Key in [`META`] of [`Contents::drain`].
const DRAIN: &str = "drain";
/// The store is small: a thousand records are some hundred kilobytes.
const CACHE_BYTES: usize = 512 * 1024;

/// The reason for which the store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The file is damaged, or it is not a store.
    #[error(
        "store {path} is damaged ({reason}): no address is allocated; move the file away and restart the agent, \
         which finds the addresses of running pods again in the kernel"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// The kind of damage.
        reason: String,
    },
    /// The disk is full, the file cannot be opened, the device has an error.
    #[error(
        "store {path} cannot be written ({reason}): no address is allocated; free space or repair the disk, the \
         agent tries again at the next request"
    )]
    Io {
        /// The file.
        path: String,
        /// The error of the operating system.
        reason: String,
    },
    /// Another process has it open.
    #[error("store {path} is open in another process: stop the other agent, or give this one another store")]
    Busy {
        /// The file.
        path: String,
    },
}

/// Everything in the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The attachments.
    pub records: BTreeMap<AttachmentKey, Record>,
    /// The last allocated address of each subnet.
    pub cursors: BTreeMap<String, IpAddr>,
    /// The drain state as JSON ([`crate::drain`]), if there is a drain.
    pub drain: Option<String>,
}

/// A set of changes in one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The new state of each of these attachments; `None` deletes the attachment. The last entry
    /// for a key counts.
    pub records: Vec<(AttachmentKey, Option<Record>)>,
    /// New cursors.
    pub cursors: BTreeMap<String, IpAddr>,
    /// The value of [`Contents::drain`] after this batch. Every batch sets it.
    pub drain: Option<String>,
}

type Opener = Box<dyn Fn() -> Result<Database, redb::DatabaseError> + Send>;

/// The file.
pub struct Store {
    path: String,
    open: Opener,
    database: Option<Database>,
}

impl Store {
    /// Opens or creates the file and reads its whole content.
    pub fn open(path: &Path) -> (Store, Result<Contents, StoreError>) {
        let file = path.to_owned();
        Store::with_opener(path, Box::new(move || open_file(&file)))
    }

    fn with_opener(path: &Path, open: Opener) -> (Store, Result<Contents, StoreError>) {
        let mut store = Store { path: path.display().to_string(), open, database: None };
        let contents = store.reopen();
        (store, contents)
    }

    /// Opens the file again after an error and reads its whole content.
    pub fn reopen(&mut self) -> Result<Contents, StoreError> {
        self.database = None;
        let opened = caught(|| {
            let mut database = (self.open)()?;
            if !database.check_integrity()? {
                return Err(ReadError::Content("its checksums do not match".to_owned()));
            }
            let contents = read(&database)?;
            Ok((database, contents))
        });
        let (database, contents) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(ReadError::Redb(error))) => return Err(self.fault(error)),
            Ok(Err(ReadError::Content(reason))) => return Err(self.corrupt(reason)),
            Err(panic) => return Err(self.corrupt(panic.to_string())),
        };
        self.database = Some(database);
        Ok(contents)
    }

    /// Whether the file is open and the last commit succeeded.
    pub fn is_open(&self) -> bool {
        self.database.is_some()
    }

    /// Makes the changes durable, all or none. After an error the store is closed until
    /// [`Store::reopen`].
    pub fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let Some(database) = &self.database else {
            return Err(StoreError::Io {
                path: self.path.clone(),
                reason: "the file is not open".to_owned(),
            });
        };
        let fault = match caught(|| write(database, batch)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => self.fault(error),
            Err(panic) => self.corrupt(panic.to_string()),
        };
        self.database = None;
        Err(fault)
    }

    fn corrupt(&self, reason: String) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), reason }
    }

    fn fault(&self, error: redb::Error) -> StoreError {
        match error {
            redb::Error::DatabaseAlreadyOpen => StoreError::Busy { path: self.path.clone() },
            redb::Error::Io(error)
                if !matches!(
                    error.kind(),
                    std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
                ) =>
            {
                StoreError::Io { path: self.path.clone(), reason: error.to_string() }
            }
            error @ redb::Error::PreviousIo => {
                StoreError::Io { path: self.path.clone(), reason: error.to_string() }
            }
            error => self.corrupt(error.to_string()),
        }
    }
}

fn open_file(path: &PathBuf) -> Result<Database, redb::DatabaseError> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Builder::new().set_cache_size(CACHE_BYTES).create_file(file)
}

enum ReadError {
    Redb(redb::Error),
    Content(String),
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> Self {
        ReadError::Redb(error.into())
    }
}

fn read(database: &Database) -> Result<Contents, ReadError> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Contents::default()),
        Err(error) => return Err(error.into()),
    };
    match meta.get("schema")?.map(|value| value.value().to_owned()).as_deref() {
        Some(SCHEMA) => {}
        other => {
            return Err(ReadError::Content(format!(
                "its schema is {}, this agent reads {SCHEMA}",
                other.unwrap_or("missing")
            )));
        }
    }
    let drain = meta.get(DRAIN)?.map(|value| value.value().to_owned());
    let mut contents = Contents { drain, ..Contents::default() };
    let mut owners: BTreeMap<IpAddr, AttachmentKey> = BTreeMap::new();
    for row in transaction.open_table(ATTACHMENTS)?.iter()? {
        let (key, value) = row?;
        let (container_id, ifname) = key.value();
        let record: Record = serde_json::from_slice(value.value())
            .map_err(|error| ReadError::Content(format!("the record of {container_id}/{ifname}: {error}")))?;
        for assigned in &record.addresses {
            if let Some(other) = owners.insert(assigned.address, record.key.clone()) {
                return Err(ReadError::Content(format!(
                    "{} belongs to {other} and to {}",
                    assigned.address, record.key
                )));
            }
        }
        contents.records.insert(record.key.clone(), record);
    }
    for row in transaction.open_table(CURSORS)?.iter()? {
        let (subnet, address) = row?;
        // A cursor is only the start of the next address search, so an unreadable cursor is
        // ignored.
        if let Ok(address) = address.value().parse() {
            contents.cursors.insert(subnet.value().to_owned(), address);
        }
    }
    Ok(contents)
}

fn write(database: &Database, batch: &Batch) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        if meta.get("schema")?.is_none() {
            meta.insert("schema", SCHEMA)?;
        }
        let before = meta.get(DRAIN)?.map(|value| value.value().to_owned());
        match &batch.drain {
            drain if *drain == before => {}
            Some(drain) => drop(meta.insert(DRAIN, drain.as_str())?),
            None => drop(meta.remove(DRAIN)?),
        }
        let mut attachments = transaction.open_table(ATTACHMENTS)?;
        for (key, record) in &batch.records {
            let key = (key.container_id.as_str(), key.ifname.as_str());
            match record {
                Some(record) => {
                    let value = serde_json::to_vec(record).map_err(std::io::Error::other)?;
                    attachments.insert(key, value.as_slice())?;
                }
                None => {
                    attachments.remove(key)?;
                }
            }
        }
        let mut cursors = transaction.open_table(CURSORS)?;
        for (subnet, address) in &batch.cursors {
            cursors.insert(subnet.as_str(), address.to_string().as_str())?;
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
#[path = "store_tests.rs"]
pub(super) mod tests;
