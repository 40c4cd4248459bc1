//! The life of one address, and who moves it on.
//!
//! ```text
//!              Choose             Bound              Kept
//!      Free ───────────▶ Given ───────────▶ InUse ◀────────▶ Retained
//!        ▲                 │                  │     Bound        │
//!        │     Refuse      │          Choose  └────▶ Rebinding ◀─┘ Choose
//!        ├─────────────────┘                 Bound ◀───┘ └───▶ Refuse: Retained
//!        │      Gone                  Deleting (from anywhere)
//!        └──────────────── Releasing ◀────────────────────────
//! ```
//!
//! Two kinds of steps, from two sides. [`Step::Choose`] and [`Step::Refuse`] are the leader's own: it sets an
//! address aside before it writes to the API server, and takes that back when the API server has certainly said
//! no. All others are what the watch of IPInstances shows, whoever wrote it, and these always win: what the API server
//! has is the truth. The success of the leader's own write is no step. An address that was given stays
//! `Given` until the watch has shown its IPInstance, so a list that is older than the write cannot free it.
//!
//! An address is free again only when its IPInstance is *gone*: the one that holds the finalizer back decides when that is.
//! hybridnet frees it in memory when it sees the deletion, and a failed removal of the finalizer then leaves an
//! IPInstance whose address is given a second time.

/// Where an address is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// There is no IPInstance, and none is being made.
    #[default]
    Free,
    /// Chosen for a pod; its IPInstance is being made, or was made and has not been seen yet.
    Given,
    /// Its IPInstance names a pod by UID.
    InUse,
    /// Its IPInstance is kept for the next pod of its name.
    Retained,
    /// Chosen for the next pod, of whose name and UID its IPInstance does not say yet.
    Rebinding,
    /// Its IPInstance is being deleted and held back by a finalizer.
    Releasing,
}

/// What moves an address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The leader sets it aside for a pod. From `InUse` only for a pod of the same name.
    Choose,
    /// The API server refused what the leader wanted to write, or the leader never asked it.
    Refuse,
    /// The watch shows an IPInstance that names a pod by UID.
    Bound,
    /// The watch shows an IPInstance without a pod's UID.
    Kept,
    /// The watch shows an IPInstance with a deletion timestamp.
    Deleting,
    /// The watch shows that the IPInstance is no more.
    Gone,
}

impl State {
    /// Every state.
    pub const ALL: [State; 6] =
        [State::Free, State::Given, State::InUse, State::Retained, State::Rebinding, State::Releasing];

    /// The state after a step; `None` if the step is not to be made from here.
    pub fn after(self, step: Step) -> Option<State> {
        match (self, step) {
            (State::Free, Step::Choose) => Some(State::Given),
            (State::InUse | State::Retained, Step::Choose) => Some(State::Rebinding),
            (_, Step::Choose) => None,
            (State::Given, Step::Refuse) => Some(State::Free),
            (State::Rebinding, Step::Refuse) => Some(State::Retained),
            (_, Step::Refuse) => None,
            (_, Step::Bound) => Some(State::InUse),
            // What was seen is from before the leader's own write, which is still under way.
            (State::Rebinding, Step::Kept) => Some(State::Rebinding),
            (_, Step::Kept) => Some(State::Retained),
            (_, Step::Deleting) => Some(State::Releasing),
            // A list from before the write does not show what was written: whoever writes will hear how it went.
            (State::Given | State::Rebinding, Step::Gone) => Some(State::Given),
            (_, Step::Gone) => Some(State::Free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State::*;
    use super::*;

    #[test]
    fn every_step_from_every_state() {
        let no = None;
        let table = [
            //          Choose           Refuse          Bound        Kept             Deleting         Gone
            (Free, [Some(Given), no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
            (Given, [no, Some(Free), Some(InUse), Some(Retained), Some(Releasing), Some(Given)]),
            (InUse, [Some(Rebinding), no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
            (Retained, [Some(Rebinding), no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
            (Rebinding, [no, Some(Retained), Some(InUse), Some(Rebinding), Some(Releasing), Some(Given)]),
            (Releasing, [no, no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
        ];
        assert_eq!(table.map(|row| row.0), State::ALL);
        for (from, outcomes) in table {
            let steps = [Step::Choose, Step::Refuse, Step::Bound, Step::Kept, Step::Deleting, Step::Gone];
            for (step, outcome) in steps.into_iter().zip(outcomes) {
                assert_eq!(from.after(step), outcome, "{from:?} {step:?}");
            }
        }
    }
}
