//! `trunkline doctor`: what on this host keeps pods from working, or will, and what to do about it.
//!
//! ```text
//!  configuration file ─┐
//!  agent's answers ────┤                              ┌─► table, JSON
//!  kernel, sysctls ────┼─► checks, one file a topic ──┤
//!  CNI's folders ──────┤      Vec<Finding>            └─► exit code
//!  firewall ───────────┘
//! ```
//!
//! It looks for itself and changes nothing. It is run on the host and needs no agent: that none answers is one of its
//! findings, and everything that can be seen without it is looked at all the same. What the agent knows is taken from its
//! answers and not found out a second time.
//!
//! A check says nothing where all is well, so that a healthy host is silence. What a check cannot see (no `nft`, a file that only
//! root may read) is a finding too, of what it was going to look at: silence always means "looked at, and well".

mod about;
mod cni;
mod files;
mod firewall;
mod host;
mod probes;
mod stopped;
mod ways_out;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use trunkline_agent::config::Config;
use trunkline_api::attach::DEFAULT_SOCKET;
use trunkline_api::control::{AgentStatus, Peer, PodStatus, Query};

use crate::arguments::{Output, Where};
use crate::client;

/// Where to look, and how to say what was found.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Where to look.
    #[command(flatten)]
    pub host: Where,
    /// How to print the findings.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How bad it is; also the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// It may become an outage, or something is not as it was meant.
    Warning = 1,
    /// Pods do not work, or some of them do not.
    Error = 2,
}

/// Something that is not well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Which check found it: a name that stays.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is not well.
    pub text: String,
    /// What to do.
    pub fix: String,
}

impl Finding {
    fn error(check: &str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { check: check.to_owned(), severity: Severity::Error, text: text.into(), fix: fix.into() }
    }

    fn warning(check: &str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(check, text, fix) }
    }
}

/// What the agent says of itself.
struct Agent {
    status: AgentStatus,
    peers: Vec<Peer>,
    pods: Vec<PodStatus>,
}

impl Where {
    /// Looks at everything. The worst comes first, and within that the order is that of the checks.
    pub fn examine(&self) -> Vec<Finding> {
        self.examine_within(client::TIMEOUT)
    }

    /// The agent's socket, with this configuration.
    pub(crate) fn socket(&self, config: Option<&Config>) -> PathBuf {
        let configured = config.map(|config| config.socket.clone());
        self.socket.clone().or(configured).unwrap_or_else(|| DEFAULT_SOCKET.into())
    }

    /// Likewise, with so much patience for the agent.
    pub(crate) fn examine_within(&self, patience: Duration) -> Vec<Finding> {
        let mut findings = Vec::new();
        let config = match Config::read(&self.config) {
            Ok(config) => Some(config),
            Err(error) => {
                let fix = "mend the file; `trunkline agent --check` reads it again. What runs goes on until the agent is restarted";
                findings.push(Finding::error("config", error.to_string(), fix));
                None
            }
        };
        let agent = match query_agent(&self.socket(config.as_ref()), patience) {
            Ok(agent) => {
                findings.extend(about::agent(&agent));
                findings.extend(probes::check(&agent.status));
                Some(agent)
            }
            Err(error) => {
                let fix = stopped::fix(config.as_ref().map(|config| config.store.as_path()));
                findings.push(Finding::error("agent", format!("{error:#}"), fix));
                None
            }
        };
        let peers = agent.as_ref().map(|agent| agent.peers.as_slice()).unwrap_or_default();
        if let Some(config) = &config {
            findings.extend(files::check(config, agent.is_some()));
        }
        findings.extend(host::check(peers, agent.as_ref().map(|agent| &agent.status)));
        findings.extend(agent.iter().flat_map(|agent| ways_out::check(&agent.status)));
        findings.extend(firewall::check());
        findings.extend(cni::check(&self.place, config.as_ref()));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }
}

fn query_agent(socket: &std::path::Path, patience: Duration) -> anyhow::Result<Agent> {
    Ok(Agent {
        status: client::query_within(socket, Query::Agent, patience)?,
        peers: client::query_within(socket, Query::Peers { address: None }, patience)?,
        pods: client::query_within(socket, Query::Pods, patience)?,
    })
}

/// The exit code: 0 where all is well, 1 with warnings, 2 with errors.
pub fn exit_code(findings: &[Finding]) -> u8 {
    findings.iter().map(|finding| finding.severity as u8).max().unwrap_or(0)
}

/// For people.
pub fn table(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "all is well\n".to_owned();
    }
    let mut text = String::new();
    for finding in findings {
        let severity = match finding.severity {
            Severity::Error => "ERROR",
            Severity::Warning => "warning",
        };
        let _ = writeln!(text, "{severity:<8} {}: {}", finding.check, finding.text);
        let _ = writeln!(text, "{:<8} → {}", "", finding.fix);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_exit_code_and_each_says_what_to_do() {
        let (warning, error) = (Finding::warning("mtu", "a", "do b"), Finding::error("agent", "c", "do d"));
        assert_eq!(exit_code(&[]), 0);
        assert_eq!(exit_code(std::slice::from_ref(&warning)), 1);
        assert_eq!(exit_code(&[warning.clone(), error.clone()]), 2);
        assert_eq!(table(&[]), "all is well\n");
        assert_eq!(
            table(&[error, warning]),
            "ERROR    agent: c\n         → do d\nwarning  mtu: a\n         → do b\n"
        );
    }
}
