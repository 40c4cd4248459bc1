//! The attach flow: from the runtime's request to a pod that the fabric can reach, and back.
//!
//! **ADD**: addresses are allocated (from this node's pools, or from the pod's IPInstances once
//! they exist: [`Addresses`]) and written to disk → in a VLAN: the router answers, and no other
//! host has the addresses ([`trunkline_datapath::link_check`]) → device in the pod's namespace, and
//! beside it the rules of network policies ([`crate::netpolicy`]) → neighbour entries and host
//! route → in a VLAN: ARP or ND announcement → prefixes originated → an established peer has
//! received them → answer. **DEL** runs in reverse: prefixes withdrawn,
//! routes, device, rules of network policies, and the addresses are released last. So the process can be killed at any moment:
//! the store contains at least the attachments in the kernel, and every step can be repeated:
//!
//! | killed | state after the kill | cleaned by |
//! |---|---|---|
//! | before the record is on disk | nothing | |
//! | with the record, without a complete device | an *attaching* record, perhaps a link | the next start ([`recover`]), DEL, GC |
//! | with a complete device (its host route is there) | an *attaching* record | the next start: it is *attached* |
//! | in DEL, before the record is deleted | a record, perhaps without its device | a repeated DEL, or GC |
//!
//! A failed ADD reverts its steps. A repeated ADD for the same container and interface runs the
//! same steps with the existing record, and so returns the same answer.
//!
//! Requests for one attachment run one after another ([`AttachmentLocks`]); different attachments
//! do not wait for each other.
//!
//! [`recover`]: crate::recover

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use trunkline_api::attach::{
    Attach, AttachedAddress, AttachedRoute, Attachment, Check, Code, Done, Failure, Interface, Origin,
};
use trunkline_api::names::{full_name, label};
use trunkline_api::resources::{AttachmentKind, SubnetDns};
use trunkline_bgp::net::SpeakerHandle;
use trunkline_datapath::attach::device::{Device, DeviceError, DeviceSpec, GATEWAY_V4, GATEWAY_V6};
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::kernel::KernelHandle;
use trunkline_datapath::link_check::{LinkCheck, LinkCheckError, LinkChecker, VerifiedAddress};
use trunkline_datapath::mac::show_mac;
use trunkline_datapath::naming::host_ifname;
use trunkline_datapath::plan::{self, OnLink};

mod failures;
mod interfaces;
mod locks;
mod removal;

use failures::{device_failure, ipam_failure, link_check_failure, pod_failure, policy_failure};
use interfaces::Reserved;
pub use locks::{AttachmentGuard, AttachmentLocks};

use crate::addresses::{AddressChoice, Addresses};
use crate::causes;
use crate::ipam::{Assigned, AttachmentKey, Ipam, IpamError, MigrationState, PodName, Record, Reservation};
use crate::metrics::Metrics;
use crate::netpolicy::input::ObjectKey;
use crate::netpolicy::{Policies, PolicyLink};
use crate::plan::{AttachTarget, LinkParameters, Pod};
use crate::reconcile::{PodError, ReadinessGate, Reconcile};
use crate::telemetry::trace::{Steps, Tracer};

/// The answer is sent this long before the client's own deadline.
const MARGIN: Duration = Duration::from_millis(500);

/// Maximum time for which an ADD waits for the first plan, which takes some 100 ms after a start of the
/// agent.
const FIRST_PLAN: Duration = Duration::from_secs(10);

/// The inputs of the flow. Cheap to clone.
#[derive(Clone)]
pub struct Pods {
    /// The origin of pods' addresses.
    pub addresses: Addresses,
    /// Records, and this node's own pools.
    pub ipam: Ipam,
    /// Links.
    pub devices: DeviceWorkers,
    /// Routes and advertisements.
    pub reconcile: Reconcile,
    /// The kernel's connection tracking.
    pub kernel: KernelHandle,
    /// ARP and ND checks and announcements on VLANs.
    pub link_checker: LinkChecker,
    /// Durations.
    pub metrics: Metrics,
    /// Traces of the steps, if a collector is configured.
    pub tracer: Tracer,
    /// Maximum time for which an ADD waits for the fabric.
    pub readiness_timeout: Duration,
    /// Network policies, if the configuration enables them.
    pub policies: Option<Policies>,
    /// One lock for each attachment.
    pub locks: AttachmentLocks,
}

