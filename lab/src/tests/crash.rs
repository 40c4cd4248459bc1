//! Crashes, and changes by other programs in the kernel: leftovers are removed, missing objects are
//! restored.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use trunkline_api::control::PodState;

use super::bed::{Bed, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::cni::{self, Sandbox};
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "crash/add-storm",
        about: "start and GC remove all leftovers after SIGKILL at any point of ADD",
        run: add_storm,
    },
    Test {
        name: "crash/del-storm",
        about: "start and GC remove all leftovers after SIGKILL at any point of DEL",
        run: del_storm,
    },
    Test {
        name: "crash/repair",
        about: "deleted routes, rules and links are restored or reported",
        run: repair,
    },
    Test {
        name: "crash/store-corrupt",
        about: "with a corrupt store no address is allocated, and running pods continue",
        run: store_corrupt,
    },
    Test {
        name: "crash/disk-full",
        about: "with a full disk no address is allocated, and running pods continue",
        run: disk_full,
    },
];

/// Rounds of a storm. Each round kills the agent a little later than the previous round.
const ROUNDS: u64 = 12;
/// An ADD takes a few milliseconds; most of a DEL is the kernel's time for the removal of a device.
const ADD_STEP: Duration = Duration::from_millis(2);
const DEL_STEP: Duration = Duration::from_millis(7);
const AT_ONCE: usize = 6;

/// Starts a command of the plugin for several pods at once, and kills the agent meanwhile. Returns
/// the number of successful runs; errors are allowed.
fn storm(bed: &Bed<'_>, verb: &str, pods: &[Sandbox], after: Duration) -> Result<usize> {
    let conf = cni::trunkline(Some("rack1"));
    let agent = client::agent(bed.node()?)?;
    let answered = std::thread::scope(|scope| {
        let runs: Vec<_> =
            pods.iter().map(|pod| scope.spawn(|| cni::run(bed.fabric, verb, &conf, pod))).collect();
        // The test varies this time: the kill is a little later in every round.
        std::thread::sleep(after);
        kill_process(agent, Signal::KILL)?;
        let answers = runs.into_iter().map(|r| r.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        Ok::<usize, anyhow::Error>(answers.filter(|a| a.as_ref().is_ok_and(|a| a.outcome.is_ok())).count())
    })?;
    client::wait_ended(bed.node()?, agent)?;
    client::start_agent(bed.node()?)?;
    Ok(answered)
}

/// Calls GC as a runtime does: these attachments are valid, and GC deletes all others.
fn gc(bed: &Bed<'_>, valid: &[&Sandbox]) -> Result<()> {
    let mut conf = cni::trunkline(Some("rack1"));
    conf["cniVersion"] = json!("1.1.0");
    let entries: Vec<_> =
        valid.iter().map(|p| json!({ "containerID": p.container_id, "ifname": p.ifname })).collect();
    conf["cni.dev/valid-attachments"] = json!(entries);
    let any = valid.first().context("a pod")?;
    cni::run(bed.fabric, "GC", &conf, any)?.result().map(drop)
}

fn add_storm(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (witness, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        let mut answered = 0;
        for round in 0..ROUNDS {
            let pods: Vec<Sandbox> =
                (0..AT_ONCE).map(|i| bed.pod(&format!("r{round}p{i}"))).collect::<Result<_>>()?;
            answered += storm(bed, "ADD", &pods, ADD_STEP * u32::try_from(round)?)?;
            // The start has removed the state of unfinished ADDs; the runtime must collect the
            // state of finished ADDs.
            wait_for("the removal of incomplete records", PATIENCE, || {
                let half: Vec<_> =
                    bed.pods()?.into_iter().filter(|p| p.state != PodState::Attached).collect();
                Ok(Seen::when(half.is_empty(), || format!("{half:?}")))
            })?;
            bed.established()?;
            gc(bed, &[&witness])?;
            for pod in pods {
                pod.ns.delete()?;
            }
            bed.nothing_but(&[&witness], &attached.addresses).with_context(|| format!("round {round}"))?;
        }
        let (_, after) = bed.attached("after", "rack1")?;
        ensure!(after.addresses.len() == 2, "{:?}", after.addresses);
        let pings = lost_nothing(pings)?;
        passed(format!(
            "{ROUNDS} kills among {AT_ONCE} ADDs each, {answered} answered; {pings} pings of another pod, none lost"
        ))
    })
}

fn del_storm(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (witness, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        let mut answered = 0;
        for round in 0..ROUNDS {
            let pods: Vec<Sandbox> = (0..AT_ONCE)
                .map(|i| Ok(bed.attached(&format!("r{round}p{i}"), "rack1")?.0))
                .collect::<Result<_>>()?;
            answered += storm(bed, "DEL", &pods, DEL_STEP * u32::try_from(round)?)?;
            bed.established()?;
            // A runtime that gets no answer repeats its request.
            for pod in &pods {
                cni::del(bed.fabric, &cni::trunkline(Some("rack1")), pod)?;
                pod.ns.delete()?;
            }
            bed.nothing_but(&[&witness], &attached.addresses).with_context(|| format!("round {round}"))?;
        }
        let pings = lost_nothing(pings)?;
        passed(format!(
            "{ROUNDS} kills among {AT_ONCE} DELs each, {answered} answered; {pings} pings of another pod, none lost"
        ))
    })
}

