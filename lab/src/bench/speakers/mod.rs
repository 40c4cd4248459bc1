//! Throughput of BGP speakers, and its cost: Trunkline's library (its `transit` example) compared
//! with BIRD, FRR and GoBGP. In one run, all get the same octets from the same feeder and send to
//! the same sinks.
//!
//! | load | content |
//! |---|---|
//! | five | 1,000,000 /24s, five to an attribute set, from one peer to one sink |
//! | one | the same with one prefix to an attribute set |
//! | hundred | 10,000 /24s, five to an attribute set, to a hundred sinks |
//!
//! The first time is from the feeder's first octet until every sink has received every prefix. The
//! second is from the end of the feeder's session until every sink has received every withdrawal.
//! Memory is the maximum resident size, reset before each load. No speaker has a FIB. Trunkline and
//! BIRD alternate in three rounds, and the median counts. FRR and GoBGP take longer and set no
//! bound, so they run once.

pub(crate) mod peers;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Pid;
use serde::Serialize;

use self::peers::{Feeder, Sinks, table};
use super::memory::megabytes;
use super::{Bound, report, warn_if_busy};
use crate::cli::Speaker;
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::packages;
use crate::product;
use crate::progress::{say, step};
use crate::shell::{Seen, run_with_input, wait_for};
use crate::stats::{percentile, round};

const ROUNDS: usize = 3;

impl Speaker {
    const ALL: [Speaker; 4] = [Speaker::Trunkline, Speaker::Bird, Speaker::Frr, Speaker::Gobgp];

    fn host(self) -> &'static str {
        match self {
            Speaker::Trunkline => "trunkline",
            Speaker::Bird => "bird",
            Speaker::Frr => "frr",
            Speaker::Gobgp => "gobgp",
        }
    }

    /// In seconds. GoBGP uses a hold time of zero as a write timeout of zero, and drops the session
    /// at its first full buffer. (Its write deadline is the current time plus the negotiated hold
    /// time.) So its configuration has a hold time of one hour too.
    fn hold_time(self) -> u16 {
        if self == Speaker::Gobgp { 3600 } else { 0 }
    }

    /// Name of the speaker's process.
    fn process(self) -> &'static str {
        match self {
            Speaker::Trunkline => "transit",
            Speaker::Bird => "bird",
            Speaker::Frr => "bgpd",
            Speaker::Gobgp => "gobgpd",
        }
    }

    /// The N of the speaker's network 10.N.0.0/16.
    fn network(self) -> u8 {
        Speaker::ALL.iter().position(|it| *it == self).map_or(0, |place| place as u8 + 1)
    }

    /// GoBGP needs two minutes, the others need seconds.
    fn patience(self) -> Duration {
        Duration::from_secs(if self == Speaker::Gobgp { 600 } else { 60 })
    }

    fn rounds(self) -> usize {
        match self {
            Speaker::Trunkline | Speaker::Bird => ROUNDS,
            Speaker::Frr | Speaker::Gobgp => 1,
        }
    }
}

/// The advertised table, and the number of sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Load {
    Five,
    One,
    Hundred,
}

impl Load {
    const ALL: [Load; 3] = [Load::Five, Load::One, Load::Hundred];

    /// Number of prefixes, prefixes in an attribute set, sinks.
    fn shape(self) -> (u32, u32, u8) {
        match self {
            Load::Five => (1_000_000, 5, 1),
            Load::One => (1_000_000, 1, 1),
            Load::Hundred => (10_000, 5, 100),
        }
    }
}

/// One speaker under one load.
#[derive(Debug, Clone, Serialize)]
struct Row {
    speaker: Speaker,
    load: Load,
    passed_on_s: f64,
    withdrawn_s: f64,
    /// Megabytes of 1,000,000 octets.
    peak_mb: f64,
    cpu_s: f64,
    /// The figure divided by BIRD's figure in this run.
    ratio_passed_on: Option<f64>,
    ratio_withdrawn: Option<f64>,
    ratio_peak: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    rows: Vec<Row>,
    bounds: Vec<Bound>,
}

