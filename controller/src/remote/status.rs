//! The status of a RemoteCluster: conditions, and the claim to a UUID.

use std::sync::Arc;

use jiff::Timestamp;
use trunkline_api::kept;
use trunkline_api::resources::{Condition, ConditionStatus, RemoteClusterState, RemoteClusterStatus};

/// Types of conditions, as in hybridnet where it has them.
pub(super) mod condition {
    /// The API server answers.
    pub(crate) const HEALTHZ: &str = "HealthProbe";
    /// Neither this cluster nor another RemoteCluster has the UUID.
    pub(crate) const UUID: &str = "UUID";
    /// Both overlays have the same netID.
    pub(crate) const OVERLAY_NET_ID: &str = "OverlayNetIDMatch";
    /// No subnet is refused.
    pub(crate) const SUBNETS: &str = "SubnetNonCross";
    /// No kind has more objects than the controller reads, no object is above a bound, and the objects
    /// change no faster than the controller writes. Not in hybridnet.
    pub(crate) const SIZE: &str = "SizeWithinLimits";
    /// Its Services and EndpointSlices are readable. Not in hybridnet.
    pub(crate) const GLOBAL_SERVICES: &str = "GlobalServices";
}

/// Most octets of the message of a condition. Texts of the remote API server may be a part of it.
pub(super) const MAX_CONDITION: usize = 8 << 10;

/// The result of a check.
pub(super) type Check<'a> = (&'static str, Result<(), &'a str>);

pub(super) fn failed<'a>(kind: &'static str, text: &'a str) -> Check<'a> {
    (kind, Err(text))
}

/// The status after these checks. Conditions of other checks stay.
pub(super) fn status(
    known: &RemoteClusterStatus,
    state: RemoteClusterState,
    uuid: Option<String>,
    checks: &[Check<'_>],
    generation: Option<i64>,
    now: &str,
) -> RemoteClusterStatus {
    let former = known.uuid.clone();
    let mut conditions = known.conditions.clone();
    for (kind, result) in checks {
        let status = if result.is_ok() { ConditionStatus::True } else { ConditionStatus::False };
        let known = conditions.iter().find(|one| one.condition_type == *kind);
        // The condition of another UUID is a new one.
        let is_kept = *kind != condition::UUID || uuid.is_none() || uuid == former;
        let since = known
            .filter(|known| known.status == status && is_kept)
            .map(|known| known.last_transition_time.clone());
        let new = Condition {
            condition_type: (*kind).to_owned(),
            status,
            reason: if result.is_ok() { "CheckPass" } else { "CheckFail" }.to_owned(),
            message: kept::cut(result.err().unwrap_or_default(), MAX_CONDITION).to_owned(),
            last_transition_time: since.unwrap_or_else(|| now.to_owned()),
            observed_generation: generation,
        };
        match conditions.iter_mut().find(|one| one.condition_type == *kind) {
            Some(known) => *known = new,
            None => conditions.push(new),
        }
    }
    RemoteClusterStatus { uuid: uuid.or(former), state: Some(state), conditions }
}

/// The time since which a RemoteCluster has a UUID; none while the UUID is refused.
fn claimed_since(status: &RemoteClusterStatus, uuid: &str) -> Option<Timestamp> {
    if status.uuid.as_deref() != Some(uuid) {
        return None;
    }
    let accepted =
        |one: &&Condition| one.condition_type == condition::UUID && one.status == ConditionStatus::True;
    status.conditions.iter().find(accepted)?.last_transition_time.parse().ok()
}

/// The other RemoteCluster that had a UUID before `own`. The order of names decides only between
/// equal times.
pub(super) fn other_claim<'a>(
    own: &Arc<str>,
    clusters: impl Iterator<Item = (&'a Arc<str>, &'a RemoteClusterStatus)>,
    uuid: &str,
) -> Option<Arc<str>> {
    // A cluster without an accepted claim is behind each cluster with one.
    let order = |name: &Arc<str>, status: Option<&RemoteClusterStatus>| {
        let since = status.and_then(|status| claimed_since(status, uuid));
        (since.is_none(), since, Arc::clone(name))
    };
    let (mut own_order, mut others) = (order(own, None), Vec::new());
    for (name, status) in clusters {
        if name == own {
            own_order = order(name, Some(status));
        } else if status.uuid.as_deref() == Some(uuid) {
            others.push(order(name, Some(status)));
        }
    }
    others.into_iter().filter(|other| *other < own_order).min().map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(uuid: &str, is_accepted: bool, since: &str) -> RemoteClusterStatus {
        let check = if is_accepted { (condition::UUID, Ok(())) } else { failed(condition::UUID, "taken") };
        let known = RemoteClusterStatus::default();
        status(&known, RemoteClusterState::Ready, Some(uuid.to_owned()), &[check], None, since)
    }

    #[test]
    fn the_first_cluster_with_a_uuid_keeps_it() {
        let victim = claim("u", true, "2026-01-02T00:00:00Z");
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        for (hostile, victim_yields) in [
            (claim("u", false, "2026-01-01T00:00:00Z"), false),
            (claim("u", true, "2026-01-03T00:00:00Z"), false),
            (claim("x", true, "2026-01-01T00:00:00Z"), false),
            (RemoteClusterStatus::default(), false),
            (claim("u", true, "2026-01-01T00:00:00Z"), true),
            (claim("u", true, "2026-01-02T00:00:00Z"), true),
        ] {
            let of = |own| other_claim(own, [(&a, &hostile), (&b, &victim)].into_iter(), "u");
            assert_eq!(of(&b).is_some(), victim_yields, "{hostile:?}");
            assert_eq!(of(&a).is_some(), !victim_yields, "{hostile:?}");
        }
    }

    #[test]
    fn another_uuid_starts_a_new_claim() {
        let known = claim("x", true, "2026-01-01T00:00:00Z");
        let next = |uuid: Option<&str>| {
            let checks = [(condition::UUID, Ok(()))];
            let now = "2026-01-05T00:00:00Z";
            let uuid = uuid.map(str::to_owned);
            let new = status(&known, RemoteClusterState::Ready, uuid, &checks, None, now);
            new.conditions[0].last_transition_time.clone()
        };
        assert_eq!(next(Some("x")), "2026-01-01T00:00:00Z");
        assert_eq!(next(Some("u")), "2026-01-05T00:00:00Z");
    }
}
