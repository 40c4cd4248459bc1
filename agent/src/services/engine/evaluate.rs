//! One address: its facts, the decision, and the effects of the decision.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::control::AdvertisementState;

use super::facts::Member;
use super::{AddressRow, Collected, Engine, State, Transition};
use crate::services::ProxyHealth;
use crate::services::advertisements;
use crate::services::decide::{
    AddressFacts, Decision, MemberFacts, MemberRules, NodeFacts, ProxyFacts, decide, wakes_at,
};
use crate::services::prefixes::{AddressPrefix, AddressState};

/// The time after which a change of the rules is late: kube-proxy's `minSyncPeriod` is 1 s.
const LATE: Duration = Duration::from_secs(2);
/// The least time between two changes of a weight: each one makes routers hash flows anew.
const WEIGHT_PACE: Duration = Duration::from_secs(1);

impl Engine {
    pub(super) fn evaluate(&mut self, address: IpAddr, now: Instant) {
        let is_former = self.former(&address).is_some();
        if is_former && !self.confirmed {
            return;
        }
        if !is_former && self.ours(address).next().is_none() {
            return self.forget(address);
        }
        let mut row = self.addresses.remove(&address).unwrap_or_else(|| AddressRow::new(now));
        let mut collected = match self.former(&address) {
            Some(cached) => self.collect_former(cached, &row),
            None if self.known => self.collect(address, &row, now),
            None => Collected::nothing(),
        };
        row.deliverable_since =
            if collected.is_deliverable() { row.deliverable_since.or(Some(now)) } else { None };
        for member in &mut collected.members {
            member.facts.rules = self.rules_of(address, member.port, &row, now);
        }
        let facts: Vec<MemberFacts> = collected.members.iter().map(|member| member.facts).collect();
        let facts = AddressFacts {
            known: self.known,
            before: row.state.before(),
            node: NodeFacts {
                stage: self.stage,
                has_bgp: self.plan.bgp || collected.is_l2,
                barrier: collected.applied.barrier,
            },
            selection: collected.selection,
            members: &facts,
            proxy: ProxyFacts {
                health: self.proxy.health,
                stale: collected.stale,
                restart: self.settings.restart,
            },
            graceful_shutdown: collected.applied.graceful_shutdown,
        };
        let decision = decide(&facts, now);
        let wakes = [
            wakes_at(&facts, decision, now),
            collected.wakes_at,
            self.follow_lag(address, &mut row, &collected, now),
        ];
        let mut deadline = wakes.into_iter().flatten().min();
        let (before, shown_before, was_l2) = (row.state, row.shown(), row.is_l2);
        row.take(decision, &collected, now);
        row.is_l2 = collected.is_l2;
        row.is_standby = row.is_l2 && row.state.is_active() && !self.holders.held.contains(&address);
        let kind = std::mem::discriminant::<State>;
        if (was_l2 || row.is_l2) && (was_l2 != row.is_l2 || kind(&before) != kind(&row.state)) {
            self.l2_changed = true;
        }
        let paced = self.pace_weight(&mut row, before, &collected, now);
        deadline = [deadline, paced].into_iter().flatten().min();
        let state = row.state.is_active().then(|| self.address_state(address, &row));
        self.output.prefixes.changes.extend(self.table.set(address, state));
        self.report(address, &mut row, (before, shown_before), &collected, decision, now);
        if row.deadline != deadline {
            if let Some(former) = row.deadline {
                self.deadlines.remove(&(former, address));
            }
            self.deadlines.extend(deadline.map(|at| (at, address)));
            row.deadline = deadline;
        }
        self.addresses.insert(address, row);
    }

    /// No Service has the address any more.
    fn forget(&mut self, address: IpAddr) {
        let Some(row) = self.addresses.remove(&address) else { return };
        self.output.prefixes.changes.extend(self.table.set(address, None));
        self.l2_changed |= row.is_l2;
        if row.state.is_active() {
            self.output.cache.insert(address, None);
            let text = format!("{address} is no Service's any more: withdrawn");
            self.output.transitions.push(Transition { address, state: None, text });
        }
        self.counts.replace(address, row.counted, None);
        if let Some(at) = row.deadline {
            self.deadlines.remove(&(at, address));
        }
        if let Some((since, _)) = row.late {
            self.late.remove(&(since, address));
        }
        self.output.changed = true;
    }

