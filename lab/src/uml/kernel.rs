//! The user-mode kernel's program. The lab builds it once per machine: from Debian's source
//! package, with the options in `lab/user-mode-kernel/kernel.config`, into the user's cache folder
//! (`$XDG_CACHE_HOME/trunkline-lab`). The file's name has the source's series and a hash of the
//! options, so other options give another file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cache;
use crate::fabric::Place;
use crate::packages;
use crate::progress::{say, step};
use crate::shell::{cmd, giving_way, run};

/// Debian's package with the kernel's source. Its security updates trigger no rebuild: nothing in
/// it is exposed.
const SOURCE: &str = "linux-source-6.12";

/// Packages for the build, in addition to the source.
const BUILD_PACKAGES: [&str; 7] = ["bc", "bison", "flex", "gcc", "libc6-dev", "make", "xz-utils"];

/// Options on top of `allnoconfig`, below the repository.
const OPTIONS: &str = "lab/user-mode-kernel/kernel.config";

/// Finds the kernel's program or builds it. The inner error is the reason why this machine cannot
/// have the kernel.
pub(super) fn find(place: &Place) -> Result<Result<PathBuf, String>> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Err("no user-mode kernel: Linux has one for x86-64 only".to_owned()));
    }
    let options = place.repository.join(OPTIONS);
    let text = std::fs::read_to_string(&options).with_context(|| options.display().to_string())?;
    let folder = cache::folder(place)?.join("trunkline-lab");
    let kernel = folder.join(format!("{SOURCE}-{:016x}", cache::hash(&text)));
    if kernel.is_file() {
        return Ok(Ok(kernel));
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    // One process builds the kernel, the others use the result.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    if kernel.is_file() {
        return Ok(Ok(kernel));
    }
    if !packages::available(SOURCE)? {
        return Ok(Err(format!(
            "no user-mode kernel: apt has no package {SOURCE}, which Debian 12 has in its security updates"
        )));
    }
    packages::need(BUILD_PACKAGES.into_iter().chain([SOURCE]))?;
    // The folder is deleted together with this value, after a successful or a failed build.
    let tree = tempfile::tempdir_in(&folder)?;
    build(&options, &text, tree.path())?;
    let built = tree.path().join("linux");
    run(cmd("strip", ["-o"]).arg(tree.path().join("stripped")).arg(&built))?;
    std::fs::rename(tree.path().join("stripped"), &kernel)?;
    Ok(Ok(kernel))
}

fn build(options: &Path, text: &str, tree: &Path) -> Result<()> {
    say("  the user-mode kernel is built from source, once for this machine: four minutes on two cores");
    let archive = format!("/usr/src/{SOURCE}.tar.xz");
    let tree_text = tree.to_str().context("the cache folder's name is not text")?;
    step(&format!("tar {SOURCE}"), || {
        run(giving_way("tar").args(["xf", &archive, "--strip-components=1", "-C", tree_text]))
    })?;
    let make = || -> Command {
        let mut command = giving_way("make");
        command.args(["-C", tree_text, "ARCH=um", "SUBARCH=x86_64"]);
        command
    };
    let options = options.to_str().context("the repository's path is not text")?;
    run(make().arg(format!("KCONFIG_ALLCONFIG={options}")).arg("allnoconfig"))?;
    let chosen = std::fs::read_to_string(tree.join(".config"))?;
    let lost = not_taken(text, &chosen);
    if !lost.is_empty() {
        bail!("{OPTIONS}: the kernel does not accept {}: add the options that they need", lost.join(", "));
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    step("make ARCH=um linux", || run(make().args([&format!("-j{jobs}"), "linux"])))?;
    Ok(())
}

/// Wanted options that are missing in `.config`, because one of their dependencies is missing.
fn not_taken<'a>(wanted: &'a str, chosen: &str) -> Vec<&'a str> {
    let set = |line: &&str| line.starts_with("CONFIG_") && !line.ends_with("=n");
    wanted.lines().filter(set).filter(|line| !chosen.lines().any(|chosen| chosen == *line)).collect()
}

#[cfg(test)]
mod tests {
    use super::not_taken;

    #[test]
    fn lost_options_are_named() {
        let wanted = "# text\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_C=n\n";
        assert_eq!(not_taken(wanted, "CONFIG_A=y\n# CONFIG_B is not set\n"), ["CONFIG_B=y"]);
    }
}
