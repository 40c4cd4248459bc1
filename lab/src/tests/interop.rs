//! The interoperability matrix as a test; see [`crate::interop`].

use anyhow::Result;

use super::{Context, Test, Verdict, passed};
use crate::fabric::Fabric;
use crate::interop;

pub(super) const TESTS: &[Test] = &[Test {
    name: "interop/matrix",
    about: "every feature with FRR, BIRD and GoBGP, with the results in docs/interop.md",
    run: matrix,
}];

fn matrix(context: &Context) -> Result<Verdict> {
    // Selects rows during development.
    let only: Vec<String> =
        std::env::var("INTEROP_ROWS").iter().flat_map(|rows| rows.split(',')).map(str::to_owned).collect();
    let fabric = Fabric::up(&context.place, "matrix", &context.place.state)?;
    let file = context.place.repository.join("docs/interop.md");
    fabric.watched(|fabric| passed(interop::run(fabric, &only, &file)?))
}