    /// Follows the time for which rules differ from endpoints. Returns the time of the next step.
    fn follow_lag(
        &mut self,
        address: IpAddr,
        row: &mut AddressRow,
        collected: &Collected,
        now: Instant,
    ) -> Option<Instant> {
        let is_followed = self.known && self.rules_are_visible() && self.proxy.health == ProxyHealth::Up;
        let differs =
            |member: &Member| member.facts.is_deliverable() != (member.facts.rules == MemberRules::Forwarded);
        if !is_followed || !collected.members.iter().any(differs) {
            if let Some((since, _)) = row.late.take() {
                self.late.remove(&(since, address));
            }
            return None;
        }
        let (since, reported) = row.late.get_or_insert_with(|| {
            self.late.insert((now, address));
            (now, false)
        });
        let at = *since + LATE;
        if at <= now && !*reported {
            (*reported, self.output.check_proxy) = (true, true);
        }
        (!*reported).then_some(at)
    }

    /// Takes over the weight, unless it changed a moment ago. Returns the time of the next try.
    fn pace_weight(
        &self,
        row: &mut AddressRow,
        before: State,
        collected: &Collected,
        now: Instant,
    ) -> Option<Instant> {
        let next = row.weight_at + WEIGHT_PACE;
        if row.weight == collected.weight || !row.state.is_active() {
            return None;
        }
        let has_weight =
            |name: &Arc<str>| advertisements::find(&self.plan, name).is_some_and(|of| of.weights);
        if before.is_active() && next > now && row.names.iter().any(has_weight) {
            return Some(next);
        }
        (row.weight, row.weight_at) = (collected.weight, now);
        None
    }

    fn address_state(&self, address: IpAddr, row: &AddressRow) -> AddressState {
        let prefix = |name: &Arc<str>| {
            let of = advertisements::find(&self.plan, name)?;
            Some(AddressPrefix {
                prefix: of.aggregation.prefix(address),
                tag: advertisements::tag(&self.plan, name),
                weight: of.weights.then_some(row.weight),
            })
        };
        AddressState {
            prefixes: row.names.iter().filter_map(prefix).collect(),
            shutting_down: matches!(row.state, State::ShuttingDown { .. }),
        }
    }

    /// Reports a decision: to the counts, the cache and the history.
    fn report(
        &mut self,
        address: IpAddr,
        row: &mut AddressRow,
        (before, shown_before): (State, State),
        collected: &Collected,
        decision: Decision,
        now: Instant,
    ) {
        let shown = Some((self.shown(row.shown()), row.shown().reason()));
        if row.counted != shown {
            self.counts.replace(address, row.counted, shown);
            row.counted = shown;
            self.output.changed = true;
        }
        let kind = std::mem::discriminant::<State>;
        if kind(&shown_before) != kind(&row.shown()) {
            let service = collected.members.first().map(|member| &member.key);
            let of = service.map(|key| format!(" of {}/{}", key.namespace, key.name)).unwrap_or_default();
            let text = format!("{address}{of}: {}", self.text(address, row, now));
            self.output.transitions.push(Transition { address, state: Some(row.shown()), text });
        }
        if row.state.is_active() && !before.is_active() {
            let state = self.table.get(&address);
            let mut prefixes = state.iter().flat_map(|state| &state.prefixes).map(|of| of.prefix);
            self.output.added = prefixes.find(|prefix| prefix.prefix_len() == prefix.max_prefix_len());
        }
        if row.state.is_active() {
            if decision != Decision::Keep {
                let state = collected.to_cache(address, row);
                let hash = Some(state.digest());
                if row.cached != hash {
                    row.cached = hash;
                    self.output.cache.insert(address, Some(state));
                }
            }
        } else if before.is_active() {
            row.cached = None;
            self.output.cache.insert(address, None);
        }
    }

    /// The state for views.
    pub(in crate::services) fn shown(&self, state: State) -> AdvertisementState {
        match state {
            State::Withheld(_) => AdvertisementState::Withheld,
            _ if !self.known => AdvertisementState::Retained,
            State::Advertised => AdvertisementState::Advertised,
            State::ShuttingDown { .. } => AdvertisementState::ShuttingDown,
        }
    }
}