/// `cargo lab bench speakers`.
pub(crate) fn bench(place: &Place, json: bool, chosen: &[Speaker]) -> Result<bool> {
    packages::need_root("cargo lab bench speakers")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "bird2", "gobgpd"]))?;
    let chosen: Vec<Speaker> =
        Speaker::ALL.into_iter().filter(|it| chosen.is_empty() || chosen.contains(it)).collect();
    let folder = product::build_example(place, "transit", product::Profile::Release)?;
    warn_if_busy();
    let fabric = step("starting the topology", || Fabric::up(place, "speakers", &folder))?;
    let figures = fabric.watched(|fabric| measure(fabric, &chosen))?;
    let words = words(&figures.rows);
    report(json, &figures, &words, &figures.bounds)
}

fn measure(fabric: &Fabric, chosen: &[Speaker]) -> Result<Figures> {
    let peers = fabric.host("peers")?;
    let addresses: String = Speaker::ALL
        .iter()
        .flat_map(|it| {
            (1..=100).map(|sink| format!("addr add 10.{0}.1.{sink}/16 dev eth{0}\n", it.network()))
        })
        .collect();
    run_with_input(&mut peers.command("ip", ["-batch", "-"]), &addresses)?;
    if chosen.contains(&Speaker::Trunkline) {
        start_trunkline(fabric.host("trunkline")?)?;
    }
    let mut rows = Vec::new();
    for load in Load::ALL {
        let (prefixes, to_a_set, _) = load.shape();
        let mut samples: Vec<(Speaker, Vec<Sample>)> = chosen.iter().map(|it| (*it, Vec::new())).collect();
        for round in 0..ROUNDS {
            for (speaker, samples) in samples.iter_mut().filter(|(it, _)| round < it.rounds()) {
                let title = format!("{load:?}, round {}, {speaker:?}", round + 1);
                let octets = table(prefixes, to_a_set, speaker.network());
                let sample = step(&title, || run(fabric, *speaker, load, &octets)).context(title.clone())?;
                say(&format!(
                    "    passed on {:.2} s, withdrawn {:.2} s, {:.0} MB, {:.1} s of CPU",
                    sample.passed_on, sample.withdrawn, sample.peak, sample.cpu
                ));
                samples.push(sample);
            }
        }
        rows.extend(samples.iter().map(|(speaker, samples)| row(*speaker, load, samples)));
    }
    let bird: Vec<Row> = rows.iter().filter(|row| row.speaker == Speaker::Bird).cloned().collect();
    for row in &mut rows {
        if let Some(bird) = bird.iter().find(|bird| bird.load == row.load) {
            row.ratio_passed_on = Some(round(row.passed_on_s / bird.passed_on_s));
            row.ratio_withdrawn = Some(round(row.withdrawn_s / bird.withdrawn_s));
            row.ratio_peak = Some(round(row.peak_mb / bird.peak_mb));
        }
    }
    Ok(Figures { bench: "speakers", bounds: bounds(&rows), rows })
}

fn bounds(rows: &[Row]) -> Vec<Bound> {
    let ours = |load| rows.iter().find(|row| row.speaker == Speaker::Trunkline && row.load == load);
    let mut bounds = Vec::new();
    let mut at_most = |name, value: Option<f64>, most| {
        if let Some(value) = value {
            bounds.push(Bound::at_most(name, value, most));
        }
    };
    if let Some(row) = ours(Load::Five) {
        at_most("1,000,000 prefixes passed on, against BIRD", row.ratio_passed_on, 0.5);
        at_most("1,000,000 prefixes withdrawn, against BIRD", row.ratio_withdrawn, 0.7);
        at_most("peak memory, against BIRD", row.ratio_peak, 1.0);
    }
    if let Some(row) = ours(Load::One) {
        at_most("one prefix to an attribute set, passed on, against BIRD", row.ratio_passed_on, 1.0);
        at_most("one prefix to an attribute set, withdrawn, against BIRD", row.ratio_withdrawn, 1.0);
    }
    if let Some(row) = ours(Load::Hundred) {
        at_most("100 sinks of 10,000 prefixes, passed on, against BIRD", row.ratio_passed_on, 1.0);
        at_most("100 sinks of 10,000 prefixes, withdrawn, against BIRD", row.ratio_withdrawn, 1.0);
    }
    bounds
}

