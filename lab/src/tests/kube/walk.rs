//! Runs a page of the documentation: the commands of its fenced `sh` blocks, section by section, in
//! the page's order. The commands are only in the page, so page and test cannot differ; a test adds
//! assertions after a section.
//!
//! A block that cannot run in the lab has a comment before it in the page's source, with the
//! reason: `<!-- not in the lab: there is no registry -->`. It is skipped and reported. The
//! commands run in a folder of the test, which has `deploy/` as the repository does. The folder
//! keeps their output files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::fabric::Place;
use crate::kube::Cluster;
use crate::progress::say;
use crate::shell::{cmd, run};

/// The beginning of a comment that excludes a block.
const NOT_HERE: &str = "<!-- not in the lab:";

/// Time limit of a section's blocks in seconds: some of their commands may wait forever.
const BOUND: &str = "600";

/// A page during a run.
pub(super) struct Walk {
    page: &'static str,
    sections: Vec<Section>,
    kubeconfig: PathBuf,
    /// Working folder of the commands.
    folder: PathBuf,
    /// Folder of programs with precedence.
    pub programs: PathBuf,
    run: usize,
    skipped: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Section {
    title: String,
    blocks: Vec<Block>,
    walked: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Block {
    text: String,
    not_here: Option<String>,
}

impl Walk {
    /// Reads a page of the repository.
    pub(super) fn open(place: &Place, cluster: &Cluster, page: &'static str, helm: &Path) -> Result<Self> {
        let file = place.repository.join(page);
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let folder = cluster.folder().join("walk");
        let programs = cluster.folder().join("programs");
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(&programs)?;
        std::os::unix::fs::symlink(place.repository.join("deploy"), folder.join("deploy"))?;
        std::os::unix::fs::symlink(helm, programs.join("helm"))?;
        let sections = parse(&text).with_context(|| page.to_owned())?;
        Ok(Self { page, sections, kubeconfig: cluster.kubeconfig(), folder, programs, run: 0, skipped: 0 })
    }

    /// Runs the blocks of the section with this title in one shell, and returns their output. It
    /// must be the first section that has not run.
    pub(super) fn section(&mut self, title: &str) -> Result<String> {
        let next = self.sections.iter().find(|section| !section.walked).map(|section| section.title.as_str());
        ensure!(next == Some(title), "{}: section {next:?} is next, and not {title:?}", self.page);
        self.any_section(title, &[])
    }

    /// Runs any section, possibly again, with replacements in its text.
    pub(super) fn any_section(&mut self, title: &str, replace: &[(&str, &str)]) -> Result<String> {
        let section = self.sections.iter_mut().find(|section| section.title == title);
        let section = section.with_context(|| format!("{} has no section {title:?}", self.page))?;
        section.walked = true;
        let mut script = String::new();
        for block in &section.blocks {
            if let Some(why) = &block.not_here {
                say(&format!("    {}, {title}: skipped, {why}: {}", self.page, first_line(&block.text)));
                self.skipped += 1;
                continue;
            }
            script.push_str(&block.text);
            self.run += 1;
        }
        for (from, to) in replace {
            ensure!(script.contains(from), "{}, {title}: no {from:?} in {script}", self.page);
            script = script.replace(from, to);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let helm = |what: &str| self.folder.join(format!("helm-{what}"));
        let mut command = cmd("timeout", [BOUND, "bash", "-euo", "pipefail", "-c", &script]);
        command
            .current_dir(&self.folder)
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HELM_CACHE_HOME", helm("cache"))
            .env("HELM_CONFIG_HOME", helm("config"))
            .env("HELM_DATA_HOME", helm("data"));
        run(&mut command).with_context(|| format!("{}, {title}", self.page))
    }

    /// Checks that all sections with blocks have run; returns the number of blocks.
    pub(super) fn finish(self) -> Result<String> {
        if let Some(left) = self.sections.iter().find(|section| !section.walked) {
            bail!("{}: section {:?} was not run", self.page, left.title);
        }
        Ok(format!("{}: {} blocks run, {} skipped", self.page, self.run, self.skipped))
    }
}

/// Returns the sections with blocks.
fn parse(page: &str) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut not_here = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(Section { title: title.to_owned(), blocks: Vec::new(), walked: false });
        } else if let Some(comment) = line.strip_prefix(NOT_HERE) {
            let why = comment.trim().strip_suffix("-->").context("a comment ends on its line")?.trim();
            ensure!(!why.is_empty(), "{line}: why?");
            not_here = Some(why.to_owned());
        } else if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let text = block.join("\n") + "\n";
            match (language, sections.last_mut()) {
                ("sh", Some(section)) => section.blocks.push(Block { text, not_here: not_here.take() }),
                ("sh", None) => bail!("a block before the first section: {text}"),
                // A block in another language is an illustration, for example in YAML.
                _ => {}
            }
        }
    }
    ensure!(not_here.is_none(), "{NOT_HERE} {not_here:?} is before no block");
    sections.retain(|section| !section.blocks.is_empty());
    ensure!(!sections.is_empty(), "no blocks");
    Ok(sections)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn blocks_have_their_section_and_reason_for_exclusion() {
        let page = "# A\n## One\n\n<!-- not in the lab: no registry -->\n```sh\npush\n```\nthen\n```sh\na <<'E'\n## no title\nE\n```\n## Two\n```yaml\nb: c\n```\n";
        let sections = parse(page).expect("a page");
        let block =
            |text: &str, why: Option<&str>| Block { text: text.to_owned(), not_here: why.map(str::to_owned) };
        assert_eq!(
            sections,
            [Section {
                title: "One".to_owned(),
                blocks: vec![block("push\n", Some("no registry")), block("a <<'E'\n## no title\nE\n", None)],
                walked: false,
            }]
        );
        assert!(parse("## One\n<!-- not in the lab: x -->\n").is_err());
        assert!(parse("## One\n").is_err());
    }
}
