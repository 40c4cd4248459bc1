//! The task for one remote cluster: connection, watches, and the writes of differences.
//!
//! The watches retry by themselves, and the kernel detects a dead connection
//! ([`trunkline_daemon::apiserver`]). While the remote API server does not answer or refuses
//! requests, the mirrored objects stay, for at most `--remote-retention`. Then the task deletes
//! them, until the API server answers again.
//!
//! The task writes changes within `COALESCE` together. It writes an object only if the object
//! differs from its row, so a restart of the controller writes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join_all};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use trunkline_api::kube::{Kind, Lenient};
use trunkline_api::names::{MULTICLUSTER_API_VERSION, REMOTE_ENDPOINTS_MANAGER, label};
use trunkline_api::resources::{
    Condition, ConditionStatus, NetworkMode, RemoteClusterSpec, RemoteClusterState, RemoteClusterStatus,
    RemoteEndpointSliceSpec, RemoteSubnetSpec, RemoteVtepSpec,
};
use trunkline_daemon::errors::chain;

use super::client::{PATIENCE, client, patience};
use super::plan::{Local, Plan, plan};
use super::rows::MirroredKind;
use super::view::{Change, View};
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
/// The field manager of the mirrored objects.
pub(super) const MANAGER: &str = "trunkline-controller";

/// Types of conditions, as in hybridnet where it has them.
mod condition {
    /// The API server answers.
    pub(super) const HEALTHZ: &str = "HealthProbe";
    /// Neither this cluster nor another RemoteCluster has the UUID.
    pub(super) const UUID: &str = "UUID";
    /// Both overlays have the same netID.
    pub(super) const OVERLAY_NET_ID: &str = "OverlayNetIDMatch";
    /// No subnet is refused.
    pub(super) const SUBNETS: &str = "SubnetNonCross";
    /// Its Services and EndpointSlices are readable. Not in hybridnet.
    pub(super) const GLOBAL_SERVICES: &str = "GlobalServices";
}

/// Mirrors a cluster until the task is aborted.
pub(super) async fn run(
    name: Arc<str>,
    row: Arc<RemoteClusterRow>,
    context: Context,
    retention: Option<Duration>,
) {
    let mirror = Mirror { name, row, context, retention };
    let spec = match &mirror.row.spec {
        Ok(spec) => spec.clone(),
        Err(fault) => {
            mirror.refuse(true);
            mirror.report(RemoteClusterState::NotReady, None, &[failed(condition::HEALTHZ, fault)]).await;
            return std::future::pending().await;
        }
    };
    match client(&spec).await {
        Ok(client) => mirror.follow(client, patience(&spec)).await,
        Err(fault) => {
            let text = fault.to_string();
            mirror.refuse(true);
            mirror.warn(reason::REMOTE_CLUSTER, text.clone());
            mirror.report(RemoteClusterState::NotReady, None, &[failed(condition::HEALTHZ, &text)]).await;
            std::future::pending().await
        }
    }
}

struct Mirror {
    name: Arc<str>,
    row: Arc<RemoteClusterRow>,
    context: Context,
    /// How long objects stay while the API server does not answer; none: without a limit.
    retention: Option<Duration>,
}

/// The result of a check.
type Check<'a> = (&'static str, Result<(), &'a str>);

fn failed<'a>(kind: &'static str, text: &'a str) -> Check<'a> {
    (kind, Err(text))
}

/// An event of a watch, or its failure.
type Watched = (&'static str, Result<Change, watcher::Error>);

fn watch<S: Kind>(
    client: &Client,
    kind: &'static str,
    change: fn(Event<Lenient<S>>) -> Change,
) -> BoxStream<'static, Watched>
where
    Lenient<S>: kube::Resource<DynamicType = ()>,
{
    let api: Api<Lenient<S>> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default()).backoff(Delays::default());
    events.map(move |event| (kind, event.map(change))).boxed()
}

/// Kinds for which the user of the RemoteCluster may lack the right.
const SERVICE: &str = "Service";
const ENDPOINT_SLICE: &str = "EndpointSlice";

fn watch_services(client: &Client) -> BoxStream<'static, Watched> {
    let api: Api<PartialObjectMeta<Service>> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default()).backoff(Delays::default());
    events.map(|event| (SERVICE, event.map(Change::Service))).boxed()
}

