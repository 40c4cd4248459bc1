//! Rate limits of a container's interface.

use serde::{Deserialize, Serialize};

/// Rate limits of a container's interface (CNI's capability `bandwidth`), as the container sees the
/// directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Limit towards the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<RateLimit>,
    /// Limit from the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<RateLimit>,
}

impl Bandwidth {
    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        *self == Bandwidth::default()
    }
}

/// A rate limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// In bits per second, Ethernet headers included; at least [`RateLimit::MIN_RATE`].
    pub rate: u64,
    /// Maximum burst after a pause, in bits, at most [`RateLimit::MAX_BURST`]. If there is none,
    /// the agent derives the burst from the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

impl RateLimit {
    /// The lowest rate, as in Kubernetes' annotations.
    pub const MIN_RATE: u64 = 1_000;
    /// The largest burst: the kernel counts its octets in 32 bits.
    pub const MAX_BURST: u64 = (1 << 35) - 8;
}
