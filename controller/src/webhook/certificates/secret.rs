//! The Secret that the replicas share, and the `caBundle` of the webhook configurations.
//!
//! Every replica watches the Secret and both webhook configurations and serves the certificate in
//! the Secret. It also does the next step ([`issue`](super::issue)): a write of the Secret, or of a
//! configuration's `caBundle`. There is no leader. Each write carries the version that was seen. So
//! if two replicas do the same step, the second write fails, and its replica gets the result of the
//! first write from the watch. An emptied `caBundle` (after an upgrade of the chart) or a deleted
//! Secret is restored.
//!
//! A replica serves only the certificate in the Secret, never one that could not be written.
//! Otherwise two replicas would serve certificates of different CAs, and the configurations can
//! only trust a stored CA.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Client, Resource};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::issue::{IssuePolicy, Step, StoredCertificates, step};
use super::{Served, Source, Unusable};
use crate::watch::delays::Delays;
use crate::webhook::configuration::NAME;
use crate::webhook::metrics::Metrics;

/// Delay between attempts of a refused write.
const RETRY: Duration = Duration::from_secs(2);

/// Maintains the certificate until shutdown. It returns no error, because every failed step is
/// retried.
pub(in super::super) async fn keep(
    client: Client,
    source: &Source,
    served: Arc<Served>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) {
    let Source::Secret { namespace, name, names, lifetime, overlap } = source else { return };
    let mut keeper = Keeper {
        secrets: Api::namespaced(client.clone(), namespace),
        name: name.clone(),
        policy: IssuePolicy { names: names.clone(), lifetime: *lifetime, overlap: *overlap },
        validating: Api::all(client.clone()),
        mutating: Api::all(client),
        served,
        metrics,
        secret: None,
        last: None,
        bundles: [None, None],
    };
    let mut secrets = pin!(without_errors(watch_object(keeper.secrets.clone(), name)));
    let mut validating = pin!(without_errors(watch_object(keeper.validating.clone(), NAME)));
    let mut mutating = pin!(without_errors(watch_object(keeper.mutating.clone(), NAME)));
    let mut next = None;
    loop {
        let timer = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(secret) = secrets.next() => keeper.secret = Some(secret),
            Some(found) = validating.next() => keeper.bundles[0] = Some(found.map(|found| Bundle::of(&found))),
            Some(found) = mutating.next() => keeper.bundles[1] = Some(found.map(|found| Bundle::of(&found))),
            () = timer => {}
        }
        next = match keeper.act().await {
            Ok(wait) => wait.map(|wait| tokio::time::Instant::now() + wait),
            Err(error) => {
                tracing::warn!(%error, "the webhook's certificate cannot be maintained: retrying");
                Some(tokio::time::Instant::now() + RETRY)
            }
        };
    }
}

/// The stream of a watch, without its errors: the watch retries by itself with growing delays.
fn without_errors<K>(
    watch: impl Stream<Item = kube::runtime::watcher::Result<Option<K>>>,
) -> impl Stream<Item = Option<K>> {
    watch.backoff(Delays::default()).filter_map(|event| async {
        event.inspect_err(|error| tracing::debug!(%error, "a watch for the webhook's certificate ended")).ok()
    })
}

struct Keeper {
    secrets: Api<Secret>,
    name: String,
    policy: IssuePolicy,
    validating: Api<ValidatingWebhookConfiguration>,
    mutating: Api<MutatingWebhookConfiguration>,
    served: Arc<Served>,
    metrics: Arc<Metrics>,
    /// The Secret in the watch; `None` before the first answer.
    secret: Option<Option<Secret>>,
    /// The last valid content of the Secret.
    last: Option<StoredCertificates>,
    /// The validating and the mutating configuration in the watch. They may be absent, because an
    /// administrator can configure the calls in another way.
    bundles: [Option<Option<Bundle>>; 2],
}

/// The `caBundle`s of a configuration.
struct Bundle {
    version: String,
    /// One for each webhook of the configuration.
    bundles: Vec<Vec<u8>>,
}

/// Common part of both kinds of configuration.
trait Configuration: Resource<DynamicType = ()> {
    fn bundles(&self) -> Vec<Vec<u8>>;
}

macro_rules! configuration {
    ($kind:ty) => {
        impl Configuration for $kind {
            fn bundles(&self) -> Vec<Vec<u8>> {
                let bundle = |bundle: Option<ByteString>| bundle.map(|bundle| bundle.0).unwrap_or_default();
                self.webhooks
                    .iter()
                    .flatten()
                    .map(|webhook| bundle(webhook.client_config.ca_bundle.clone()))
                    .collect()
            }
        }
    };
}
configuration!(ValidatingWebhookConfiguration);
configuration!(MutatingWebhookConfiguration);

impl Bundle {
    fn of(configuration: &impl Configuration) -> Bundle {
        let version = configuration.meta().resource_version.clone().unwrap_or_default();
        Bundle { version, bundles: configuration.bundles() }
    }

