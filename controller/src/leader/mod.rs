//! One of the replicas leads: it alone writes addresses, statuses and labels. Which one, a Lease says (`coordination.k8s.io/v1`).
//!
//! ```text
//!            Lease free, or not renewed for its duration            work done, then released
//!  candidate ──────────────────────────────────────────▶ leader ──────────────────────────────▶ end
//!      ▲      update with the resourceVersion that was seen │
//!      └────────────────────────────────────────────────────┘
//!             another holds it, or no renewal got through in two thirds of its duration
//! ```
//!
//! Every write of the Lease carries the resourceVersion that was read, so of two candidates one gets it. A candidate watches
//! the Lease, and counts from when *it saw* the last change, by its own clock: clocks that differ between machines do no
//! harm, only ones that run at different speeds would (client-go's way). A Lease that was given up is taken at once. So is one that still names this very process,
//! which lost it when the API server was away: nobody has led since.
//!
//! **Two leaders at a time** is what must not be. The leader's right to write, its [`Fence`], ends two thirds of the Lease's
//! duration after it *sent* the last renewal that got through. A write may take the last third ([`Fence::patience`]) and is given up then. A successor saw that
//! renewal later than it was sent and waits the whole duration. So by the time it takes over, the predecessor
//! has stopped writing, and stopped waiting for what it wrote. What could still come after that is a request that
//! was held up on its way for longer than the patience, or a process that stood still between asking its fence and sending. Neither
//! can be excluded by a clock; [the design](../../../docs/design.md) says what is done about it: a second owner of an address is found by
//! [`crate::ipam::Ipam::conflicts`] and refused.
//!
//! **Leading again** is a term like any other: the list is made anew, and it begins no earlier than a successor's would, the whole duration after the last
//! renewal that got through was sent. Until then an answer to what the term before wrote may be outstanding. Another candidate that wants the
//! Lease at the same moment has seen the same version: one of the two gets it.
//!
//! Each process calls itself by its name and a number made at its start: one that was killed and started anew under its old name is another holder and
//! waits, since what the old one sent may be under way. One that is asked to end waits for the answers to its writes and then gives the Lease up: what
//! it wrote is in its successor's list. If the work does not end in time after the Lease was lost, the process
//! ends: [`run`] returns an error.

#[cfg(test)]
mod election_tests;
mod fence;
mod record;

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
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

/// What the work has at least to end in: a process that stood still for longer than its Lease has sent nothing since.
const GRACE: Duration = Duration::from_secs(1);

/// How the leader is elected.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Name of the Lease by which the leader is elected
    #[arg(long = "lease-name", default_value = "trunkline-controller")]
    pub name: String,

    /// A leader that has not renewed its Lease for this long, in seconds, 3 to 600, is replaced; it renews each two fifteenths of it, and
    /// stops writing after two thirds
    #[arg(long = "lease-duration-seconds", default_value_t = 15, value_parser = clap::value_parser!(u16).range(3..=600))]
    pub duration_seconds: u16,
}

impl Config {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.duration_seconds.into())
    }

    /// client-go's proportions: 15 s, 10 s, 2 s.
    fn deadline(&self) -> Duration {
        self.duration() * 2 / 3
    }

    fn patience(&self) -> Duration {
        self.duration() / 3
    }

    /// Between two attempts; up to a fifth longer, so that replicas that start together do not stay together.
    fn pause(&self) -> Duration {
        let fraction = (random() % 1000) as u32;
        self.duration() * 2 / 15 * (5000 + fraction) / 5000
    }
}

/// Stands for election until it is told to stop, and runs `lead` whenever this process is the leader. The work has to end when its fence is lost.
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
            holder: format!("{identity}_{:08x}", random() as u32),
            duration: config.duration_seconds.into(),
        },
    };
    // By when what this process wrote as the leader is written, or never will be.
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
            tracing::warn!(lease = config.name, reason, "this replica leads no longer");
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

/// The Lease as it was last written by this process.
struct Held {
    lease: Lease,
    /// When the write that got through was sent.
    sent: Instant,
}

impl Election<'_> {
    /// Waits until the Lease can be had, and takes it, no earlier than `settled`.
    async fn acquire(&self, settled: Instant) -> Held {
        let selector = watcher::Config::default().fields(&format!("metadata.name={}", self.claim.name));
        let mut changes = std::pin::pin!(watcher(self.leases.clone(), selector).backoff(Delays::default()));
        let mut observed: Option<Observed> = None;
        let mut listed = false;
        // When to try next: nothing is tried before the Lease was read, or read to be missing.
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
                    // The watch starts anew by itself and does not end.
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

    /// Writes this process into the Lease as it was seen.
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

    /// Renews the Lease until it is lost, and says why it was.
    async fn renew(&self, held: &mut Held, fence: &Fence) -> String {
        loop {
            let deadline = held.sent + self.config.deadline();
            let mut at = Instant::now() + self.config.pause();
            loop {
                sleep_until(at.min(deadline)).await;
                if Instant::now() >= deadline {
                    return format!("it was not renewed for {} s", self.config.deadline().as_secs());
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
            // Somebody wrote it: another candidate, a person, or this process with a write that seemed to have failed.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                Ok(match self.leases.get_opt(&self.claim.name).await? {
                    Some(lease) if self.claim.holds(&lease) => Renewed::Changed(Box::new(lease)),
                    Some(lease) => Renewed::Lost(format!("{} holds it", record::holder(&lease))),
                    None => Renewed::Lost("it was deleted".to_owned()),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease up. If that fails, others wait for its end.
    async fn release(&self, held: Held) {
        let sent = Instant::now();
        match self.write(sent, &self.claim.releasing(&held.lease, Timestamp::now())).await {
            Ok(_) => tracing::info!(lease = self.claim.name, "the Lease is given up"),
            Err(error) => tracing::warn!(lease = self.claim.name, %error, "the Lease was not given up"),
        }
    }
}

enum Renewed {
    Yes(Box<Held>),
    /// It is still this process's, with another resourceVersion.
    Changed(Box<Lease>),
    /// Why it is not.
    Lost(String),
}

/// For names and pauses that only have to differ.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_falls_before_others_may_lead() {
        for seconds in [3, 15, 600] {
            let config = Config { name: String::new(), duration_seconds: seconds };
            assert!(config.deadline() + config.patience() <= config.duration());
            // Three attempts at least before the deadline.
            assert!(config.pause() * 3 < config.deadline(), "{:?}", config.pause());
        }
    }
}
