//! The end of an attachment: DEL, GC, and a failed ADD.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use trunkline_api::attach::{Code, Detach, Done, Failure, Gc};
use trunkline_datapath::naming::host_ifname;

use super::failures::device_failure;
use super::{Pods, RequestContext, addresses, key_of, pod_name};
use crate::ipam::{AttachmentKey, Record};
use crate::telemetry::trace::Steps;

impl Pods {
    /// DEL. Missing parts count as deleted.
    pub async fn detach(
        &self,
        request: Detach,
        netns: Option<OwnedFd>,
        context: RequestContext,
    ) -> Result<Done, Failure> {
        let RequestContext { began, origin } = context;
        let mut steps = self.tracer.begin("detach", began, origin.as_ref());
        steps.of_interface(&request.interface);
        let key = key_of(&request.interface);
        let _guard = self.lock(&key, &mut steps).await;
        let outcome = match self.detach_others(&key, netns.as_ref(), &mut steps).await {
            Ok(()) => self.remove(&key, netns, &mut steps).await,
            Err(failure) => Err(failure),
        };
        let record = outcome.as_ref().ok().and_then(Option::as_ref);
        let network = record.map(|record| record.network.as_str()).unwrap_or_default();
        let took = began.elapsed();
        self.metrics.request("detach", network, outcome.is_ok(), took);
        if let Some(record) = record {
            steps.of_pod(&record.pod.namespace, &record.pod.name, &record.pod.uid);
            steps.of_record(record);
        }
        steps.end(began, took, outcome.as_ref().err());
        outcome.map(|_| Done {})
    }

    /// Removes the device, and the record last. So a record without a device is deleted, and so is
    /// a device without a record. Returns the record, if there was one.
    pub(super) async fn remove(
        &self,
        key: &AttachmentKey,
        netns: Option<OwnedFd>,
        steps: &mut Steps,
    ) -> Result<Option<Record>, Failure> {
        let host_ifname = host_ifname(&key.container_id, &key.ifname);
        let removed = async {
            self.reconcile.remove_pod(host_ifname.clone()).await;
            Ok::<(), Failure>(())
        };
        steps.time("kernel", removed).await?;
        let detached = self.devices.detach(host_ifname.clone(), netns);
        steps.time("link", detached).await.map_err(device_failure)?;
        // The rules stay as long as the link.
        if let Some(policies) = &self.policies {
            policies.detach(host_ifname).await;
        }
        self.forget_connections(key).await;
        let released = steps.time("record", self.ipam.release(key.clone())).await;
        let record = released.map_err(|error| Failure::new(Code::TryAgainLater, error.on_release()))?;
        self.addresses.detached(&key.container_id, record.as_ref());
        if let Some(record) = &record {
            tracing::info!(attachment = %key, pod = %pod_name(record), addresses = addresses(record), "detached");
        }
        Ok(record)
    }

    /// Deletes the connections of a pod's addresses, also without a policy: the next pod with such an
    /// address can have one, and an established connection passes without a rule. A translated one, of
    /// a `hostPort` for example, leads to the next pod.
    async fn forget_connections(&self, key: &AttachmentKey) {
        let Some(record) = self.ipam.get(key.clone()).await else { return };
        let addresses = record.addresses.iter().map(|assigned| assigned.address).collect();
        if let Err(error) = self.kernel.forget_connections(addresses).await {
            tracing::warn!(attachment = %key, %error, "connections of a deleted pod may continue to its next address holder");
        }
    }

    /// Removes an attachment that a failed ADD began.
    pub(super) async fn take_back(&self, key: &AttachmentKey) {
        if let Err(failure) = self.remove(key, None, &mut Steps::none()).await {
            tracing::warn!(attachment = %key, %failure, "a failed ADD left a part of the attachment: DEL or GC removes it");
        }
    }

    /// GC: removes every attachment of this configuration that is not in the list. Tries all, and
    /// returns the first failure.
    pub async fn gc(&self, request: Gc) -> Result<Done, Failure> {
        let Some(summary) = self.ipam.summary().await else {
            return Err(Failure::new(Code::TryAgainLater, "the agent is stopping"));
        };
        let valid: HashSet<AttachmentKey> = request.valid.iter().map(key_of).collect();
        let mut outcome = Ok(Done {});
        for record in summary.records {
            // An interface that was attached with another one is valid as long as this one.
            let with = record.attached_with.as_ref();
            let key = with.map(|ifname| AttachmentKey { ifname: ifname.clone(), ..record.key.clone() });
            let is_valid = valid.contains(&record.key) || key.is_some_and(|key| valid.contains(&key));
            if record.conf_name != request.conf_name || is_valid {
                continue;
            }
            let _guard = self.locks.lock(&record.key).await;
            let removed = self.remove(&record.key, None, &mut Steps::none()).await;
            if outcome.is_ok() {
                outcome = removed.map(|_| Done {});
            }
        }
        outcome
    }
}