fn repair(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        let (pod, attached) = bed.attached("victim", "rack1")?;
        let look = || -> Result<String> {
            let sorted = |text: String| {
                let mut lines: Vec<String> = text.lines().map(|l| l.trim().to_owned()).collect();
                lines.sort();
                lines.join("\n")
            };
            // All rules and routes with the agent's protocol number, both families.
            let mut all = String::new();
            for family in ["-4", "-6"] {
                for what in ["route show table all proto 116", "rule show"] {
                    all.push_str(&sorted(node.sh(&format!("ip {family} {what}"))?));
                    all.push('\n');
                }
            }
            Ok(all)
        };
        let before = look()?;
        let v4 = attached.addresses.iter().find(|a| a.is_ipv4()).context("an IPv4 address")?;
        ensure!(before.contains(&v4.to_string()), "no route of our protocol number to {v4}:\n{before}");
        let table = before
            .lines()
            .find(|l| l.contains("from 10.201.0.0/16"))
            .and_then(|l| l.split("lookup ").nth(1)?.split_whitespace().next())
            .context("no rule for the subnet")?
            .to_owned();
        let harms = [
            format!("ip route del {v4} table 39999"),
            "ip -6 route flush table 39999".to_owned(),
            "ip rule del from 10.201.0.0/16".to_owned(),
            "ip -6 rule del from fd00:201::/112".to_owned(),
            format!("ip route del default table {table}"),
            "ip route flush table all proto 116".to_owned(),
        ];
        for harm in &harms {
            node.sh(harm)?;
            wait_for(&format!("repair after `{harm}`"), PATIENCE, || {
                let now = look()?;
                let missing: Vec<&str> = before.lines().filter(|l| !now.contains(l)).collect();
                Ok(Seen::when(missing.is_empty(), || format!("missing: {missing:?}")))
            })?;
        }
        let repairs = client::status(node)?.kernel.repairs;
        ensure!(
            repairs >= harms.len() as u64,
            "{repairs} repairs were counted after {} deletions",
            harms.len()
        );

        // Other programs' routes do not change.
        node.sh(
            "ip route add 198.51.100.0/24 dev eth1; ip rule add from 198.51.100.0/24 lookup 77 pref 900",
        )?;
        client::end_agent(node, Signal::TERM)?;
        client::start_agent(node)?;
        bed.established()?;
        let kept = node.sh("ip route show 198.51.100.0/24; ip rule show pref 900")?;
        ensure!(kept.lines().count() == 2, "foreign objects were changed: {kept}");

        // The agent cannot restore a pod's link, so it reports the loss.
        let link = bed.links()?.first().cloned().context("the pod's link")?;
        node.ns.ip(["link", "del", &link])?;
        let reported = wait_for("the lost link to be reported", PATIENCE, || {
            let found = bed.pods()?.into_iter().find(|p| p.container_id == pod.container_id);
            let state = found.context("the pod's record was removed")?.state;
            Ok(if state == PodState::Attached { Seen::NotYet(state.to_string()) } else { Seen::Yes(state) })
        })?;
        cni::del(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        bed.nothing_but(&[], &[])?;
        passed(format!("{} deletions repaired; without its link the pod is shown as {reported}", harms.len()))
    })
}

/// Checks that the pod keeps running, that its route stays in the ToR, and that new pods are
/// refused with `words`.
fn gives_out_nothing(bed: &Bed<'_>, witness: &cni::Attached, words: &[&str], name: &str) -> Result<String> {
    let pod = bed.pod(name)?;
    let error = cni::run(bed.fabric, "ADD", &cni::trunkline(Some("rack1")), &pod)?.error()?;
    ensure!(
        words.iter().any(|w| error.text.to_lowercase().contains(w)),
        "the error has none of {words:?}: {error}"
    );
    bed.tor_has_only("tor1", &witness.addresses)?;
    Ok(error.to_string())
}

fn store_corrupt(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let node = bed.node()?;
        let (_witness, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        client::end_agent(node, Signal::TERM)?;
        let store = node.folder.join("lib/store.redb");
        let size = std::fs::metadata(&store).with_context(|| store.display().to_string())?.len();
        std::fs::write(&store, vec![0x5a; usize::try_from(size)?])?;
        client::start_agent(node)?;
        bed.established()?;
        let fault = client::status(node)?.store.fault.context("the store's fault is not in the status")?;
        let error = gives_out_nothing(bed, &attached, &["store"], "refused")?;
        let subnet = "10.201.0.0/16".parse()?;
        ensure!(
            routers::kernel_routes(bed.host("tor1")?)?.contains(&subnet),
            "the subnet's route was removed"
        );
        let pings = lost_nothing(pings)?;
        passed(format!("{fault}; {error}; {pings} pings, none lost"))
    })
}

fn disk_full(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        let node = bed.node()?;
        client::end_agent(node, Signal::TERM)?;
        node.sh("mount -t tmpfs -o size=8m lab /var/lib/trunkline")?;
        client::start_agent(node)?;
        bed.established()?;
        let (_witness, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        node.sh("dd if=/dev/zero of=/var/lib/trunkline/filler bs=64k 2>/dev/null || :")?;
        // The store's file has some free space, so the first ADDs may succeed.
        let mut full = None;
        for i in 0..400 {
            let pod = bed.pod(&format!("fill{i}"))?;
            let answer = cni::run(bed.fabric, "ADD", &cni::trunkline(Some("rack1")), &pod)?;
            if let Err(error) = answer.outcome {
                full = Some((i, error));
                break;
            }
        }
        let (given, error) = full.context("400 pods were attached on a full disk")?;
        let text = error.text.to_lowercase();
        ensure!(
            text.contains("store") || text.contains("space"),
            "the error names neither store nor space: {error}"
        );
        ensure!(client::status(node)?.store.fault.is_some(), "the store's fault is not in the status");
        let peers = client::peers(node)?;
        ensure!(peers.iter().all(|p| p.is_established() && p.flaps == 0), "{peers:?}");
        let pings = lost_nothing(pings)?;
        passed(format!("after {given} more pods: {error}; {pings} pings, none lost"))
    })
}
