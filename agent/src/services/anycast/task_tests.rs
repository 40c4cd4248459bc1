//! The task with real probes of the loopback interface, and a recorder in place of the reconcile
//! task.

use tokio::net::TcpListener;
use trunkline_bgp::types::{LargeCommunity, PeerKey};
use trunkline_bgp::wire::Origin;

use super::super::ProbeMethod;
use super::*;
use crate::services::AppliedPrefixes;

const LIMIT: Duration = Duration::from_secs(10);

struct Bench {
    plans: watch::Sender<Option<Arc<AnycastPlan>>>,
    applied: mpsc::UnboundedReceiver<ServicePrefixes>,
    /// The originations of the node.
    originated: BTreeMap<IpNet, Origination>,
    is_ready: bool,
    anycast: Anycast,
    history: History,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(last: &[&str]) -> Bench {
        let (plans, receiver) = watch::channel(None);
        let (sender, applied) = mpsc::unbounded_channel();
        let (history, folder) = (History::default(), tempfile::tempdir().unwrap());
        let anycast = spawn(AnycastDependencies {
            node: "n1".to_owned(),
            plans: receiver,
            apply: Box::new(move |prefixes| {
                let _ = sender.send(prefixes);
                Box::pin(std::future::ready(Some(AppliedPrefixes::default())))
            }),
            history: history.clone(),
            notifier: ChangeNotifier::default(),
            last: AnycastCache {
                boot: "b1".to_owned(),
                addresses: BTreeSet::new(),
                advertised: last.iter().map(|address| address.parse().unwrap()).collect(),
            },
            cache: folder.path().join("anycast.json"),
        });
        Bench { plans, applied, originated: BTreeMap::new(), is_ready: false, anycast, history, folder }
    }

    fn plan(&self, known: bool, objects: &[(&str, PlannedAnycast)]) {
        let objects = objects.iter().map(|(name, object)| (Arc::from(*name), object.clone())).collect();
        self.plans.send_replace(Some(Arc::new(AnycastPlan { known, objects })));
    }

    /// Waits until the originations satisfy a condition.
    async fn until(&mut self, what: &str, holds: impl Fn(&BTreeMap<IpNet, Origination>) -> bool) {
        let until = Instant::now() + LIMIT;
        while !holds(&self.originated) {
            let next = tokio::time::timeout_at(until, self.applied.recv()).await;
            let Ok(Some(ServicePrefixes { changes, ready })) = next else {
                panic!("{what}: {:?}", self.originated)
            };
            self.is_ready |= ready;
            for (prefix, origination) in changes {
                match origination {
                    Some(origination) => drop(self.originated.insert(prefix, origination)),
                    None => drop(self.originated.remove(&prefix)),
                }
            }
        }
    }

    fn events(&self) -> Vec<(EventKind, String)> {
        self.history.since(0).events.into_iter().map(|event| (event.kind, event.text)).collect()
    }

    /// The state and the text of the only address.
    fn shown(&self) -> (AdvertisementState, String) {
        let status = self.anycast.status();
        let address = &status[0].addresses[0];
        (address.state, address.text.clone())
    }
}

fn object(addresses: &[&str], check: Option<PlannedCheck>) -> PlannedAnycast {
    PlannedAnycast {
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        origination: Origination { communities: vec![Community(7)], ..Origination::default() },
        keep_last: false,
        graceful_shutdown: Duration::from_millis(200),
        check,
        refused: None,
    }
}

