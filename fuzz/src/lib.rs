//! Fuzz targets: invariants of the code that reads a peer's octets, as functions over arbitrary
//! input.
//!
//! A [`Target`] takes any octets and panics if an invariant is violated. `cargo lab fuzz` runs one
//! under a coverage-guided fuzzer (feature `libfuzzer`, `main.rs`). `cargo test` replays the
//! committed corpus of each, `corpus/TARGET/`, and `cargo lab test fuzz` does both. The corpus is
//! minimised: every file reaches code that no other file reaches, or is an input that once broke an
//! implementation.
//!
//! Random octets are nearly always refused at the first length. So each target has a mutator with
//! knowledge of the input's structure ([`mutate`]). It repeats, drops, swaps and damages whole
//! attributes and messages, and usually corrects the lengths that enclose them. The fuzzer also
//! applies its own mutations.

pub mod bfd;
pub mod differential;
pub mod messages;
pub mod mutate;
pub mod session;
pub mod update;

pub use mutate::Mutate;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also the folder of its corpus.
    pub name: &'static str,
    /// The invariant, in one line.
    pub about: &'static str,
    /// Panics if the invariant is violated.
    pub run: fn(&[u8]),
    /// Mutates an input; the result is likely to reach new code.
    pub mutate: Mutate,
}

/// Every target.
pub const TARGETS: [Target; 5] = [
    Target {
        name: "update",
        about: "UPDATE in every context: no panic, and accepted input is consistent",
        run: update::run,
        mutate: mutate::update,
    },
    Target {
        name: "messages",
        about: "a stream of OPEN, NOTIFICATION, ROUTE-REFRESH and arbitrary octets: each decoded message is encoded again",
        run: messages::run,
        mutate: mutate::messages,
    },
    Target {
        name: "session",
        about: "a speaker with arbitrary peers, transports and clock",
        run: session::run,
        mutate: mutate::script,
    },
    Target {
        name: "bfd",
        about: "a BFD endpoint with arbitrary peers, clock and owner",
        run: bfd::run,
        mutate: mutate::script,
    },
    Target {
        name: "differential",
        about: "valid UPDATEs are decoded as zettabgp and netgauze decode them",
        run: differential::run,
        mutate: mutate::octets,
    },
];