    fn trusts(&self, trusted: &str) -> bool {
        self.bundles.iter().all(|bundle| bundle == trusted.as_bytes())
    }

    /// A JSON patch that only applies to the version that was seen.
    fn patch(&self, trusted: &str) -> serde_json::Value {
        let bundle = ByteString(trusted.as_bytes().to_vec());
        let mut operations =
            vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": self.version})];
        operations.extend((0..self.bundles.len()).map(
            |index| json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle}),
        ));
        operations.into()
    }
}

impl Keeper {
    /// Serves the stored certificate and does the next step. Returns the delay until the next step,
    /// if any.
    async fn act(&mut self) -> anyhow::Result<Option<Duration>> {
        let Some(secret) = self.secret.clone() else { return Ok(None) };
        let read = secret.as_ref().and_then(|secret| StoredCertificates::read(secret.data.as_ref()?));
        let kept = read.filter(|kept| {
            self.take(kept)
                .inspect_err(|error| {
                    tracing::warn!(secret = self.name, %error, "the certificate in the Secret cannot be served");
                })
                .is_ok()
        });
        let (Some(kept), true) = (&self.last, kept.is_some()) else {
            // If the Secret was deleted or overwritten, the trusted certificate is restored, if
            // this replica has it.
            let now = Timestamp::now();
            let known = self.last.clone().filter(|kept| kept.current.expires > now);
            let restored = match known {
                Some(kept) => kept,
                None => match step(None, &self.policy, false, now)? {
                    Step::Write(kept) => *kept,
                    Step::Wait(_) | Step::AwaitTrust => return Ok(None),
                },
            };
            return self.write(secret.as_ref(), &restored).await;
        };
        let trusted = kept.trusted();
        let trusts = |seen: &Option<Bundle>| seen.as_ref().is_none_or(|bundle| bundle.trusts(&trusted));
        let is_trusted = self.bundles.iter().all(|seen| seen.as_ref().is_some_and(trusts));
        if !is_trusted {
            self.trust(&trusted).await?;
        }
        let now = Timestamp::now();
        match step(Some(kept), &self.policy, is_trusted, now)? {
            Step::Wait(until) => Ok(Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())),
            Step::AwaitTrust => Ok(None),
            Step::Write(kept) => self.write(secret.as_ref(), &kept).await,
        }
    }

    /// Serves the stored certificate if it has changed.
    fn take(&mut self, kept: &StoredCertificates) -> Result<(), Unusable> {
        if self.last.as_ref() == Some(kept) {
            return Ok(());
        }
        if self.last.as_ref().map(|last| &last.current) != Some(&kept.current) {
            self.served.replace(kept.current.chain.as_bytes(), kept.current.key.as_bytes())?;
            tracing::info!(expires = %kept.current.expires, names = ?kept.current.names, "the webhook's certificate is served");
        }
        self.metrics.certificate_expires.set(kept.current.expires.as_second());
        self.last = Some(kept.clone());
        Ok(())
    }

    /// Writes the Secret. A concurrent write of another replica appears in the watch.
    async fn write(
        &self,
        secret: Option<&Secret>,
        kept: &StoredCertificates,
    ) -> anyhow::Result<Option<Duration>> {
        let metadata = match secret {
            Some(secret) => secret.metadata.clone(),
            None => ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
        };
        let written = Secret {
            metadata,
            data: Some(kept.write()),
            // The type of a Secret cannot change.
            type_: secret.and_then(|secret| secret.type_.clone()).or(Some("kubernetes.io/tls".to_owned())),
            ..Secret::default()
        };
        let parameters = PostParams::default();
        let done = match secret {
            Some(_) => self.secrets.replace(&self.name, &parameters, &written).await,
            None => self.secrets.create(&parameters, &written).await,
        };
        match done {
            Ok(_) => tracing::info!(secret = self.name, ?kept, "the webhook's certificates were written"),
            Err(kube::Error::Api(error)) if error.code == 409 => {
                tracing::debug!(secret = self.name, "another replica wrote first");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    async fn trust(&self, trusted: &str) -> anyhow::Result<()> {
        for (index, bundle) in self.bundles.iter().enumerate() {
            let Some(bundle) =
                bundle.as_ref().and_then(Option::as_ref).filter(|bundle| !bundle.trusts(trusted))
            else {
                continue;
            };
            let patch = Patch::<()>::Json(serde_json::from_value(bundle.patch(trusted))?);
            let parameters = PatchParams::default();
            let done = match index {
                0 => self.validating.patch_metadata(NAME, &parameters, &patch).await.map(drop),
                _ => self.mutating.patch_metadata(NAME, &parameters, &patch).await.map(drop),
            };
            match done {
                Ok(()) => {
                    tracing::info!(configuration = NAME, "the webhook configurations now trust the CA")
                }
                // The configuration was changed or deleted meanwhile: the watch shows the new
                // state. (The status of a failed test is 422.)
                Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409 | 422) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
