//! Man pages for each command of the agent's command line, and shell completions. `cargo lab deb`
//! puts them into the package; they are generated each time and never committed.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;
use trunkline_cli::completions::{Shell, script};

use super::cli;

/// Writes `man/*.1` and `completions/` into a folder. Earlier files are removed: a page of a
/// deleted command would otherwise be packed.
pub(crate) fn write(into: &Path) -> Result<()> {
    let (pages, scripts) = (empty(into.join("man"))?, empty(into.join("completions"))?);
    each(&cli::agent(), &pages)?;
    // The file names that each shell expects.
    for (shell, name) in
        [(Shell::Bash, "trunkline"), (Shell::Zsh, "_trunkline"), (Shell::Fish, "trunkline.fish")]
    {
        std::fs::write(scripts.join(name), script(shell))?;
    }
    Ok(())
}

/// Writes a file such as `trunkline-peers-reset.1` for each command.
fn each(command: &Command, into: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        each(below, into)?;
    }
    let source = concat!("Trunkline ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).source(source).manual("Trunkline");
    page.generate_to(into).with_context(|| into.display().to_string())?;
    Ok(())
}

fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use super::*;

    #[test]
    fn every_command_has_a_man_page_without_groff_warnings() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("man")).unwrap();
        std::fs::write(folder.path().join("man/trunkline-gone.1"), "").unwrap();
        write(folder.path()).unwrap();
        let pages = folder.path().join("man");
        let text = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
        assert!(!pages.join("trunkline-gone.1").exists());
        assert!(text("trunkline.1").contains("trunkline\\-peers(1)"), "{}", text("trunkline.1"));
        let reset = text("trunkline-peers-reset.1");
        assert!(reset.contains("\\-\\-hard") && reset.contains("RFC 8538"), "{reset}");
        assert!(reset.lines().any(|line| line.starts_with(".TH trunkline-peers-reset 1")), "{reset}");
        for page in std::fs::read_dir(&pages).unwrap() {
            let page = page.unwrap().path();
            let groff = Process::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output();
            match groff {
                Ok(said) => {
                    let words = String::from_utf8_lossy(&said.stderr);
                    assert!(said.status.success() && words.is_empty(), "{}: {words}", page.display());
                }
                Err(_) => println!("skipped: groff is not installed"),
            }
        }
        assert!(std::fs::read_to_string(folder.path().join("completions/_trunkline")).unwrap().len() > 1000);
    }
}