/// EndpointSlices, without those with endpoints of remote clusters: these are not mirrored back.
fn watch_slices(client: &Client) -> BoxStream<'static, Watched> {
    let ours = format!("{},{}!={REMOTE_ENDPOINTS_MANAGER}", label::SERVICE_NAME, label::MANAGED_BY);
    let config = watcher::Config::default().labels(&ours).page_size(100);
    let events = watcher(Api::<EndpointSlice>::all(client.clone()), config).backoff(Delays::default());
    events.map(|event| (ENDPOINT_SLICE, event.map(Change::Slice))).boxed()
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status,
        watcher::Error::WatchError(status) => status,
        _ => return false,
    };
    status.code == 403
}

impl Mirror {
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

    async fn retention_over(&self, away_since: Option<Instant>, withdrawn: bool) {
        match (away_since, self.retention) {
            (Some(since), Some(retention)) if !withdrawn => sleep_until(since + retention).await,
            _ => std::future::pending().await,
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

    /// The RemoteCluster that is mirrored instead: the first one with this UUID, by name.
    fn claimed(&self, uuid: &str) -> Option<Arc<str>> {
        let state = self.context.shared.lock();
        let others = state
            .remote
            .clusters
            .iter()
            .filter(|(name, row)| **name < self.name && row.status.uuid.as_deref() == Some(uuid));
        others.map(|(name, _)| Arc::clone(name)).min()
    }

    /// Waits until the API server answers with an acceptable UUID.
    async fn identify(
        &self,
        client: &Client,
        patience: Duration,
        away_since: &mut Option<Instant>,
    ) -> String {
        let (mut delays, mut withdrawn) = (Delays::default(), false);
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
                        self.remove_all().await;
                        self.until_another_claim(&uuid).await;
                    }
                },
                Err(error) => {
                    self.is_away(away_since, &error).await;
                    tokio::select! {
                        () = sleep(delays.next().unwrap_or(IDENTIFY)) => {}
                        () = self.retention_over(*away_since, withdrawn) => {
                            self.withdraw().await;
                            withdrawn = true;
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

    /// Mirrors the cluster until another UUID is at the address. Returns the time of the first
    /// failed request since the last answer.
    async fn mirror(&self, client: &Client, identity: &str, patience: Duration) -> Option<Instant> {
        let mut events = stream::select_all([
            watch(client, "Network", Change::Network),
            watch(client, "Subnet", Change::Subnet),
            watch(client, "NodeInfo", Change::Node),
            watch(client, "IPInstance", Change::Instance),
            watch_services(client),
            watch_slices(client),
        ]);
        let mut view = View::default();
        let mut changed = self.context.shared.lock().remote.changed.subscribe();
        let mut subnets = self.context.shared.changes();
        // The kinds whose watch failed.
        let mut failing: BTreeMap<&'static str, String> = BTreeMap::new();
        // The refused subnets that have an event.
        let mut reported = BTreeMap::new();
        // The error of the watches of Services and EndpointSlices, if a right is missing.
        let mut refused: Option<String> = None;
        let mut away_since = None;
        let mut withdrawn = false;
        let mut due: Option<Instant> = None;
        // The time of the next comparison of the UUID, after all watches answer.
        let mut verify: Option<Instant> = None;
        loop {
            let timer = OptionFuture::from(due.map(sleep_until));
            let verification = OptionFuture::from(verify.map(sleep_until));
            tokio::select! {
                event = events.next() => match event {
                    Some((kind, Ok(change))) => {
                        // At the start of a list there is no answer yet.
                        if matches!(kind, SERVICE | ENDPOINT_SLICE) && !change.is_beginning() {
                            refused = None;
                        }
                        if !change.is_beginning() && failing.remove(kind).is_some() && failing.is_empty() {
                            verify = Some(Instant::now());
                        }
                        view.apply(change);
                    }
                    // Without the right for these kinds there are no global Services.
                    Some((kind @ (SERVICE | ENDPOINT_SLICE), Err(error))) if is_forbidden(&error) => {
                        if refused.replace(chain(&error).to_string()).is_none() {
                            tracing::warn!(cluster = %self.name, "{kind}s of a RemoteCluster are not \
                                readable, so it has no global Services: give its user the rights in docs/multi-cluster.md");
                        }
                    }
                    Some((kind, Err(error))) => {
                        failing.insert(kind, format!("{kind}: {}", chain(&error)));
                        let text = failing.values().next().cloned().unwrap_or_default();
                        verify = None;
                        self.is_away(&mut away_since, &text).await;
                        continue;
                    }
                    None => return Some(Instant::now()),
                },
                Some(()) = verification => match uuid(client, patience).await {
                    Ok(now) if now == identity => {
                        tracing::info!(cluster = %self.name, "the API server of a RemoteCluster answers again");
                        (verify, away_since, withdrawn) = (None, None, false);
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
                () = self.retention_over(away_since, withdrawn) => {
                    self.withdraw().await;
                    withdrawn = true;
                    continue;
                }
                Some(()) = timer => {
                    due = None;
                    changed.mark_unchanged();
                    if !self.write(&view, identity, refused.as_deref(), &mut reported).await {
                        due = Some(Instant::now() + RETRY);
                    }
                    continue;
                }
            }
            // While a watch fails, the rows may be out of date, and nothing is written.
            if view.is_complete() && away_since.is_none() && due.is_none() {
                due = Some(Instant::now() + COALESCE);
            }
        }
    }

    /// The prefixes that the subnets must not overlap, and the overlay's netID.
    fn local(&self) -> Local {
        let state = self.context.shared.lock();
        let cidr =
            |range: &trunkline_api::resources::AddressRange| range.parse().ok().map(|range| range.cidr);
        let others = state.cluster.remote_subnets.iter().filter(|(_, row)| row.cluster != self.name);
        let others: Vec<(String, IpNet)> = others
            .filter_map(|(name, row)| Some((name.to_string(), cidr(&row.spec.as_ref()?.range)?)))
            .collect();
        let own = state.cluster.subnets.iter();
        let overlay = state.cluster.networks().find(|network| network.mode() == NetworkMode::VXLAN);
        Local {
            subnets: own
                .filter_map(|(name, subnet)| Some((name.to_string(), cidr(&subnet.spec.range)?)))
                .collect(),
            others,
            overlay_net_id: overlay.and_then(|network| network.spec.net_id),
        }
    }

    /// Writes all differences, and the status. Returns whether all writes of mirrored objects
    /// succeeded.
    async fn write(
        &self,
        view: &View,
        identity: &str,
        no_services: Option<&str>,
        reported: &mut BTreeMap<String, String>,
    ) -> bool {
        let plan = plan(&self.name, view, &self.local());
        self.set_health(None, Some(&plan));
        for (name, refusal) in plan.refused.iter().filter(|(name, why)| reported.get(*name) != Some(why)) {
            self.warn(reason::REMOTE_SUBNET_REFUSED, format!("Subnet {name} is not mirrored: {refusal}"));
        }
        reported.clone_from(&plan.refused);
        let mut done = self.write_kind(&plan.subnets).await & self.write_kind(&plan.vteps).await;
        // The routes precede the endpoints.
        if let Some(slices) = &plan.slices {
            done &= self.write_kind(slices).await;
        }
        let refused: Vec<String> =
            plan.refused.iter().map(|(name, why)| format!("Subnet {name}: {why}")).collect();
        let refused = refused.join("; ");
        let check = |text: &'_ str| if text.is_empty() { Ok(()) } else { Err(text.to_owned()) };
        let (net_id, subnets) = (check(plan.net_id_fault.as_deref().unwrap_or_default()), check(&refused));
        let is_ready = net_id.is_ok() && subnets.is_ok();
        let checks = [
            (condition::HEALTHZ, Ok(())),
            (condition::UUID, Ok(())),
            (condition::OVERLAY_NET_ID, net_id.as_ref().map(drop).map_err(String::as_str)),
            (condition::SUBNETS, subnets.as_ref().map(drop).map_err(String::as_str)),
            (condition::GLOBAL_SERVICES, no_services.map_or(Ok(()), Err)),
        ];
        let state = if is_ready { RemoteClusterState::Ready } else { RemoteClusterState::NotReady };
        self.report(state, Some(identity.to_owned()), &checks).await;
        done
    }

    /// Writes the differences of one kind.
    async fn write_kind<S: MirroredKind>(&self, wanted: &BTreeMap<String, S>) -> bool {
        let (writes, gone) = {
            let mut state = self.context.shared.lock();
            let rows = S::table(&mut state);
            let is_known = |name: &str, spec: &S| {
                let row = rows.get(name);
                row.is_some_and(|row| {
                    row.spec.as_ref() == Some(spec) && row.owner == self.row.uid && row.cluster == self.name
                })
            };
            let writes: Vec<(&String, &S)> =
                wanted.iter().filter(|(name, spec)| !is_known(name, spec)).collect();
            let own = rows.iter().filter(|(_, row)| row.owner == self.row.uid);
            let gone: Vec<Arc<str>> = own
                .filter(|(name, _)| !wanted.contains_key(&***name))
                .map(|(name, _)| Arc::clone(name))
                .collect();
            (writes, gone)
        };
        let mut done = true;
        for some in writes.chunks(WRITES) {
            let mut written = Vec::new();
            for &(name, spec) in some {
                written.push(self.put(name, spec));
            }
            done &= join_all(written).await.into_iter().all(|done| done);
        }
        delete_kind::<S>(&self.context, &gone).await & done
    }

    /// Writes one object by server-side apply.
    async fn put<S: MirroredKind>(&self, name: &str, spec: &S) -> bool {
        let mut labels = spec.labels(name);
        labels.insert(label::CLUSTER, self.name.to_string());
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

    /// Deletes all objects of the cluster at the end of the retention.
    async fn withdraw(&self) {
        tracing::warn!(cluster = %self.name, "a RemoteCluster has not answered for the time of \
            --remote-retention: its RemoteSubnets, RemoteVteps and RemoteEndpointSlices are deleted");
        self.warn(
            reason::REMOTE_CLUSTER,
            "its API server has not answered for the time of --remote-retention: its RemoteSubnets, RemoteVteps and \
             RemoteEndpointSlices are deleted"
                .to_owned(),
        );
        self.remove_all().await;
    }

    async fn remove_all(&self) {
        self.write_kind::<RemoteEndpointSliceSpec>(&BTreeMap::new()).await;
        self.write_kind::<RemoteVtepSpec>(&BTreeMap::new()).await;
        self.write_kind::<RemoteSubnetSpec>(&BTreeMap::new()).await;
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
        }
    }

    fn about(&self) -> ObjectReference {
        reference(RemoteClusterSpec::KIND, MULTICLUSTER_API_VERSION, None, &self.name, &self.row.uid)
    }

    fn warn(&self, reason: &'static str, text: String) {
        self.context.events.warning(self.about(), reason, text);
    }

    /// Writes the status, if it differs.
    async fn report(&self, state: RemoteClusterState, uuid: Option<String>, checks: &[Check<'_>]) {
        let (known, generation) = {
            let state = self.context.shared.lock();
            let row = state.remote.clusters.get(&self.name);
            (row.map(|row| row.status.clone()).unwrap_or_default(), self.row.generation)
        };
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = status(&known, state, uuid, checks, generation, &now);
        if status == known {
            return;
        }
        let api: Api<trunkline_api::kube::Object<RemoteClusterSpec>> = Api::all(self.context.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"uid": &*self.row.uid}, "status": status}));
        let answer = self.context.write(api.patch_status(&self.name, &PatchParams::default(), &patch)).await;
        logged(written(answer, || format!("the status of RemoteCluster {} was not written", self.name)));
    }
}

/// The status after these checks. Conditions of other checks stay.
fn status(
    known: &RemoteClusterStatus,
    state: RemoteClusterState,
    uuid: Option<String>,
    checks: &[Check<'_>],
    generation: Option<i64>,
    now: &str,
) -> RemoteClusterStatus {
    let mut conditions = known.conditions.clone();
    for (kind, result) in checks {
        let status = if result.is_ok() { ConditionStatus::True } else { ConditionStatus::False };
        let known = conditions.iter().find(|one| one.condition_type == *kind);
        let since =
            known.filter(|known| known.status == status).map(|known| known.last_transition_time.clone());
        let new = Condition {
            condition_type: (*kind).to_owned(),
            status,
            reason: if result.is_ok() { "CheckPass" } else { "CheckFail" }.to_owned(),
            message: result.err().unwrap_or_default().to_owned(),
            last_transition_time: since.unwrap_or_else(|| now.to_owned()),
            observed_generation: generation,
        };
        match conditions.iter_mut().find(|one| one.condition_type == *kind) {
            Some(known) => *known = new,
            None => conditions.push(new),
        }
    }
    RemoteClusterStatus { uuid: uuid.or_else(|| known.uuid.clone()), state: Some(state), conditions }
}

/// Reads the UID of the Namespace kube-system, which identifies a cluster.
async fn uuid(client: &Client, patience: Duration) -> Result<String, String> {
    let api: Api<Namespace> = Api::all(client.clone());
    // The right to list Namespaces suffices.
    let named = ListParams::default().fields("metadata.name=kube-system");
    match timeout(patience, api.list(&named)).await {
        Ok(Ok(list)) => {
            let uid = list.items.first().and_then(ResourceExt::uid);
            uid.ok_or_else(|| "there is no Namespace kube-system".to_owned())
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

/// Deletes orphans.
pub(super) async fn delete(context: &Context, orphans: Orphans) {
    delete_kind::<RemoteEndpointSliceSpec>(context, &orphans.slices).await;
    delete_kind::<RemoteVtepSpec>(context, &orphans.vteps).await;
    delete_kind::<RemoteSubnetSpec>(context, &orphans.subnets).await;
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
