//! The truth of an advertisement: [`decide`] against a second evaluator, over every combination of
//! facts, and rows that a reader can check by hand.
//!
//! The evaluator ([`specification`]) is written as sentences, in another form than the checks.

use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::control::WithheldReason as Reason;
use trunkline_api::service::TrafficPolicy::{self, Cluster, Local};

use super::decide::{
    AddressFacts, Before, Decision, MemberFacts, MemberRules, NodeBarrier, NodeFacts, ProxyFacts, Stale,
    decide, wakes_at,
};
use super::{NodeStage, ProxyHealth};

const RESTART: Duration = Duration::from_secs(60);
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Endpoints on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    None,
    Ready,
    Terminating,
    /// Ready, without a host route.
    Unrouted,
}

/// Endpoints on other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elsewhere {
    None,
    Ready,
    Terminating,
}

/// The service proxy's health, with times in the past or in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proxy {
    Up,
    /// Away for less than `RESTART`.
    Away(Stale),
    /// Away for more than `RESTART`.
    Expired,
    Unhealthy,
    NotEligible,
    NotChecked,
    Unknown,
}

/// The service proxy's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Forwarded,
    Lagging,
    Blocked,
    Missing,
    Settled,
    Unsettled,
}

/// The state before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Was {
    Withheld,
    Advertised,
    /// Its withdrawal is in the future.
    Leaving,
    /// Its withdrawal is due.
    Left,
}

/// One combination with one port.
#[derive(Clone, Copy, Debug)]
struct Row {
    policy: TrafficPolicy,
    was_cluster: bool,
    here: Here,
    elsewhere: Elsewhere,
    stage: NodeStage,
    has_bgp: bool,
    barrier: Option<NodeBarrier>,
    selected: bool,
    rules: Rules,
    proxy: Proxy,
    known: bool,
    was: Was,
    shutdown: bool,
}

/// The usual case: a new address with everything in order.
const GOOD: Row = Row {
    policy: Cluster,
    was_cluster: false,
    here: Here::None,
    elsewhere: Elsewhere::Ready,
    stage: NodeStage::Active,
    has_bgp: true,
    barrier: None,
    selected: true,
    rules: Rules::Forwarded,
    proxy: Proxy::Up,
    known: true,
    was: Was::Withheld,
    shutdown: true,
};

/// The expected decision, without times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Advertise,
    ShutDown(Reason),
    Withhold(Reason),
    Keep,
}

use Expected::{Advertise, Keep, ShutDown, Withhold};

fn member(row: &Row, now: Instant) -> MemberFacts {
    let (ready, terminating) = (row.elsewhere == Elsewhere::Ready, row.elsewhere == Elsewhere::Terminating);
    MemberFacts {
        policy: row.policy,
        was_cluster: row.was_cluster,
        any_ready: ready || row.here == Here::Ready,
        any_terminating: terminating || row.here == Here::Terminating,
        local_ready: u32::from(row.here == Here::Ready),
        local_terminating: u32::from(row.here == Here::Terminating),
        local_unrouted: u32::from(row.here == Here::Unrouted),
        rules: match row.rules {
            Rules::Forwarded => MemberRules::Forwarded,
            Rules::Lagging => MemberRules::Lagging,
            Rules::Blocked => MemberRules::Blocked,
            Rules::Missing => MemberRules::Missing,
            Rules::Settled => MemberRules::NotVisible { settles_at: now },
            Rules::Unsettled => MemberRules::NotVisible { settles_at: now + Duration::from_millis(1) },
        },
    }
}

