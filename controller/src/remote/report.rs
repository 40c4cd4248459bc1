//! The reports about a plan: events, and the texts of conditions, with their bounds.

use std::collections::BTreeMap;

use trunkline_api::kept;

use super::pace::{OCTETS, WRITES};
use super::plan::Plan;
use super::status::MAX_CONDITION;
use crate::events::reason;

/// Most events of a plan about refused subnets.
const EVENTS: usize = 20;

/// An event: its reason and its text.
pub(super) type Report = (&'static str, String);

/// The faults that have an event.
#[derive(Default)]
pub(super) struct Reported {
    /// Refused subnets, with the reason.
    subnets: BTreeMap<String, String>,
    /// Objects above a limit or a bound, and changes above the pace.
    size: Option<String>,
}

impl Reported {
    /// The events of the faults that have none yet.
    pub(super) fn events(&self, plan: &Plan, size: Option<&str>) -> Vec<Report> {
        let size = size.filter(|size| self.size.as_deref() != Some(*size));
        let mut events: Vec<Report> =
            size.into_iter().map(|size| (reason::REMOTE_CLUSTER, size.to_owned())).collect();
        let mut new = plan.refused.iter().filter(|(name, why)| self.subnets.get(*name) != Some(why));
        let text = |(name, why): (&String, &String)| format!("Subnet {name} is not mirrored: {why}");
        events.extend(new.by_ref().take(EVENTS).map(|one| (reason::REMOTE_SUBNET_REFUSED, text(one))));
        match new.count() {
            0 => {}
            more => events.push((
                reason::REMOTE_SUBNET_REFUSED,
                format!("{more} more Subnets are not mirrored: the condition SubnetNonCross has reasons"),
            )),
        }
        events
    }

    /// Remembers the faults of a plan.
    pub(super) fn remember(&mut self, plan: &Plan, size: Option<&str>) {
        self.size = size.map(str::to_owned);
        self.subnets.clone_from(&plan.refused);
    }
}

/// The text about all refused subnets; empty if there is none.
pub(super) fn refused(plan: &Plan) -> String {
    let all: Vec<String> = plan.refused.iter().map(|(name, why)| format!("Subnet {name}: {why}")).collect();
    kept::join(&all, MAX_CONDITION)
}

/// The text about limits, bounds and pace; none without a fault.
pub(super) fn size(plan: &Plan, is_too_fast: bool) -> Option<String> {
    // Without a number: the text changes only with the fault.
    let pace = is_too_fast.then(|| {
        format!(
            "its objects change faster than the controller writes them ({WRITES} objects and {} MiB in a second): \
             find the program there that changes them",
            OCTETS >> 20
        )
    });
    let texts: Vec<String> = pace.into_iter().chain(plan.size_fault.clone()).collect();
    (!texts.is_empty()).then(|| kept::join(&texts, MAX_CONDITION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_texts_about_many_subnets_are_bounded() {
        let refused_subnets = (0..2_000).map(|number| (format!("s{number:04}"), "x".repeat(900))).collect();
        let plan = Plan { refused: refused_subnets, ..Plan::default() };
        let mut reported = Reported::default();
        let events = reported.events(&plan, None);
        assert_eq!(events.len(), EVENTS + 1);
        assert!(events[EVENTS].1.starts_with("1980 more Subnets"), "{events:?}");
        let text = refused(&plan);
        assert!(text.len() < MAX_CONDITION + 100 && text.ends_with(" more faults"), "{}", text.len());
        reported.remember(&plan, None);
        assert!(reported.events(&plan, None).is_empty());
        assert_eq!(refused(&Plan::default()), "");
    }

    #[test]
    fn faults_of_size_have_one_event() {
        let plan = Plan { size_fault: Some("more than 1 Networks".to_owned()), ..Plan::default() };
        let text = size(&plan, true).unwrap();
        assert!(text.contains("50 objects and 1 MiB") && text.ends_with("; more than 1 Networks"), "{text}");
        assert_eq!(size(&Plan::default(), false), None);
        let mut reported = Reported::default();
        assert_eq!(reported.events(&plan, Some(&text)).len(), 1);
        reported.remember(&plan, Some(&text));
        assert_eq!(reported.events(&plan, Some(&text)).len(), 0);
        assert_eq!(reported.events(&plan, Some("other")).len(), 1);
    }
}
