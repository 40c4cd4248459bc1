//! A kernel plan that the planner and the kernel owner share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::KernelPlan;

/// A kernel plan, or a larger plan that contains one. A clone shares the memory: a plan can have
/// 10,000 routes.
#[derive(Clone)]
pub struct SharedPlan(Arc<dyn AsRef<KernelPlan> + Send + Sync>);

impl SharedPlan {
    /// The kernel's part of this plan.
    pub fn of<P: AsRef<KernelPlan> + Send + Sync + 'static>(plan: Arc<P>) -> SharedPlan {
        SharedPlan(plan)
    }
}

impl Default for SharedPlan {
    fn default() -> SharedPlan {
        SharedPlan::from(KernelPlan::default())
    }
}

impl From<KernelPlan> for SharedPlan {
    fn from(plan: KernelPlan) -> SharedPlan {
        SharedPlan::of(Arc::new(plan))
    }
}

impl Deref for SharedPlan {
    type Target = KernelPlan;

    fn deref(&self) -> &KernelPlan {
        (*self.0).as_ref()
    }
}

impl AsRef<KernelPlan> for KernelPlan {
    fn as_ref(&self) -> &KernelPlan {
        self
    }
}

impl fmt::Debug for SharedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
