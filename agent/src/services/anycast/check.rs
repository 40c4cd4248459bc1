//! The state of an anycast address on this node: a pure function of check results, the plan, the
//! paths of other holders, and the time.
//!
//! ```text
//!                 rise passes                 fall failures, keepLast
//!   Withheld ───────────────────► Advertised ─────────────────────────► Yielding ──► Kept
//!     ▲  ▲                         │      ▲                              │  │  ▲      │
//!     │  └─ fall failures ─────────┘      └───────── rise passes ────────┘  │  └──────┘
//!     └──────────────────── another holder advertises the address ──────────┘  another holder
//! ```
//!
//! An object that is deleted, or that no longer selects this node, goes from any advertised state
//! through `Leaving` to `Withheld`. `Yielding`, `Kept` and `Leaving` advertise with
//! GRACEFUL_SHUTDOWN (RFC 8326).
//!
//! **`keepLast`.** Paths of healthy holders have a mark ([`super::HolderMark`]). A node whose check
//! fails first advertises without its mark and with GRACEFUL_SHUTDOWN. Routers then prefer another
//! holder, and advertise that holder's path to this node. If the path has a mark, this node
//! withdraws. If there is none after the time of the graceful shutdown, this node keeps its path.
//! Two holders that fail in one moment still receive each other's old paths, and both would
//! withdraw. So the holder with the lowest mark waits for the whole time, and the other one is
//! gone by then. This holds if a path takes less than half of that time from one to the other.

use std::time::Duration;

use tokio::time::Instant;

/// The limits of a check and the behaviour after its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderSettings {
    /// Passed checks in a row after which an address is healthy.
    pub rise: u32,
    /// Failed checks in a row after which an address is unhealthy.
    pub fall: u32,
    /// Whether the last holder keeps its addresses advertised.
    pub keep_last: bool,
    /// The time between GRACEFUL_SHUTDOWN and withdrawal.
    pub graceful_shutdown: Duration,
}

/// The health of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// No check has a result yet.
    Unknown,
    /// The last run advertised the address, and its check has not passed since. One passed check
    /// confirms the address; as many failures as usual withdraw it.
    Retained,
    /// It receives traffic.
    Healthy,
    /// It receives none.
    Unhealthy,
}

/// Counts the results of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCounter {
    health: Health,
    /// Number of consecutive results that contradict `health`.
    against: u32,
}

impl HealthCounter {
    /// A counter without results.
    pub fn new(health: Health) -> HealthCounter {
        HealthCounter { health, against: 0 }
    }

    /// The health after the results so far.
    pub fn health(&self) -> Health {
        self.health
    }

    /// Handles one result. Returns whether the health changed.
    pub fn record(&mut self, passed: bool, settings: &HolderSettings) -> bool {
        let (limit, next) = match (self.health, passed) {
            (Health::Retained, true) => (1, Health::Healthy),
            (Health::Unknown, false) => (1, Health::Unhealthy),
            (Health::Unknown | Health::Unhealthy, true) => (settings.rise, Health::Healthy),
            // A restart must not make one slow answer a withdrawal.
            (Health::Healthy | Health::Retained, false) => (settings.fall, Health::Unhealthy),
            (Health::Healthy, true) | (Health::Unhealthy, false) => {
                self.against = 0;
                return false;
            }
        };
        self.against += 1;
        if self.against < limit {
            return false;
        }
        (self.health, self.against) = (next, 0);
        true
    }
}

/// Paths of other healthy holders in the Adj-RIB-In.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// They were not read.
    #[default]
    NotRead,
    /// No peer advertises such a path.
    None,
    /// Some holder has a path.
    Some {
        /// Whether the mark of this node is lower than the marks of all of them.
        own_is_lowest: bool,
    },
}

/// The inputs of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderFacts {
    /// Whether the plan has the address.
    pub planned: bool,
    /// Its health.
    pub health: Health,
    /// Other holders.
    pub others: Others,
}

