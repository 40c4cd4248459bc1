//! Runs a page of the documentation: the commands of its fenced `sh` blocks, section by section, in
//! the page's order. The commands are only in the page, so page and test cannot differ; a test adds
//! assertions after a section.
//!
//! A block that cannot run in the lab has a comment before it in the page's source, with the
//! reason: `<!-- not in the lab: there is no registry -->`. It is skipped and reported. A test may
//! also use the `yaml` blocks of a section ([`Walk::manifests`]). The commands run in a folder of the test, which has `deploy/` as the repository does. The folder
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
#[derive(Debug, Clone)]
pub(in crate::tests) struct Walk {
    page: &'static str,
    sections: Vec<Section>,
    repository: PathBuf,
    kubeconfig: PathBuf,
    /// Working folder of the commands.
    folder: PathBuf,
    /// Folder of programs with precedence.
    pub(super) programs: PathBuf,
    run: usize,
    skipped: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Section {
    title: String,
    blocks: Vec<Block>,
    /// The blocks in YAML.
    manifests: Vec<String>,
    walked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    text: String,
    not_here: Option<String>,
}

impl Walk {
    /// Reads a page of the repository.
    pub(super) fn open(place: &Place, cluster: &Cluster, page: &'static str, helm: &Path) -> Result<Self> {
        let folder = cluster.folder().join("walk");
        let programs = cluster.folder().join("programs");
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(&programs)?;
        std::os::unix::fs::symlink(place.repository.join("deploy"), folder.join("deploy"))?;
        std::os::unix::fs::symlink(helm, programs.join("helm"))?;
        let repository = place.repository.clone();
        let sections = read(&repository, page)?;
        let kubeconfig = cluster.kubeconfig();
        Ok(Self { page, sections, repository, kubeconfig, folder, programs, run: 0, skipped: 0 })
    }

    /// Adds a program that the page's commands use.
    pub(super) fn add_program(&self, name: &str, program: &Path) -> Result<()> {
        Ok(std::os::unix::fs::symlink(program, self.programs.join(name))?)
    }

    /// Another page, with the same folder and programs.
    pub(in crate::tests) fn other(&self, page: &'static str) -> Result<Self> {
        let sections = read(&self.repository, page)?;
        Ok(Self { page, sections, run: 0, skipped: 0, ..self.clone() })
    }

    /// The blocks in YAML of the section with this title, as one text.
    pub(in crate::tests) fn manifests(&self, title: &str) -> Result<String> {
        let section = self.sections.iter().find(|section| section.title == title);
        let section = section.with_context(|| format!("{} has no section {title:?}", self.page))?;
        ensure!(!section.manifests.is_empty(), "{}, {title}: no block in YAML", self.page);
        Ok(section.manifests.join("---\n"))
    }

    /// Runs the blocks of the section with this title in one shell, and returns their output. It
    /// must be the first section that has not run.
    pub(in crate::tests) fn section(&mut self, title: &str) -> Result<String> {
        let to_walk = |section: &&Section| !section.walked && !section.blocks.is_empty();
        let next = self.sections.iter().find(to_walk).map(|section| section.title.as_str());
        ensure!(next == Some(title), "{}: section {next:?} is next, and not {title:?}", self.page);
        self.any_section(title, &[])
    }

    /// Runs any section, possibly again, with replacements in its text.
    pub(in crate::tests) fn any_section(&mut self, title: &str, replace: &[(&str, &str)]) -> Result<String> {
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
    pub(in crate::tests) fn finish(self) -> Result<String> {
        let left = self.sections.iter().find(|section| !section.walked && !section.blocks.is_empty());
        if let Some(left) = left {
            bail!("{}: section {:?} was not run", self.page, left.title);
        }
        Ok(format!("{}: {} blocks run, {} skipped", self.page, self.run, self.skipped))
    }
}

fn read(repository: &Path, page: &str) -> Result<Vec<Section>> {
    let file = repository.join(page);
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    parse(&text).with_context(|| page.to_owned())
}

/// Returns the sections with blocks.
fn parse(page: &str) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut not_here = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(Section { title: title.to_owned(), ..Section::default() });
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
                ("yaml", Some(section)) => section.manifests.push(text),
                // A block in another language is an illustration.
                _ => {}
            }
        }
    }
    ensure!(not_here.is_none(), "{NOT_HERE} {not_here:?} is before no block");
    ensure!(sections.iter().any(|section| !section.blocks.is_empty()), "no blocks");
    sections.retain(|section| !section.blocks.is_empty() || !section.manifests.is_empty());
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
        let page = "# A\n## One\n\n<!-- not in the lab: no registry -->\n```sh\npush\n```\nthen\n```sh\na <<'E'\n## no title\nE\n```\n## Two\n```yaml\nb: c\n```\n## Three\n```text\nd\n```\n";
        let sections = parse(page).expect("a page");
        let block =
            |text: &str, why: Option<&str>| Block { text: text.to_owned(), not_here: why.map(str::to_owned) };
        assert_eq!(
            sections,
            [
                Section {
                    title: "One".to_owned(),
                    blocks: vec![
                        block("push\n", Some("no registry")),
                        block("a <<'E'\n## no title\nE\n", None)
                    ],
                    ..Section::default()
                },
                Section {
                    title: "Two".to_owned(),
                    manifests: vec!["b: c\n".to_owned()],
                    ..Section::default()
                },
            ]
        );
        assert!(parse("## One\n<!-- not in the lab: x -->\n").is_err());
        assert!(parse("## One\n").is_err());
    }
}