/// The time of a request, and its origin.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// The arrival of the first octet.
    pub began: Instant,
    /// The client's data about its own start.
    pub origin: Option<Origin>,
}

impl Pods {
    /// ADD. If `abandoned` completes, the client has disconnected, and the wait for the fabric
    /// ends.
    pub async fn attach(
        &self,
        request: Attach,
        netns: Option<OwnedFd>,
        context: RequestContext,
        abandoned: impl Future<Output = ()>,
    ) -> Result<Attachment, Failure> {
        let RequestContext { began, origin } = context;
        let mut steps = self.tracer.begin("attach", began, origin.as_ref());
        let mut network = String::new();
        let outcome = self.try_attach(request, netns, began, abandoned, &mut network, &mut steps).await;
        let took = began.elapsed();
        self.metrics.request("attach", &network, outcome.is_ok(), took);
        steps.end(began, took, outcome.as_ref().err());
        outcome
    }

    /// `network` is set as soon as it is known.
    async fn try_attach(
        &self,
        request: Attach,
        netns: Option<OwnedFd>,
        began: Instant,
        abandoned: impl Future<Output = ()>,
        network: &mut String,
        steps: &mut Steps,
    ) -> Result<Attachment, Failure> {
        // This limit is the client's deadline. The wait for the fabric ends earlier.
        let patience = Duration::from_millis(request.deadline_ms).saturating_sub(MARGIN).max(MARGIN);
        let client = Instant::now() + patience;
        let netns = netns.ok_or_else(|| {
            Failure::new(
                Code::InvalidEnvironment,
                "the request has no network namespace: CNI_NETNS must be the path of an existing one",
            )
        })?;
        let key = key_of(&request.interface);
        let mut abandoned = pin!(abandoned);
        steps.of_interface(&request.interface);
        if let Some(pod) = &request.pod {
            steps.of_pod(&pod.namespace, &pod.name, &pod.uid);
        }
        // Before a plan is in force there are no pools, and "no network" would be a wrong error.
        let started = (Instant::now() + FIRST_PLAN).min(client);
        self.reconcile.started(started, abandoned.as_mut()).await.map_err(pod_failure)?;
        let _guard = self.lock(&key, steps).await;
        let reserved = match self.ipam.get(key.clone()).await {
            Some(record) => Reserved { record, new: false },
            None => self.reserve(&request, None, &key, client, abandoned.as_mut(), steps).await?,
        };
        network.clone_from(&reserved.record.network);
        steps.of_record(&reserved.record);
        let with = self.reserve_others(&request, &reserved, client, abandoned.as_mut(), steps).await?;
        let deadline = (Instant::now() + self.readiness_timeout.max(MARGIN)).min(client);
        if with.is_empty() {
            let named_mac = request.wanted.mac.is_some();
            return self.finish(&reserved, named_mac, netns, began, deadline, abandoned, steps).await;
        }
        self.finish_all(&request, reserved, with, netns, began, deadline, abandoned, steps).await
    }