/// The state of an address on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// Not advertised.
    Withheld,
    /// Advertised.
    Advertised,
    /// The check fails, and `keepLast` is set: advertised with GRACEFUL_SHUTDOWN until another
    /// holder has a path, or until the end of the graceful shutdown.
    Yielding {
        /// The end of the graceful shutdown.
        until: Instant,
    },
    /// The check fails, and no other holder has a path: advertised with GRACEFUL_SHUTDOWN.
    Kept,
    /// The plan no longer has the address: advertised with GRACEFUL_SHUTDOWN.
    Leaving {
        /// The time of the withdrawal.
        until: Instant,
    },
}

impl HolderState {
    /// Whether the address is advertised.
    pub fn is_advertised(&self) -> bool {
        *self != HolderState::Withheld
    }

    /// Whether the address is advertised with GRACEFUL_SHUTDOWN.
    pub fn is_shutting_down(&self) -> bool {
        !matches!(self, HolderState::Withheld | HolderState::Advertised)
    }

    /// Whether the next decision needs the paths of other holders.
    pub fn needs_others(&self) -> bool {
        matches!(self, HolderState::Yielding { .. } | HolderState::Kept)
    }

    /// The time of the next decision without another input.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            HolderState::Yielding { until } | HolderState::Leaving { until } => Some(*until),
            HolderState::Withheld | HolderState::Advertised | HolderState::Kept => None,
        }
    }

    /// The next state.
    #[must_use]
    pub fn next(self, facts: &HolderFacts, settings: &HolderSettings, now: Instant) -> HolderState {
        let end = now + settings.graceful_shutdown;
        if !facts.planned {
            return match self {
                HolderState::Withheld => HolderState::Withheld,
                HolderState::Leaving { until } if now >= until => HolderState::Withheld,
                HolderState::Leaving { until } => HolderState::Leaving { until },
                _ if settings.graceful_shutdown.is_zero() => HolderState::Withheld,
                _ => HolderState::Leaving { until: end },
            };
        }
        match facts.health {
            // A corrected check has no result yet: the last holder stays.
            Health::Unknown if settings.keep_last && self.needs_others() => HolderState::Kept,
            Health::Unknown => HolderState::Withheld,
            Health::Healthy | Health::Retained => HolderState::Advertised,
            Health::Unhealthy if !settings.keep_last => HolderState::Withheld,
            Health::Unhealthy => self.after_failure(facts.others, end, now),
        }
    }

    /// The next state of an unhealthy address with `keepLast`. `end`: the end of a graceful
    /// shutdown that begins now.
    fn after_failure(self, others: Others, end: Instant, now: Instant) -> HolderState {
        let yielding = match self {
            HolderState::Withheld => return HolderState::Withheld,
            HolderState::Yielding { until } => HolderState::Yielding { until },
            HolderState::Kept if matches!(others, Others::Some { .. }) => {
                HolderState::Yielding { until: end }
            }
            HolderState::Kept => return HolderState::Kept,
            // Paths that were read before the graceful shutdown prove nothing.
            HolderState::Advertised | HolderState::Leaving { .. } => {
                return HolderState::Yielding { until: end };
            }
        };
        let is_over = yielding.deadline().is_some_and(|until| now >= until);
        match others {
            Others::Some { own_is_lowest: false } => HolderState::Withheld,
            Others::Some { own_is_lowest: true } if is_over => HolderState::Withheld,
            Others::None if is_over => HolderState::Kept,
            _ => yielding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: HolderSettings =
        HolderSettings { rise: 2, fall: 3, keep_last: false, graceful_shutdown: Duration::from_secs(5) };
    const KEEP_LAST: HolderSettings = HolderSettings { keep_last: true, ..SETTINGS };

    /// The health after each of these results: `+` passed, `-` failed.
    fn healths(begin: Health, results: &str) -> Vec<Health> {
        let mut counter = HealthCounter::new(begin);
        let one = |result: char| {
            let before = counter.health();
            let changed = counter.record(result == '+', &SETTINGS);
            assert_eq!(changed, before != counter.health());
            counter.health()
        };
        results.chars().map(one).collect()
    }

    #[test]
    fn rise_and_fall_count_consecutive_results() {
        use Health::{Healthy, Retained, Unhealthy, Unknown};
        for (begin, results, last) in [
            (Unknown, "+", Unknown),
            (Unknown, "++", Healthy),
            (Unknown, "-", Unhealthy),
            (Unknown, "+-+", Unhealthy),
            (Unknown, "+-++", Healthy),
            (Retained, "+", Healthy),
            (Retained, "--", Retained),
            (Retained, "--+", Healthy),
            (Retained, "---", Unhealthy),
            (Healthy, "--", Healthy),
            (Healthy, "---", Unhealthy),
            (Healthy, "--+--", Healthy),
            (Healthy, "--+---", Unhealthy),
            (Unhealthy, "+", Unhealthy),
            (Unhealthy, "+-+-+", Unhealthy),
            (Unhealthy, "-++", Healthy),
            (Unhealthy, "++--", Healthy),
        ] {
            assert_eq!(healths(begin, results).last(), Some(&last), "{begin:?} {results}");
        }
    }

    /// A second of the test.
    fn at(begin: Instant, seconds: u64) -> Instant {
        begin + Duration::from_secs(seconds)
    }

    fn facts(planned: bool, health: Health, others: Others) -> HolderFacts {
        HolderFacts { planned, health, others }
    }

    const LOWEST: Others = Others::Some { own_is_lowest: true };
    const HIGHER: Others = Others::Some { own_is_lowest: false };

    #[tokio::test]
    async fn every_state_follows_from_health_plan_and_other_holders() {
        use Health::{Healthy, Retained, Unhealthy, Unknown};
        use HolderState::{Advertised, Kept, Leaving, Withheld, Yielding};
        let begin = Instant::now();
        let (now, end) = (at(begin, 10), at(begin, 15));
        let (before, over) = (at(begin, 12), at(begin, 10));
        let yielding = |until| Yielding { until };
        let leaving = |until| Leaving { until };
        let rows = [
            // Without keepLast: the check decides at once.
            (SETTINGS, Withheld, facts(true, Unknown, Others::NotRead), Withheld),
            (SETTINGS, Withheld, facts(true, Retained, Others::NotRead), Advertised),
            (SETTINGS, Withheld, facts(true, Healthy, Others::NotRead), Advertised),
            (SETTINGS, Withheld, facts(true, Unhealthy, Others::NotRead), Withheld),
            (SETTINGS, Advertised, facts(true, Healthy, Others::NotRead), Advertised),
            (SETTINGS, Advertised, facts(true, Unhealthy, Others::NotRead), Withheld),
            (SETTINGS, Advertised, facts(true, Unhealthy, HIGHER), Withheld),
            // A changed check begins without a result.
            (SETTINGS, Advertised, facts(true, Unknown, Others::NotRead), Withheld),
            (KEEP_LAST, Kept, facts(true, Unknown, Others::NotRead), Kept),
            (KEEP_LAST, yielding(before), facts(true, Unknown, Others::NotRead), Kept),
            (KEEP_LAST, Advertised, facts(true, Unknown, Others::NotRead), Withheld),
            (SETTINGS, Kept, facts(true, Unknown, Others::NotRead), Withheld),
            // Not in the plan.
            (SETTINGS, Withheld, facts(false, Healthy, Others::NotRead), Withheld),
            (SETTINGS, Advertised, facts(false, Healthy, Others::NotRead), leaving(end)),
            (SETTINGS, Advertised, facts(false, Unhealthy, Others::NotRead), leaving(end)),
            (SETTINGS, leaving(before), facts(false, Healthy, Others::NotRead), leaving(before)),
            (SETTINGS, leaving(over), facts(false, Healthy, Others::NotRead), Withheld),
            (SETTINGS, leaving(before), facts(true, Healthy, Others::NotRead), Advertised),
            (SETTINGS, leaving(before), facts(true, Unhealthy, Others::NotRead), Withheld),
            (KEEP_LAST, yielding(before), facts(false, Unhealthy, Others::None), leaving(end)),
            (KEEP_LAST, Kept, facts(false, Unhealthy, Others::None), leaving(end)),
            // With keepLast: GRACEFUL_SHUTDOWN first.
            (KEEP_LAST, Withheld, facts(true, Unhealthy, Others::None), Withheld),
            (KEEP_LAST, Advertised, facts(true, Unhealthy, Others::NotRead), yielding(end)),
            (KEEP_LAST, Advertised, facts(true, Unhealthy, HIGHER), yielding(end)),
            (KEEP_LAST, leaving(before), facts(true, Unhealthy, Others::None), yielding(end)),
            (KEEP_LAST, yielding(before), facts(true, Healthy, HIGHER), Advertised),
            (KEEP_LAST, yielding(before), facts(true, Unhealthy, Others::NotRead), yielding(before)),
            (KEEP_LAST, yielding(before), facts(true, Unhealthy, Others::None), yielding(before)),
            (KEEP_LAST, yielding(before), facts(true, Unhealthy, HIGHER), Withheld),
            (KEEP_LAST, yielding(before), facts(true, Unhealthy, LOWEST), yielding(before)),
            (KEEP_LAST, yielding(over), facts(true, Unhealthy, Others::NotRead), yielding(over)),
            (KEEP_LAST, yielding(over), facts(true, Unhealthy, Others::None), Kept),
            (KEEP_LAST, yielding(over), facts(true, Unhealthy, LOWEST), Withheld),
            (KEEP_LAST, Kept, facts(true, Unhealthy, Others::NotRead), Kept),
            (KEEP_LAST, Kept, facts(true, Unhealthy, Others::None), Kept),
            (KEEP_LAST, Kept, facts(true, Unhealthy, HIGHER), Withheld),
            (KEEP_LAST, Kept, facts(true, Unhealthy, LOWEST), yielding(end)),
            (KEEP_LAST, Kept, facts(true, Healthy, Others::NotRead), Advertised),
        ];
        for (settings, state, facts, next) in rows {
            assert_eq!(state.next(&facts, &settings, now), next, "{state:?} {facts:?} {settings:?}");
        }
        let hasty = HolderSettings { graceful_shutdown: Duration::ZERO, ..SETTINGS };
        assert_eq!(Advertised.next(&facts(false, Healthy, Others::NotRead), &hasty, now), Withheld);
    }

    /// Two holders that receive each other's paths late: one of them stays advertised.
    #[tokio::test]
    async fn the_last_holder_stays_advertised_whatever_the_delay() {
        let begin = Instant::now();
        for (delay, failure) in (0..3).flat_map(|delay| (0..20).map(move |second| (delay, second))) {
            let mut history: Vec<[HolderState; 2]> = vec![[HolderState::Advertised; 2]];
            for second in 1..40_u64 {
                let seen = &history[history.len().saturating_sub(1 + delay)];
                let now = history[history.len() - 1];
                let next = [0, 1].map(|own: usize| {
                    let health = match second >= [3, failure][own] {
                        true => Health::Unhealthy,
                        false => Health::Healthy,
                    };
                    let others = match seen[1 - own] {
                        HolderState::Advertised => Others::Some { own_is_lowest: own == 0 },
                        _ => Others::None,
                    };
                    now[own].next(&facts(true, health, others), &KEEP_LAST, at(begin, second))
                });
                assert!(
                    next.iter().any(HolderState::is_advertised),
                    "second {second}: delay {delay}, the other fails at {failure}"
                );
                history.push(next);
            }
        }
    }
}
