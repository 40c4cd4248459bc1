//! `trunkline install-cni` and `uninstall-cni`: install and remove the plugin and its configuration
//! list. An init container of the agent's pod or a package's script runs them.
//!
//! The container runtime watches the folder of configurations and immediately runs the plugins of
//! the first one. So the plugin is installed first, and then the configuration. Each file is
//! written under a temporary name, synced, and renamed. A running plugin keeps its old file.
//! Removal uses the opposite order. Both commands can be repeated: a correct file is not changed,
//! so a restart of the pod does not make the runtime read its configuration again.
//!
//! The reference plugins [`LOOPBACK`] and [`PORTMAP`] are copied if the node has none. An existing
//! file with one of these names is never changed or removed: it belongs to the node, and other
//! networks may use it.
//!
//! Other files in the folder are not changed, including the configuration of another network. The
//! runtime uses the first name in alphabetical order. If another name precedes Trunkline's, the
//! command reports it, because nothing else would show why the plugin is not run.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;

/// The plugin's file name, which is its `type` in configurations.
pub(crate) const PLUGIN: &str = "trunkline-cni";

/// The reference plugin for hostPorts.
pub(crate) const PORTMAP: &str = "portmap";

/// The reference plugin that sets the link `lo` of a pod up. Runtimes such as containerd run it for
/// each pod, without a configuration.
pub(crate) const LOOPBACK: &str = "loopback";

/// The folder of the reference plugins in the image, and in Debian's package.
const REFERENCE_PLUGINS: &str = "/usr/lib/cni";

/// The default configuration list.
const CONFLIST: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "trunkline",
  "plugins": [
    {
      "type": "trunkline-cni",
      "capabilities": { "ips": true, "mac": true, "bandwidth": true, "io.kubernetes.cri.pod-annotations": true }
    }
  ]
}
"#;

/// Folders of the container runtime on this node.
#[derive(Clone, Debug, Args)]
pub struct InstallPaths {
    /// Folder of the container runtime's plugins.
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// Folder of the container runtime's configurations; the runtime uses the first one in
    /// alphabetical order.
    #[arg(long, value_name = "FOLDER", default_value = "/etc/cni/net.d")]
    pub conf_dir: PathBuf,
    /// File name of the configuration in this folder.
    #[arg(long, value_name = "NAME", default_value = "05-trunkline.conflist")]
    pub conf_name: String,
}

/// The files to install.
#[derive(Clone, Debug, Args)]
pub struct Install {
    /// The folders.
    #[command(flatten)]
    pub place: InstallPaths,
    /// The plugin's program; by default the one in this program's folder.
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Folder of the reference plugins `loopback` and `portmap`: they are copied if the runtime's
    /// folder has no file of this name.
    #[arg(long, value_name = "FOLDER", default_value = REFERENCE_PLUGINS)]
    pub reference_plugins: PathBuf,
    /// Configuration list instead of the default one; docs/cni.md describes its keys.
    #[arg(long, value_name = "FILE")]
    pub conflist: Option<PathBuf>,
}

impl InstallPaths {
    fn configuration(&self) -> anyhow::Result<PathBuf> {
        let name = &self.conf_name;
        let usual = [".conflist", ".conf"].iter().any(|end| name.ends_with(end));
        if name.contains('/') || name.starts_with('.') || !usual {
            bail!("--conf-name {name}: write a file name that ends in .conflist, without a folder");
        }
        Ok(self.conf_dir.join(name))
    }
}

/// Installs plugin and configuration, and prints the result.
pub fn install(install: &Install) -> anyhow::Result<()> {
    let place = &install.place;
    let configuration = place.configuration()?;
    let plugin = match &install.plugin {
        Some(plugin) => plugin.clone(),
        None => std::env::current_exe().context("finding this program")?.with_file_name(PLUGIN),
    };
    let program =
        fs::read(&plugin).with_context(|| format!("{}: name the plugin with --plugin", plugin.display()))?;
    ensure!(program.starts_with(b"\x7fELF"), "{} is not a program for Linux", plugin.display());
    for name in [LOOPBACK, PORTMAP] {
        copy_if_missing(&install.reference_plugins, &place.bin_dir, name)?;
    }
    let text = match &install.conflist {
        Some(file) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
        None => usual(place),
    };
    check(&text).with_context(|| {
        install
            .conflist
            .as_ref()
            .map_or_else(|| "the configuration".to_owned(), |file| file.display().to_string())
    })?;

    for (path, content, mode) in
        [(place.bin_dir.join(PLUGIN), &program[..], 0o755), (configuration.clone(), text.as_bytes(), 0o644)]
    {
        let written = put(&path, content, mode).with_context(|| path.display().to_string())?;
        println!("{} {}", path.display(), if written { "written" } else { "unchanged" });
    }
    if let Some(before) = first(&place.conf_dir)?.filter(|first| *first != configuration) {
        println!(
            "{0} precedes it, and the runtime uses {0}: remove {0}, or give Trunkline's file an \
             earlier name (--conf-name)",
            before.display()
        );
    }
    Ok(())
}

