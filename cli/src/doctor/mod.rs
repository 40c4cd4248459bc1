//! `trunkline doctor`: finds faults of this host that affect pods, now or later, and recommends
//! actions.
//!
//! ```text
//!  configuration file ─┐
//!  agent's answers ────┤                              ┌─► table, JSON
//!  kernel, sysctls ────┼─► checks, one file a topic ──┤
//!  CNI's folders ──────┤      Vec<Finding>            └─► exit code
//!  firewall ───────────┘
//! ```
//!
//! The command reads the host itself and changes nothing. It runs on the host and needs no agent: a
//! missing agent is one of the findings, and all checks that need no agent still run. Facts from
//! the agent's answers are not checked a second time.
//!
//! A check without a fault prints nothing, so a healthy host has no output. If a check cannot read
//! its input (no `nft`, a file for root only), this is a finding too. So if there is no output,
//! everything was checked and is healthy.

mod about;
mod anycast;
mod claims;
mod cni;
mod files;
mod firewall;
mod host;
mod policies;
mod probes;
mod services;
mod settings;
mod stopped;
mod ways_out;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use trunkline_agent::config::Config;
use trunkline_api::attach::DEFAULT_SOCKET;
use trunkline_api::control::{AgentStatus, Peer, PodStatus, PoliciesView, Query, ServiceView};

use crate::arguments::{HostArgs, Output};
use crate::client;

/// Arguments of `trunkline doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The files of this host.
    #[command(flatten)]
    pub host: HostArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Severity of a finding; also the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// It may become an outage, or a setting has no effect.
    Warning = 1,
    /// Some or all pods do not work.
    Error = 2,
}

/// A fault or a risk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the check; it does not change between versions.
    pub check: String,
    /// Severity.
    pub severity: Severity,
    /// Description of the fault.
    pub text: String,
    /// Recommended action.
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

/// The agent's answers.
struct Agent {
    status: AgentStatus,
    peers: Vec<Peer>,
    pods: Vec<PodStatus>,
    services: Vec<ServiceView>,
    /// None if the agent enforces no network policies.
    policies: Option<PoliciesView>,
}

impl HostArgs {
    /// Runs all checks. Errors come first; findings of equal severity are in the order of the
    /// checks.
    pub fn examine(&self) -> Vec<Finding> {
        self.examine_within(client::TIMEOUT)
    }

    /// The agent's socket according to this configuration.
    pub(crate) fn socket(&self, config: Option<&Config>) -> PathBuf {
        let configured = config.map(|config| config.socket.clone());
        self.socket.clone().or(configured).unwrap_or_else(|| DEFAULT_SOCKET.into())
    }

    /// Like [`Doctor::examine`], with this timeout for the agent.
    pub(crate) fn examine_within(&self, timeout: Duration) -> Vec<Finding> {
        let mut findings = Vec::new();
        let config = match Config::read(&self.config) {
            Ok(config) => Some(config),
            Err(error) => {
                let fix = "correct the file; `trunkline agent --check` checks it. The running agent is not affected until its restart";
                findings.push(Finding::error("config", error.to_string(), fix));
                None
            }
        };
        let agent = match query_agent(&self.socket(config.as_ref()), timeout) {
            Ok(agent) => {
                findings.extend(about::agent(&agent));
                findings.extend(probes::check(&agent.status));
                findings.extend(anycast::check(&agent.status));
                findings.extend(settings::check(&agent.status));
                findings.extend(claims::check(&agent.status));
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
        let services = agent.as_ref().map(|agent| agent.services.as_slice()).unwrap_or_default();
        findings.extend(config.iter().flat_map(|config| services::check(&config.services, services)));
        let rules = firewall::Rules::read();
        findings.extend(firewall::check(&rules));
        findings.extend(policies::check(agent.as_ref().and_then(|agent| agent.policies.as_ref()), &rules));
        findings.extend(cni::check(&self.place, config.as_ref()));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }
}

fn query_agent(socket: &std::path::Path, timeout: Duration) -> anyhow::Result<Agent> {
    let status: AgentStatus = client::query_within(socket, Query::Agent, timeout)?;
    let policies = status.policies.as_ref().map(|_| client::query_within(socket, Query::Policies, timeout));
    Ok(Agent {
        policies: policies.transpose()?,
        status,
        peers: client::query_within(socket, Query::Peers { address: None }, timeout)?,
        pods: client::query_within(socket, Query::Pods, timeout)?,
        // An agent without service addresses refuses this query.
        services: client::query_within(socket, Query::Services { name: None, everywhere: false }, timeout)
            .unwrap_or_default(),
    })
}

/// The exit code: 0 without findings, 1 with warnings, 2 with errors.
pub fn exit_code(findings: &[Finding]) -> u8 {
    findings.iter().map(|finding| finding.severity as u8).max().unwrap_or(0)
}

/// The findings as text for people.
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
    fn exit_code_is_the_worst_severity_and_each_has_a_fix() {
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
