//! Attaching a pod: what happens in its network namespace and at the host's end of its link.

pub mod device;
pub mod netns;
