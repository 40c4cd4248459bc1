//! `cargo lab docs`: what is written from the code: pages of `docs/`, and `dashboards/`.

use anyhow::{Context as _, Result};

use crate::dashboards;
use crate::fabric::Place;
use crate::progress::say;

/// A page, and what makes it.
struct Page {
    name: &'static str,
    make: fn() -> String,
}

const PAGES: &[Page] = &[Page { name: "docs/metrics.md", make: trunkline_api::metrics::page }];

/// Writes the files; with `check` only says which of them are not current. Returns whether all are.
pub(crate) fn run(place: &Place, check: bool) -> Result<bool> {
    let mut current = dashboards::run(place, check)?;
    for Page { name, make } in PAGES {
        let (path, text) = (place.repository.join(name), make());
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        if check {
            say(&format!("{name} is not what the code makes of it: run `cargo lab docs`"));
            current = false;
        } else {
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            say(&format!("wrote {name}"));
        }
    }
    Ok(current)
}
