//! The index of the bundle: `manifest.json` for programs, `README.md` for people.

use std::fmt::Write as _;

use serde::Serialize;

use super::step::Done;

/// The description of the bundle, and the results of the steps.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest<'a> {
    /// Version of this layout; increases with incompatible changes.
    pub(super) bundle_version: u32,
    /// Version of the collecting program.
    pub(super) trunkline_version: &'static str,
    /// The node's name.
    pub(super) node: &'a str,
    /// RFC 3339, UTC.
    pub(super) collected_at: String,
    /// Whether the agent answered.
    pub(super) agent_answered: bool,
    /// Version of the answering agent.
    pub(super) agent_version: Option<&'a str>,
    /// Maximum number of prefixes of a table.
    pub(super) routes: usize,
    /// Maximum number of log lines.
    pub(super) log_lines: usize,
    /// The results of the steps.
    pub(super) steps: &'a [Done],
}

/// Folders and files, and their contents.
const CONTENTS: &[(&str, &str)] = &[
    (
        "manifest.json",
        "this page for programs: versions, time, every step with its parts and its missing data",
    ),
    (
        "agent/",
        "the running agent's answers, as tables (.txt) and as JSON: status, peers, events, pods, routes; its metrics",
    ),
    ("doctor.txt, doctor.json", "the findings of `trunkline doctor` on this host, and the actions"),
    (
        "config/",
        "agent.yaml as written, and with all defaults; the manifests, the cached state of the \
         cluster",
    ),
    ("cni/", "the container runtime's folders, and Trunkline's configuration there"),
    ("kernel/", "links, addresses, rules, routes, neighbours, the agent's table of nftables, sysctls"),
    ("host/", "kernel, memory, counters of interfaces, clock, the agent's process, sizes of its files"),
    ("log/", "the unit's state and the end of its journal"),
];

/// The text of README.md.
pub(super) fn readme(manifest: &Manifest<'_>) -> String {
    let mut text = format!("# Trunkline support bundle of {}\n\n", manifest.node);
    let _ =
        writeln!(text, "Collected at {} by trunkline {}.", manifest.collected_at, manifest.trunkline_version);
    let _ = match (manifest.agent_answered, manifest.agent_version) {
        (true, Some(version)) => writeln!(text, "The agent (version {version}) answered."),
        _ => writeln!(
            text,
            "**The agent did not answer**: this bundle has the data that is available without it. doctor.txt and the log may show the reason."
        ),
    };
    text.push_str("\n| | |\n|---|---|\n");
    for (name, what) in CONTENTS {
        let _ = writeln!(text, "| `{name}` | {what} |");
    }
    text.push_str(
        "\nPasswords, keys and tokens were replaced by `[redacted]`. Configuration and manifests \
         are data, without their comments. The bundle still contains names and addresses of nodes, \
         routers and pods, AS numbers, and routes.\n",
    );
    let missing: Vec<_> = manifest.steps.iter().flat_map(|step| &step.missing).collect();
    if missing.is_empty() {
        text.push_str("\nNo data is missing.\n");
    } else {
        text.push_str("\n## Missing data, and the reasons\n\n");
        for part in missing {
            let _ = writeln!(text, "- {}: {}", part.what, part.why);
        }
    }
    text
}
