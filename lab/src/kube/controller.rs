//! Trunkline's controller on a cluster: a few replicas with one leader, as in its Deployment. They
//! are killed and restarted as by kubelets. The Lease names the leader.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::{Pid, Signal, kill_process};

use super::Cluster;
use super::daemon::Daemon;
use super::ports::Port;
use crate::shell::{Seen, cmd, wait_for};

/// Location of the Lease.
const NAMESPACE: &str = "kube-system";
const LEASE: &str = "trunkline-controller";

/// The flag for the time after which a leader without renewal is replaced.
const LEASE_DURATION: &str = "--lease-duration-seconds";

/// A short duration, because a test kills fifty leaders in a few minutes.
const LEASE_SECONDS: u32 = 3;

/// Time limit for a new leader. The Lease of a killed leader must expire first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Running replicas.
pub(crate) struct Replicas {
    program: PathBuf,
    /// Kubeconfigs for the replicas, used in turns.
    kubeconfigs: Vec<PathBuf>,
    /// Flags in addition to the flags of all tests.
    flags: Vec<String>,
    all: Vec<Replica>,
    /// The last holder that was killed, stopped or paused. The Lease may name this holder until
    /// another replica is the leader.
    killed: Option<String>,
}

/// The leading replica, as named in the Lease.
pub(crate) struct Leader {
    holder: String,
    identity: String,
    which: usize,
}

impl Leader {
    /// The replica's name.
    pub(crate) fn name(&self) -> &str {
        &self.identity
    }
}

struct Replica {
    identity: String,
    ports: Ports,
    daemon: Daemon,
}

/// Ports of a replica.
struct Ports {
    http: Port,
    probe: Port,
    webhook: Port,
}

impl Replicas {
    /// Starts this number of replicas, and waits for a leader.
    pub(crate) fn start(cluster: &Cluster, program: &Path, count: usize) -> Result<Self> {
        // The API server of these tests calls no webhook.
        let mut replicas = Self::standing_by(cluster, program, count, &["--webhook=false"])?;
        replicas.wait_leader(cluster)?;
        Ok(replicas)
    }

    /// Starts this number of replicas with further flags. No replica leads while the Lease names
    /// another holder.
    pub(crate) fn standing_by(
        cluster: &Cluster,
        program: &Path,
        count: usize,
        flags: &[&str],
    ) -> Result<Self> {
        Self::standing_by_as(cluster, &cluster.kubeconfig(), program, count, flags)
    }

    /// Like [`Self::standing_by`], but with the rights of this kubeconfig.
    pub(crate) fn standing_by_as(
        cluster: &Cluster,
        kubeconfig: &Path,
        program: &Path,
        count: usize,
        flags: &[&str],
    ) -> Result<Self> {
        Self::launch_all(cluster, vec![kubeconfig.to_owned()], program, count, flags)
    }

