//! The product's own binaries, built by the lab. The agent and the controller are built with the
//! release profile, or with the profile `quick`, which is the release profile without LTO. The
//! plugin is built with its own profile, as it is released.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::fabric::Place;
use crate::progress::{is_quiet, say, seconds};
use crate::shell::{cmd, giving_way, run};

/// Folder with both binaries, as on a host: the agent for PATH, the plugin for CNI_PATH.
pub(crate) fn folder(place: &Place) -> PathBuf {
    place.state.join("bin")
}

/// How agent, controller and the library's examples are compiled.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// For tests and the demo. It needs half of the time of a release build.
    Quick,
    /// For packages and benches.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Release => "release",
        }
    }
}

const PLUGIN: &str = "trunkline-cni";
const CONTROLLER: &str = "trunkline-controller";

/// Builds agent and plugin and returns [`folder`]. Cargo's own progress is shown.
pub(crate) fn build(place: &Place, profile: Profile) -> Result<PathBuf> {
    programs(place, &["trunkline"], profile.name())?;
    programs(place, &[PLUGIN], "plugin")
}

/// Builds the controller and returns its program.
pub(crate) fn build_controller(place: &Place, profile: Profile) -> Result<PathBuf> {
    Ok(programs(place, &[CONTROLLER], profile.name())?.join(CONTROLLER))
}

/// Builds all three programs. The agent and the controller are built in one run, as for the image,
/// so their common dependencies are built once. Returns the folder and the controller.
pub(crate) fn build_all(place: &Place, profile: Profile) -> Result<(PathBuf, PathBuf)> {
    programs(place, &[PLUGIN], "plugin")?;
    let folder = programs(place, &["trunkline", CONTROLLER], profile.name())?;
    let controller = folder.join(CONTROLLER);
    Ok((folder, controller))
}

/// Builds programs with a profile, and installs them into [`folder`], which it returns.
fn programs(place: &Place, packages: &[&str], profile: &str) -> Result<PathBuf> {
    let into = folder(place);
    std::fs::create_dir_all(&into)?;
    let start = Instant::now();
    let names = packages.join(" and ");
    say(&format!("  building {names} ({profile} profile)"));
    let args: Vec<&str> = packages.iter().flat_map(|package| ["--package", package]).collect();
    let target = cargo_build(place, &[&args[..], &["--profile", profile]].concat())?;
    for package in packages {
        install(&target.join(profile).join(package), &into.join(package))?;
    }
    say(&format!("  built {names} in {}", seconds(start.elapsed().as_secs_f64())));
    Ok(into)
}

/// Creates the root of the image of deploy/Containerfile, with these binaries and this machine's
/// libraries and nft.
pub(crate) fn image_root(place: &Place, product: &Path, into: &Path) -> Result<PathBuf> {
    let script = place.repository.join("deploy/image-root.sh");
    run(cmd("sh", [script.as_path(), into, product]).current_dir(&place.repository))?;
    Ok(into.to_owned())
}

/// Builds an example of the library, and returns its folder.
pub(crate) fn build_example(place: &Place, name: &str, profile: Profile) -> Result<PathBuf> {
    let profile = profile.name();
    say(&format!("  building the example {name} ({profile} profile)"));
    let what = ["--profile", profile, "--package", "trunkline-bgp", "--example", name];
    Ok(cargo_build(place, &what)?.join(profile).join("examples"))
}

/// Cargo, without the variables for the lab's own package from the cargo that runs the lab.
/// Otherwise a build script that depends on these variables (ring's) would run again whenever
/// `cargo lab` and plain cargo alternate. Then all crates that depend on ring would be rebuilt.
pub(crate) fn cargo() -> Command {
    let mut command = giving_way(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs cargo in the repository; its output goes to a log file, and the end of the output into the
/// error.
pub(crate) fn cargo_with_log(
    place: &Place,
    name: &str,
    args: &[&str],
    env: &[(&str, &str)],
) -> Result<String> {
    let folder = place.state.join("test");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.log"));
    let log = std::fs::File::create(&path)?;
    let status = cargo()
        .args(args)
        .env("CARGO_TERM_COLOR", "never")
        .envs(env.iter().copied())
        .current_dir(&place.repository)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .context("cargo cannot be started")?;
    let text = std::fs::read_to_string(&path)?;
    if !status.success() {
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(40)..].join("\n");
        bail!("cargo {} failed ({status}); the whole log: {}\n{end}", args.join(" "), path.display());
    }
    Ok(text)
}

/// Returns the target folder. Cargo's own progress is shown, unless this thread is quiet.
fn cargo_build<'a>(place: &'a Place, what: &[&str]) -> Result<&'a Path> {
    let target = place.state.parent().context("the target folder")?;
    let target_text = target.to_str().context("the target folder's name is not text")?;
    let args = [&["build"], what, &["--target-dir", target_text]].concat();
    if is_quiet() {
        cargo_with_log(place, "build", &args, &[])?;
        return Ok(target);
    }
    let status = cargo()
        .args(&args)
        .current_dir(&place.repository)
        .stdin(Stdio::null())
        // Standard output is for results.
        .stdout(Stdio::null())
        .status()
        .context("cargo cannot be started")?;
    if !status.success() {
        bail!("cargo build {} failed ({status}); cargo's message is above", what.join(" "));
    }
    Ok(target)
}

/// Copies the file under another name and renames it. So an agent that runs from the old file is
/// not affected.
fn install(from: &Path, to: &Path) -> Result<()> {
    let next = to.with_extension("next");
    std::fs::copy(from, &next).with_context(|| format!("{} was not built", from.display()))?;
    std::fs::rename(&next, to)?;
    Ok(())
}