fn tcp(port: u16) -> Option<PlannedCheck> {
    Some(PlannedCheck {
        method: ProbeMethod::Tcp { port },
        connect_to: None,
        interval: Duration::from_millis(50),
        timeout: Duration::from_millis(50),
        rise: 2,
        fall: 3,
    })
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn is_shutting_down(originated: &BTreeMap<IpNet, Origination>, prefix: &IpNet) -> bool {
    originated.get(prefix).is_some_and(|it| it.communities.contains(&Community::GRACEFUL_SHUTDOWN))
}

#[tokio::test]
async fn an_address_is_advertised_while_its_check_passes() {
    let home = prefix("127.0.0.1/32");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let mut bench = Bench::new(&[]);
    bench.plan(true, &[("dns", object(&["127.0.0.1"], tcp(to.port())))]);
    bench.until("healthy", |it| it.contains_key(&home)).await;
    assert!(bench.is_ready);
    assert_eq!(bench.originated[&home].communities, [Community(7)]);
    assert_eq!(bench.shown(), (AdvertisementState::Advertised, String::new()));
    let cache = bench.folder.path().join("anycast.json");
    let is_stored = || AnycastCache::read(&cache, "b1").advertised.contains(&home.addr());
    let begun = Instant::now();
    while !is_stored() {
        assert!(begun.elapsed() < LIMIT, "stored for the next run");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    drop(listener);
    bench.until("unhealthy", |it| !it.contains_key(&home)).await;
    assert_eq!(bench.shown(), (AdvertisementState::Withheld, "its check fails".to_owned()));
    let _listener = TcpListener::bind(to).await.unwrap();
    bench.until("healthy again", |it| it.contains_key(&home)).await;
    let events = bench.events();
    let kinds: Vec<EventKind> = events.iter().map(|(kind, _)| *kind).collect();
    use EventKind::{AnycastHealthy, AnycastUnhealthy};
    assert_eq!(kinds, [AnycastHealthy, AnycastUnhealthy, AnycastHealthy], "{events:?}");
    assert!(
        events[1].1.starts_with("AnycastAddress dns: 127.0.0.1 unhealthy: no connection to"),
        "{events:?}"
    );
}

#[tokio::test]
async fn an_object_that_is_deleted_is_shut_down_first() {
    let address = prefix("192.0.2.53/32");
    let mut bench = Bench::new(&[]);
    bench.plan(false, &[]);
    bench.plan(true, &[("dns", object(&["192.0.2.53"], None))]);
    bench.until("without a check", |it| it.contains_key(&address)).await;
    assert!(bench.is_ready);
    bench.plan(true, &[]);
    bench.until("graceful shutdown", |it| is_shutting_down(it, &address)).await;
    let begun = Instant::now();
    bench.until("withdrawn", |it| it.is_empty()).await;
    assert!(begun.elapsed() >= Duration::from_millis(150));
    assert_eq!(bench.anycast.status(), []);
}

#[tokio::test]
async fn the_first_originations_are_sent_even_if_there_are_none() {
    let mut bench = Bench::new(&["192.0.2.53"]);
    bench.plan(false, &[]);
    bench.plan(true, &[]);
    let first = bench.applied.recv().await.unwrap();
    assert_eq!(first, ServicePrefixes { changes: Vec::new(), ready: true });
    let refused = PlannedAnycast::refused("a fault".to_owned());
    bench.plan(true, &[("dns", refused)]);
    let begun = Instant::now();
    while bench.anycast.status().is_empty() {
        assert!(begun.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bench.anycast.status()[0].refused.as_deref(), Some("a fault"));
}

#[tokio::test]
async fn an_address_of_the_last_run_is_advertised_until_a_check_fails() {
    let home = prefix("127.0.0.1/32");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut bench = Bench::new(&["127.0.0.1"]);
    bench.plan(true, &[("dns", object(&["127.0.0.1"], tcp(port)))]);
    let first = bench.applied.recv().await.unwrap();
    assert!(first.ready);
    assert_eq!(first.changes.len(), 1);
    bench.originated.insert(home, Origination::default());
    bench.until("one failure", |it| it.is_empty()).await;
}

#[tokio::test]
async fn the_last_holder_keeps_its_address_without_its_mark() {
    let home = prefix("127.0.0.1/32");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut bench = Bench::new(&[]);
    let keep_last = PlannedAnycast { keep_last: true, ..object(&["127.0.0.1"], tcp(port)) };
    bench.plan(true, &[("api", keep_last)]);
    let mark = HolderMark::of_node("n1").community();
    bench
        .until("healthy", |it| {
            it.get(&home).is_some_and(|origination| origination.large_communities == [mark])
        })
        .await;
    drop(listener);
    bench.until("graceful shutdown", |it| is_shutting_down(it, &home)).await;
    assert_eq!(bench.originated[&home].large_communities, []);
    let begun = Instant::now();
    while !bench.shown().1.ends_with("no other node advertises it") {
        assert!(begun.elapsed() < LIMIT, "{:?}", bench.shown());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_shutting_down(&bench.originated, &home));
    let events = bench.events();
    let texts: Vec<&str> = events.iter().map(|(_, text)| text.as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("stays advertised: no other node")), "{texts:?}");
}

#[test]
fn other_holders_have_a_mark_and_no_graceful_shutdown() {
    let own = HolderMark::of_node("n1");
    let other = HolderMark::of_node("n2");
    let route = |from: Option<&str>, marks: &[HolderMark], communities: &[Community], stale| Route {
        prefix: prefix("192.0.2.53/32"),
        peer: from.map(|peer| peer.parse::<PeerKey>().unwrap()),
        path_id: None,
        next_hop: None,
        origin: Origin::Igp,
        as_path: String::new(),
        origin_as: None,
        med: None,
        local_pref: None,
        communities: communities.to_vec(),
        large_communities: marks
            .iter()
            .map(|mark| mark.community())
            .chain([LargeCommunity { global: 1, local1: 2, local2: 3 }])
            .collect(),
        extended_communities: Vec::new(),
        best: false,
        filtered: None,
        stale,
    };
    let peer = Some("10.0.0.1");
    let found = Others::Some { own_is_lowest: own < other };
    for (path, expected) in [
        (route(peer, &[other], &[], false), found),
        (route(peer, &[own], &[], false), Others::None),
        (route(peer, &[own, other], &[], false), found),
        (route(peer, &[], &[], false), Others::None),
        (route(None, &[other], &[], false), Others::None),
        (route(peer, &[other], &[Community::GRACEFUL_SHUTDOWN], false), Others::None),
        (route(peer, &[other], &[], true), Others::None),
    ] {
        assert_eq!(others([&path], own), expected, "{path:?}");
    }
    let (low, high) = (own.min(other), own.max(other));
    let path = |mark| route(peer, &[mark], &[], false);
    assert_eq!(others([&path(high)], low), Others::Some { own_is_lowest: true });
    assert_eq!(others([&path(low)], high), Others::Some { own_is_lowest: false });
}
