//! Addresses of this node's pods: records, the store on disk, and the pools for nodes without
//! Kubernetes. (In Kubernetes the controller allocates addresses, and a record contains the
//! addresses of its IPInstances.)
//!
//! ```text
//!  attach flow ──┐   requests    ┌────────────────────────────┐  one transaction
//!  reconcile   ──┼──────────────▶│ owner thread: Allocator,   │──────────────────▶ store.redb
//!  status      ──┘◀── replies ───│ records                    │  for all that is queued
//!                                └────────────────────────────┘
//! ```
//!
//! A separate thread owns all this state, because a commit waits for the disk. The thread takes all
//! queued requests, makes the changes in memory, commits them in one transaction, and only then
//! answers. So ten simultaneous pods cost one fsync. If the commit fails, the changes in memory are
//! reverted, so memory never contains more than the disk.
//!
//! - [`Pool`] holds the addresses of one subnet.
//! - [`allocator`] selects subnets, in dual stack one of each family.
//! - [`record`] has the record of an attachment.
//! - [`store`] writes it with redb.
//! - [`owner`] is the thread.

pub mod allocator;
pub mod owner;
pub mod record;
pub mod store;

pub use allocator::{AddressRequest, AllocateError, NetworkSpec};
pub use owner::{AddressSource, Ipam, IpamError, Reservation, Started, SubnetUse, Summary};
pub use record::{Assigned, AttachmentKey, MigrationState, Phase, PodName, Record, TargetNode};
pub use store::StoreError;
pub use trunkline_api::pool::{Counts, Pool, PoolSpec};
