//! The task for one remote cluster: connection, watches, and the writes of differences.
//!
//! The watches retry by themselves, and the kernel detects a dead connection
//! ([`trunkline_daemon::apiserver`]). While the remote API server does not answer or refuses
//! requests, the mirrored objects stay, for at most `--remote-retention`. Then the task deletes
//! them, until the API server answers again.
//!
//! The task writes changes within `COALESCE` together, or within a longer time after a slow plan. It
//! writes an object only if the object differs from its row, so a restart of the controller writes
//! nothing. Writes, statuses and events have a pace ([`super::pace`]).

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{OptionFuture, join_all};
use futures_util::stream::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use trunkline_api::kept;
use trunkline_api::kube::Kind;
use trunkline_api::names::{MULTICLUSTER_API_VERSION, label};
use trunkline_api::resources::{
    ConditionStatus, NetworkMode, RemoteClusterSpec, RemoteClusterState, RemoteClusterStatus,
    RemoteEndpointSliceSpec, RemoteSubnetSpec, RemoteVtepSpec,
};
use trunkline_daemon::errors::chain;

use super::client::{PATIENCE, client, patience};
use super::pace::{Pace, Wait};
use super::plan::{Local, MirroredSubnet, Plan, plan};
use super::report::{self, Reported};
use super::rows::MirroredKind;
use super::status::{self, Check, condition, failed, status};
use super::view::{Limits, View};
use super::watches::{Effect, Failures, watch_all};
use super::{RemoteClusterRow, owner};
use crate::cluster::ClusterReader as _;
use crate::events::reason;
use crate::reconcile::{Context, reference, written};
use crate::state::ControllerState;
use crate::watch::delays::Delays;

/// Changes within this time are written together.
pub(super) const COALESCE: Duration = Duration::from_millis(50);
/// Number of writes at the same time.
pub(super) const WRITES: usize = 16;
/// The longest interval between two requests for a UUID that is refused.
const IDENTIFY: Duration = Duration::from_secs(30);
/// The interval between two attempts to write.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// The time from the first deletion in a kind above its limit to new lists of all kinds.
const RELIST: Duration = Duration::from_secs(600);
/// The longest value of a label, in characters.
const LONGEST_LABEL: usize = 63;
/// Most octets of the text of an event.
const MAX_EVENT: usize = 1_000;
/// Most octets of the UID of a Namespace.
const MAX_UUID: usize = 63;
/// The field manager of the mirrored objects.
pub(super) const MANAGER: &str = "trunkline-controller";

/// Mirrors a cluster until the task is aborted.
pub(super) async fn run(
    name: Arc<str>,
    row: Arc<RemoteClusterRow>,
    context: Context,
    retention: Option<Duration>,
) {
    let pace = Mutex::new(Pace::new(Instant::now()));
    let mirror = Mirror { name, row, context, retention, limits: Limits::default(), pace };
    if let Some(fault) = name_fault(&mirror.name) {
        mirror.is_unusable(&fault).await;
        return std::future::pending().await;
    }
    let spec = match &mirror.row.spec {
        Ok(spec) => spec.clone(),
        Err(fault) => {
            mirror.is_unusable(fault).await;
            return std::future::pending().await;
        }
    };
    match client(&spec).await {
        Ok(client) => mirror.follow(client, patience(&spec)).await,
        Err(fault) => {
            mirror.is_unusable(&fault.to_string()).await;
            std::future::pending().await
        }
    }
}

/// The fault of a RemoteCluster's name. Names of mirrored objects begin with it, and two clusters
/// must not write the same names.
fn name_fault(name: &str) -> Option<String> {
    (name.contains('.') || name.len() > LONGEST_LABEL).then(|| {
        format!(
            "metadata.name: `{name}` has a dot or more than {LONGEST_LABEL} characters: create the RemoteCluster with \
             another name"
        )
    })
}

/// The time from a change to the next plan. Plans of a large cluster use a fifth of a processor.
pub(super) fn pause_after(planning: Duration) -> Duration {
    COALESCE.max(4 * planning)
}