    /// Completes an attachment with a record. If this fails, an attachment that this request began is
    /// removed; an earlier one stays.
    #[expect(clippy::too_many_arguments, reason = "the second half of try_attach")]
    async fn finish(
        &self,
        reserved: &Reserved,
        named_mac: bool,
        netns: OwnedFd,
        began: Instant,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Attachment, Failure> {
        let Reserved { record, new } = reserved;
        let unsuited = unsuited(record, named_mac).or_else(|| self.unallowed(record).filter(|_| *new));
        let outcome = match unsuited {
            Some(failure) => Err(failure),
            None => self.complete(record, netns, began, deadline, abandoned, steps).await,
        };
        match &outcome {
            Ok(_) => self.addresses.attached(record),
            Err(failure) => {
                self.addresses.failed(record, failure);
                if *new {
                    self.take_back(&record.key).await;
                }
            }
        }
        outcome
    }

    /// The error for requested prefixes that the Network does not allow. For prefixes from a
    /// cluster's controller there is no error. The plan excludes the forbidden ones, and the
    /// controller reported them when the pod was created.
    fn unallowed(&self, record: &Record) -> Option<Failure> {
        if matches!(self.addresses, Addresses::Cluster(_)) {
            return None;
        }
        let plan = self.reconcile.plan();
        let plan = plan.borrow();
        let network = plan.as_ref()?.networks.get(&record.network)?;
        let words = network.refused_prefixes(&record.network, &record.extra_prefixes).next()?;
        Some(Failure::new(Code::InvalidConfiguration, format!("args.cni.extraPrefixes: {words}")))
    }

    /// Creates the record: from here on the owner of the addresses is on disk.
    async fn reserve(
        &self,
        request: &Attach,
        attached_with: Option<&str>,
        key: &AttachmentKey,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Reserved, Failure> {
        let pod = request.pod.as_ref().map(|pod| PodName {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        });
        let pod = pod.unwrap_or_default();
        let started = Instant::now();
        let wanted = self.addresses.wanted(request, key, &pod, deadline, abandoned).await;
        let took = started.elapsed();
        if let Addresses::Cluster(_) = self.addresses {
            self.metrics.address_wait(wanted.is_ok(), took);
        }
        steps.step("addresses", started, took, wanted.as_ref().err());
        let AddressChoice { wanted, mac, extra_prefixes, interface, others, several, migration } = wanted?;
        let reservation = Reservation {
            key: key.clone(),
            conf_name: request.conf_name.clone(),
            wanted,
            mac,
            bandwidth: request.wanted.bandwidth,
            extra_prefixes,
            labels: request.wanted.labels.clone(),
            netns: request.netns.clone(),
            pod,
            attached_with: attached_with.map(str::to_owned),
            interface,
            several,
            others,
            migration,
        };
        let outcome = match steps.time("record", self.ipam.reserve(reservation.clone())).await {
            Err(IpamError::Held { holder, .. }) if self.is_over(&holder, &reservation).await => {
                tracing::info!(attachment = %holder.key, by = %key, "an old sandbox without a DEL is replaced by the pod's next one");
                {
                    let _guard = self.locks.lock(&holder.key).await;
                    steps.time("former sandbox", self.remove(&holder.key, None, &mut Steps::none())).await?;
                }
                steps.time("record", self.ipam.reserve(reservation)).await
            }
            outcome => outcome,
        };
        let (record, new) = outcome.map_err(ipam_failure)?;
        Ok(Reserved { record, new })
    }

    /// Whether a new attachment can replace the attachment `holder`, which has the same addresses.
    /// It can, if `holder` is a former sandbox of the same pod, or if its link is gone (after a
    /// restart of the node). A later DEL for `holder` finds nothing.
    async fn is_over(&self, holder: &Record, next: &Reservation) -> bool {
        if holder.key.container_id == next.key.container_id {
            return false;
        }
        let same = holder.pod.namespace == next.pod.namespace && holder.pod.name == next.pod.name;
        let is_broken = |view: crate::reconcile::ReconcileStatus| {
            view.broken.contains(&host_ifname(&holder.key.container_id, &holder.key.ifname))
        };
        same || self.reconcile.view().await.is_some_and(is_broken)
    }

    /// All steps of an ADD after the addresses.
    async fn complete(
        &self,
        record: &Record,
        netns: OwnedFd,
        began: Instant,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Attachment, Failure> {
        let mut abandoned = pin!(abandoned);
        let mut parameters =
            steps.time("plan", self.reconcile.join(target(record))).await.map_err(pod_failure)?;
        let mut checks = std::mem::take(&mut parameters.link_checks);
        let is_inactive = record.migration == MigrationState::Inactive;
        if is_inactive {
            // The source of the live migration has the address.
            checks.clear();
        }
        let free = self.free(checks, deadline, abandoned.as_mut(), steps).await?;
        let dns = std::mem::take(&mut parameters.dns);
        let spec = spec(record, parameters);
        let device = self.connect(record, netns, spec.clone(), deadline, abandoned.as_mut(), steps).await?;
        let added = steps.time("kernel", self.reconcile.add_pod(pod(record, &device))).await;
        let gate = added.map_err(pod_failure)?;
        for address in &free {
            steps.time("announcement", address.announce()).await.map_err(link_check_failure)?;
        }
        let gated = !gate.prefixes.is_empty();
        self.wait_advertised(gate, &record.network, deadline, abandoned, steps).await?;
        if gated {
            self.metrics.advertised(&record.network, began.elapsed());
        }
        // ADD does not wait for the record's second commit: without it, the next start finds a
        // complete device and marks the record as attached. The device of an inactive pod has no
        // route yet, so it does not look complete.
        let (key, saved) = (record.key.clone(), self.ipam.attached(record.key.clone(), device.mtu));
        if is_inactive {
            saved.await.map_err(ipam_failure)?;
        } else {
            tokio::spawn(async move {
                if let Err(error) = saved.await {
                    tracing::warn!(attachment = %key, %error, "the record stays at \"attaching\"");
                }
            });
        }
        Ok(Attachment { dns, ..attachment(record, &spec, &device) })
    }

    /// Creates the device, and the rules of network policies while the device is completed. The rules
    /// precede the route to the pod, and the pod's processes start after the answer.
    async fn connect(
        &self,
        record: &Record,
        netns: OwnedFd,
        spec: DeviceSpec,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Device, Failure> {
        let (created, host_ifindex) = oneshot::channel();
        let making = async {
            let began = Instant::now();
            let created = move |host_ifindex| created.send(host_ifindex).unwrap_or_default();
            let made = self.devices.attach(netns, spec, created).await;
            (began, began.elapsed(), made)
        };
        let protecting = async {
            let policies = self.policies.as_ref()?;
            // Without an interface there is an error of the device.
            let host_ifindex = host_ifindex.await.ok()?;
            let began = Instant::now();
            let link = policy_link(record, host_ifindex, &self.addresses);
            let outcome = policies.attach(link, deadline).await;
            Some((began, began.elapsed(), outcome))
        };
        let (mut making, mut protecting) = (pin!(making), pin!(protecting));
        let mut protected = None;
        let (began, took, made) = loop {
            tokio::select! {
                made = &mut making => break made,
                outcome = &mut protecting, if protected.is_none() => protected = Some(outcome),
            }
        };
        steps.step("link", began, took, made.as_ref().err());
        let device = made.map_err(device_failure)?;
        let protected = match protected {
            Some(outcome) => outcome,
            None => tokio::select! {
                outcome = protecting => outcome,
                () = abandoned => {
                    return Err(Failure::new(Code::TryAgainLater, "the client has disconnected"));
                }
            },
        };
        if let Some((began, took, outcome)) = protected {
            steps.step("policies", began, took, outcome.as_ref().err());
            outcome.map_err(policy_failure)?;
        }
        Ok(device)
    }

    /// Waits until, for each address in a VLAN, its router has answered and no other host has the
    /// address. This node does not answer for the addresses yet.
    async fn free(
        &self,
        checks: Vec<LinkCheck>,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<Vec<VerifiedAddress>, Failure> {
        if checks.is_empty() {
            return Ok(Vec::new());
        }
        let addresses: Vec<String> = checks.iter().map(|check| check.address.to_string()).collect();
        let mut pending: JoinSet<(IpAddr, Instant, Duration, Result<VerifiedAddress, LinkCheckError>)> =
            JoinSet::new();
        for check in checks {
            let (link_checker, metrics) = (self.link_checker.clone(), self.metrics.clone());
            pending.spawn(async move {
                let began = Instant::now();
                let outcome = link_checker.check(&check).await;
                let word = outcome.as_ref().map_or_else(LinkCheckError::outcome, |_| "ok");
                let took = began.elapsed();
                metrics.wire_check(check.address.is_ipv4(), word, took);
                (check.address, began, took, outcome)
            });
        }
        let later = |text: String| Err(Failure::new(Code::TryAgainLater, text));
        let all = async {
            let mut free = Vec::new();
            while let Some(outcome) = pending.join_next().await {
                match outcome {
                    Ok((address, began, took, outcome)) => {
                        steps.step("wire check", began, took, outcome.as_ref().err());
                        steps.of_step("trunkline.addresses", || vec![address.to_string()]);
                        free.push(outcome.map_err(link_check_failure)?);
                    }
                    Err(error) => return later(format!("a link check has ended: {error}")),
                }
            }
            Ok(free)
        };
        tokio::select! {
            outcome = all => outcome,
            () = tokio::time::sleep_until(deadline) => later(format!(
                "there was no time to check whether {} is free: give the ADD more than \
                 vlanCheck.timeoutSeconds",
                addresses.join(" and ")
            )),
            () = abandoned => later("the client has disconnected".to_owned()),
        }
    }

    /// Waits until an established peer has received every prefix.
    async fn wait_advertised(
        &self,
        gate: ReadinessGate,
        network: &str,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
        steps: &mut Steps,
    ) -> Result<(), Failure> {
        if gate.prefixes.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let Some(speaker) = gate.speaker else {
            return Err(Failure::new(
                Code::TryAgainLater,
                "the pod cannot be advertised: the BGP speaker does not run, see `trunkline status`",
            ));
        };
        let mut peers: Vec<String> = Vec::new();
        let watch = async {
            for prefix in &gate.prefixes {
                let watched = speaker.watch(*prefix).await;
                let peer = watched
                    .map_err(|stopped| Failure::new(Code::TryAgainLater, stopped.to_string()))?
                    .to_string();
                if !peers.contains(&peer) {
                    peers.push(peer);
                }
            }
            Ok(())
        };
        let outcome = tokio::select! {
            outcome = watch => outcome,
            () = tokio::time::sleep_until(deadline) => {
                Err(missing(&speaker, &gate.prefixes, began.elapsed()).await)
            }
            () = abandoned => Err(Failure::new(Code::TryAgainLater, "the client has disconnected")),
        };
        let took = began.elapsed();
        self.metrics.gate(network, outcome.is_ok(), took);
        steps.step("advertisement", began, took, outcome.as_ref().err());
        steps.of_step("trunkline.prefixes", || gate.prefixes.iter().map(IpNet::to_string).collect());
        steps.of_step("trunkline.peers", || peers);
        outcome
    }

    /// Repairs the bandwidth limits of devices after changes by other programs, until the channel
    /// closes.
    pub async fn keep_limits(self, mut touched: UnboundedReceiver<String>) {
        let mut names = Vec::new();
        while touched.recv_many(&mut names, 64).await > 0 {
            // One change often causes several notifications.
            names.sort_unstable();
            names.dedup();
            for host_ifname in names.drain(..) {
                if let Err(error) = self.repair_limits(&host_ifname).await {
                    tracing::warn!(device = host_ifname, %error, "a pod's bandwidth limits could not be repaired");
                }
            }
        }
    }

    /// Takes the lock, because changes by a current ADD or DEL are not foreign.
    async fn repair_limits(&self, host_ifname: &str) -> Result<(), DeviceError> {
        let Some((container_id, ifname)) = self.devices.owner(host_ifname.to_owned()).await? else {
            return Ok(());
        };
        let key = AttachmentKey { container_id, ifname };
        let _guard = self.locks.lock(&key).await;
        let limits = self.ipam.get(key).await.map(|record| record.bandwidth).unwrap_or_default();
        if limits.is_empty() {
            return Ok(());
        }
        let faults = self.devices.repair_limits(host_ifname.to_owned(), limits).await?;
        if !faults.is_empty() {
            tracing::info!(
                device = host_ifname,
                faults = faults.join("; "),
                "bandwidth limits were changed by another program: restored"
            );
        }
        Ok(())
    }

    /// Locks the attachment.
    async fn lock(&self, key: &AttachmentKey, steps: &mut Steps) -> AttachmentGuard {
        let began = Instant::now();
        let guard = self.locks.lock(key).await;
        steps.step("turn", began, began.elapsed(), None::<&Failure>);
        guard
    }

    /// CHECK.
    pub async fn check(&self, request: Check, netns: Option<OwnedFd>) -> Result<Done, Failure> {
        let key = key_of(&request.interface);
        let _guard = self.locks.lock(&key).await;
        let Some(record) = self.ipam.get(key.clone()).await else {
            return Err(Failure::new(
                Code::UnknownContainer,
                format!("{key} is not attached: run ADD before CHECK"),
            ));
        };
        let ours = record.addresses.iter().map(|assigned| assigned.address);
        let mut expected: Vec<IpAddr> = request.addresses.iter().map(IpNet::addr).collect();
        let missing: Vec<String> = ours
            .filter(|address| {
                let index = expected.iter().position(|expected| expected == address);
                index.map(|index| expected.swap_remove(index)).is_none()
            })
            .map(|address| address.to_string())
            .collect();
        if !missing.is_empty() {
            return Err(Failure::new(
                Code::CheckFailed,
                format!(
                    "the runtime does not have {} of {key}: delete and add the container",
                    missing.join(", ")
                ),
            ));
        }
        let netns = netns.ok_or_else(|| {
            Failure::new(Code::UnknownContainer, "the network namespace of the container is gone")
        })?;
        let parameters = self.reconcile.join(target(&record)).await.map_err(|error| match error {
            PodError::Waits(error) => Failure::new(Code::CheckFailed, error.to_string()),
            error => pod_failure(error),
        })?;
        let parameters = LinkParameters { mtu: record.mtu, ..parameters };
        self.check_others(&key, &netns).await?;
        match self.devices.check(netns, spec(&record, parameters)).await {
            Ok(_) => Ok(Done {}),
            Err(error @ DeviceError::Check(_)) => Err(Failure::new(Code::CheckFailed, error.to_string())),
            Err(error) => Err(device_failure(error)),
        }
    }
}

/// The missing condition at the deadline: each peer with its state and the reason for its missing
/// session.
async fn missing(speaker: &SpeakerHandle, prefixes: &[IpNet], waited: Duration) -> Failure {
    let prefixes: Vec<String> = prefixes.iter().map(IpNet::to_string).collect();
    let message = format!(
        "no established peer received {} within {:.1} s",
        prefixes.join(" and "),
        waited.as_secs_f64()
    );
    let peers = speaker.peers().await.unwrap_or_default();
    let peers: Vec<String> = peers
        .iter()
        .map(|peer| match causes::why(peer) {
            Some(cause) => format!("peer {} is {} ({cause})", peer.address, peer.state),
            None => format!("peer {} is {}", peer.address, peer.state),
        })
        .collect();
    Failure::new(Code::TryAgainLater, message).with_details(peers.join("; "))
}

fn key_of(interface: &Interface) -> AttachmentKey {
    AttachmentKey { container_id: interface.container_id.clone(), ifname: interface.ifname.clone() }
}

/// The error for a request that an IPVLAN slave does not support, if any.
fn unsuited(record: &Record, named_mac: bool) -> Option<Failure> {
    let what = match record.attachment {
        AttachmentKind::Veth => return None,
        AttachmentKind::Ipvlan if named_mac => "its own MAC: it has the MAC of its VLAN device",
        AttachmentKind::Ipvlan if !record.bandwidth.is_empty() => {
            "bandwidth limits: its packets do not pass the host interface, where limits apply"
        }
        AttachmentKind::Ipvlan => return None,
    };
    Some(Failure::new(
        Code::InvalidConfiguration,
        format!(
            "an IPVLAN slave cannot have {what}. Leave it out, or write `attachment: veth` into the config of Network {}",
            record.network
        ),
    ))
}

fn target(record: &Record) -> AttachTarget {
    AttachTarget {
        network: record.network.clone(),
        addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
        attachment: record.attachment,
    }
}

/// The device of a record.
pub fn spec(record: &Record, parameters: LinkParameters) -> DeviceSpec {
    DeviceSpec {
        container_id: record.key.container_id.clone(),
        ifname: record.key.ifname.clone(),
        addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
        mac: Some(record.mac),
        mtu: parameters.mtu,
        bandwidth: record.bandwidth,
        attachment: parameters.attachment,
        destinations: parameters.destinations.into_iter().chain(record.routes.iter().copied()).collect(),
        several: record.several,
    }
}

/// A link of a record for its network policies.
pub fn policy_link(record: &Record, ifindex: u32, addresses: &Addresses) -> PolicyLink {
    // Without a pod's name, the container is its own pod.
    let name = if record.pod.name.is_empty() { &record.key.container_id } else { &record.pod.name };
    PolicyLink {
        pod: ObjectKey::new(&record.pod.namespace, name),
        uid: record.pod.uid.as_str().into(),
        host_ifname: host_ifname(&record.key.container_id, &record.key.ifname),
        ifindex,
        addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
        enforceable: record.attachment == AttachmentKind::Veth,
        labels: match addresses {
            Addresses::Cluster(_) => None,
            Addresses::Local => {
                let passed = record.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
                let name = (label::POD, name.as_str());
                Some(passed.filter(|(key, _)| *key != label::POD).chain([name]).collect())
            }
        },
    }
}

fn pod(record: &Record, device: &Device) -> Pod {
    Pod {
        network: record.network.clone(),
        addresses: record.addresses.iter().map(|assigned| assigned.address).collect(),
        host_ifname: device.host_ifname.clone(),
        host_ifindex: device.host_ifindex,
        mac: device.pair_mac,
        attachment: record.attachment,
        extra_prefixes: record.extra_prefixes.clone(),
        migration: record.migration,
        target_addresses: record.target_addresses(),
        is_virtual_machine: record.is_virtual_machine(),
    }
}

fn attachment(record: &Record, spec: &DeviceSpec, device: &Device) -> Attachment {
    let on_link = match &spec.attachment {
        plan::Attachment::Veth => spec
            .addresses
            .iter()
            .map(|address| OnLink {
                address: IpNet::from(*address),
                gateway: if address.is_ipv4() { GATEWAY_V4.into() } else { GATEWAY_V6.into() },
            })
            .collect(),
        plan::Attachment::Ipvlan(ipvlan) => ipvlan.on_link.clone(),
    };
    Attachment {
        network: record.network.clone(),
        addresses: record
            .addresses
            .iter()
            .zip(&on_link)
            .map(|(Assigned { subnet, .. }, OnLink { address, gateway })| AttachedAddress {
                address: *address,
                gateway: Some(*gateway),
                subnet: subnet.clone(),
            })
            .collect(),
        routes: device
            .routes
            .iter()
            .map(|(destination, gateway)| AttachedRoute {
                destination: *destination,
                gateway: Some(*gateway),
            })
            .collect(),
        mac: show_mac(&device.mac),
        host_ifname: device.host_ifname.clone(),
        host_mac: show_mac(&device.host_mac),
        mtu: device.mtu,
        dns: SubnetDns::default(),
    }
}

fn pod_name(record: &Record) -> String {
    full_name(&record.pod.namespace, &record.pod.name)
}

fn addresses(record: &Record) -> String {
    let addresses: Vec<String> =
        record.addresses.iter().map(|assigned| assigned.address.to_string()).collect();
    addresses.join(",")
}
