//! `cargo lab test interop`: a matrix of features and routers, executed and written to
//! docs/interop.md.
//!
//! A column is a router, a row is a feature, and a cell is a session for both. The router's daemons
//! start with a configuration for the row. The other side is the library's own speaker ([`us`]). A
//! cell passes, fails, or is not run because the router does not have the feature. The table then
//! names the router's version. Columns run in parallel, each in its own namespaces.
//!
//! | module | content |
//! |---|---|
//! | `rows` | configuration, steps and expectations of each row |
//! | `cell` | their environment |
//! | `router` | queries of a router; `frr`, `bird` and `gobgp` answer them |
//! | `us` | the speaker |

mod bird;
mod cell;
mod frr;
mod gobgp;
pub(crate) mod router;
mod rows;
mod us;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::fabric::Fabric;
use crate::progress::{say, seconds};
use cell::Cell;
use router::Router;
use rows::{ROWS, Row};

/// The columns.
pub(crate) const ROUTERS: [&dyn Router; 3] = [&frr::Frr, &bird::Bird, &gobgp::GoBgp];

/// Result of a cell.
enum CellResult {
    Passed,
    Lacks(&'static str),
    Failed(String),
}

/// Runs the rows whose name contains one of `only` (all, if it is empty) and returns the number of
/// cells. If all rows ran and none failed, the table is written to `file`.
pub(crate) fn run(fabric: &Fabric, only: &[String], file: &Path) -> Result<String> {
    let chosen: Vec<&Row> = ROWS
        .iter()
        .filter(|row| only.is_empty() || only.iter().any(|part| row.name.contains(part.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!(
            "no row has this name; the rows are: {}",
            ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
        );
    }
    let columns: Vec<Vec<CellResult>> = std::thread::scope(|scope| {
        let running: Vec<_> =
            ROUTERS.iter().map(|router| scope.spawn(|| column(fabric, *router, &chosen))).collect();
        running
            .into_iter()
            .map(|column| column.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<_>>()
    })?;
    let versions = ROUTERS.iter().map(|router| router.version()).collect::<Result<Vec<String>>>()?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for (column, router) in columns.iter().zip(ROUTERS) {
        for (outcome, row) in column.iter().zip(&chosen) {
            let word = match outcome {
                CellResult::Passed => "passed",
                CellResult::Lacks(_) => "not available for the test",
                CellResult::Failed(why) => {
                    failures.push(format!("{}, {}: {why}", router.name(), row.name));
                    "failed"
                }
            };
            *counts.entry(word).or_default() += 1;
        }
    }
    let table = table(&chosen, &columns, &versions);
    println!("\n{table}");
    if !failures.is_empty() {
        bail!("{} cells failed:\n{}", failures.len(), failures.join("\n"));
    }
    if only.is_empty() {
        std::fs::write(file, document(&table)).with_context(|| file.display().to_string())?;
    }
    Ok(counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", "))
}

fn column(fabric: &Fabric, router: &dyn Router, rows: &[&Row]) -> Result<Vec<CellResult>> {
    let node = router.node();
    let cell = Cell {
        router,
        host: fabric.host(node)?,
        us: fabric.host(&format!("{node}-peer"))?,
        hop: fabric.host(&format!("{node}-hop"))?,
    };
    let mut outcomes = Vec::new();
    for row in rows {
        crate::interrupt::check()?;
        let lack = row.lacks.iter().find(|lack| lack.node == node);
        let start = Instant::now();
        let outcome = match lack {
            None => (row.run)(&cell),
            Some(lack) => lack.capability.map_or(Ok(()), |capability| cell.is_without(capability)),
        };
        let took = seconds(start.elapsed().as_secs_f64());
        outcomes.push(match outcome {
            Ok(()) if let Some(lack) = lack => CellResult::Lacks(lack.why),
            Ok(()) => {
                say(&format!("    {} {}  {took}", router.name(), row.name));
                CellResult::Passed
            }
            Err(error) => {
                say(&format!("    {} {}  FAILED after {took}: {error:#}", router.name(), row.name));
                cell.clear();
                CellResult::Failed(format!("{error:#}"))
            }
        });
    }
    router::kill(cell.host, None)?;
    Ok(outcomes)
}

/// The table, as Markdown.
fn table(rows: &[&Row], columns: &[Vec<CellResult>], versions: &[String]) -> String {
    let mut out = "| feature | RFC |".to_owned();
    for (router, version) in ROUTERS.iter().zip(versions) {
        _ = write!(out, " {} {version} |", router.name());
    }
    out.push_str("\n|---|---|");
    out.push_str(&"---|".repeat(columns.len()));
    out.push('\n');
    for (place, row) in rows.iter().enumerate() {
        _ = write!(out, "| {} | {} |", row.name, row.rfc);
        for ((column, router), version) in columns.iter().zip(ROUTERS).zip(versions) {
            match &column[place] {
                CellResult::Passed => out.push_str(" passes |"),
                CellResult::Lacks(why) => _ = write!(out, " {} {version} lacks it: {why} |", router.name()),
                CellResult::Failed(_) => out.push_str(" **fails** |"),
            }
        }
        out.push('\n');
    }
    out
}

fn document(table: &str) -> String {
    format!(
        "# Interoperability\n\n`cargo lab test interop` writes this page. Each cell is a session between Trunkline's speaker and the \
         router's daemons as\nDebian packages them, configured for the row. It passes only if both sides report the expected \
         state ([rows.rs](../lab/src/interop/rows.rs)).\n\n{table}"
    )
}