struct Mirror {
    name: Arc<str>,
    row: Arc<RemoteClusterRow>,
    context: Context,
    /// How long objects stay while the API server does not answer; none: without a limit.
    retention: Option<Duration>,
    /// The maximum number of objects of each kind.
    limits: Limits,
    /// The pace of the writes, also over failures of the remote API server.
    pace: Mutex<Pace>,
}

/// The deletion of all objects at the end of the retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withdrawal {
    /// Not tried.
    Pending,
    /// An attempt failed. The time of the next one.
    Failed(Instant),
    /// Complete.
    Done,
}

impl Withdrawal {
    /// The state after an attempt.
    fn after(succeeded: bool) -> Withdrawal {
        if succeeded { Withdrawal::Done } else { Withdrawal::Failed(Instant::now() + RETRY) }
    }

    /// The time of the next attempt.
    fn next(self, away_since: Option<Instant>, retention: Option<Duration>) -> Option<Instant> {
        let end = away_since?.checked_add(retention?)?;
        match self {
            Withdrawal::Pending => Some(end),
            Withdrawal::Failed(retry) => Some(retry.max(end)),
            Withdrawal::Done => None,
        }
    }
}

/// The result of the writes of a plan.
#[derive(Debug)]
struct Written {
    /// Whether all writes of mirrored objects succeeded.
    done: bool,
    /// Number of objects whose writes wait for the pace.
    delayed: usize,
    /// Whether the objects together change too fast.
    is_too_fast: bool,
    /// The time of the next write or report.
    later: Option<Instant>,
}

impl Written {
    fn new() -> Written {
        Written { done: true, delayed: 0, is_too_fast: false, later: None }
    }

    fn wait_until(&mut self, at: Instant) {
        self.later = Some(self.later.map_or(at, |later| later.min(at)));
    }

    fn wait(&mut self, wait: Wait) {
        self.delayed += 1;
        self.is_too_fast |= matches!(wait, Wait::Cluster(_));
        self.wait_until(wait.until());
    }
}

impl Mirror {
    /// Reports that the RemoteCluster cannot be mirrored before its user changes it.
    async fn is_unusable(&self, fault: &str) {
        self.refuse(true);
        self.warn(reason::REMOTE_CLUSTER, fault.to_owned());
        self.report(RemoteClusterState::NotReady, None, &[failed(condition::HEALTHZ, fault)]).await;
    }

    /// Mirrors the cluster until the task is aborted.
    async fn follow(&self, client: Client, patience: Duration) {
        // The condition has the time of the first failed request, also after a restart of this
        // process.
        let mut away_since = self.known_absence();
        self.set_health(away_since, None);
        loop {
            let identified = self.identify(&client, patience, &mut away_since).await;
            away_since = None;
            self.set_health(None, None);
            away_since = self.mirror(&client, &identified, patience).await.or(away_since);
        }
    }

    /// The time of the first failed request since the last answer, from the condition.
    fn known_absence(&self) -> Option<Instant> {
        let conditions = &self.row.status.conditions;
        let healthz = conditions.iter().find(|one| one.condition_type == condition::HEALTHZ)?;
        if healthz.status != ConditionStatus::False
            || self.row.status.state != Some(RemoteClusterState::Offline)
        {
            return None;
        }
        let since: Timestamp = healthz.last_transition_time.parse().ok()?;
        let age = Timestamp::now().duration_since(since).try_into().unwrap_or_default();
        Instant::now().checked_sub(age)
    }

