//! Leader election by a Lease (`coordination.k8s.io/v1`): only the leader writes addresses,
//! statuses and labels.
//!
//! ```text
//!            Lease free, or not renewed for its duration            work done, then released
//!  candidate ──────────────────────────────────────────▶ leader ──────────────────────────────▶ end
//!      ▲      update with the resourceVersion that was seen │
//!      └────────────────────────────────────────────────────┘
//!             another holds it, or no renewal got through in two thirds of its duration
//! ```
//!
//! Every write of the Lease carries the resourceVersion that was read, so only one of two
//! candidates succeeds. A candidate watches the Lease. By its own clock it measures the time since
//! *it saw* the last change, as client-go does. Clocks that differ between machines do no harm;
//! only clocks of different speed would. A released Lease is taken at once. A process may lose its
//! Lease while the API server is unreachable. If the Lease still names the process afterwards, the
//! process takes it at once, because no other process has led since.
//!
//! **Two leaders at a time** must never happen. The leader's right to write, its [`Fence`], ends
//! two thirds of the Lease's duration after it *sent* the last successful renewal. A write may take
//! the last third ([`Fence::patience`]) and is abandoned then. A successor saw that renewal later
//! than it was sent, and waits the whole duration. So by the time it takes over, the predecessor
//! has stopped its writes and no longer waits for their answers. Two cases remain: a request
//! delayed on its way for longer than the patience, and a process suspended between the check of
//! its fence and the send. No clock can exclude these. [The design](../../../docs/design.md)
//! describes the remedy: [`crate::ipam::Ipam::conflicts`] finds a second holder of an address, and
//! it is refused.
//!
//! **Leading again** is a term like any other: it begins with a new list, no earlier than a
//! successor's term would. The earliest time is the whole duration after the last successful
//! renewal was sent. Until then an answer to a write of the previous term may be outstanding. If
//! another candidate wants the Lease at the same moment, both have seen the same version, and one
//! of the two gets it.
//!
//! The identity of a process is its name and a random number from its start. So a process that was
//! killed and restarted under its old name is another holder. It waits, because requests of the old
//! process may be under way. On a termination signal the leader waits for the answers to its writes
//! and then releases the Lease, so its successor's list contains its writes. If the work does not
//! end in time after the Lease is lost, the process ends: [`run`] returns an error.

#[cfg(test)]
mod election_tests;
mod fence;
mod record;

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

pub use fence::Fence;
use record::{Claim, Observed};

use crate::watch::delays::Delays;

/// The minimum time for the work to end. A process that was suspended for longer than its Lease
/// needs this time too, although it has sent nothing since.
const GRACE: Duration = Duration::from_secs(1);

/// Settings of the leader election.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Name of the Lease for leader election
    #[arg(long = "lease-name", default_value = "trunkline-controller")]
    pub name: String,

    /// Duration of the Lease, in seconds, 3 to 600; another replica replaces a leader that has not
    /// renewed it for this time. The leader renews it every two fifteenths of the duration, and
    /// stops writing after two thirds
    #[arg(long = "lease-duration-seconds", default_value_t = 15, value_parser = clap::value_parser!(u16).range(3..=600))]
    pub duration_seconds: u16,
}

impl Config {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.duration_seconds.into())
    }

    /// Renewal deadline, in client-go's proportions: 15 s, 10 s, 2 s.
    fn deadline(&self) -> Duration {
        self.duration() * 2 / 3
    }

    fn patience(&self) -> Duration {
        self.duration() / 3
    }

    /// The pause between two attempts. It is up to a fifth longer at random, so that replicas which
    /// start together drift apart.
    fn pause(&self) -> Duration {
        let fraction = fastrand::u32(..1000);
        self.duration() * 2 / 15 * (5000 + fraction) / 5000
    }
}

/// Stands for election until shutdown, and runs `lead` whenever this process is the leader. The
/// work must end when its fence is lost.
///
/// # Errors
/// The work did not end in time after the Lease was lost. The process must end then.
pub async fn run<F, Work>(
    client: Client,
    config: &Config,
    namespace: &str,
    identity: &str,
    stop: CancellationToken,
    mut lead: F,
) -> anyhow::Result<()>
where
    F: FnMut(Fence) -> Work,
    Work: Future<Output = ()>,
{
    let election = Election {
        leases: Api::namespaced(client, namespace),
        config,
        claim: Claim {
            name: config.name.clone(),
            holder: format!("{identity}_{:08x}", fastrand::u32(..)),
            duration: config.duration_seconds.into(),
        },
    };
    // The time by which all writes of this process as the leader are settled, with or without
    // success.
    let mut settled = Instant::now();
    loop {
        let mut held = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            held = election.acquire(settled) => held,
        };
        let fence = Fence::new(held.sent + config.deadline(), config.patience());
        tracing::info!(lease = config.name, holder = election.claim.holder, "this replica leads");
        let mut work = std::pin::pin!(lead(fence.clone()));
        let mut ended = false;
        let lost = tokio::select! {
            reason = election.renew(&mut held, &fence) => Some(reason),
            () = stop.cancelled() => None,
            () = &mut work => { ended = true; None }
        };
        fence.end();
        if let Some(reason) = &lost {
            tracing::warn!(lease = config.name, reason, "this replica no longer leads");
        }
        if !ended {
            let latest = (held.sent + config.duration()).max(Instant::now() + GRACE);
            timeout_at(latest, work).await.with_context(|| {
                format!("the work of the leader did not end in {} s", config.duration_seconds)
            })?;
        }
        if lost.is_none() {
            election.release(held).await;
            return Ok(());
        }
        settled = held.sent + config.duration();
    }
}

struct Election<'a> {
    leases: Api<Lease>,
    config: &'a Config,
    claim: Claim,
}

