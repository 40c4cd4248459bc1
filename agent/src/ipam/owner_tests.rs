use trunkline_api::resources::{AttachmentKind, SubnetAccess};

use super::*;
use crate::ipam::store::tests::{Disk, key};

fn pool(cidr: &str) -> Pool {
    Pool::new(PoolSpec {
        subnet: format!("s-{}", cidr.split('/').next().unwrap()),
        network: "n".to_owned(),
        cidr: cidr.parse().unwrap(),
        start: None,
        end: None,
        gateway: None,
        reserved: Vec::new(),
        excluded: Vec::new(),
        private: false,
        access: SubnetAccess::default(),
    })
    .unwrap()
}

fn network() -> NetworkSpec {
    NetworkSpec {
        name: "n".to_owned(),
        default_candidate: true,
        attachment: AttachmentKind::Veth,
        refused: None,
    }
}

fn reservation(container_id: &str) -> Reservation {
    Reservation {
        key: key(container_id),
        conf_name: "pods".to_owned(),
        wanted: AddressSource::Local(AddressRequest::default()),
        mac: [2, 0, 0, 0, 0, 1],
        bandwidth: Bandwidth::default(),
        extra_prefixes: Default::default(),
        labels: Default::default(),
        netns: String::new(),
        pod: PodName::default(),
        attached_with: None,
        interface: Default::default(),
        several: false,
        others: Vec::new(),
        migration: Default::default(),
    }
}

/// One request in its own transaction.
fn request_of<T>(owner: &mut Owner, request: impl FnOnce(Answer<T>) -> Request) -> T {
    let (answer, mut reply) = oneshot::channel();
    owner.handle(std::iter::once(request(answer)));
    reply.try_recv().unwrap()
}

fn reserve(owner: &mut Owner, container_id: &str) -> Result<(String, bool), String> {
    request_of(owner, |answer| Request::Reserve(Box::new(reservation(container_id)), answer))
        .map(|(record, new)| (record.addresses[0].address.to_string(), new))
        .map_err(|error| error.to_string())
}

fn release(owner: &mut Owner, container_id: &str) -> Result<bool, IpamError> {
    request_of(owner, |answer| Request::Release(key(container_id), answer)).map(|record| record.is_some())
}

fn owner(disk: &Disk) -> Owner {
    let (store, contents) = disk.open();
    let mut owner = Owner::new(store, contents);
    owner.handle(std::iter::once(Request::Configure(vec![network()], vec![pool("10.0.0.0/29")])));
    owner
}

#[test]
fn a_repeated_attach_gets_the_same_address() {
    let mut owner = owner(&Disk::default());
    assert_eq!(reserve(&mut owner, "a").unwrap(), ("10.0.0.1".to_owned(), true));
    assert_eq!(reserve(&mut owner, "a").unwrap(), ("10.0.0.1".to_owned(), false));
    assert!(release(&mut owner, "a").unwrap());
    assert!(!release(&mut owner, "a").unwrap());
    assert!(!release(&mut owner, "never there").unwrap());
}

#[test]
fn the_next_run_restores_records_and_round_robin() {
    let disk = Disk::default();
    let mut first = owner(&disk);
    for (container, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        assert_eq!(reserve(&mut first, container).unwrap().0, address);
    }
    request_of(&mut first, |answer| Request::Attached(key("a"), 1500, answer)).unwrap();
    release(&mut first, "c").unwrap();
    drop(first);
    let mut second = owner(&disk);
    let phases: Vec<Phase> = second.records.values().map(|record| record.phase).collect();
    assert_eq!(phases, [Phase::Attached, Phase::Attaching]);
    assert_eq!(second.records[&key("a")].mtu, Some(1500));
    assert_eq!(reserve(&mut second, "d").unwrap().0, "10.0.0.4", "not 10.0.0.3, which was just released");
}

