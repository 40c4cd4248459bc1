//! `cargo lab docs`: files generated from the code: pages of `docs/`, a schema, and `dashboards/`.

mod cli;
mod config;
mod crds;
pub(crate) mod man;
mod schema;
mod services;
mod table;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::dashboards;
use crate::fabric::Place;
use crate::progress::say;

/// A page, and its generator.
struct Page {
    name: &'static str,
    make: fn() -> String,
}

const PAGES: &[Page] = &[
    Page { name: "docs/agent.schema.json", make: config::file },
    Page { name: "docs/cli.md", make: cli::page },
    Page { name: "docs/config.md", make: config::page },
    Page { name: "docs/crds.md", make: crds::page },
    Page { name: "docs/metrics.md", make: trunkline_api::metrics::page },
    Page { name: "docs/services.md", make: services::page },
];

/// The hand-written page with a row for each of the agent's commands.
const COMMANDS: &str = "docs/commands.md";

/// Writes the files; with `check` only reports outdated ones. Returns whether all are current.
pub(crate) fn run(place: &Place, check: bool) -> Result<bool> {
    let mut current = dashboards::run(place, check)?;
    for page in stale(&place.repository) {
        let Page { name, make } = page;
        if check {
            say(&format!("{name} is not current: run `cargo lab docs`"));
            current = false;
        } else {
            let path = place.repository.join(name);
            std::fs::write(&path, make()).with_context(|| path.display().to_string())?;
            say(&format!("wrote {name}"));
        }
    }
    for command in without_row(&place.repository)? {
        say(&format!("{COMMANDS} has no row for `{command}`: write one"));
        current = false;
    }
    Ok(current)
}

/// Pages that differ from the generated text.
fn stale(repository: &Path) -> impl Iterator<Item = &'static Page> {
    let current = |page: &Page| {
        std::fs::read_to_string(repository.join(page.name)).is_ok_and(|there| there == (page.make)())
    };
    PAGES.iter().filter(move |page| !current(page))
}

fn without_row(repository: &Path) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(repository.join(COMMANDS)).context(COMMANDS)?;
    Ok(cli::without_row(&page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generated_page_is_current() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let stale: Vec<_> = stale(&repository).map(|page| page.name).collect();
        assert!(stale.is_empty(), "{stale:?}: not current: run `cargo lab docs`");
        let missing = without_row(&repository).unwrap();
        assert!(missing.is_empty(), "{COMMANDS} has no row for {missing:?}");
    }
}