/// The Lease as this process last wrote it.
struct Held {
    lease: Lease,
    /// The time at which the successful write was sent.
    sent: Instant,
}

impl Election<'_> {
    /// Waits until the Lease is free, and takes it, no earlier than `settled`.
    async fn acquire(&self, settled: Instant) -> Held {
        let selector = watcher::Config::default().fields(&format!("metadata.name={}", self.claim.name));
        let mut changes = std::pin::pin!(watcher(self.leases.clone(), selector).backoff(Delays::default()));
        let mut observed: Option<Observed> = None;
        let mut listed = false;
        // The time of the next attempt. There is none before the Lease was read, or found to be
        // missing.
        let mut attempt: Option<Instant> = None;
        loop {
            let due = async {
                match attempt {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                        Observed::update(&mut observed, lease, Instant::now());
                        listed = true;
                    }
                    Some(Ok(watcher::Event::Delete(_))) => observed = None,
                    Some(Ok(watcher::Event::Init)) => listed = false,
                    Some(Ok(watcher::Event::InitDone)) => {
                        if !listed {
                            observed = None;
                        }
                        listed = true;
                    }
                    Some(Err(error)) => {
                        tracing::warn!(lease = self.claim.name, %error, "the Lease cannot be watched");
                        continue;
                    }
                    // The watch restarts by itself and does not end.
                    None => std::future::pending().await,
                },
                () = due => {
                    match self.take(observed.as_ref()).await {
                        Ok(held) => return held,
                        Err(error) => {
                            tracing::debug!(lease = self.claim.name, %error, "the Lease was not taken");
                            attempt = Some(Instant::now() + self.config.pause());
                            continue;
                        }
                    }
                }
            }
            let free = match &observed {
                Some(observed) => Some(observed.free_for(&self.claim)),
                None => listed.then(Instant::now),
            };
            attempt = free.map(|free| free.max(settled));
        }
    }

    /// Writes this process into the observed Lease.
    async fn take(&self, observed: Option<&Observed>) -> anyhow::Result<Held> {
        let sent = Instant::now();
        let wanted = self.claim.taking(observed.map(|observed| &observed.lease), Timestamp::now());
        let lease = match observed {
            Some(_) => self.write(sent, &wanted).await?,
            None => {
                let parameters = PostParams::default();
                let create = self.leases.create(&parameters, &wanted);
                timeout_at(sent + self.config.patience(), create).await.context("no answer")??
            }
        };
        Ok(Held { lease, sent })
    }

    async fn write(&self, sent: Instant, lease: &Lease) -> kube::Result<Lease> {
        let parameters = PostParams::default();
        let write = self.leases.replace(&self.claim.name, &parameters, lease);
        match timeout_at(sent + self.config.patience(), write).await {
            Ok(answer) => answer,
            Err(late) => Err(kube::Error::Service(Box::new(late))),
        }
    }

    /// Renews the Lease until it is lost, and returns the reason.
    async fn renew(&self, held: &mut Held, fence: &Fence) -> String {
        loop {
            let deadline = held.sent + self.config.deadline();
            let mut at = Instant::now() + self.config.pause();
            loop {
                sleep_until(at.min(deadline)).await;
                if Instant::now() >= deadline {
                    return format!("the Lease was not renewed for {} s", self.config.deadline().as_secs());
                }
                match timeout_at(deadline, self.renew_once(&held.lease)).await {
                    Ok(Ok(Renewed::Yes(renewed))) => {
                        *held = *renewed;
                        fence.extend(held.sent + self.config.deadline());
                        break;
                    }
                    Ok(Ok(Renewed::Changed(lease))) => {
                        held.lease = *lease;
                        at = Instant::now();
                    }
                    Ok(Ok(Renewed::Lost(reason))) => return reason,
                    Ok(Err(error)) => {
                        tracing::warn!(lease = self.claim.name, %error, "the Lease was not renewed");
                        at = Instant::now() + self.config.pause();
                    }
                    Err(_) => {}
                }
            }
        }
    }

    async fn renew_once(&self, lease: &Lease) -> kube::Result<Renewed> {
        let sent = Instant::now();
        match self.write(sent, &self.claim.renewing(lease, Timestamp::now())).await {
            Ok(lease) => Ok(Renewed::Yes(Box::new(Held { lease, sent }))),
            // The Lease has another version: another candidate, a person, or a write of this
            // process that seemed to have failed has changed it.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                Ok(match self.leases.get_opt(&self.claim.name).await? {
                    Some(lease) if self.claim.holds(&lease) => Renewed::Changed(Box::new(lease)),
                    Some(lease) => Renewed::Lost(format!("{} holds it", record::holder(&lease))),
                    None => Renewed::Lost("the Lease was deleted".to_owned()),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Releases the Lease. If that fails, other candidates wait for its expiry.
    async fn release(&self, held: Held) {
        let sent = Instant::now();
        match self.write(sent, &self.claim.releasing(&held.lease, Timestamp::now())).await {
            Ok(_) => tracing::info!(lease = self.claim.name, "the Lease is released"),
            Err(error) => tracing::warn!(lease = self.claim.name, %error, "the Lease was not released"),
        }
    }
}

enum Renewed {
    Yes(Box<Held>),
    /// This process still holds the Lease, which now has another resourceVersion.
    Changed(Box<Lease>),
    /// The Lease is lost, for this reason.
    Lost(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_expires_before_others_may_lead() {
        for seconds in [3, 15, 600] {
            let config = Config { name: String::new(), duration_seconds: seconds };
            assert!(config.deadline() + config.patience() <= config.duration());
            // At least three attempts fit before the deadline.
            assert!(config.pause() * 3 < config.deadline(), "{:?}", config.pause());
        }
    }
}
