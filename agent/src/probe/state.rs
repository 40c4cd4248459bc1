//! The state of one check of one router, computed from the probe results: unproven, good or
//! failing.

use tokio::time::Instant;

/// Number of consecutive losses after which a check fails.
pub(super) const LOSSES: u32 = 3;
/// Number of consecutive answers after which a failing check is good again.
pub(super) const ANSWERS: u32 = 3;

/// The state of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No probe has returned since the check began, and no other result shows that this router
    /// returns probes.
    Unproven,
    /// Probes return.
    Good,
    /// [`LOSSES`] probes in a row were lost.
    Failing,
}

/// A check.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) state: State,
    pub(super) since: Instant,
    pub(super) sent: u64,
    pub(super) lost: u64,
    /// Number of consecutive results that contradict `state`.
    against: u32,
}

impl Check {
    pub(super) fn new(now: Instant) -> Check {
        Check { state: State::Unproven, since: now, sent: 0, lost: 0, against: 0 }
    }

    /// Handles one result. `expected`: the check should pass, because it passes through another
    /// router, or because smaller packets pass. An unproven check can fail only if `expected` is
    /// true: in some networks the routers never return a probe.
    pub(super) fn handle(&mut self, answered: bool, expected: bool, now: Instant) {
        self.sent += 1;
        self.lost += u64::from(!answered);
        let (limit, next) = match (self.state, answered) {
            (State::Unproven, true) => (1, State::Good),
            (State::Unproven, false) if expected => (LOSSES, State::Failing),
            (State::Good, false) => (LOSSES, State::Failing),
            (State::Failing, true) => (ANSWERS, State::Good),
            (State::Unproven | State::Failing, false) | (State::Good, true) => {
                self.against = 0;
                return;
            }
        };
        self.against += 1;
        if self.against >= limit {
            (self.state, self.since, self.against) = (next, now, 0);
        }
    }

    /// Whether the last result contradicts `state`. If so, the next probe is sent early.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.against > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(results: &[(bool, bool)]) -> State {
        let now = Instant::now();
        let mut check = Check::new(now);
        results.iter().for_each(|(answered, expected)| check.handle(*answered, *expected, now));
        check.state
    }

    const LOST: (bool, bool) = (false, false);
    const EXPECTED: (bool, bool) = (false, true);
    const ANSWER: (bool, bool) = (true, false);

    #[test]
    fn three_losses_in_a_row_fail_and_three_answers_recover() {
        assert_eq!(after(&[ANSWER, LOST, LOST]), State::Good);
        assert_eq!(after(&[ANSWER, LOST, LOST, ANSWER, LOST, LOST]), State::Good, "not in a row");
        assert_eq!(after(&[ANSWER, LOST, LOST, LOST]), State::Failing);
        assert_eq!(after(&[ANSWER, LOST, LOST, LOST, ANSWER, ANSWER]), State::Failing);
        assert_eq!(after(&[ANSWER, LOST, LOST, LOST, ANSWER, ANSWER, LOST, ANSWER, ANSWER]), State::Failing);
        assert_eq!(after(&[ANSWER, LOST, LOST, LOST, ANSWER, ANSWER, ANSWER]), State::Good);
    }

    #[test]
    fn a_check_that_never_passed_fails_only_where_it_should_pass() {
        assert_eq!(after(&[LOST; 100]), State::Unproven);
        assert_eq!(after(&[EXPECTED, EXPECTED, LOST, EXPECTED, EXPECTED]), State::Unproven);
        assert_eq!(after(&[LOST, EXPECTED, EXPECTED, EXPECTED]), State::Failing);
    }

    #[test]
    fn a_check_is_in_doubt_only_between_two_states() {
        let now = Instant::now();
        let mut check = Check::new(now);
        for (answered, in_doubt) in [
            (true, false),
            (false, true),
            (false, true),
            (false, false),
            (false, false),
            (true, true),
            (false, false),
        ] {
            check.handle(answered, false, now);
            assert_eq!(check.is_in_doubt(), in_doubt, "{check:?}");
        }
        assert_eq!((check.sent, check.lost), (7, 5));
    }
}
