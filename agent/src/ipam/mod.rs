//! Addresses of this node's pods: records, the store that keeps them, and the pools that they are taken from where there is no Kubernetes. (Where
//! there is, the controller gives them out, and a record is made of what its IPInstances say.)
//!
//! ```text
//!  attach flow ──┐   requests    ┌────────────────────────────┐  one transaction
//!  reconcile   ──┼──────────────▶│ owner thread: Allocator,   │──────────────────▶ store.redb
//!  status      ──┘◀── replies ───│ records                    │  for all that is queued
//!                                └────────────────────────────┘
//! ```
//!
//! A thread of its own owns all of it, since a commit waits for the disk. It takes everything that is queued,
//! makes the changes in memory, commits them in one transaction, and only then answers: ten pods that come at once
//! cost one fsync. If the commit fails the changes are taken back, so that memory never promises what the disk does
//! not know.
//!
//! - [`Pool`]: the addresses of one subnet. - [`allocator`]: which subnet, dual stack. - [`record`]: what is remembered.
//! - [`store`]: redb. - [`owner`]: the thread.

pub mod allocator;
pub mod owner;
pub mod record;
pub mod store;

pub use allocator::{AddressRequest, AllocateError, NetworkSpec};
pub use owner::{AddressSource, Ipam, IpamError, Reservation, Started, SubnetUse, Summary};
pub use record::{Assigned, AttachmentKey, Phase, PodName, Record};
pub use store::StoreError;
pub use trunkline_api::pool::{Counts, Pool, PoolSpec};
