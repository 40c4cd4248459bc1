use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::StorageBackend;
use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::resources::AttachmentKind;

use super::*;
use crate::ipam::record::{Assigned, Phase, PodName};

pub(crate) fn key(container_id: &str) -> AttachmentKey {
    AttachmentKey { container_id: container_id.to_owned(), ifname: "eth0".to_owned() }
}

fn record(container_id: &str, phase: Phase, address: &str) -> Record {
    Record {
        key: key(container_id),
        phase,
        conf_name: "pods".to_owned(),
        network: "n".to_owned(),
        addresses: vec![Assigned {
            subnet: "s".to_owned(),
            address: address.parse().unwrap(),
            gateway: None,
        }],
        attachment: AttachmentKind::Ipvlan,
        mac: [2, 0x12, 0x34, 0, 0, 1],
        mtu: None,
        bandwidth: Bandwidth::default(),
        extra_prefixes: Default::default(),
        labels: Default::default(),
        netns: String::new(),
        pod: PodName::default(),
        attached_with: None,
        several: false,
        default_route: false,
        routes: Default::default(),
        others: Vec::new(),
        migration: Default::default(),
        target_node: None,
    }
}

fn put(record: &Record) -> Batch {
    Batch {
        records: vec![(record.key.clone(), Some(record.clone()))],
        cursors: [("s".to_owned(), record.addresses[0].address)].into(),
        drain: None,
    }
}