fn facts<'a>(row: &Row, members: &'a [MemberFacts], now: Instant) -> AddressFacts<'a> {
    let (health, stale) = match row.proxy {
        Proxy::Up => (ProxyHealth::Up, Stale::No),
        Proxy::Away(stale) => (ProxyHealth::Away { since: now - RESTART / 2 }, stale),
        Proxy::Expired => (ProxyHealth::Away { since: now - RESTART }, Stale::No),
        Proxy::Unhealthy => (ProxyHealth::Unhealthy, Stale::No),
        Proxy::NotEligible => (ProxyHealth::NotEligible, Stale::No),
        Proxy::NotChecked => (ProxyHealth::NotChecked, Stale::No),
        Proxy::Unknown => (ProxyHealth::Unknown, Stale::No),
    };
    AddressFacts {
        known: row.known,
        before: match row.was {
            Was::Withheld => Before::Withheld,
            Was::Advertised => Before::Advertised,
            Was::Leaving => Before::ShuttingDown { withdraw_at: now + Duration::from_secs(1) },
            Was::Left => Before::ShuttingDown { withdraw_at: now },
        },
        node: NodeFacts { stage: row.stage, has_bgp: row.has_bgp, barrier: row.barrier },
        selection: if row.selected { Ok(()) } else { Err(Reason::NotSelected) },
        members,
        proxy: ProxyFacts { health, stale, restart: RESTART },
        graceful_shutdown: if row.shutdown { SHUTDOWN } else { Duration::ZERO },
    }
}

fn decided(row: &Row, now: Instant) -> Expected {
    let members = [member(row, now)];
    let facts = facts(row, &members, now);
    match decide(&facts, now) {
        Decision::Advertise => Advertise,
        Decision::ShutDown { reason, withdraw_at } => {
            let expected = if row.was == Was::Leaving { Duration::from_secs(1) } else { SHUTDOWN };
            assert_eq!(withdraw_at, now + expected, "{row:?}");
            ShutDown(reason)
        }
        Decision::Withhold(reason) => Withhold(reason),
        Decision::Keep => Keep,
    }
}

/// The second evaluator. Each line is one sentence: *the node must not advertise, if …*
fn specification(row: &Row) -> Expected {
    let running = row.was != Was::Withheld;
    let api = row.known;
    // A packet that arrives has an endpoint, now or only while pods end.
    let somewhere = row.elsewhere != Elsewhere::None || matches!(row.here, Here::Ready | Here::Terminating);
    let served = match row.policy {
        Cluster => somewhere,
        Local => matches!(row.here, Here::Ready | Here::Terminating),
    };
    let mut fast: Vec<(u8, Reason)> = Vec::new();
    let mut slow: Vec<(u8, Reason)> = Vec::new();
    let mut unless = |order: u8, at_once: bool, reason: Reason, applies: bool| {
        if applies {
            if at_once { &mut fast } else { &mut slow }.push((order, reason));
        }
    };

    // The node takes part.
    unless(10, true, Reason::NodeDrained, row.stage == NodeStage::Withdrawn);
    unless(11, true, Reason::NoBgp, api && !row.has_bgp);
    unless(12, false, Reason::NodeExcluded, api && row.barrier == Some(NodeBarrier::Excluded));
    unless(12, false, Reason::NodeCordoned, api && row.barrier == Some(NodeBarrier::Cordoned));
    unless(12, false, Reason::NodeNotSelected, api && row.barrier == Some(NodeBarrier::NotSelected));
    // Somebody wants the address.
    unless(20, true, Reason::NotSelected, api && !row.selected);
    // An endpoint receives the packets.
    unless(30, true, Reason::NoEndpoint, !somewhere && row.here == Here::None);
    unless(30, true, Reason::NoHostRoute, !somewhere && row.here == Here::Unrouted);
    if somewhere && row.policy == Local {
        unless(31, false, Reason::Terminating, row.here == Here::Terminating);
        unless(31, true, Reason::NoHostRoute, row.here == Here::Unrouted);
        unless(31, !row.was_cluster, Reason::NoLocalEndpoint, row.here == Here::None);
    }
    // The service proxy's rules forward the packets.
    let absent = matches!(row.proxy, Proxy::Away(_) | Proxy::Expired | Proxy::Unknown);
    if somewhere {
        let negative = matches!(row.rules, Rules::Blocked | Rules::Missing);
        let writes = !running && !absent;
        unless(40, true, Reason::RulesBlock, running && negative);
        unless(40, true, Reason::NoRules, writes && (negative || row.rules == Rules::Lagging));
        unless(40, true, Reason::RulesLag, writes && row.rules == Rules::Unsettled);
    }
    // The rules are current.
    unless(50, true, Reason::ProxyDown, !running && absent);
    unless(50, true, Reason::ProxyDown, running && row.proxy == Proxy::Away(Stale::Gone));
    unless(
        50,
        false,
        Reason::ProxyDown,
        running && matches!(row.proxy, Proxy::Away(Stale::Changed) | Proxy::Expired),
    );
    unless(50, false, Reason::ProxyDown, row.proxy == Proxy::Unhealthy);
    unless(50, false, Reason::ProxyNotEligible, row.proxy == Proxy::NotEligible);

    if !api && !running {
        let drained = row.stage == NodeStage::Withdrawn;
        return Withhold(if drained { Reason::NodeDrained } else { Reason::NotKnown });
    }
    let first = fast.iter().chain(&slow).min_by_key(|(order, _)| *order).map(|(_, reason)| *reason);
    let Some(reason) = first else { return if api { Advertise } else { Keep } };
    assert!(served || !fast.is_empty() || row.was_cluster, "an undeliverable address stays: {row:?}");
    let time_left = match row.was {
        Was::Withheld | Was::Left => false,
        Was::Leaving => true,
        Was::Advertised => row.shutdown,
    };
    if fast.is_empty() && time_left { ShutDown(reason) } else { Withhold(reason) }
}

