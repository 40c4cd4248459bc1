//! Tests of the eviction order and of the budgets of a source.

use std::net::{IpAddr, Ipv4Addr};

use trunkline_api::metrics::of_agent as m;

use super::*;

const LIMITS: Limits = Limits {
    total: 6,
    per_source: 4,
    first_request: Duration::from_secs(5),
    octets: 100,
    octets_per_source: 60,
    work_per_source: 1,
};

fn source(number: u8) -> Source {
    Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)))
}

/// Connections ordered by age: the source's number, and `o` opening, `i` idle, `b` busy.
fn registry(connections: &[(u8, char)]) -> (Registry, Vec<Arc<Entry>>) {
    let mut registry = Registry::new(LIMITS);
    let entries = connections.iter().map(|(number, state)| {
        let entry = registry.insert(source(*number));
        if *state != 'o' {
            entry.begin();
        }
        if *state == 'i' {
            entry.finish();
            entry.flushed();
        }
        entry
    });
    let entries = entries.collect();
    (registry, entries)
}

#[test]
fn eviction_order() {
    const NEW: u8 = 9;
    #[derive(Debug, PartialEq)]
    enum Is {
        Admitted,
        Evicts(usize),
        Refused(Reason),
    }
    for (case, connections, new, seconds, expected) in [
        ("room", &[(1, 'o'), (1, 'o'), (1, 'o')][..], 1, 0, Is::Admitted),
        ("own limit: opening first", &[(1, 'i'), (1, 'b'), (1, 'o'), (1, 'o')], 1, 0, Is::Evicts(2)),
        ("own limit: then idle", &[(1, 'b'), (1, 'i'), (1, 'b'), (1, 'i')], 1, 0, Is::Evicts(1)),
        (
            "own limit: other sources are not affected",
            &[(2, 'o'), (1, 'b'), (1, 'b'), (1, 'b'), (1, 'b')],
            1,
            0,
            Is::Refused(Reason::SourceLimit),
        ),
        ("own limit: slow", &[(2, 'o'), (1, 'b'), (1, 'b'), (1, 'b'), (1, 'b')], 1, 11, Is::Evicts(1)),
        (
            "full: opening of the largest",
            &[(2, 'o'), (1, 'i'), (1, 'o'), (1, 'o'), (3, 'i'), (3, 'o')],
            NEW,
            0,
            Is::Evicts(2),
        ),
        (
            "full: idle of the largest",
            &[(2, 'i'), (1, 'b'), (1, 'i'), (1, 'i'), (3, 'i'), (3, 'b')],
            NEW,
            0,
            Is::Evicts(2),
        ),
        (
            "full: opening before idle of a larger one",
            &[(1, 'i'), (1, 'i'), (1, 'i'), (2, 'o'), (3, 'b'), (4, 'b')],
            NEW,
            0,
            Is::Evicts(3),
        ),
        (
            "full: no opening connection of a source of the same size",
            &[(2, 'o'), (1, 'i'), (1, 'i'), (1, 'i'), (3, 'b'), (8, 'b')],
            8,
            0,
            Is::Evicts(1),
        ),
        (
            "full: busy of a larger one",
            &[(1, 'b'), (1, 'b'), (1, 'b'), (2, 'b'), (2, 'b'), (3, 'b')],
            NEW,
            0,
            Is::Evicts(0),
        ),
        (
            "full: its own idle one",
            &[(1, 'b'), (1, 'b'), (1, 'i'), (2, 'b'), (2, 'b'), (2, 'b')],
            1,
            0,
            Is::Evicts(2),
        ),
        (
            "full: no other source is as large",
            &[(1, 'b'), (1, 'b'), (1, 'b'), (2, 'b'), (2, 'b'), (2, 'b')],
            1,
            0,
            Is::Refused(Reason::TotalLimit),
        ),
    ] {
        let (registry, entries) = registry(connections);
        let now = Instant::now() + Duration::from_secs(seconds);
        let is = match registry.admission(source(new), now) {
            Admission::Admit => Is::Admitted,
            Admission::Evict(entry) => {
                Is::Evicts(entries.iter().position(|other| Arc::ptr_eq(other, &entry)).unwrap())
            }
            Admission::Refuse(reason) => Is::Refused(reason),
        };
        assert_eq!(is, expected, "{case}");
    }
}

#[test]
fn an_evicted_connection_frees_its_place_at_once() {
    let (mut registry, entries) = registry(&[(1, 'o'), (1, 'o'), (1, 'o'), (1, 'o')]);
    registry.evict(&entries[1], Reason::Evicted);
    registry.evict(&entries[1], Reason::Descriptors);
    assert!(matches!(registry.admission(source(1), Instant::now()), Admission::Admit));
    assert_eq!((registry.closing(), entries[1].reason()), (1, Some(Reason::Evicted)));
    for entry in &entries {
        registry.closed(entry);
    }
    registry.evict(&entries[0], Reason::NoRequest);
    assert!(registry.is_empty(), "a connection that is closed cannot be evicted");
}

#[test]
fn unsent_response_is_not_idle() {
    let (registry, entries) = registry(&[(1, 'b'), (1, 'b'), (1, 'b'), (1, 'b')]);
    entries[0].finish();
    let is_refused = || matches!(registry.admission(source(1), Instant::now()), Admission::Refuse(_));
    assert!(is_refused());
    entries[0].flushed();
    assert!(!is_refused());
    // A flush in the middle of a response does not end the request.
    entries[0].begin();
    entries[0].flushed();
    assert!(is_refused());
}

#[test]
fn sources_are_addresses_or_prefixes() {
    for (one, other, is_same) in [
        ("10.0.0.1", "10.0.0.2", false),
        ("10.0.0.1", "::ffff:10.0.0.1", true),
        ("fd00::1", "fd00::ffff:0:0:1", true),
        ("fd00::1", "fd00:0:0:1::1", false),
    ] {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of(one) == of(other), is_same, "{one} {other}");
    }
    assert_eq!(Source::of("fd00::7:1".parse().unwrap()).to_string(), "fd00::/64");
}

#[test]
fn bodies_have_budgets_per_source_and_in_total() {
    let registry = Metrics::new();
    let metrics = ConnectionMetrics::register(&registry, &m::CONNECTIONS, &m::CONNECTIONS_DROPPED).unwrap();
    let limiter = ConnectionLimiter::new(LIMITS, metrics.listener("http"));
    let client = |number| {
        let entry = limiter.lock().insert(source(number));
        Client { limiter: Arc::clone(&limiter), entry }
    };
    let (mut one, mut again, mut other) = (client(1).request(), client(1).request(), client(2).request());
    assert!(one.charge(40) && again.charge(20));
    assert!(!one.charge(1), "60 octets are the share of a source");
    assert!(!other.charge(41), "100 octets are the budget");
    assert!(other.charge(40));
    drop(again);
    assert!(one.charge(20) && !other.charge(1));
    drop((one, other));
    assert_eq!(limiter.octets.load(Ordering::Relaxed), 0);
}
