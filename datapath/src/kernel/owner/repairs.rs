//! Repairs of changes by other programs, by kind, and the owner's status.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::PoisonError;

use super::reason::Reason;
use super::{GuardStatus, Owner};

/// A kind of object that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairKind {
    /// A route.
    Route,
    /// A policy rule.
    Rule,
    /// A permanent neighbour entry or a proxy entry.
    Neighbour,
    /// A pod's link.
    Link,
    /// A forwarding entry of a tunnel.
    Forwarding,
    /// An nftables table.
    Table,
    /// A setting below `/proc/sys`.
    Sysctl,
    /// An address of the host.
    Address,
}

/// Number of repairs of one kind since the start, and the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Count {
    number: u64,
    last: String,
}

/// All repairs since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs(BTreeMap<RepairKind, Count>);

impl RepairKind {
    fn name(self, number: u64) -> &'static str {
        let (one, several) = match self {
            RepairKind::Route => ("route", "routes"),
            RepairKind::Rule => ("rule", "rules"),
            RepairKind::Neighbour => ("neighbour", "neighbours"),
            RepairKind::Link => ("link", "links"),
            RepairKind::Forwarding => ("forwarding entry", "forwarding entries"),
            RepairKind::Table => ("nftables table", "nftables tables"),
            RepairKind::Sysctl => ("sysctl", "sysctls"),
            RepairKind::Address => ("address", "addresses"),
        };
        if number == 1 { one } else { several }
    }
}

impl Repairs {
    /// Adds repairs of one kind; `last` names the last object.
    pub fn add(&mut self, what: RepairKind, number: u64, last: impl Display) {
        let count = self.0.entry(what).or_default();
        count.number += number;
        count.last = last.to_string();
    }

    /// The number of repairs.
    pub fn total(&self) -> u64 {
        self.0.values().map(|count| count.number).sum()
    }

    /// The repairs since `before`, as text.
    pub fn since(&self, before: &Repairs) -> Option<String> {
        let newer = self.0.iter().filter_map(|(what, count)| {
            let known = before.0.get(what).map_or(0, |known| known.number);
            let number = count.number.checked_sub(known).filter(|number| *number > 0)?;
            let last = if number == 1 { "" } else { "last " };
            Some(format!("{number} {} ({last}{})", what.name(number), count.last))
        });
        let newer: Vec<String> = newer.collect();
        (!newer.is_empty()).then(|| format!("changed by others and restored: {}", newer.join(", ")))
    }
}

impl Owner {
    /// Records repairs of one kind.
    pub(super) fn repaired(&mut self, what: RepairKind, number: u64, last: impl Display) {
        if number > 0 {
            self.repairs.add(what, number, last);
        }
    }

    pub(super) fn fault(&mut self, reason: Reason, error: impl Display) {
        let text = error.to_string();
        tracing::warn!("{text}");
        self.last_error = Some(text.clone());
        *self.errors.entry(reason.word()).or_default() += 1;
        if self.faults.len() < 64 {
            self.faults.push(text);
        }
    }

    pub(super) fn report(&mut self) {
        let repairs = self.repairs.total();
        let mut status = self.channels.status.lock().unwrap_or_else(PoisonError::into_inner);
        let repaired = status.repairs != repairs;
        status.repairs = repairs;
        status.rescans = self.rescans;
        status.routes = self.routes.len();
        status.installed = self.routes.installed();
        status.errors.clone_from(&self.errors);
        status.stale_routes = self.found.len();
        status.rules = self.rules.len();
        status.forwarding = self.forwarding;
        status.pods = self.pods.len();
        status.last_error.clone_from(&self.last_error);
        status.ways_out = self.plan.way_out.into_iter().flat_map(|table| self.ways_out(table)).collect();
        status.alternate_paths = !self.plan.alternate.is_empty();
        status.unassigned = !self.plan.unassigned.is_empty();
        status.guard = GuardStatus {
            enabled: if self.planned { self.plan.guard.enabled } else { self.guards },
            in_force: self.guard.is_in_force() || self.guard.has_last_run(),
            repairs: self.guard_repairs,
            fault: self.guard_fault.clone(),
        };
        status.policies = self.policies.status();
        drop(status);
        if repaired {
            self.channels.repairs.send_replace(self.repairs.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_counted_by_kind_since_the_last_report() {
        let mut repairs = Repairs::default();
        assert_eq!(repairs.since(&Repairs::default()), None);
        repairs.add(RepairKind::Rule, 1, "priority 1000");
        repairs.add(RepairKind::Route, 1, "10.0.0.1/32 in table 39999");
        let before = repairs.clone();
        assert_eq!(
            repairs.since(&Repairs::default()).unwrap(),
            "changed by others and restored: 1 route (10.0.0.1/32 in table 39999), 1 rule (priority 1000)"
        );
        repairs.add(RepairKind::Route, 2, "10.0.0.3/32 in table 39999");
        assert_eq!(
            repairs.since(&before).unwrap(),
            "changed by others and restored: 2 routes (last 10.0.0.3/32 in table 39999)"
        );
        assert_eq!((repairs.total(), repairs.since(&repairs)), (4, None));
    }
}