    /// Starts this number of replicas with further flags, each with its own account to distinguish
    /// them in the audit log. Waits for a leader.
    pub(crate) fn start_apart(
        cluster: &Cluster,
        program: &Path,
        count: usize,
        flags: &[&str],
    ) -> Result<Self> {
        let mut kubeconfigs = Vec::new();
        for n in 1..=count {
            let account = identity(n);
            kubeconfigs.push(cluster.service_account(NAMESPACE, &account)?);
            cluster.apply(&format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{ name: {account} }}\n\
                 roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin }}\n\
                 subjects: [{{ kind: ServiceAccount, name: {account}, namespace: {NAMESPACE} }}]\n"
            ))?;
        }
        let flags = [&["--webhook=false"], flags].concat();
        let mut replicas = Self::launch_all(cluster, kubeconfigs, program, count, &flags)?;
        replicas.wait_leader(cluster)?;
        Ok(replicas)
    }

    fn launch_all(
        cluster: &Cluster,
        kubeconfigs: Vec<PathBuf>,
        program: &Path,
        count: usize,
        flags: &[&str],
    ) -> Result<Self> {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut replicas =
            Self { program: program.to_owned(), kubeconfigs, flags, all: Vec::new(), killed: None };
        for n in 1..=count {
            let identity = identity(n);
            let ports = Ports { http: Port::claim()?, probe: Port::claim()?, webhook: Port::claim()? };
            let daemon = replicas.launch(cluster, n - 1, &identity, &ports)?;
            replicas.all.push(Replica { identity, ports, daemon });
        }
        Ok(replicas)
    }

    fn launch(&self, cluster: &Cluster, which: usize, identity: &str, ports: &Ports) -> Result<Daemon> {
        let mut command = cmd(&self.program.display().to_string(), [""; 0]);
        command.env("KUBECONFIG", &self.kubeconfigs[which % self.kubeconfigs.len()]);
        command.args([
            format!("--namespace={NAMESPACE}"),
            format!("--identity={identity}"),
            format!("--http-address=127.0.0.1:{}", ports.http.number()),
            format!("--probe-address=127.0.0.1:{}", ports.probe.number()),
            format!("--webhook-listen=127.0.0.1:{}", ports.webhook.number()),
            "--webhook-names=127.0.0.1".to_owned(),
        ]);
        if !self.flags.iter().any(|flag| flag.starts_with(LEASE_DURATION)) {
            command.arg(format!("{LEASE_DURATION}={LEASE_SECONDS}"));
        }
        command.args(&self.flags);
        cluster.daemon(identity, command)
    }

    /// The leader: the holder in the Lease, and the matching replica. A restarted replica has the
    /// same name, but is another holder.
    fn leader(&self, cluster: &Cluster) -> Result<Option<Leader>> {
        let Some(holder) = holder(cluster)? else { return Ok(None) };
        let name = holder.rsplit_once('_').map_or(holder.as_str(), |(name, _)| name);
        let which = self.all.iter().position(|r| r.identity == name);
        let which = which.filter(|_| self.killed.as_ref() != Some(&holder));
        Ok(which.map(|which| Leader { identity: self.all[which].identity.clone(), holder, which }))
    }

    /// Waits for a leader that was not killed.
    pub(crate) fn wait_leader(&mut self, cluster: &Cluster) -> Result<Leader> {
        wait_for("a controller to lead", PATIENCE, || {
            if let Err(ended) = self.still_running() {
                return Ok(Seen::Yes(Err(ended)));
            }
            let leader = self.leader(cluster)?;
            Ok(leader.map_or_else(|| Seen::NotYet("none does".to_owned()), |leader| Seen::Yes(Ok(leader))))
        })?
    }

    /// Kills a leader and restarts it. Returns the time of the kill.
    pub(crate) fn kill(&mut self, cluster: &Cluster, leader: Leader) -> Result<Instant> {
        let Leader { holder, which, .. } = leader;
        self.all[which].daemon.kill()?;
        let killed = Instant::now();
        self.killed = Some(holder);
        self.start_again(cluster, which)?;
        Ok(killed)
    }

    /// Stops a leader as kubelets do, waits until it has ended and another replica leads, and
    /// restarts it. If it were restarted earlier, it could be the first to find the Lease free.
    pub(crate) fn end(&mut self, cluster: &Cluster, leader: Leader) -> Result<()> {
        let Leader { holder, which, .. } = leader;
        let status = self.all[which].daemon.stop()?;
        ensure!(status.success(), "{} had to end, and ended with {status}", self.all[which].identity);
        self.killed = Some(holder);
        wait_for("another controller to lead", PATIENCE, || {
            Ok(Seen::when(self.leader(cluster)?.is_some(), || "none does".to_owned()))
        })?;
        self.start_again(cluster, which)
    }

    fn start_again(&mut self, cluster: &Cluster, which: usize) -> Result<()> {
        let Replica { identity, ports, .. } = &self.all[which];
        self.all[which].daemon = self.launch(cluster, which, identity, ports)?;
        Ok(())
    }

    /// Suspends a leader, like a machine that is out of memory. Returns its index.
    pub(crate) fn pause(&mut self, leader: Leader) -> Result<usize> {
        let Leader { holder, which, .. } = leader;
        kill_process(self.all[which].daemon.pid(), Signal::STOP)?;
        self.killed = Some(holder);
        Ok(which)
    }

    /// Ends [`Self::pause`].
    pub(crate) fn resume(&self, which: usize) -> Result<()> {
        Ok(kill_process(self.all[which].daemon.pid(), Signal::CONT)?)
    }

    /// The log of a replica since its first start.
    pub(crate) fn log(&self, which: usize) -> &Path {
        self.all[which].daemon.log()
    }

    /// The webhook port of each replica.
    pub(crate) fn webhooks(&self) -> Vec<u16> {
        self.all.iter().map(|replica| replica.ports.webhook.number()).collect()
    }

    /// The name of each replica, and its metrics port.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = (&str, u16)> {
        self.all.iter().map(|replica| (&*replica.identity, replica.ports.http.number()))
    }

    /// The probe port of each replica.
    pub(crate) fn probes(&self) -> impl Iterator<Item = u16> {
        self.all.iter().map(|replica| replica.ports.probe.number())
    }

    /// Kills all replicas.
    pub(crate) fn kill_all(&mut self) -> Result<()> {
        self.all.iter_mut().try_for_each(|replica| replica.daemon.kill())
    }

    /// Restarts all replicas after [`Self::kill_all`]. The Lease names a dead holder until a
    /// replica leads.
    pub(crate) fn start_all_again(&mut self, cluster: &Cluster) -> Result<()> {
        self.killed = holder(cluster)?;
        (0..self.all.len()).try_for_each(|which| self.start_again(cluster, which))
    }

    /// The process of the first replica.
    pub(crate) fn first(&self) -> Option<Pid> {
        self.all.first().map(|replica| replica.daemon.pid())
    }

    /// Fails if a replica has ended by itself.
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

/// The holder in the Lease.
fn holder(cluster: &Cluster) -> Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), NAMESPACE);
    let lease = cluster.wait(leases.get_opt(LEASE))?;
    Ok(lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity))
}

/// The name of the replica with this number.
fn identity(number: usize) -> String {
    format!("controller-{number}")
}
