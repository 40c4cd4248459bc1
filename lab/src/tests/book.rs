//! The pages of docs/ as a book (mdBook's layout). Every page is a chapter, and every chapter is a
//! page. Every relative link leads to an existing target, down to the heading. Links in the
//! repository's other pages are checked too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Context, Verdict, passed};

/// Pages outside of docs/ whose links are checked too.
const BESIDE: [&str; 3] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"];

pub(super) fn book(context: &Context) -> Result<Verdict> {
    let root = &context.place.repository;
    let mut pages = BTreeMap::new();
    let docs = std::fs::read_dir(root.join("docs"))?;
    let names =
        docs.map(|entry| Ok(Path::new("docs").join(entry?.file_name()))).collect::<Result<Vec<_>>>()?;
    let is_page = |path: &PathBuf| path.extension().is_some_and(|e| e == "md");
    for path in names.into_iter().filter(is_page).chain(BESIDE.map(PathBuf::from)) {
        let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
        pages.insert(path, text);
    }
    let exists = |path: &Path| root.join(path).exists();
    let faults = faults(&pages, exists);
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    let links: usize = pages.values().map(|text| links(text).len()).sum();
    passed(format!("{} pages, {links} links", pages.len()))
}

/// Faults of these pages, given by their paths in the repository; `exists` checks other files.
fn faults(pages: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let summary = Path::new("docs/SUMMARY.md");
    let mut chapters = BTreeSet::new();
    for (path, text) in pages {
        for link in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { beside(path, file) };
            if path == summary && !chapters.insert(target.clone()) {
                faults.push(format!("docs/SUMMARY.md: {link} is a chapter twice"));
            }
            let there = match pages.get(&target) {
                Some(page) => heading.is_empty() || headings(page).contains(heading),
                // The link has no anchor, or its anchor is a line of a source file.
                None => exists(&target),
            };
            if !there {
                faults.push(format!("{}: the link to {link} leads nowhere", path.display()));
            }
        }
    }
    let is_chapter = |path: &&PathBuf| path.starts_with("docs") && path.as_path() != summary;
    for page in pages.keys().filter(is_chapter).filter(|page| !chapters.contains(*page)) {
        faults.push(format!("{}: no chapter; add it to docs/SUMMARY.md", page.display()));
    }
    faults
}

/// Targets of the relative links in a text, except in code.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let target = |part: &str| Some(part.split_once(')')?.0.split_whitespace().next()?.to_owned());
    prose.split("](").skip(1).filter_map(target).filter(|link| !link.contains("://")).collect()
}

/// Anchors of the headings, as GitHub and mdBook make them.
pub(super) fn headings(text: &str) -> BTreeSet<String> {
    let fenced = outside_of_fences(text);
    let titles =
        fenced.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |title: &str| -> String {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    titles.map(anchor).collect()
}

fn outside_of_fences(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The text without fenced code and code spans.
fn prose(text: &str) -> String {
    let kept = outside_of_fences(text);
    kept.lines().map(|line| line.split('`').step_by(2).collect::<String>() + "\n").collect()
}

/// A path relative to a page, from the repository's root.
fn beside(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(rows: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        rows.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    #[test]
    fn a_correct_book_has_no_fault() {
        let good = pages(&[
            ("docs/SUMMARY.md", "- [A](a.md)\n"),
            (
                "docs/a.md",
                "# A page, `with` code\n[self](#a-page-with-code) [out](../agent/src/main.rs) `[no](link)`\n```\n[no](x)\n```\n",
            ),
            ("README.md", "[a](docs/a.md#a-page-with-code) [web](https://example.org/x)\n"),
        ]);
        assert_eq!(faults(&good, |path| path == Path::new("agent/src/main.rs")), [""; 0]);
    }

    #[test]
    fn each_fault_is_found() {
        let rows: [(&str, &str, &str); 5] = [
            ("docs/b.md", "# B\n", "docs/b.md: no chapter"),
            ("README.md", "[a](docs/c.md)\n", "docs/c.md leads nowhere"),
            ("README.md", "[a](docs/a.md#there)\n", "docs/a.md#there leads nowhere"),
            ("docs/SUMMARY.md", "[A](a.md)\n[A](a.md)\n", "chapter twice"),
            ("docs/SUMMARY.md", "[A](a.md)\n[G](gone.md)\n", "gone.md leads nowhere"),
        ];
        for (path, text, fault) in rows {
            let mut pages = pages(&[("docs/SUMMARY.md", "[A](a.md)\n"), ("docs/a.md", "# A\n")]);
            pages.insert(PathBuf::from(path), text.to_owned());
            let found = faults(&pages, |_| false);
            assert!(found.len() == 1 && found[0].contains(fault), "{found:?}, expected {fault}");
        }
    }
}