fn words(rows: &[Row]) -> String {
    let ratio = |ratio: Option<f64>| ratio.map(|ratio| format!("({ratio:.2})")).unwrap_or_default();
    let head =
        ["load", "speaker", "passed on", "", "withdrawn", "", "peak", "", "CPU"].map(str::to_owned).to_vec();
    let line = |row: &Row| {
        vec![
            format!("{:?}", row.load).to_lowercase(),
            format!("{:?}", row.speaker),
            format!("{:.2} s", row.passed_on_s),
            ratio(row.ratio_passed_on),
            format!("{:.2} s", row.withdrawn_s),
            ratio(row.ratio_withdrawn),
            format!("{:.0} MB", row.peak_mb),
            ratio(row.ratio_peak),
            format!("{:.1} s", row.cpu_s),
        ]
    };
    let table: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(line)).collect();
    crate::progress::table(&table) + "\n  in brackets: divided by BIRD's\n"
}

fn row(speaker: Speaker, load: Load, samples: &[Sample]) -> Row {
    let median =
        |of: fn(&Sample) -> f64| round(percentile(&samples.iter().map(of).collect::<Vec<_>>(), 50.0));
    Row {
        speaker,
        load,
        passed_on_s: median(|it| it.passed_on),
        withdrawn_s: median(|it| it.withdrawn),
        peak_mb: median(|it| it.peak),
        cpu_s: median(|it| it.cpu),
        ratio_passed_on: None,
        ratio_withdrawn: None,
        ratio_peak: None,
    }
}

/// Seconds, seconds, megabytes, seconds.
#[derive(Debug)]
struct Sample {
    passed_on: f64,
    withdrawn: f64,
    peak: f64,
    cpu: f64,
}

fn run(fabric: &Fabric, speaker: Speaker, load: Load, octets: &[u8]) -> Result<Sample> {
    let host = fabric.host(speaker.host())?;
    let pid = process(host, speaker.process())?;
    let (prefixes, _, sinks) = load.shape();
    // Reset the maximum resident size for this load.
    std::fs::write(format!("/proc/{}/clear_refs", pid.as_raw_nonzero()), "5")?;
    let cpu = cpu_seconds(pid)?;
    let (passed_on, withdrawn) = fabric.host("peers")?.ns.within(|| {
        let sinks = Sinks::connect(speaker, sinks, prefixes)?;
        let mut feeder = Feeder::connect(speaker)?;
        let start = Instant::now();
        feeder.send(octets)?;
        let passed_on = sinks.wait_announced(speaker.patience())?.duration_since(start);
        let start = Instant::now();
        feeder.end()?;
        let withdrawn = sinks.wait_withdrawn(speaker.patience())?.duration_since(start);
        sinks.end()?;
        Ok((passed_on.as_secs_f64(), withdrawn.as_secs_f64()))
    })?;
    let peak = megabytes(pid, "status", "VmHWM")?;
    Ok(Sample { passed_on, withdrawn, peak, cpu: cpu_seconds(pid)? - cpu })
}

fn start_trunkline(host: &Host) -> Result<()> {
    let peers = std::iter::once("10.1.0.2=65100".to_owned())
        .chain((1..=100).map(|sink| format!("10.1.1.{sink}=65200")));
    let arguments: Vec<String> = ["65000", "10.1.0.1"].map(str::to_owned).into_iter().chain(peers).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let _child = host.daemon("transit.log", "transit", &arguments, &[])?;
    wait_for("the transit speaker to listen", Duration::from_secs(10), || {
        let listening = host.run("ss", ["-Hltn", "sport", "=", ":179"])?;
        Ok(Seen::when(!listening.is_empty(), || "nobody listens".to_owned()))
    })
    .map(drop)
}

/// The one process of this name on a host.
fn process(host: &Host, name: &str) -> Result<Pid> {
    let is = |pid: &Pid| {
        std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .is_ok_and(|comm| comm.trim() == name)
    };
    let found: Vec<Pid> = host.ns.pids().into_iter().filter(is).collect();
    match found[..] {
        [pid] => Ok(pid),
        [] => bail!("{}: no {name} runs; its log is in {}", host.name, host.folder.join("log").display()),
        _ => bail!("{}: {} processes {name} run", host.name, found.len()),
    }
}

/// User and system time of a process, in seconds.
pub(crate) fn cpu_seconds(pid: Pid) -> Result<f64> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    // The name in parentheses may contain spaces.
    let fields: Vec<&str> = text.rsplit(')').next().context("no fields")?.split_whitespace().collect();
    ensure!(fields.len() > 12, "{path} has {} fields", fields.len());
    let (user, system): (f64, f64) = (fields[11].parse()?, fields[12].parse()?);
    // USER_HZ is 100 on every Linux that Debian builds.
    Ok((user + system) / 100.0)
}