/// Copies a reference plugin into the runtime's folder, if that folder has no file of this name.
fn copy_if_missing(source: &Path, bin_dir: &Path, name: &str) -> anyhow::Result<()> {
    let (source, path) = (source.join(name), bin_dir.join(name));
    if path.symlink_metadata().is_ok() {
        println!("{} exists: unchanged", path.display());
        return Ok(());
    }
    let program = match fs::read(&source) {
        Ok(program) => program,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!(
                "{} does not exist, and {} neither: install the reference plugins (containernetworking-plugins) and run this again",
                path.display(),
                source.display()
            );
            return Ok(());
        }
        Err(error) => return Err(error).with_context(|| source.display().to_string()),
    };
    put(&path, &program, 0o755).with_context(|| path.display().to_string())?;
    println!("{} written", path.display());
    Ok(())
}

/// The default configuration: with `portmap` if the node has that plugin.
fn usual(place: &InstallPaths) -> String {
    const END: &str = "\n    }\n  ]";
    const WITH_PORTMAP: &str = "\n    },\n    { \"type\": \"portmap\", \"capabilities\": { \"portMappings\": true }, \"snat\": true }\n  ]";
    let portmap = place.bin_dir.join(PORTMAP);
    let runnable = fs::metadata(&portmap).is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
    if runnable {
        return CONFLIST.replace(END, WITH_PORTMAP);
    }
    println!(
        "{} cannot be run: hostPort has no effect on this node; install the reference plugins (containernetworking-plugins) and run this again",
        portmap.display()
    );
    CONFLIST.to_owned()
}

