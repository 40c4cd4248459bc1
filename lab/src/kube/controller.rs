//! Trunkline's controller on a cluster: a few replicas, as its Deployment runs them, of which one leads. They are killed and started
//! again as kubelets do it, and found by what the Lease says.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::Pid;

use super::Cluster;
use super::daemon::Daemon;
use super::ports::Port;
use crate::shell::{Seen, cmd, wait_for};

/// Where the Lease is, and what is in it.
const NAMESPACE: &str = "kube-system";
const LEASE: &str = "trunkline-controller";

/// So short that fifty leaders can be killed in a few minutes.
const LEASE_SECONDS: u32 = 3;

/// How long it may take until one leads: the lease of one that was killed runs out first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Replicas that run.
pub(crate) struct Replicas {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// Besides those that all tests give.
    flags: Vec<String>,
    all: Vec<Replica>,
    /// The holder that was killed last: the Lease names it until another has won.
    killed: Option<String>,
}

/// Which replica leads, as the Lease calls it.
pub(crate) struct Leader {
    holder: String,
    which: usize,
}

struct Replica {
    identity: String,
    ports: Ports,
    daemon: Daemon,
}

/// Where one answers.
struct Ports {
    http: Port,
    webhook: Port,
}

impl Replicas {
    /// Starts as many, and waits until one leads.
    pub(crate) fn start(cluster: &Cluster, program: &Path, count: usize) -> Result<Self> {
        // The API server of these tests asks no webhook.
        let mut replicas = Self::standing_by(cluster, program, count, &["--webhook=false"])?;
        replicas.wait_leader(cluster)?;
        Ok(replicas)
    }

    /// Starts as many, with further flags. None will lead while the Lease says that somebody else does.
    pub(crate) fn standing_by(
        cluster: &Cluster,
        program: &Path,
        count: usize,
        flags: &[&str],
    ) -> Result<Self> {
        Self::standing_by_as(cluster, &cluster.kubeconfig(), program, count, flags)
    }

    /// As [`Self::standing_by`], but with the rights of whom this kubeconfig is for.
    pub(crate) fn standing_by_as(
        cluster: &Cluster,
        kubeconfig: &Path,
        program: &Path,
        count: usize,
        flags: &[&str],
    ) -> Result<Self> {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (program, kubeconfig) = (program.to_owned(), kubeconfig.to_owned());
        let mut replicas = Self { program, kubeconfig, flags, all: Vec::new(), killed: None };
        for n in 1..=count {
            let identity = format!("controller-{n}");
            let ports = Ports { http: Port::claim()?, webhook: Port::claim()? };
            let daemon = replicas.launch(cluster, &identity, &ports)?;
            replicas.all.push(Replica { identity, ports, daemon });
        }
        Ok(replicas)
    }

    fn launch(&self, cluster: &Cluster, identity: &str, ports: &Ports) -> Result<Daemon> {
        let mut command = cmd(&self.program.display().to_string(), [""; 0]);
        command.env("KUBECONFIG", &self.kubeconfig);
        command.args([
            format!("--namespace={NAMESPACE}"),
            format!("--identity={identity}"),
            format!("--http-address=127.0.0.1:{}", ports.http.number()),
            format!("--webhook-listen=127.0.0.1:{}", ports.webhook.number()),
            "--webhook-names=127.0.0.1".to_owned(),
            format!("--lease-duration-seconds={LEASE_SECONDS}"),
        ]);
        command.args(&self.flags);
        cluster.daemon(identity, command)
    }

    /// Who leads: what the Lease says, and which of these that is. A replica that was started again under its name is another holder.
    fn leader(&self, cluster: &Cluster) -> Result<Option<Leader>> {
        let leases: Api<Lease> = Api::namespaced(cluster.client(), NAMESPACE);
        let lease = cluster.wait(leases.get_opt(LEASE))?;
        let Some(holder) = lease.and_then(|l| l.spec).and_then(|s| s.holder_identity) else {
            return Ok(None);
        };
        let name = holder.rsplit_once('_').map_or(holder.as_str(), |(name, _)| name);
        let which = self.all.iter().position(|r| r.identity == name);
        Ok(which.filter(|_| self.killed.as_ref() != Some(&holder)).map(|which| Leader { holder, which }))
    }

    /// Waits until one leads that was not killed.
    pub(crate) fn wait_leader(&mut self, cluster: &Cluster) -> Result<Leader> {
        wait_for("a controller to lead", PATIENCE, || {
            if let Err(ended) = self.still_running() {
                return Ok(Seen::Yes(Err(ended)));
            }
            let leader = self.leader(cluster)?;
            Ok(leader.map_or_else(|| Seen::NotYet("none does".to_owned()), |leader| Seen::Yes(Ok(leader))))
        })?
    }

    /// Kills a leader that was found, starts it again, and says when it was killed.
    pub(crate) fn kill(&mut self, cluster: &Cluster, leader: Leader) -> Result<Instant> {
        let Leader { holder, which } = leader;
        self.all[which].daemon.kill()?;
        let killed = Instant::now();
        self.killed = Some(holder);
        self.all[which].daemon = self.launch(cluster, &self.all[which].identity, &self.all[which].ports)?;
        Ok(killed)
    }

    /// The ports at which each answers admission requests.
    pub(crate) fn webhooks(&self) -> Vec<u16> {
        self.all.iter().map(|replica| replica.ports.webhook.number()).collect()
    }

    /// Kills all of them.
    pub(crate) fn kill_all(&mut self) -> Result<()> {
        self.all.iter_mut().try_for_each(|replica| replica.daemon.kill())
    }

    /// The process of the first.
    pub(crate) fn first(&self) -> Option<Pid> {
        self.all.first().map(|replica| replica.daemon.pid())
    }

    /// Fails if one has ended by itself.
    pub(crate) fn still_running(&mut self) -> Result<()> {
        for replica in &mut self.all {
            replica.daemon.still_running()?;
        }
        if self.all.is_empty() {
            bail!("no controller was started");
        }
        Ok(())
    }
}
