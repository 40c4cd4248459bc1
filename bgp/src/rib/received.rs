//! A received path before it is added to the table.

use super::attributes::AttrId;

/// The reason why a path is kept but not used.
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
    /// A route leak: this peer may not send a path with this ONLY_TO_CUSTOMER (RFC 9234 §5).
    RouteLeak,
    /// Its next hop is this speaker's own address (RFC 4271 §5.1.3).
    OwnNextHop,
}

/// The attributes of a received path, and the attributes after import or the reason of the
/// rejection. The creator adds both references, and the path in the table takes them over.
pub(super) struct ReceivedPath {
    pub(super) received: AttrId,
    pub(super) used: Result<AttrId, Filtered>,
}