/// Removes plugin and configuration, if they exist.
pub fn uninstall(place: &InstallPaths) -> anyhow::Result<()> {
    for path in [place.configuration()?, place.bin_dir.join(PLUGIN)] {
        match fs::remove_file(&path) {
            Ok(()) => println!("{} removed", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                println!("{} did not exist", path.display());
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    Ok(())
}

/// Checks that a text is a configuration list with this plugin.
fn check(text: &str) -> anyhow::Result<()> {
    let list: serde_json::Value = serde_json::from_str(text).context("is not JSON")?;
    for key in ["cniVersion", "name"] {
        ensure!(list[key].is_string(), "{key}: missing: write a text");
    }
    let plugins = list["plugins"].as_array().context("plugins: missing: write a list of plugins")?;
    let types: Vec<&str> = plugins.iter().filter_map(|plugin| plugin["type"].as_str()).collect();
    ensure!(
        types.contains(&PLUGIN),
        "plugins: none is of type {PLUGIN}, only {types:?}: add a plugin of this type"
    );
    Ok(())
}

/// Replaces a file atomically. Returns false if the file is already correct.
fn put(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let is_right = |mut there: File| -> io::Result<bool> {
        let mut octets = Vec::new();
        there.read_to_end(&mut octets)?;
        Ok(there.metadata()?.permissions().mode() & 0o777 == mode && octets == content)
    };
    // A link with this name is replaced, whatever its target is.
    let there = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    if there.is_ok_and(|there| is_right(there).unwrap_or(false)) {
        return Ok(false);
    }
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (temporary, file) = create_temporary(folder, &name, mode, || fastrand::u64(..))?;
    let written = write_whole(file, content, mode)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // The temporary file is useless now. Only the first error is reported.
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| true)
}

/// Number of temporary names to try. A random name exists with a probability of 2^-64, unless it
/// was guessed.
const NAMES: usize = 16;

/// Creates a hidden temporary file; runtimes ignore files with its suffix. An existing file or link
/// is never opened (`O_EXCL`), so another user with write access to the folder cannot redirect the
/// write.
fn create_temporary(
    folder: &Path,
    name: &str,
    mode: u32,
    mut random: impl FnMut() -> u64,
) -> io::Result<(PathBuf, File)> {
    let mut create = OpenOptions::new();
    create.write(true).create_new(true).mode(mode);
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..NAMES {
        let path = folder.join(format!(".{name}.{:016x}.new", random()));
        match create.open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

fn write_whole(mut file: File, content: &[u8], mode: u32) -> io::Result<()> {
    file.write_all(content)?;
    // The mode is set explicitly, because the umask may be strict.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// The configuration that a container runtime uses.
pub(crate) fn first(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("conf" | "conflist" | "json")) {
            names.push(path);
        }
    }
    Ok(names.into_iter().min())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn node() -> (tempfile::TempDir, Install) {
        let folder = tempfile::tempdir().unwrap();
        let plugin = folder.path().join("image-plugin");
        fs::write(&plugin, b"\x7fELF one").unwrap();
        let place = InstallPaths {
            bin_dir: folder.path().join("bin"),
            conf_dir: folder.path().join("net.d"),
            conf_name: "05-trunkline.conflist".to_owned(),
        };
        let reference_plugins = folder.path().join("reference");
        let it = Install { place, plugin: Some(plugin), reference_plugins, conflist: None };
        (folder, it)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn plugin_and_configuration_are_installed_and_removed() {
        let (_folder, it) = node();
        let (bin, conf) = (it.place.bin_dir.clone(), it.place.conf_dir.clone());
        install(&it).unwrap();
        assert_eq!((names(&bin), names(&conf)), (vec![PLUGIN.to_owned()], vec![it.place.conf_name.clone()]));
        assert_eq!(fs::metadata(bin.join(PLUGIN)).unwrap().mode() & 0o777, 0o755);
        check(&fs::read_to_string(conf.join(&it.place.conf_name)).unwrap()).unwrap();

        // A repeated command finds the same files and writes nothing.
        let of = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = (of(&bin.join(PLUGIN)), of(&conf.join(&it.place.conf_name)));
        install(&it).unwrap();
        assert_eq!((of(&bin.join(PLUGIN)), of(&conf.join(&it.place.conf_name))), before);

        // Another version of the plugin becomes a new file, so a running plugin keeps its old file.
        let running = File::open(bin.join(PLUGIN)).unwrap();
        fs::write(it.plugin.as_ref().unwrap(), b"\x7fELF two").unwrap();
        install(&it).unwrap();
        assert_eq!(io::read_to_string(running).unwrap(), "\x7fELF one");
        assert_eq!(fs::read(bin.join(PLUGIN)).unwrap(), b"\x7fELF two");
        assert_eq!(names(&bin), [PLUGIN]);

        fs::write(conf.join("87-podman.conflist"), "{}").unwrap();
        uninstall(&it.place).unwrap();
        uninstall(&it.place).unwrap();
        assert_eq!((names(&bin), names(&conf)), (vec![], vec!["87-podman.conflist".to_owned()]));
    }

    #[test]
    fn list_has_portmap_if_the_node_has_the_plugin() {
        let (_folder, it) = node();
        fs::create_dir_all(&it.place.bin_dir).unwrap();
        let portmap = it.place.bin_dir.join(PORTMAP);
        let types = || -> Vec<String> {
            install(&it).unwrap();
            let text = fs::read_to_string(it.place.conf_dir.join(&it.place.conf_name)).unwrap();
            let list: serde_json::Value = serde_json::from_str(&text).unwrap();
            let plugins = list["plugins"].as_array().unwrap().iter();
            plugins.map(|plugin| plugin["type"].as_str().unwrap().to_owned()).collect()
        };
        fs::write(&portmap, "").unwrap();
        assert_eq!(types(), [PLUGIN], "the program has no execute bit");
        fs::set_permissions(&portmap, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(types(), [PLUGIN, PORTMAP]);
        fs::remove_file(&portmap).unwrap();
        assert_eq!(types(), [PLUGIN]);
    }

    #[test]
    fn missing_reference_plugins_are_copied_and_others_stay() {
        let (_folder, it) = node();
        let (bin, reference) = (&it.place.bin_dir, &it.reference_plugins);
        for folder in [bin, reference] {
            fs::create_dir_all(folder).unwrap();
        }
        for name in [LOOPBACK, PORTMAP, "bridge"] {
            fs::write(reference.join(name), "of the image").unwrap();
        }
        fs::write(bin.join(LOOPBACK), "of the node").unwrap();
        install(&it).unwrap();
        assert_eq!(fs::read_to_string(bin.join(LOOPBACK)).unwrap(), "of the node");
        assert_eq!(fs::read_to_string(bin.join(PORTMAP)).unwrap(), "of the image");
        assert_eq!(fs::metadata(bin.join(PORTMAP)).unwrap().mode() & 0o777, 0o755);
        assert_eq!(names(bin), [LOOPBACK, PORTMAP, PLUGIN]);
        let list = || fs::read_to_string(it.place.conf_dir.join(&it.place.conf_name)).unwrap();
        assert!(list().contains(PORTMAP), "the copied plugin is in the list");

        // Another version in the image replaces nothing, and a removal leaves both.
        fs::write(reference.join(PORTMAP), "of the next image").unwrap();
        install(&it).unwrap();
        assert_eq!(fs::read_to_string(bin.join(PORTMAP)).unwrap(), "of the image");
        uninstall(&it.place).unwrap();
        assert_eq!(names(bin), [LOOPBACK, PORTMAP]);
    }

    #[test]
    fn planted_links_are_never_followed() {
        use std::os::unix::fs::symlink;
        let (folder, it) = node();
        let bin = &it.place.bin_dir;
        fs::create_dir_all(bin).unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        // Another user has created links with predictable names of temporary files, and with the
        // plugin's own name.
        symlink(&victim, bin.join(format!(".{PLUGIN}.{}.new", std::process::id()))).unwrap();
        symlink(it.plugin.as_ref().unwrap(), bin.join(PLUGIN)).unwrap();
        fs::set_permissions(it.plugin.as_ref().unwrap(), Permissions::from_mode(0o755)).unwrap();
        install(&it).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert!(bin.join(PLUGIN).symlink_metadata().unwrap().is_file(), "the link is replaced");

        // If another user has guessed a name, the command uses another name. It fails after the
        // last name.
        let planted = |number: u64| symlink(&victim, bin.join(format!(".x.{number:016x}.new"))).unwrap();
        planted(1);
        let mut numbers = [1, 2].into_iter();
        let (path, file) = create_temporary(bin, "x", 0o644, || numbers.next().unwrap()).unwrap();
        write_whole(file, b"content", 0o644).unwrap();
        assert_eq!(path, bin.join(".x.0000000000000002.new"));
        let error = create_temporary(bin, "x", 0o644, || 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    }

    #[test]
    fn plugin_is_installed_before_its_configuration() {
        let (folder, it) = node();
        // The plugin's folder cannot be created, so no configuration may refer to the plugin.
        fs::write(folder.path().join("bin"), "").unwrap();
        let error = format!("{:#}", install(&it).unwrap_err());
        assert!(error.contains("bin/trunkline-cni"), "{error}");
        assert!(!it.place.conf_dir.exists());
    }

    #[test]
    fn invalid_installations_are_refused() {
        let (folder, it) = node();
        let file = folder.path().join("list");
        for (text, words) in [
            ("[", "is not JSON"),
            (r#"{"name": "a", "plugins": []}"#, "cniVersion"),
            (r#"{"cniVersion": "1.0.0", "name": "a"}"#, "plugins"),
            (
                r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "ptp"}]}"#,
                "none is of type trunkline-cni",
            ),
        ] {
            fs::write(&file, text).unwrap();
            let error = install(&Install { conflist: Some(file.clone()), ..it.clone() }).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
        for name in ["a/b.conflist", ".x.conflist", "trunkline"] {
            let place = InstallPaths { conf_name: name.to_owned(), ..it.place.clone() };
            assert!(
                install(&Install { place, ..it.clone() }).unwrap_err().to_string().contains("--conf-name")
            );
        }
        fs::write(it.plugin.as_ref().unwrap(), "#!/bin/sh").unwrap();
        assert!(install(&it).unwrap_err().to_string().contains("not a program"));
        assert!(!it.place.conf_dir.exists(), "no file was written");
    }

    #[test]
    fn first_name_is_the_runtimes_configuration() {
        let (_folder, it) = node();
        install(&it).unwrap();
        let conf = &it.place.conf_dir;
        fs::write(conf.join("06-hybridnet.conflist"), "{}").unwrap();
        assert_eq!(first(conf).unwrap(), Some(conf.join("05-trunkline.conflist")));
        fs::write(conf.join("00-other.conf"), "{}").unwrap();
        fs::write(conf.join("00-note.txt"), "").unwrap();
        assert_eq!(first(conf).unwrap(), Some(conf.join("00-other.conf")));
    }
}