    async fn retention_over(&self, away_since: Option<Instant>, withdrawal: Withdrawal) {
        match withdrawal.next(away_since, self.retention) {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until another RemoteCluster has the UUID, or none any more; at most [`IDENTIFY`].
    async fn until_another_claim(&self, uuid: &str) {
        let mut changed = self.context.shared.lock().remote.changed.subscribe();
        let claimed = self.claimed(uuid);
        let over = sleep(IDENTIFY);
        tokio::pin!(over);
        while self.claimed(uuid) == claimed {
            tokio::select! {
                () = &mut over => return,
                changed = changed.changed() => if changed.is_err() { return },
            }
        }
    }

    /// The RemoteCluster that is mirrored instead, because it had this UUID first.
    fn claimed(&self, uuid: &str) -> Option<Arc<str>> {
        let state = self.context.shared.lock();
        let clusters = state.remote.clusters.iter().map(|(name, row)| (name, &row.status));
        status::other_claim(&self.name, clusters, uuid)
    }

    /// Waits until the API server answers with an acceptable UUID.
    async fn identify(
        &self,
        client: &Client,
        patience: Duration,
        away_since: &mut Option<Instant>,
    ) -> String {
        let (mut delays, mut withdrawal) = (Delays::default(), Withdrawal::Pending);
        let mut reported = None;
        loop {
            match uuid(client, patience).await {
                Ok(uuid) => match self.uuid_fault(&uuid).await {
                    None => {
                        self.refuse(false);
                        return uuid;
                    }
                    Some(fault) => {
                        self.refuse(true);
                        if reported.replace(fault.clone()).as_ref() != Some(&fault) {
                            self.warn(reason::REMOTE_CLUSTER, fault.clone());
                        }
                        let checks = [(condition::HEALTHZ, Ok(())), failed(condition::UUID, &fault)];
                        self.report(RemoteClusterState::NotReady, Some(uuid.clone()), &checks).await;
                        if self.remove_all().await {
                            self.until_another_claim(&uuid).await;
                        } else {
                            sleep(RETRY).await;
                        }
                    }
                },
                Err(error) => {
                    self.is_away(away_since, &error).await;
                    tokio::select! {
                        () = sleep(delays.next().unwrap_or(IDENTIFY)) => {}
                        () = self.retention_over(*away_since, withdrawal) => {
                            withdrawal = self.withdraw(withdrawal).await;
                        }
                    }
                }
            }
        }
    }

    /// Records that the API server does not answer or refuses a request.
    async fn is_away(&self, away_since: &mut Option<Instant>, error: &str) {
        if away_since.is_none() {
            *away_since = Some(Instant::now());
            tracing::warn!(cluster = %self.name, error, "the API server of a RemoteCluster does not \
                answer or refuses requests: its RemoteSubnets and RemoteVteps stay");
            self.warn(
                reason::REMOTE_CLUSTER,
                format!("its API server does not answer or refuses requests: {error}"),
            );
        }
        self.set_health(*away_since, None);
        self.report(RemoteClusterState::Offline, None, &[failed(condition::HEALTHZ, error)]).await;
    }

    /// The fault of a UUID that this cluster or another RemoteCluster has.
    async fn uuid_fault(&self, uuid: &str) -> Option<String> {
        let own = self::uuid(&self.context.client, PATIENCE).await;
        if own.is_ok_and(|own| own == uuid) {
            return Some(
                "the UUID is that of this cluster: write the API server of a remote cluster into \
                 spec.apiEndpoint"
                    .to_owned(),
            );
        }
        let other = self.claimed(uuid);
        other.map(|name| format!("RemoteCluster {name} has the same UUID: delete one of the two"))
    }

    /// Mirrors the cluster until another UUID is at the address, another RemoteCluster has this UUID,
    /// or new lists are due. Returns the time of the first failed request since the last answer.
    async fn mirror(&self, client: &Client, identity: &str, patience: Duration) -> Option<Instant> {
        let mut events = watch_all(client);
        let mut view = View::new(self.limits);
        let mut changed = self.context.shared.lock().remote.changed.subscribe();
        let mut subnets = self.context.shared.changes();
        let mut failures = Failures::default();
        let mut reported = Reported::default();
        let mut away_since = None;
        let mut withdrawal = Withdrawal::Pending;
        let mut due: Option<Instant> = None;
        // The time of writes that wait for their pace.
        let mut later: Option<Instant> = None;
        let mut pause = COALESCE;
        // The time of the next comparison of the UUID, after all watches answer.
        let mut verify: Option<Instant> = None;
        // The time of new lists, because a row that was left out has room now.
        let mut relist: Option<Instant> = None;
        loop {
            let next = due.into_iter().chain(later).min();
            let timer = OptionFuture::from(next.map(sleep_until));
            let verification = OptionFuture::from(verify.map(sleep_until));
            let listing = OptionFuture::from(relist.map(sleep_until));
            tokio::select! {
                event = events.next() => {
                    let Some((kind, result)) = event else { return Some(Instant::now()) };
                    match failures.record(kind, result.as_ref()) {
                        Effect::Unchanged => {}
                        Effect::Recovered => verify = Some(Instant::now()),
                        Effect::Forbidden => tracing::warn!(cluster = %self.name, "{kind}s of a RemoteCluster are not \
                            readable, so it has no global Services: give its user the rights in docs/multi-cluster.md"),
                        Effect::Failed => {
                            verify = None;
                            self.is_away(&mut away_since, failures.text()).await;
                            continue;
                        }
                    }
                    if let Ok(change) = result {
                        view.apply(change);
                        if view.has_room() && relist.is_none() {
                            relist = Some(Instant::now() + RELIST);
                        }
                    }
                }
                Some(()) = verification => match uuid(client, patience).await {
                    Ok(now) if now == identity => {
                        tracing::info!(cluster = %self.name, "the API server of a RemoteCluster answers again");
                        (verify, away_since, withdrawal) = (None, None, Withdrawal::Pending);
                    }
                    // Another cluster answers at this address.
                    Ok(_) => return None,
                    Err(error) => {
                        self.is_away(&mut away_since, &error).await;
                        verify = Some(Instant::now() + IDENTIFY);
                        continue;
                    }
                },
                _ = changed.changed() => {}
                _ = subnets.changed() => {}
                Some(()) = listing, if away_since.is_none() => return None,
                () = self.retention_over(away_since, withdrawal) => {
                    withdrawal = self.withdraw(withdrawal).await;
                    continue;
                }
                Some(()) = timer => {
                    (due, later) = (None, None);
                    if away_since.is_some() {
                        continue;
                    }
                    changed.mark_unchanged();
                    // Another RemoteCluster may have been accepted in the same moment.
                    if self.claimed(identity).is_some() {
                        return None;
                    }
                    let began = Instant::now();
                    let plan = plan(&self.name, &view, &self.local());
                    pause = pause_after(began.elapsed());
                    let written = self.write(&plan, identity, failures.forbidden(), &mut reported).await;
                    due = (!written.done).then(|| Instant::now() + RETRY);
                    later = written.later.map(|at| at.max(Instant::now() + pause));
                    continue;
                }
            }
            // While a watch fails, the rows may be out of date, and nothing is written.
            if view.is_complete() && away_since.is_none() && due.is_none() {
                due = Some(Instant::now() + pause);
            }
        }
    }

    /// The prefixes and addresses that have an owner, and the overlay's netID.
    fn local(&self) -> Local {
        let state = self.context.shared.lock();
        let cidr =
            |range: &trunkline_api::resources::AddressRange| range.parse().ok().map(|range| range.cidr);
        let (mut others, mut mirrored) = (Vec::new(), Vec::new());
        for (name, row) in state.cluster.remote_subnets.iter() {
            let Some(prefix) = row.spec.as_ref().and_then(|spec| cidr(&spec.range)) else { continue };
            let subnet = MirroredSubnet { created: row.created, name: name.to_string(), prefix };
            if row.cluster == self.name { mirrored.push(subnet) } else { others.push(subnet) }
        }
        let overlay = state.cluster.networks().find(|network| network.mode() == NetworkMode::VXLAN);
        let mut taken: HashSet<IpAddr> =
            state.cluster.nodes().flat_map(|(_, node)| node.addresses.iter().copied()).collect();
        taken.extend(state.remote.cluster_ips.iter().flat_map(|(_, addresses)| addresses));
        let vteps = state.remote.vteps.iter().filter(|(_, row)| row.cluster != self.name);
        let vteps = vteps.filter_map(|(_, row)| row.spec.as_ref());
        let of_vteps = vteps.flat_map(|vtep| vtep.local_ips.iter().chain([&vtep.ip]));
        let claimed = of_vteps.filter_map(|address| address.parse().ok()).collect();
        Local {
            subnets: state
                .cluster
                .subnets
                .iter()
                .filter_map(|(name, subnet)| Some((name.to_string(), cidr(&subnet.spec.range)?)))
                .collect(),
            others,
            mirrored,
            taken,
            claimed,
            is_unlisted: !state.remote.cluster_ips.is_listed(),
            overlay_net_id: overlay.and_then(|network| network.spec.net_id),
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        // A panic ends the process, so no task sees a partial change.
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all differences that are due, the events and the status.
    async fn write(
        &self,
        plan: &Plan,
        identity: &str,
        no_services: Option<&str>,
        reported: &mut Reported,
    ) -> Written {
        self.set_health(None, Some(plan));
        self.pace().sweep(Instant::now());
        let mut written = self.write_all(plan).await;
        self.set_delayed(written.delayed);
        let refused = report::refused(plan);
        let size = report::size(plan, written.is_too_fast);
        let check = |text: &'_ str| if text.is_empty() { Ok(()) } else { Err(text.to_owned()) };
        let (net_id, subnets) = (check(plan.net_id_fault.as_deref().unwrap_or_default()), check(&refused));
        let is_ready = net_id.is_ok() && subnets.is_ok() && size.is_none();
        let checks = [
            (condition::HEALTHZ, Ok(())),
            (condition::UUID, Ok(())),
            (condition::OVERLAY_NET_ID, net_id.as_ref().map(drop).map_err(String::as_str)),
            (condition::SUBNETS, subnets.as_ref().map(drop).map_err(String::as_str)),
            (condition::SIZE, size.as_deref().map_or(Ok(()), Err)),
            (condition::GLOBAL_SERVICES, no_services.map_or(Ok(()), Err)),
        ];
        let state = if is_ready { RemoteClusterState::Ready } else { RemoteClusterState::NotReady };
        let events = reported.events(plan, size.as_deref());
        let status = self.changed_status(state, Some(identity.to_owned()), &checks);
        if events.is_empty() && status.is_none() {
            return written;
        }
        let is_due = self.pace().report(Instant::now());
        if let Err(at) = is_due {
            written.wait_until(at);
            return written;
        }
        events.into_iter().for_each(|(reason, text)| self.warn(reason, text));
        reported.remember(plan, size.as_deref());
        if let Some(status) = status {
            self.write_status(&status).await;
        }
        written
    }

    /// Writes all differences that are due. The routes precede the endpoints, and stay until these are
    /// gone.
    async fn write_all(&self, plan: &Plan) -> Written {
        let mut written = Written::new();
        self.put_kind(&plan.subnets, &mut written).await;
        self.put_kind(&plan.vteps, &mut written).await;
        if let Some(slices) = &plan.slices {
            self.put_kind(slices, &mut written).await;
            written.done &= self.delete_others(slices).await;
        }
        written.done &= self.delete_others(&plan.vteps).await & self.delete_others(&plan.subnets).await;
        written
    }

    /// Writes the objects of one kind that differ from their rows, and are due.
    async fn put_kind<S: MirroredKind>(&self, wanted: &BTreeMap<String, S>, written: &mut Written) {
        let writes: Vec<(&String, &S)> = {
            let mut state = self.context.shared.lock();
            let rows = S::table(&mut state);
            let is_known = |name: &str, spec: &S| {
                let row = rows.get(name);
                row.is_some_and(|row| {
                    row.spec.as_ref() == Some(spec) && row.owner == self.row.uid && row.cluster == self.name
                })
            };
            wanted.iter().filter(|(name, spec)| !is_known(name, spec)).collect()
        };
        let now = Instant::now();
        let mut due = Vec::new();
        for (name, spec) in writes {
            let octets = || serde_json::to_vec(spec).map_or(0, |text| text.len());
            match self.pace().admit((S::KIND, name.clone()), octets, now) {
                Ok(()) => due.push((name, spec)),
                Err(wait) => written.wait(wait),
            }
        }
        for some in due.chunks(WRITES) {
            let mut writes = Vec::new();
            for &(name, spec) in some {
                writes.push(self.put(name, spec));
            }
            written.done &= join_all(writes).await.into_iter().all(|done| done);
        }
    }

    /// Deletes the objects of one kind that are not wanted.
    async fn delete_others<S: MirroredKind>(&self, wanted: &BTreeMap<String, S>) -> bool {
        let gone: Vec<Arc<str>> = {
            let mut state = self.context.shared.lock();
            let own = S::table(&mut state).iter().filter(|(_, row)| row.owner == self.row.uid);
            own.filter(|(name, _)| !wanted.contains_key(&***name)).map(|(name, _)| Arc::clone(name)).collect()
        };
        delete_kind::<S>(&self.context, &gone).await
    }

    /// Writes one object by server-side apply.
    async fn put<S: MirroredKind>(&self, name: &str, spec: &S) -> bool {
        let mut labels = spec.labels(name);
        labels.insert(label::CLUSTER, self.name.to_string());
        // The API server refuses an object with a longer value.
        labels.retain(|_, value| value.len() <= LONGEST_LABEL);
        let object = json!({
            "apiVersion": MULTICLUSTER_API_VERSION, "kind": S::KIND,
            "metadata": {
                "name": name,
                "labels": labels,
                "ownerReferences": [owner(&self.name, &self.row)],
            },
            "spec": spec,
        });
        let api: Api<trunkline_api::kube::Object<S>> = Api::all(self.context.client.clone());
        let parameters = PatchParams::apply(MANAGER).force();
        let answer = self.context.write(api.patch(name, &parameters, &Patch::Apply(&object))).await;
        logged(written(answer, || format!("{} {name} was not written", S::KIND)))
    }

    /// Deletes all objects of the cluster at the end of the retention. The first attempt has an
    /// event.
    async fn withdraw(&self, withdrawal: Withdrawal) -> Withdrawal {
        if withdrawal == Withdrawal::Pending {
            tracing::warn!(cluster = %self.name, "a RemoteCluster has not answered for the time of \
                --remote-retention: its RemoteSubnets, RemoteVteps and RemoteEndpointSlices are deleted");
            self.warn(
                reason::REMOTE_CLUSTER,
                "its API server has not answered for the time of --remote-retention: its RemoteSubnets, RemoteVteps and \
                 RemoteEndpointSlices are deleted"
                    .to_owned(),
            );
        }
        Withdrawal::after(self.remove_all().await)
    }

    /// Deletes all objects of the cluster. Returns whether all writes succeeded.
    async fn remove_all(&self) -> bool {
        let slices = Some(BTreeMap::new());
        self.write_all(&Plan { slices, ..Plan::default() }).await.done
    }

    fn refuse(&self, is_refused: bool) {
        let mut state = self.context.shared.lock();
        state.remote.health.entry(Arc::clone(&self.name)).or_default().is_refused = is_refused;
    }

    fn set_health(&self, away_since: Option<Instant>, plan: Option<&Plan>) {
        let mut state = self.context.shared.lock();
        let health = state.remote.health.entry(Arc::clone(&self.name)).or_default();
        health.away_since = away_since;
        if let Some(plan) = plan {
            health.subnets = plan.subnets.len();
            health.refused = plan.refused.len();
            health.vteps = plan.vteps.len();
            health.endpoints = plan.endpoints();
            health.slices = plan.slices.as_ref().map_or(0, BTreeMap::len);
            health.refused_endpoints = plan.refused_endpoints;
            health.left_out = plan.left_out;
        }
    }

    fn set_delayed(&self, delayed: usize) {
        let mut state = self.context.shared.lock();
        state.remote.health.entry(Arc::clone(&self.name)).or_default().delayed = delayed;
    }

    fn about(&self) -> ObjectReference {
        reference(RemoteClusterSpec::KIND, MULTICLUSTER_API_VERSION, None, &self.name, &self.row.uid)
    }

    fn warn(&self, reason: &'static str, text: String) {
        let text = kept::cut(&text, MAX_EVENT).to_owned();
        self.context.events.warning(self.about(), reason, text);
    }

    /// Writes the status, if it differs.
    async fn report(&self, state: RemoteClusterState, uuid: Option<String>, checks: &[Check<'_>]) {
        if let Some(status) = self.changed_status(state, uuid, checks) {
            self.write_status(&status).await;
        }
    }

    /// The status, if it differs.
    fn changed_status(
        &self,
        state: RemoteClusterState,
        uuid: Option<String>,
        checks: &[Check<'_>],
    ) -> Option<RemoteClusterStatus> {
        let (known, generation) = {
            let state = self.context.shared.lock();
            let row = state.remote.clusters.get(&self.name);
            (row.map(|row| row.status.clone()).unwrap_or_default(), self.row.generation)
        };
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = status(&known, state, uuid, checks, generation, &now);
        (status != known).then_some(status)
    }

    async fn write_status(&self, status: &RemoteClusterStatus) {
        let api: Api<trunkline_api::kube::Object<RemoteClusterSpec>> = Api::all(self.context.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"uid": &*self.row.uid}, "status": status}));
        let answer = self.context.write(api.patch_status(&self.name, &PatchParams::default(), &patch)).await;
        logged(written(answer, || format!("the status of RemoteCluster {} was not written", self.name)));
    }
}

/// Reads the UID of the Namespace kube-system, which identifies a cluster.
async fn uuid(client: &Client, patience: Duration) -> Result<String, String> {
    let api: Api<Namespace> = Api::all(client.clone());
    // The right to list Namespaces suffices.
    let named = ListParams::default().fields("metadata.name=kube-system").limit(1);
    match timeout(patience, api.list(&named)).await {
        Ok(Ok(list)) => {
            let uid = list.items.first().and_then(ResourceExt::uid);
            let uid = uid.ok_or_else(|| "there is no Namespace kube-system".to_owned())?;
            let is_real = uid.len() <= MAX_UUID;
            is_real.then_some(uid).ok_or_else(|| format!("the UID of kube-system has over {MAX_UUID} octets"))
        }
        Ok(Err(error)) => Err(chain(&error).to_string()),
        Err(_) => Err(format!("no answer within {patience:?}")),
    }
}

/// Names of objects whose RemoteCluster does not exist.
pub(super) struct Orphans {
    subnets: Vec<Arc<str>>,
    vteps: Vec<Arc<str>>,
    slices: Vec<Arc<str>>,
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.subnets.is_empty() && self.vteps.is_empty() && self.slices.is_empty()
    }
}

/// Objects of RemoteClusters that do not exist.
pub(super) fn orphans(state: &mut ControllerState) -> Orphans {
    fn of<S: MirroredKind>(state: &mut ControllerState) -> Vec<Arc<str>> {
        let owners: Vec<Arc<str>> =
            state.remote.clusters.iter().map(|(_, row)| Arc::clone(&row.uid)).collect();
        let rows = S::table(state).iter();
        let orphaned = rows.filter(|(_, row)| !row.owner.is_empty() && !owners.contains(&row.owner));
        orphaned.map(|(name, _)| Arc::clone(name)).collect()
    }
    Orphans {
        subnets: of::<RemoteSubnetSpec>(state),
        vteps: of::<RemoteVtepSpec>(state),
        slices: of::<RemoteEndpointSliceSpec>(state),
    }
}

/// Deletes orphans. Returns whether all deletions succeeded.
pub(super) async fn delete(context: &Context, orphans: Orphans) -> bool {
    delete_kind::<RemoteEndpointSliceSpec>(context, &orphans.slices).await
        & delete_kind::<RemoteVtepSpec>(context, &orphans.vteps).await
        & delete_kind::<RemoteSubnetSpec>(context, &orphans.subnets).await
}

async fn delete_kind<S: Kind>(context: &Context, names: &[Arc<str>]) -> bool {
    let api: Api<trunkline_api::kube::Object<S>> = Api::all(context.client.clone());
    let mut done = true;
    for some in names.chunks(WRITES) {
        let mut deleted = Vec::new();
        for name in some {
            deleted.push(delete_one(context, &api, name));
        }
        done &= join_all(deleted).await.into_iter().all(|done| done);
    }
    done
}

async fn delete_one<S: Kind>(
    context: &Context,
    api: &Api<trunkline_api::kube::Object<S>>,
    name: &str,
) -> bool {
    let answer = context.write(api.delete(name, &DeleteParams::default())).await;
    logged(written(answer, || format!("{} {name} was not deleted", S::KIND)))
}

/// Logs a failed write. The next write repeats it.
pub(super) fn logged(result: crate::reconcile::ReconcileResult) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!("{}", chain(&error));
            false
        }
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