/// A disk in memory that can be full. Its octets can be read as a killed process leaves them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Disk {
        Disk { bytes: Arc::new(Mutex::new(self.bytes.lock().unwrap().clone())), full: Arc::default() }
    }

    fn has_room(&self) -> io::Result<()> {
        match self.full.load(Ordering::Relaxed) {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }

    pub(crate) fn open(&self) -> (Store, Result<Contents, StoreError>) {
        let disk = self.clone();
        Store::with_opener(
            Path::new("/s/store.redb"),
            Box::new(move || Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(disk.clone())),
        )
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.lock().unwrap();
        let offset = offset as usize;
        let from = bytes.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.has_room()?;
        self.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.has_room()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.has_room()?;
        let offset = offset as usize;
        self.bytes.lock().unwrap()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[test]
fn committed_data_survives_a_kill() {
    let disk = Disk::default();
    let (mut store, contents) = disk.open();
    assert_eq!(contents.unwrap(), Contents::default());
    let attaching = record("a", Phase::Attaching, "10.0.0.1");
    let attached = Record { phase: Phase::Attached, mtu: Some(1500), ..attaching.clone() };
    // Each copy is taken while the database is open, as a killed process leaves the file.
    for (batch, records) in [
        (put(&attaching), vec![attaching.clone()]),
        (put(&attached), vec![attached.clone()]),
        (
            put(&record("b", Phase::Attaching, "10.0.0.2")),
            vec![attached, record("b", Phase::Attaching, "10.0.0.2")],
        ),
        (
            Batch { records: vec![(key("a"), None)], ..Batch::default() },
            vec![record("b", Phase::Attaching, "10.0.0.2")],
        ),
    ] {
        store.commit(&batch).unwrap();
        let contents = disk.snapshot().open().1.unwrap();
        assert_eq!(contents.records.into_values().collect::<Vec<_>>(), records);
    }
    assert_eq!(disk.snapshot().open().1.unwrap().cursors["s"].to_string(), "10.0.0.2");
}

#[test]
fn a_kill_during_a_commit_leaves_the_old_or_the_new_state() {
    /// Keeps a copy of the file before every write and sync.
    #[derive(Clone, Debug, Default)]
    struct Filmed(Disk, Arc<Mutex<Vec<Disk>>>);
    impl StorageBackend for Filmed {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read(offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.0.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.1.lock().unwrap().push(self.0.snapshot());
            self.0.write(offset, data)
        }
    }
    let filmed = Filmed::default();
    let backend = filmed.clone();
    let (mut store, contents) = Store::with_opener(
        Path::new("/s"),
        Box::new(move || Builder::new().create_with_backend(backend.clone())),
    );
    contents.unwrap();
    let before = record("a", Phase::Attaching, "10.0.0.1");
    store.commit(&put(&before)).unwrap();
    filmed.1.lock().unwrap().clear();
    let after = Record { phase: Phase::Attached, ..before.clone() };
    store.commit(&put(&after)).unwrap();
    let frames = filmed.1.lock().unwrap().clone();
    assert!(frames.len() > 1, "a commit is more than one write");
    for (index, frame) in frames.iter().enumerate() {
        let contents = frame.open().1.unwrap_or_else(|error| panic!("frame {index}: {error}"));
        let found = &contents.records[&key("a")];
        assert!(*found == before || *found == after, "frame {index}: {found:?}");
    }
}

#[test]
fn a_full_disk_is_a_temporary_error() {
    let disk = Disk::default();
    let (mut store, _) = disk.open();
    let first = record("a", Phase::Attached, "10.0.0.1");
    store.commit(&put(&first)).unwrap();
    disk.set_full(true);
    let error = store.commit(&put(&record("b", Phase::Attaching, "10.0.0.2"))).unwrap_err();
    assert!(error.to_string().contains("/s/store.redb cannot be written"), "{error}");
    assert!(!store.is_open());
    disk.set_full(false);
    let contents = store.reopen().unwrap();
    assert!(contents.records.contains_key(&key("a")));
    store.commit(&put(&record("c", Phase::Attaching, "10.0.0.3"))).unwrap();
}

/// Overwrites octets all over the file. Wherever the damage is, opening either finds every record
/// unchanged or reports that the store is damaged. It never panics, and never returns a record that
/// was not written.
#[test]
fn a_damaged_file_is_detected() {
    let disk = Disk::default();
    let (mut store, _) = disk.open();
    let mut records: Vec<Record> =
        (1..=20).map(|n| record(&format!("c{n}"), Phase::Attached, &format!("10.0.0.{n}"))).collect();
    records.iter().for_each(|record| store.commit(&put(record)).unwrap());
    records.sort_by_key(|record| record.key.clone());
    drop(store);
    let length = disk.bytes.lock().unwrap().len();
    let mut found_out = 0;
    // Octets of the header and of the used pages, at a stride that is no power of two.
    let used: Vec<usize> = (0..length).filter(|offset| disk.bytes.lock().unwrap()[*offset] != 0).collect();
    for offset in used.iter().step_by(used.len() / 400 + 1) {
        let damaged = disk.snapshot();
        damaged.bytes.lock().unwrap()[*offset] ^= 0x5a;
        match damaged.open().1 {
            Ok(contents) => assert!(records.iter().eq(contents.records.values()), "offset {offset}"),
            Err(error) => {
                assert!(error.to_string().contains("move the file away"), "offset {offset}: {error}");
                found_out += 1;
            }
        }
    }
    assert!(found_out > 0);
    let cut = disk.snapshot();
    cut.bytes.lock().unwrap().truncate(length / 2);
    assert!(matches!(cut.open().1, Err(StoreError::Corrupt { .. })));
}

#[test]
fn a_file_that_is_not_a_store_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let text = "not a database\n".repeat(1000);
    std::fs::write(&path, &text).unwrap();
    let error = Store::open(&path).1.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_store_has_one_process_and_only_root_reads_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/on/demand/store.redb");
    let (_store, contents) = Store::open(&path);
    contents.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Store::open(&path).1, Err(StoreError::Busy { .. })));
}

#[test]
fn an_address_with_two_owners_is_damage() {
    let disk = Disk::default();
    let (mut store, _) = disk.open();
    store.commit(&put(&record("a", Phase::Attached, "10.0.0.1"))).unwrap();
    store.commit(&put(&record("b", Phase::Attached, "10.0.0.1"))).unwrap();
    let error = store.reopen().unwrap_err().to_string();
    assert!(error.contains("10.0.0.1 belongs to a/eth0 and to b/eth0"), "{error}");
}

#[test]
fn a_record_of_an_earlier_version_has_no_extra_prefixes() {
    let mut new = record("c", Phase::Attached, "10.0.0.1");
    let text = serde_json::to_string(&new).unwrap();
    assert!(!text.contains("prefixes"), "{text}");
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), new);
    new.extra_prefixes = ["10.9.0.0/16".parse().unwrap(), "fd00:9::/64".parse().unwrap()].into();
    let text = serde_json::to_string(&new).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), new);
}

#[test]
fn labels_are_stored_and_an_earlier_version_has_none() {
    let mut new = record("c", Phase::Attached, "10.0.0.1");
    let text = serde_json::to_string(&new).unwrap();
    assert!(!text.contains("labels"), "{text}");
    new.labels.insert("app".to_owned(), "web".to_owned());
    let text = serde_json::to_string(&new).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), new);
}
