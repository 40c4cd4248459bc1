//! `trunkline support-bundle`: one archive for a ticket, with all data about a node for support,
//! and without secrets.
//!
//! ```text
//!   configuration files ─────► secrets ─────────────────────┐
//!   agent's socket, metrics ─┐                              ▼
//!   doctor ──────────────────┤   step: a thread, a time   archive: cleans every part
//!   netlink, nft, sysctls ───┼──► limit; parts, or the ──► and writes it at once ─────────► file, standard output
//!   /proc, journal ──────────┘    reasons of gaps              manifest.json and README.md come last
//! ```
//!
//! The command changes nothing and needs no agent. Without an agent, the agent's answers are listed
//! as missing. Any other part that cannot be collected is listed as missing too. The exit code is 0
//! if the bundle was written.
//!
//! **Secrets** are the reason why this is not a shell script. The configuration is read before any
//! part is written, so a key from a manifest is also removed from log lines (`redact` has the
//! rules).

mod agent;
mod archive;
mod files;
mod host;
mod kernel;
mod program;
mod redact;
mod report;
mod shapes;
mod step;

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::jiff::Timestamp;

use crate::arguments::HostArgs;
use crate::doctor;
use archive::{Archive, Content};
use report::Manifest;
use step::Collection;

/// Time limit of a step that reads a few files.
const SHORT: Duration = Duration::from_secs(10);
/// Time limit of a step that lists tables or runs programs.
const LONG: Duration = Duration::from_secs(30);

/// The contents and the file of the bundle.
#[derive(Clone, Debug, Args)]
pub struct SupportBundle {
    /// The files of this host.
    #[command(flatten)]
    pub host: HostArgs,
    /// The archive file; by default `trunkline-NODE-TIME.tar.gz` in the current folder, `-` is
    /// standard output. An existing file is not overwritten.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Maximum number of prefixes of a routing table; the bundle lists what is omitted.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub routes: usize,
    /// Maximum number of log lines; the last lines are kept.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub log_lines: usize,
}

/// Collects and writes the bundle. Progress is written to standard error.
pub fn write(bundle: &SupportBundle) -> anyhow::Result<()> {
    let now = Timestamp::now();
    // The file name contains the node's name. The node's name is read with a time limit. If it is
    // not read in time, the file name has no node name.
    let limited = {
        let host = bundle.host.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(sender.send(files::read_all(&host))));
        receiver.recv_timeout(SHORT).ok()
    };
    let config = limited.as_ref().and_then(|gathered| gathered.config.clone()).unwrap_or_default();
    let node = config.node_name();
    let name = format!("trunkline-{}-{}", file_name(&node), now.strftime("%Y%m%dT%H%M%SZ"));
    let job = Job { bundle, node: &node, name: &name, now, timeout: agent::TIMEOUT, quiet: false };
    let stdout = bundle.output.as_ref().is_some_and(|output| output.as_os_str() == "-");
    if stdout {
        if io::stdout().is_terminal() {
            bail!("standard output is a terminal: write the archive with --output FILE, or > FILE");
        }
        let (_, missing) = job.collect(io::stdout().lock(), limited)?;
        eprintln!("written to standard output{}", in_words(&missing));
        return Ok(());
    }
    let path = bundle.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path).with_context(|| {
        format!("{} cannot be created: name a new file in a writable folder with --output", path.display())
    })?;
    let written = job.collect(io::BufWriter::new(file), limited).and_then(|(out, missing)| {
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok((file.metadata()?.len(), missing))
    });
    match written {
        Ok((octets, missing)) => {
            eprintln!("{} written, {} KiB{}", path.display(), octets.div_ceil(1024), in_words(&missing));
            Ok(())
        }
        Err(error) => {
            // A partial archive looks complete, so it is deleted. Only the first error is reported.
            let _ = fs::remove_file(&path);
            Err(error).with_context(|| format!("{} cannot be written", path.display()))
        }
    }
}

/// The collection of one bundle.
struct Job<'a> {
    bundle: &'a SupportBundle,
    node: &'a str,
    /// Name of the folder in the archive.
    name: &'a str,
    now: Timestamp,
    /// Timeout of one read from the agent.
    timeout: Duration,
    quiet: bool,
}

impl Job<'_> {
    /// Runs all steps. Returns the output, and the names of the steps with missing data.
    fn collect<W: Write>(
        &self,
        out: W,
        gathered: Option<files::Gathered>,
    ) -> anyhow::Result<(W, Vec<String>)> {
        let SupportBundle { host, routes, log_lines, .. } = self.bundle;
        let (routes, log_lines) = (*routes, *log_lines);
        let time = u64::try_from(self.now.as_second()).unwrap_or_default();
        let mut all = Collection::new(Archive::begin(out, self.name, time)?, self.quiet);
        let config = gathered.as_ref().and_then(|gathered| gathered.config.clone());
        match gathered {
            Some(gathered) => {
                all.archive().hide(gathered.secrets.clone());
                all.step("configuration", SHORT, move |sink| gathered.write_to(sink))?;
            }
            None => {
                all.skip(
                    "configuration",
                    "its files could not be read within 10 s, so secrets are detected only by their shape",
                );
            }
        }
        let socket = host.socket(config.as_ref());
        let config = config.unwrap_or_default();
        let timeout = self.timeout;

        let status = agent::collect(&mut all, &socket, routes, timeout)?;
        agent::metrics(&mut all, config.http_address, timeout)?;
        let place = host.clone();
        all.step("doctor", LONG, move |sink| {
            let mut findings = place.examine_within(timeout);
            findings.iter_mut().for_each(|finding| finding.text = shapes::hide_quoted_lines(&finding.text));
            sink.text("doctor.txt", doctor::table(&findings))?;
            sink.json("doctor.json", &findings)
        })?;
        all.step("kernel: tables", LONG, move |sink| kernel::state(routes, sink))?;
        all.step("kernel: nftables", SHORT, kernel::nftables)?;
        all.step("kernel: sysctls", SHORT, host::sysctls)?;
        all.step("host", SHORT, host::facts)?;
        match agent::process(&socket) {
            Some(process) => {
                all.step("agent's process", SHORT, move |sink| host::process(process, sink))?;
            }
            None => all.skip("agent's process", "not visible from here"),
        }
        let place = host.clone();
        all.step("files", SHORT, move |sink| files::listing(&place, &config, sink))?;
        all.step("log", LONG, move |sink| host::journal(log_lines, sink))?;

        let done = all.done().to_vec();
        let manifest = Manifest {
            bundle_version: 1,
            trunkline_version: env!("CARGO_PKG_VERSION"),
            node: self.node,
            collected_at: format!("{:.0}", self.now),
            agent_answered: status.is_some(),
            agent_version: status.as_ref().map(|status| status.version.as_str()),
            routes,
            log_lines,
            steps: &done,
        };
        all.put("README.md", Content::Text(report::readme(&manifest)))?;
        all.put("manifest.json", Content::Json(step::json(&manifest)?))?;
        let missing =
            done.iter().filter(|done| !done.missing.is_empty()).map(|done| done.step.clone()).collect();
        Ok((all.end()?, missing))
    }
}

fn in_words(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        missing => {
            format!(
                "; incomplete: {} (README.md in the archive lists the missing data and the reasons)",
                missing.join(", ")
            )
        }
    }
}

/// The node's name with only characters for file names.
fn file_name(node: &str) -> String {
    node.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
