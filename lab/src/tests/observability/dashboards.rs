//! A check of the dashboards against the schema that Grafana publishes. The schema consists of
//! types (`@grafana/schema`), also for the panels' plugins. The files are compiled against these
//! types. The versions are the first and the last release of Grafana 11. The first release must
//! know all features that the dashboards use, and the last release must still accept them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{labs, links};
use crate::dashboards;
use crate::fabric::Place;
use crate::shell::{cmd, run};
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: "observability/dashboards",
    about: "each dashboard is valid by Grafana 11's published schema, each link has a target, each \
            panel belongs to a lab",
    run: judge,
};

/// Releases of Grafana.
const RELEASES: [&str; 2] = ["11.0.0", "11.6.0"];
const TYPESCRIPT: &str = "5.8.3";
/// File in the package with the schema's version.
const DEFAULTS: &str = "node_modules/@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen";

fn judge(context: &Context) -> Result<Verdict> {
    let followed = links::follow(&context.place)?;
    let divided = labs::divided(&context.place)?;
    let labs: Vec<String> =
        divided.iter().map(|(lab, (panels, _))| format!("{panels} by {}", lab.test())).collect();
    let words = format!("{followed} links have a target; expressions evaluated: {}", labs.join(", "));
    if run(&mut cmd("npm", ["--version"])).is_err() {
        return Ok(Verdict::Skipped(format!("{words}; npm is not installed (apt-get install npm)")));
    }
    let files = dashboards::files(&context.place)?;
    let mut newest = 0;
    for release in RELEASES {
        let folder = context.place.state.join(format!("grafana-{release}"));
        if let Err(error) = install(&folder, release) {
            return Ok(Verdict::Skipped(format!("{words}; Grafana's schema cannot be had: {error:#}")));
        }
        compile(&context.place, &folder, &files).with_context(|| format!("Grafana {release}"))?;
        newest = schema_version(&folder)?;
    }
    let ours = dashboards::SCHEMA_VERSION;
    // Grafana migrates older dashboards, and leaves newer ones unchanged.
    ensure!(
        ours <= newest,
        "the dashboards are of schema version {ours}, Grafana {} has {newest}",
        RELEASES[1]
    );
    passed(format!(
        "{} dashboards of schema version {ours} by the types of Grafana {} ({newest}); {words}",
        files.len(),
        RELEASES.join(" and ")
    ))
}

fn install(folder: &Path, release: &str) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let package =
        json!({"private": true, "dependencies": {"@grafana/schema": release, "typescript": TYPESCRIPT}});
    std::fs::write(folder.join("package.json"), package.to_string())?;
    let install = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"];
    run(cmd("npm", install).current_dir(folder)).map(drop)
}

fn compile(place: &Place, folder: &Path, files: &[PathBuf]) -> Result<()> {
    let mut program = std::fs::read_to_string(place.repository.join("lab/observability/dashboard.ts"))?;
    for (number, path) in files.iter().enumerate() {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        writeln!(program, "export const d{number} = {} satisfies Checked;", text.trim_end())?;
    }
    std::fs::write(folder.join("dashboards.ts"), program)?;
    let flags =
        ["--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext"];
    let mut tsc = cmd("node_modules/.bin/tsc", flags);
    run(tsc.args(["--target", "es2022", "dashboards.ts"]).current_dir(folder)).map(drop)
}

/// The schema version of a new dashboard.
fn schema_version(folder: &Path) -> Result<u32> {
    let found = [".js", ".mjs"]
        .iter()
        .find_map(|end| std::fs::read_to_string(folder.join(format!("{DEFAULTS}{end}"))).ok());
    let text = found.with_context(|| format!("no {DEFAULTS}"))?;
    let (_, rest) = text.split_once("schemaVersion: ").context("no schemaVersion")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("schemaVersion {digits:?}"))
}