#[test]
fn the_next_run_restores_live_migrations_and_further_interfaces() {
    let disk = Disk::default();
    let mut first = owner(&disk);
    let target = Reservation {
        migration: MigrationState::Inactive,
        others: vec!["eth1".to_owned()],
        ..reservation("target")
    };
    request_of(&mut first, |answer| Request::Reserve(Box::new(target), answer)).unwrap();
    reserve(&mut first, "source").unwrap();
    let node = TargetNode { name: "n2".to_owned(), addresses: vec!["192.0.2.2".parse().unwrap()] };
    let departing =
        |answer| Request::Migrate(key("source"), MigrationState::Departing, Some(node.clone()), answer);
    request_of(&mut first, departing).unwrap();
    drop(first);
    let second = owner(&disk);
    let states = ["source", "target"].map(|name| second.records[&key(name)].migration);
    assert_eq!(states, [MigrationState::Departing, MigrationState::Inactive]);
    assert_eq!(second.records[&key("source")].target_node, Some(node));
    assert_eq!(second.records[&key("target")].others, ["eth1"]);
}

#[test]
fn a_full_disk_stops_allocation_and_keeps_records() {
    let disk = Disk::default();
    let mut owner = owner(&disk);
    reserve(&mut owner, "a").unwrap();
    disk.set_full(true);
    for _ in 0..2 {
        let error = reserve(&mut owner, "b").unwrap_err();
        assert!(error.contains("no address is allocated"), "{error}");
    }
    assert_eq!(
        reserve(&mut owner, "a").unwrap(),
        ("10.0.0.1".to_owned(), false),
        "an existing record is returned"
    );
    release(&mut owner, "a").unwrap_err();
    assert_eq!(owner.records.len(), 1, "a release that is not on disk is reverted");
    let summary = request_of(&mut owner, Request::Summary);
    assert!(summary.fault.is_some());
    assert_eq!(summary.subnets[0].counts.used, 1);
    disk.set_full(false);
    assert!(
        request_of(&mut owner, Request::Summary).fault.is_none(),
        "a request for the summary clears the fault"
    );
    assert_eq!(reserve(&mut owner, "b").unwrap().0, "10.0.0.2", "failed requests leave no gap");
    drop(owner);
    let (_, contents) = disk.open();
    assert_eq!(contents.unwrap().records.len(), 2);
}

