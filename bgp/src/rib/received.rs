//! A peer's path before it is in the table: what was received, and why it is not used.

use super::attributes::AttrId;

/// Why a path is kept but not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filtered {
    /// Import policy rejected it.
    Policy,
    /// The local AS is in its AS_PATH (RFC 4271 §9.1.2).
    AsLoop,
    /// Its ORIGINATOR_ID is this speaker (RFC 4456 §8).
    OriginatorLoop,
    /// This speaker's cluster is in its CLUSTER_LIST (RFC 4456 §8).
    ClusterLoop,
    /// ONLY_TO_CUSTOMER says that it may not come from below: a route leak (RFC 9234 §5).
    RouteLeak,
    /// Its next hop is this speaker's own address (RFC 4271 §5.1.3).
    OwnNextHop,
}

/// What a peer's path carries: what was received, and what of it is used or why it is not. Both counted by
/// whoever makes it, for the path that takes it.
pub(super) struct ReceivedPath {
    pub(super) received: AttrId,
    pub(super) used: Result<AttrId, Filtered>,
}