const RULES: [Rules; 6] =
    [Rules::Forwarded, Rules::Lagging, Rules::Blocked, Rules::Missing, Rules::Settled, Rules::Unsettled];
const PROXIES: [Proxy; 9] = [
    Proxy::Up,
    Proxy::Away(Stale::No),
    Proxy::Away(Stale::Changed),
    Proxy::Away(Stale::Gone),
    Proxy::Expired,
    Proxy::Unhealthy,
    Proxy::NotEligible,
    Proxy::NotChecked,
    Proxy::Unknown,
];
const BARRIERS: [Option<NodeBarrier>; 4] =
    [None, Some(NodeBarrier::Excluded), Some(NodeBarrier::Cordoned), Some(NodeBarrier::NotSelected)];
const STAGES: [NodeStage; 3] = [NodeStage::Active, NodeStage::Announcing, NodeStage::Withdrawn];

/// Calls `check` with every combination.
fn every_row(mut check: impl FnMut(&Row)) {
    let endpoints = || {
        let here = [Here::None, Here::Ready, Here::Terminating, Here::Unrouted];
        let elsewhere = [Elsewhere::None, Elsewhere::Ready, Elsewhere::Terminating];
        here.into_iter().flat_map(move |here| elsewhere.map(|elsewhere| (here, elsewhere)))
    };
    for (policy, was_cluster) in [(Cluster, false), (Local, false), (Local, true)] {
        for (here, elsewhere) in endpoints() {
            for (stage, barrier) in
                STAGES.into_iter().flat_map(|stage| BARRIERS.map(|barrier| (stage, barrier)))
            {
                for (rules, proxy) in RULES.into_iter().flat_map(|rules| PROXIES.map(|proxy| (rules, proxy)))
                {
                    for was in [Was::Withheld, Was::Advertised, Was::Leaving, Was::Left] {
                        for flags in 0..16 {
                            let flag = |bit: u32| flags & (1 << bit) != 0;
                            check(&Row {
                                policy,
                                was_cluster,
                                here,
                                elsewhere,
                                stage,
                                has_bgp: flag(0),
                                barrier,
                                selected: flag(1),
                                rules,
                                proxy,
                                known: flag(2),
                                was,
                                shutdown: flag(3),
                            });
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_combination_follows_the_specification() {
    let now = Instant::now() + 2 * RESTART;
    let mut rows = 0;
    every_row(|row| {
        assert_eq!(decided(row, now), specification(row), "{row:?}");
        rows += 1;
    });
    assert_eq!(rows, 3 * 12 * 12 * 54 * 4 * 16);
}

/// A decision changes by itself only at the time that `wakes_at` returns.
#[tokio::test(start_paused = true)]
async fn the_deadline_is_the_next_time_of_a_change() {
    let now = Instant::now() + 2 * RESTART;
    every_row(|row| {
        let members = [member(row, now)];
        let facts = facts(row, &members, now);
        let decision = decide(&facts, now);
        let wake = wakes_at(&facts, decision, now);
        // The task records a graceful shutdown before it decides again.
        let later = match decision {
            Decision::ShutDown { withdraw_at, .. } => {
                AddressFacts { before: Before::ShuttingDown { withdraw_at }, ..facts }
            }
            _ => facts,
        };
        let until = wake.unwrap_or(now + 10 * RESTART);
        assert!(until > now, "{row:?}");
        assert_eq!(decide(&later, until - Duration::from_nanos(1)), decision, "{row:?}");
    });
}

/// Rows for a reader: the combination, and the decision.
#[tokio::test(start_paused = true)]
async fn named_rows() {
    let now = Instant::now() + 2 * RESTART;
    let local = Row { policy: Local, here: Here::Ready, ..GOOD };
    let running = Row { was: Was::Advertised, ..GOOD };
    let local_running = Row { was: Was::Advertised, ..local };
    let restarted = Row { known: false, was: Was::Advertised, ..GOOD };
    let (none, terminating) = (Elsewhere::None, Elsewhere::Terminating);
    let table = [
        // Endpoints, policy Cluster.
        ("ready elsewhere", GOOD, Advertise),
        ("ready here only", Row { here: Here::Ready, elsewhere: none, ..GOOD }, Advertise),
        ("no endpoint", Row { elsewhere: none, ..running }, Withhold(Reason::NoEndpoint)),
        ("every endpoint terminates", Row { elsewhere: terminating, ..running }, Advertise),
        // Endpoints, policy Local.
        ("Local, ready here", local, Advertise),
        (
            "Local, ready elsewhere only",
            Row { here: Here::None, ..local_running },
            Withhold(Reason::NoLocalEndpoint),
        ),
        (
            "Local, the last one here terminates",
            Row { here: Here::Terminating, ..local_running },
            ShutDown(Reason::Terminating),
        ),
        (
            "… 5 s later",
            Row { here: Here::Terminating, was: Was::Left, ..local },
            Withhold(Reason::Terminating),
        ),
        (
            "… and was never advertised",
            Row { here: Here::Terminating, ..local },
            Withhold(Reason::Terminating),
        ),
        (
            "… with gracefulShutdownSeconds 0",
            Row { here: Here::Terminating, shutdown: false, ..local_running },
            Withhold(Reason::Terminating),
        ),
        (
            "Local, the pod's host route is gone",
            Row { here: Here::Unrouted, ..local_running },
            Withhold(Reason::NoHostRoute),
        ),
        (
            "Local since a moment ago, rules still forward",
            Row { here: Here::None, was_cluster: true, ..local_running },
            ShutDown(Reason::NoLocalEndpoint),
        ),
        (
            "Local since a moment ago, rules block",
            Row { here: Here::None, was_cluster: true, rules: Rules::Blocked, ..local_running },
            Withhold(Reason::NoLocalEndpoint),
        ),
        // The node.
        ("excluded", Row { barrier: Some(NodeBarrier::Excluded), ..running }, ShutDown(Reason::NodeExcluded)),
        (
            "excluded from the start",
            Row { barrier: Some(NodeBarrier::Excluded), ..GOOD },
            Withhold(Reason::NodeExcluded),
        ),
        (
            "cordoned, and the advertisement withdraws",
            Row { barrier: Some(NodeBarrier::Cordoned), ..running },
            ShutDown(Reason::NodeCordoned),
        ),
        (
            "cordoned, and the endpoints are gone too",
            Row { barrier: Some(NodeBarrier::Cordoned), elsewhere: none, ..running },
            Withhold(Reason::NodeCordoned),
        ),
        ("a drain announces", Row { stage: NodeStage::Announcing, ..running }, Advertise),
        ("drained", Row { stage: NodeStage::Withdrawn, ..running }, Withhold(Reason::NodeDrained)),
        ("no BGP network", Row { has_bgp: false, ..running }, Withhold(Reason::NoBgp)),
        // Selection.
        (
            "no advertisement selects the Service",
            Row { selected: false, ..running },
            Withhold(Reason::NotSelected),
        ),
        // Rules of the service proxy.
        (
            "kube-proxy never started",
            Row { rules: Rules::Missing, proxy: Proxy::Away(Stale::No), ..GOOD },
            Withhold(Reason::ProxyDown),
        ),
        ("rules are missing yet", Row { rules: Rules::Missing, ..GOOD }, Withhold(Reason::NoRules)),
        ("rules block yet", Row { rules: Rules::Blocked, ..GOOD }, Withhold(Reason::NoRules)),
        ("rules were flushed", Row { rules: Rules::Missing, ..running }, Withhold(Reason::RulesBlock)),
        ("a new port has no rules yet", Row { rules: Rules::Lagging, ..running }, Advertise),
        (
            "rules cannot be seen, a moment ago",
            Row { rules: Rules::Unsettled, ..GOOD },
            Withhold(Reason::RulesLag),
        ),
        ("rules cannot be seen, for a while", Row { rules: Rules::Settled, ..GOOD }, Advertise),
        ("rules cannot be seen, endpoints change", Row { rules: Rules::Unsettled, ..running }, Advertise),
        // Health of the service proxy.
        ("kube-proxy ended just now", Row { proxy: Proxy::Away(Stale::No), ..running }, Advertise),
        (
            "… and endpoints changed",
            Row { proxy: Proxy::Away(Stale::Changed), ..running },
            ShutDown(Reason::ProxyDown),
        ),
        (
            "… and no known endpoint is left here",
            Row { proxy: Proxy::Away(Stale::Gone), ..local_running },
            Withhold(Reason::ProxyDown),
        ),
        ("… 60 s ago", Row { proxy: Proxy::Expired, ..running }, ShutDown(Reason::ProxyDown)),
        (
            "… and the address is new",
            Row { proxy: Proxy::Away(Stale::No), ..GOOD },
            Withhold(Reason::ProxyDown),
        ),
        ("kube-proxy is unhealthy", Row { proxy: Proxy::Unhealthy, ..running }, ShutDown(Reason::ProxyDown)),
        (
            "the autoscaler deletes the node",
            Row { proxy: Proxy::NotEligible, ..running },
            ShutDown(Reason::ProxyNotEligible),
        ),
        ("… and changed its mind", Row { was: Was::Leaving, ..GOOD }, Advertise),
        ("proxy.kind is none", Row { proxy: Proxy::NotChecked, rules: Rules::Settled, ..GOOD }, Advertise),
        // The restart of the agent.
        ("the API server is away", restarted, Keep),
        (
            "… and the rules are gone",
            Row { rules: Rules::Missing, ..restarted },
            Withhold(Reason::RulesBlock),
        ),
        (
            "… and the pod is gone",
            Row { known: false, here: Here::Unrouted, ..local_running },
            Withhold(Reason::NoHostRoute),
        ),
        (
            "… and the node is drained",
            Row { stage: NodeStage::Withdrawn, ..restarted },
            Withhold(Reason::NodeDrained),
        ),
        ("… and the address is new", Row { known: false, ..GOOD }, Withhold(Reason::NotKnown)),
        (
            "… and the cluster excludes the node",
            Row { barrier: Some(NodeBarrier::Excluded), ..restarted },
            Keep,
        ),
    ];
    for (name, row, expected) in table {
        assert_eq!(decided(&row, now), expected, "{name}");
    }
}

/// Several Services with one address, or a Service with several ports.
#[tokio::test(start_paused = true)]
async fn every_served_port_must_pass() {
    let now = Instant::now() + 2 * RESTART;
    let good = member(&GOOD, now);
    let unserved = MemberFacts { any_ready: false, rules: MemberRules::Blocked, ..good };
    let elsewhere = MemberFacts { policy: Local, ..good };
    let terminating = MemberFacts { local_terminating: 1, ..elsewhere };
    let blocked = MemberFacts { rules: MemberRules::Blocked, ..good };
    let table: [(&[MemberFacts], Expected); 7] = [
        (&[good, unserved], Advertise),
        (&[unserved, unserved], Withhold(Reason::NoEndpoint)),
        (&[], Withhold(Reason::NoEndpoint)),
        (&[good, elsewhere], Withhold(Reason::NoLocalEndpoint)),
        (&[good, terminating], ShutDown(Reason::Terminating)),
        (&[terminating, elsewhere], Withhold(Reason::NoLocalEndpoint)),
        (&[terminating, blocked], Withhold(Reason::Terminating)),
    ];
    for (members, expected) in table {
        let row = Row { was: Was::Advertised, ..GOOD };
        let decision = match decide(&facts(&row, members, now), now) {
            Decision::Advertise => Advertise,
            Decision::ShutDown { reason, .. } => ShutDown(reason),
            Decision::Withhold(reason) => Withhold(reason),
            Decision::Keep => Keep,
        };
        assert_eq!(decision, expected, "{members:?}");
    }
}