#[test]
fn a_failed_release_reports_removed_and_retained_parts() {
    let (path, reason) = ("/s/store.redb".to_owned(), "No space left on device".to_owned());
    let full = IpamError::Store(StoreError::Io { path, reason });
    let words = full.on_release();
    for part in [
        "link and routes are removed",
        "/s/store.redb cannot be written (No space left on device)",
        "repeats DEL",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(!words.contains("no address is allocated"), "{words}");
    assert_eq!(IpamError::Stopped.on_release(), IpamError::Stopped.to_string());
}

#[test]
fn requests_in_one_transaction_succeed_or_fail_together() {
    let disk = Disk::default();
    let mut owner = owner(&disk);
    reserve(&mut owner, "a").unwrap();
    let group = |owner: &mut Owner| {
        let (release, mut released) = oneshot::channel();
        let (reserve, mut reserved) = oneshot::channel();
        owner.handle(
            [Request::Release(key("a"), release), Request::Reserve(Box::new(reservation("b")), reserve)]
                .into_iter(),
        );
        (released.try_recv().unwrap().is_ok(), reserved.try_recv().unwrap().is_ok())
    };
    disk.set_full(true);
    assert_eq!(group(&mut owner), (false, false));
    assert_eq!(owner.records.keys().cloned().collect::<Vec<_>>(), [key("a")]);
    disk.set_full(false);
    assert_eq!(group(&mut owner), (true, true));
    assert_eq!(owner.records.keys().cloned().collect::<Vec<_>>(), [key("b")]);
}

#[test]
fn addresses_without_a_record_are_not_allocated() {
    let mut owner = owner(&Disk::default());
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    owner.handle(std::iter::once(Request::Unrecorded([address("10.0.0.1"), address("10.0.0.2")].into())));
    assert_eq!(reserve(&mut owner, "a").unwrap().0, "10.0.0.3");
    owner.handle(std::iter::once(Request::Configure(vec![network()], vec![pool("10.0.0.0/29")])));
    assert_eq!(request_of(&mut owner, Request::Summary).subnets[0].counts.used, 3);
    owner.handle(std::iter::once(Request::Unrecorded([address("10.0.0.2")].into())));
    assert_eq!(request_of(&mut owner, Request::Summary).subnets[0].counts.used, 2);
}

#[test]
fn an_unreadable_store_is_adopted_once_it_is_readable() {
    let disk = Disk::default();
    let mut first = owner(&disk);
    reserve(&mut first, "a").unwrap();
    reserve(&mut first, "b").unwrap();
    drop(first);
    disk.set_full(true);
    let mut second = owner(&disk);
    assert!(second.fault.is_some() && second.records.is_empty());
    reserve(&mut second, "c").unwrap_err();
    disk.set_full(false);
    assert!(request_of(&mut second, Request::Summary).fault.is_none());
    assert_eq!(second.records.len(), 2);
    assert_eq!(reserve(&mut second, "c").unwrap().0, "10.0.0.3");
    assert_eq!(reserve(&mut second, "a").unwrap(), ("10.0.0.1".to_owned(), false));
    assert_eq!(disk.open().1.unwrap_or_default().records.len(), 3);
}

#[test]
fn a_full_pool_is_reported_with_its_counts() {
    let mut owner = owner(&Disk::default());
    for container in 0..6 {
        reserve(&mut owner, &container.to_string()).unwrap();
    }
    let error = reserve(&mut owner, "one too many").unwrap_err();
    assert!(error.contains("subnet s-10.0.0.0 has 6 of 6 in use"), "{error}");
    assert!(owner.fault.is_none(), "a full pool is no fault of the store");
}

#[tokio::test]
async fn simultaneous_requests_get_different_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let Started { ipam, records, drain, fault } = Ipam::start(&folder.path().join("store.redb")).unwrap();
    assert!(records.is_empty() && drain.is_none() && fault.is_none());
    ipam.configure(vec![network()], vec![pool("10.0.0.0/24")]);
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let ipam = ipam.clone();
            tokio::spawn(async move { ipam.reserve(reservation(&n.to_string())).await.unwrap().0 })
        })
        .collect();
    let mut given = BTreeSet::new();
    for task in tasks {
        given.insert(task.await.unwrap().addresses[0].address);
    }
    assert_eq!(given.len(), 100);
    assert_eq!(ipam.summary().await.unwrap().records.len(), 100);
}

/// With addresses of an IPInstance the allocator selects nothing, but it must not allocate an
/// address twice.
#[test]
fn interfaces_are_found_by_the_one_that_attached_them() {
    let disk = Disk::default();
    let (store, contents) = disk.open();
    let mut owner = Owner::new(store, contents);
    owner.handle(std::iter::once(Request::Configure(vec![network()], Vec::new())));
    for (container_id, ifname, with, address) in [
        ("a", "eth0", None, "10.9.0.1"),
        ("a", "net1", Some("eth0"), "10.9.0.2"),
        ("a", "net2", Some("eth0"), "10.9.0.3"),
        ("a", "net3", None, "10.9.0.4"),
        ("b", "net1", Some("eth0"), "10.9.0.5"),
    ] {
        let address = Assigned { subnet: "s".to_owned(), address: address.parse().unwrap(), gateway: None };
        let reservation = Reservation {
            key: AttachmentKey { ifname: ifname.to_owned(), ..key(container_id) },
            wanted: AddressSource::Assigned { network: "n".to_owned(), addresses: vec![address] },
            attached_with: with.map(str::to_owned),
            ..reservation(container_id)
        };
        request_of(&mut owner, |answer| Request::Reserve(Box::new(reservation), answer)).unwrap();
    }
    let with = |owner: &mut Owner, container_id: &str| -> Vec<String> {
        let records = request_of(owner, |answer| Request::AttachedWith(key(container_id), answer));
        records.into_iter().map(|record| record.key.to_string()).collect()
    };
    assert_eq!(with(&mut owner, "a"), ["a/net1", "a/net2"]);
    assert_eq!(with(&mut owner, "b"), ["b/net1"]);
    assert!(with(&mut owner, "c").is_empty());
    let (store, contents) = disk.open();
    assert_eq!(with(&mut Owner::new(store, contents), "a"), ["a/net1", "a/net2"], "after a restart");
}

