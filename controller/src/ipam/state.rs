//! The life cycle of one address, and the source of each transition.
//!
//! ```text
//!              Choose             Bound              Kept
//!      Free ───────────▶ Given ───────────▶ InUse ◀────────▶ Retained ◀─── Refuse
//!        ▲                 │                  │     Bound        │
//!        │     Refuse      │          Choose  └────▶ Rebinding ◀─┘ Choose
//!        ├─────────────────┘                 Bound ◀───┘ └───▶ Refuse: Retained
//!        │                                                  Retained ── Expire ──▶ Expiring
//!        │      Gone                  Deleting (from anywhere)
//!        └──────────────── Releasing ◀────────────────────────
//! ```
//!
//! Steps come from two sides. [`Step::Choose`], [`Step::Expire`] and [`Step::Refuse`] are the
//! leader's own. The
//! leader sets an address aside before it writes to the API server, and returns it when the API
//! server has certainly refused. All other steps come from the watch of IPInstances, whichever
//! client wrote the object. They always have precedence, because the API server's state is
//! authoritative. The success of the leader's own write is no step. A chosen address stays `Given`
//! until the watch has shown its IPInstance, so a list that is older than the write cannot free it.
//!
//! An address is free again only when its IPInstance is *gone*. The holder of the finalizer decides
//! when. hybridnet frees the address in memory when it sees the deletion. If the removal of the
//! finalizer then fails, the IPInstance remains, and its address is allocated a second time.

/// State of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// It has no IPInstance, and none is being created.
    #[default]
    Free,
    /// Chosen for a pod; its IPInstance is being created, or was created and is not in the watch
    /// yet.
    Given,
    /// Its IPInstance names a pod by UID.
    InUse,
    /// Its IPInstance is retained for the next pod of its name.
    Retained,
    /// Chosen for the next pod; the pod's name and UID are not in its IPInstance yet.
    Rebinding,
    /// Its retention is over: its IPInstance is being deleted, and no pod gets it.
    Expiring,
    /// Its IPInstance has a deletion timestamp and waits for a finalizer.
    Releasing,
}

/// A transition of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The leader sets the address aside for a pod. An address that is `InUse` is set aside only
    /// for a pod of the same name.
    Choose,
    /// The leader is about to delete the IPInstance of a retained address.
    Expire,
    /// The API server refused the leader's write, or the leader never sent it.
    Refuse,
    /// The watch shows an IPInstance that names a pod by UID.
    Bound,
    /// The watch shows an IPInstance without a pod's UID.
    Kept,
    /// The watch shows an IPInstance with a deletion timestamp.
    Deleting,
    /// The watch shows that the IPInstance no longer exists.
    Gone,
}

impl State {
    /// Every state.
    pub const ALL: [State; 7] = [
        State::Free,
        State::Given,
        State::InUse,
        State::Retained,
        State::Rebinding,
        State::Expiring,
        State::Releasing,
    ];

    /// The state after a step; `None` if the step is invalid from this state.
    pub fn after(self, step: Step) -> Option<State> {
        match (self, step) {
            (State::Free, Step::Choose) => Some(State::Given),
            (State::InUse | State::Retained, Step::Choose) => Some(State::Rebinding),
            (_, Step::Choose) => None,
            (State::Given, Step::Refuse) => Some(State::Free),
            (State::Rebinding | State::Expiring, Step::Refuse) => Some(State::Retained),
            (_, Step::Refuse) => None,
            (State::Retained | State::Expiring, Step::Expire) => Some(State::Expiring),
            (_, Step::Expire) => None,
            (_, Step::Bound) => Some(State::InUse),
            // The event is older than the leader's own write, which is still under way.
            (State::Rebinding | State::Expiring, Step::Kept) => Some(self),
            (_, Step::Kept) => Some(State::Retained),
            (_, Step::Deleting) => Some(State::Releasing),
            // A list from before the write does not contain the IPInstance. The writer gets the
            // result of the write.
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
            //          Choose           Expire          Refuse          Bound        Kept             Deleting         Gone
            (Free, [Some(Given), no, no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
            (Given, [no, no, Some(Free), Some(InUse), Some(Retained), Some(Releasing), Some(Given)]),
            (InUse, [Some(Rebinding), no, no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
            (
                Retained,
                [
                    Some(Rebinding),
                    Some(Expiring),
                    no,
                    Some(InUse),
                    Some(Retained),
                    Some(Releasing),
                    Some(Free),
                ],
            ),
            (Rebinding, [no, no, Some(Retained), Some(InUse), Some(Rebinding), Some(Releasing), Some(Given)]),
            (
                Expiring,
                [
                    no,
                    Some(Expiring),
                    Some(Retained),
                    Some(InUse),
                    Some(Expiring),
                    Some(Releasing),
                    Some(Free),
                ],
            ),
            (Releasing, [no, no, no, Some(InUse), Some(Retained), Some(Releasing), Some(Free)]),
        ];
        assert_eq!(table.map(|row| row.0), State::ALL);
        for (from, outcomes) in table {
            let steps = [
                Step::Choose,
                Step::Expire,
                Step::Refuse,
                Step::Bound,
                Step::Kept,
                Step::Deleting,
                Step::Gone,
            ];
            for (step, outcome) in steps.into_iter().zip(outcomes) {
                assert_eq!(from.after(step), outcome, "{from:?} {step:?}");
            }
        }
    }
}
