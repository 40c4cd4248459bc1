//! The dashboards against the schema that Grafana publishes: types (`@grafana/schema`), with which the files are compiled.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::dashboards;
use crate::shell::{cmd, run};
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: "observability/dashboards",
    about: "each dashboard is what Grafana 11's published schema says one is",
    run: schema,
};

fn schema(context: &Context) -> Result<Verdict> {
    if run(&mut cmd("npm", ["--version"])).is_err() {
        return Ok(Verdict::Skipped("npm is not installed (apt-get install npm)".to_owned()));
    }
    let folder = context.place.state.join("grafana");
    std::fs::create_dir_all(&folder)?;
    let sources = context.place.repository.join("lab/observability");
    std::fs::copy(sources.join("package.json"), folder.join("package.json"))?;
    let install = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"];
    if let Err(error) = run(cmd("npm", install).current_dir(&folder)) {
        return Ok(Verdict::Skipped(format!("Grafana's schema cannot be had: {error:#}")));
    }
    let mut program = std::fs::read_to_string(sources.join("dashboard.ts"))?;
    let names = dashboards::files(&context.place)?;
    for (place, path) in names.iter().enumerate() {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        writeln!(program, "export const d{place} = {} satisfies Plain<Dashboard>;", text.trim_end())?;
    }
    std::fs::write(folder.join("dashboards.ts"), program)?;
    let flags =
        ["--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext"];
    run(cmd("node_modules/.bin/tsc", flags)
        .args(["--target", "es2022", "dashboards.ts"])
        .current_dir(&folder))?;
    passed(format!("{} dashboards", names.len()))
}