#[test]
fn assigned_addresses_are_recorded_once() {
    let disk = Disk::default();
    let (store, contents) = disk.open();
    let mut owner = Owner::new(store, contents);
    owner.handle(std::iter::once(Request::Configure(vec![network()], Vec::new())));
    let given = |container_id: &str, network: &str, address: &str| Reservation {
        wanted: AddressSource::Assigned {
            network: network.to_owned(),
            addresses: vec![Assigned {
                subnet: "s".to_owned(),
                address: address.parse().unwrap(),
                gateway: None,
            }],
        },
        ..reservation(container_id)
    };
    let reserve = |owner: &mut Owner, reservation: Reservation| {
        request_of(owner, |answer| Request::Reserve(Box::new(reservation), answer))
    };
    let (record, new) = reserve(&mut owner, given("a", "n", "10.9.0.7")).unwrap();
    assert_eq!((record.network.as_str(), record.addresses[0].subnet.as_str(), new), ("n", "s", true));
    let (record, new) = reserve(&mut owner, given("a", "n", "10.9.0.8")).unwrap();
    assert_eq!(
        (record.addresses[0].address.to_string(), new),
        ("10.9.0.7".to_owned(), false),
        "the record keeps its first address"
    );
    match reserve(&mut owner, given("b", "n", "10.9.0.7")).unwrap_err() {
        IpamError::Held { holder, .. } => assert_eq!(holder.key, key("a")),
        other => panic!("{other}"),
    }
    let error = reserve(&mut owner, given("b", "other", "10.9.0.9")).unwrap_err();
    assert!(error.to_string().contains("network other is not on this node"), "{error}");
    owner.handle(std::iter::once(Request::Unrecorded(["10.9.0.10".parse().unwrap()].into())));
    let error = reserve(&mut owner, given("b", "n", "10.9.0.10")).unwrap_err();
    assert!(error.to_string().contains("without a record"), "{error}");
    assert!(release(&mut owner, "a").unwrap());
    reserve(&mut owner, given("b", "n", "10.9.0.7")).unwrap();
    assert_eq!(disk.open().1.unwrap().records.len(), 1);
}

#[tokio::test]
async fn the_drain_state_survives_restarts_and_other_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let start = || {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            // The previous thread closes the file after its last handle is dropped.
            let started = Ipam::start(&path).unwrap();
            if started.fault.is_none() || tokio::time::Instant::now() > deadline {
                return started;
            }
            std::thread::yield_now();
        }
    };
    let Started { ipam, drain, .. } = start();
    assert_eq!(drain, None);
    ipam.configure(vec![network()], vec![pool("10.0.0.0/24")]);
    ipam.set_drain(Some("new disk".to_owned())).await.unwrap();
    ipam.reserve(reservation("a")).await.unwrap();
    drop(ipam);
    let Started { ipam, drain, records, .. } = start();
    assert_eq!((drain.as_deref(), records.len()), (Some("new disk"), 1));
    ipam.set_drain(None).await.unwrap();
    drop(ipam);
    assert_eq!(start().drain, None);
}
