//! The cost of queries to an agent with a full table of 1,000,000 routes, which are in the kernel
//! too, and their effect on the sessions. The queries are `/metrics`, the page's search and
//! `trunkline routes`.
//!
//! | state | activity of the feeder |
//! |---|---|
//! | idle | nothing |
//! | again | advertises all routes again with other attributes, repeatedly |
//! | flaps | withdraws all routes and advertises them again, repeatedly |
//! | losses | loses its session and connects again, five times |
//!
//! Two observers measure the effect on the sessions. The witness is a second peer that requests the
//! node's own prefixes again every few milliseconds. Its request waits behind all queued work, as
//! any message does. The feeder records the longest silence of the agent. Both observers also
//! measure while there are no queries. BIRD and FRR's bgpd get the same table, and have no FIB
//! here. They are queried for their peers' counters, as their exporters do. Each query includes its
//! connection.

mod asked;
mod peers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Pid;
use serde::Serialize;

use self::asked::{Answer, agent, bird, frr, value};
use self::peers::{Doing, Feeder, TableMessages, Witness};
use super::memory::megabytes;
use super::speakers::cpu_seconds;
use super::{Bound, report, warn_if_busy};
use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::progress::{say, step, table};
use crate::shell::{Seen, wait_for};
use crate::stats::{percentile, round};
use crate::{client, packages, product};

const PREFIXES: u32 = 1_000_000;
const TO_A_SET: u32 = 5;
/// Number of scrapes in each state, and the pause between them.
const SCRAPES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// Duration of the comparison without queries.
const QUIET: Duration = Duration::from_secs(3);
/// Searches of each kind.
const SEARCHES: usize = 25;
const LOSSES: usize = 5;
/// Number of listings of all routes.
const LISTINGS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);
/// Promised time of a scrape and of a search, in milliseconds.
const PROMISED_MS: f64 = 50.0;
/// Longest time that a listing may block a session, in milliseconds.
const BLOCKED_MS: f64 = 10.0;

const RECEIVED: &str =
    "trunkline_bgp_peer_prefixes{peer=\"10.1.0.2\",family=\"ipv4-unicast\",kind=\"received\"}";

/// Searches that visit every prefix: for a prefix, an AS, a community, and without a match.
const SEARCHED: [&str; 4] = ["q=20.1", "q=AS4200000005", "q=65100:7", "fate=refused"];

/// One kind of query in one state.
#[derive(Debug, Clone, Serialize)]
struct Row {
    who: &'static str,
    question: &'static str,
    state: &'static str,
    asked: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Searches that were cut off by their time limit of 3 s.
    cut: usize,
    /// Size of the last answer in octets.
    octets: usize,
    /// The witness's waiting time during the queries.
    session_p50_ms: Option<f64>,
    session_p99_ms: Option<f64>,
    session_max_ms: Option<f64>,
    /// Longest silence of the feeder's session, if it lasted; the other side sends a KEEPALIVE
    /// every second.
    silence_s: Option<f64>,
    /// Prefixes that the feeder advertised or withdrew during the queries, per second.
    prefixes_per_s: f64,
    /// Total processor time of the queried process during the queries.
    cpu_s: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    prefixes: u32,
    rows: Vec<Row>,
    /// Megabytes of 1,000,000 octets: before the table, with it, the maximum during listings, at
    /// the end.
    pss_empty_mb: f64,
    pss_full_mb: f64,
    rss_before_listing_mb: f64,
    peak_rss_listing_mb: f64,
    pss_after_mb: f64,
    /// The p99 of a scrape divided by the p99 of the other program, in the same state.
    against_bird_idle: f64,
    against_bird_again: f64,
    against_frr_idle: f64,
    against_frr_again: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench scrape`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench scrape")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "bird2"]))?;
    let product = product::build(place, product::Profile::Release)?;
    warn_if_busy();
    let fabric = step("bringing scrape up", || Fabric::up(place, "scrape", &product))?;
    let figures = fabric.watched(measure)?;
    let words = words(&figures);
    report(json, &figures, &words, &figures.bounds)
}

fn measure(fabric: &Fabric) -> Result<Figures> {
    let (node, peers) = (fabric.host("node1")?, fabric.host("peers")?);
    client::wait_answering(node)?;
    let pid = client::agent(node)?;
    let witness = step("a peer that only observes", || peers.ns.within(Witness::connect))?;
    let mut feeder = peers
        .ns
        .within(|| Feeder::connect(1, TableMessages::new(PREFIXES, TO_A_SET, 1)))
        .context("the feeder")?;
    let pss_empty_mb = round(megabytes(pid, "smaps_rollup", "Pss")?);
    step(&format!("{PREFIXES} routes, into the kernel too"), || installed(&mut feeder, node))?;
    let pss_full_mb = round(megabytes(pid, "smaps_rollup", "Pss")?);
    let asked = Agent { node, pid, witness };

    let mut rows = Vec::new();
    let mut note = |row: Row| {
        say(&format!("    {}", line(&row).join("  ")));
        rows.push(row);
    };
    for (state, doing) in [("idle", Doing::Nothing), ("again", Doing::Again), ("flaps", Doing::Flaps)] {
        note(step(&format!("no queries, {state}"), || {
            asked.row("nothing", state, &mut feeder, doing, || {
                std::thread::sleep(QUIET);
                Ok(Vec::new())
            })
        })?);
        note(step(&format!("{SCRAPES} scrapes, {state}"), || {
            asked.row("scrape", state, &mut feeder, doing, || scrapes(SCRAPES))
        })?);
    }
    step("all routes in the kernel again", || installed(&mut feeder, node))?;
    note(step("searches for an address", || {
        asked.row("address", "idle", &mut feeder, Doing::Nothing, || searches(&["q=20.5.5.5"], 2 * SEARCHES))
    })?);
    for (state, doing, each) in [("idle", Doing::Nothing, SEARCHES), ("again", Doing::Again, SEARCHES / 3)] {
        note(step(&format!("searches of the whole table, {state}"), || {
            asked.row("search", state, &mut feeder, doing, || searches(&SEARCHED, each))
        })?);
    }
    let rss_before = megabytes(pid, "status", "VmRSS")?;
    std::fs::write(format!("/proc/{}/clear_refs", pid.as_raw_nonzero()), "5")?;
    note(step("trunkline routes", || {
        asked.row("routes", "idle", &mut feeder, Doing::Nothing, || listings(node))
    })?);
    let peak_rss = megabytes(pid, "status", "VmHWM")?;
    note(step("trunkline routes, again", || {
        asked.row("routes", "again", &mut feeder, Doing::Again, || listings(node))
    })?);
    note(step(&format!("scrapes during {LOSSES} losses of the session"), || losses(&asked, peers, feeder))?);
    let pss_after_mb = round(megabytes(pid, "smaps_rollup", "Pss")?);
    asked.witness.end()?;

    for (who, host, network, ask) in [
        ("BIRD", fabric.host("bird")?, 2, bird as fn() -> Result<Answer>),
        ("FRR", fabric.host("frr")?, 3, frr),
    ] {
        let messages = TableMessages::new(PREFIXES, TO_A_SET, network);
        let mut feeder = peers.ns.within(|| Feeder::connect(network, messages)).context(who)?;
        step(&format!("{PREFIXES} routes to {who}"), || {
            feeder.advertise()?;
            let there = || Ok(Seen::when(has_all(&ask()?.text), || "not all routes are there".to_owned()));
            beside(&mut feeder, Doing::Nothing, || {
                host.within(|| wait_for("every route to be there", PATIENCE, there))
            })
        })?;
        for (state, doing) in [("idle", Doing::Nothing), ("again", Doing::Again)] {
            note(step(&format!("{SCRAPES} queries to {who}, {state}"), || {
                let (answers, rate) = beside(&mut feeder, doing, || host.within(|| paced(SCRAPES, ask)))?;
                Ok(row(who, "counters", state, &answers, None, rate, 0.0))
            })?);
        }
        feeder.end()?;
    }
    let p99 = |who: &str, state: &str| {
        let question = if who == "Trunkline" { "scrape" } else { "counters" };
        let of = |row: &&Row| row.who == who && row.question == question && row.state == state;
        rows.iter().find(of).map_or(f64::NAN, |row| row.p99_ms)
    };
    let against = |who: &str, state: &str| round(p99("Trunkline", state) / p99(who, state));
    Ok(Figures {
        bench: "scrape",
        prefixes: PREFIXES,
        pss_empty_mb,
        pss_full_mb,
        rss_before_listing_mb: round(rss_before),
        peak_rss_listing_mb: round(peak_rss),
        pss_after_mb,
        against_bird_idle: against("BIRD", "idle"),
        against_bird_again: against("BIRD", "again"),
        against_frr_idle: against("FRR", "idle"),
        against_frr_again: against("FRR", "again"),
        bounds: bounds(&rows),
        rows,
    })
}

/// The agent, and the observers of its sessions.
struct Agent<'a> {
    node: &'a Host,
    pid: Pid,
    witness: Witness,
}

impl Agent<'_> {
    /// Runs queries on the node during an activity of the feeder.
    fn row(
        &self,
        question: &'static str,
        state: &'static str,
        feeder: &mut Feeder,
        doing: Doing,
        ask: impl FnOnce() -> Result<Vec<Answer>> + Send,
    ) -> Result<Row> {
        let cpu = cpu_seconds(self.pid)?;
        self.witness.take();
        feeder.take_silence();
        let (answers, rate) = beside(feeder, doing, || self.node.within(ask))?;
        let (waits, silence) = (self.witness.take(), feeder.take_silence());
        ensure!(!waits.is_empty(), "the witness gets no answer");
        let cpu = cpu_seconds(self.pid)? - cpu;
        let row = row("Trunkline", question, state, &answers, Some(&waits), rate, cpu);
        Ok(Row { silence_s: Some(round(silence)), ..row })
    }
}

fn row(
    who: &'static str,
    question: &'static str,
    state: &'static str,
    answers: &[Answer],
    waits: Option<&[f64]>,
    prefixes_per_s: f64,
    cpu_s: f64,
) -> Row {
    let times: Vec<f64> = answers.iter().map(|answer| answer.ms).collect();
    let wait = |share: f64| waits.map(|waits| round(percentile(waits, share)));
    Row {
        who,
        question,
        state,
        asked: times.len(),
        p50_ms: round(percentile(&times, 50.0)),
        p99_ms: round(percentile(&times, 99.0)),
        max_ms: round(percentile(&times, 100.0)),
        cut: answers.iter().filter(|answer| answer.text.contains("\"complete\":false")).count(),
        octets: answers.last().map_or(0, |answer| answer.octets),
        session_p50_ms: wait(50.0),
        session_p99_ms: wait(99.0),
        session_max_ms: wait(100.0),
        silence_s: None,
        prefixes_per_s: prefixes_per_s.round(),
        cpu_s: round(cpu_s),
    }
}

/// Runs `work` during an activity of the feeder. Returns the rate of prefixes that the feeder
/// advertised or withdrew per second.
fn beside<T>(feeder: &mut Feeder, doing: Doing, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| feeder.go_on(doing, &stop, PREFIXES));
        let outcome = work();
        stop.store(true, Ordering::Relaxed);
        let prefixes = busy.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((outcome?, prefixes as f64 / began.elapsed().as_secs_f64()))
    })
}

/// Advertises the table, and waits until it is in the kernel.
fn installed(feeder: &mut Feeder, node: &Host) -> Result<()> {
    feeder.advertise()?;
    let all = |status: &trunkline_api::control::AgentStatus| {
        let kernel = &status.kernel;
        kernel.routes_wanted > u64::from(PREFIXES) && kernel.routes_installed == kernel.routes_wanted
    };
    let look = || {
        let status = client::status(node)?;
        Ok(Seen::when(all(&status), || format!("{:?}", status.kernel)))
    };
    beside(feeder, Doing::Nothing, || wait_for("every route to be in the kernel", PATIENCE, look)).map(drop)
}

fn paced(count: usize, mut ask: impl FnMut() -> Result<Answer>) -> Result<Vec<Answer>> {
    let once = |_| {
        std::thread::sleep(PAUSE);
        ask()
    };
    (0..count).map(once).collect()
}

fn scrapes(count: usize) -> Result<Vec<Answer>> {
    let answers = paced(count, || agent("/metrics"))?;
    let last = answers.last().context("no scrape")?;
    ensure!(value(&last.text, RECEIVED).is_some(), "no {RECEIVED} in {}", last.text);
    Ok(answers)
}

fn searches(questions: &[&str], each: usize) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for question in questions {
        let path = format!("/page/routes?{question}");
        answers.extend(paced(each, || agent(&path))?);
    }
    Ok(answers)
}

/// Lists all routes by the operator's command. The output is counted once, before the measurement.
fn listings(node: &Host) -> Result<Vec<Answer>> {
    let counted = node.sh("trunkline routes -o json | grep -o '\"prefix\"' | wc -l")?;
    let count: u32 = counted.trim().parse()?;
    // Advertising the routes again removes none, so each route exists, and so does the subnet's own
    // route.
    ensure!(count > PREFIXES, "{count} of {PREFIXES} routes are listed");
    let list = |_| {
        let began = Instant::now();
        let octets = node.sh("trunkline routes -o json | wc -c")?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        Ok(Answer { ms, octets: octets.trim().parse()?, text: String::new() })
    };
    (0..LISTINGS).map(list).collect()
}

/// Scrapes without a pause while the feeder loses its session and advertises everything again.
fn losses(asked: &Agent<'_>, peers: &Host, feeder: Feeder) -> Result<Row> {
    let cpu = cpu_seconds(asked.pid)?;
    asked.witness.take();
    let mut answers = Vec::new();
    let mut feeder = Some(feeder);
    let began = Instant::now();
    for _ in 0..LOSSES {
        let until = |received: u32| {
            asked.node.ns.within(move || {
                let began = Instant::now();
                let mut answers = Vec::new();
                loop {
                    let answer = agent("/metrics")?;
                    let there = value(&answer.text, RECEIVED) == Some(received.into());
                    answers.push(answer);
                    if there {
                        return Ok(answers);
                    }
                    ensure!(began.elapsed() < PATIENCE, "never {received} routes of the feeder");
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        let there = feeder.take().context("a feeder")?;
        let lost = std::thread::scope(|scope| {
            let ending = scope.spawn(|| there.end());
            answers.extend(until(0)?);
            ending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let mut back = peers.ns.within(|| lost.connect())?;
        std::thread::scope(|scope| {
            let advertising = scope.spawn(|| back.advertise());
            answers.extend(until(PREFIXES)?);
            advertising.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        feeder = Some(back);
    }
    let rate = 2.0 * LOSSES as f64 * f64::from(PREFIXES) / began.elapsed().as_secs_f64();
    let waits = asked.witness.take();
    feeder.take().context("a feeder")?.end()?;
    let cpu = cpu_seconds(asked.pid)? - cpu;
    Ok(row("Trunkline", "scrape", "losses", &answers, Some(&waits), rate, cpu))
}

/// Whether BIRD's or FRR's counters show that every route has arrived.
fn has_all(text: &str) -> bool {
    text.contains(&format!("{PREFIXES} imported")) || text.contains(&format!("\"pfxRcd\":{PREFIXES}"))
}

fn bounds(rows: &[Row]) -> Vec<Bound> {
    let of = |question: &str, state: &str| {
        rows.iter().find(|row| row.who == "Trunkline" && row.question == question && row.state == state)
    };
    let p99 = |question, state| of(question, state).map_or(0.0, |row| row.p99_ms);
    let session = |question, state| of(question, state).and_then(|row| row.session_p99_ms).unwrap_or(0.0);
    vec![
        Bound::at_most("a scrape with 1,000,000 routes, idle, p99, ms", p99("scrape", "idle"), PROMISED_MS),
        Bound::at_most("… while all are advertised again", p99("scrape", "again"), PROMISED_MS),
        Bound::at_most("… while all are withdrawn and advertised again", p99("scrape", "flaps"), PROMISED_MS),
        Bound::at_most(
            "… while the session is lost and established again",
            p99("scrape", "losses"),
            PROMISED_MS,
        ),
        Bound::at_most("a search of the page for an address, p99, ms", p99("address", "idle"), PROMISED_MS),
        Bound::at_most("a search of the whole table, p99, ms", p99("search", "idle"), PROMISED_MS),
        Bound::at_most("a peer's wait during the searches, p99, ms", session("search", "idle"), BLOCKED_MS),
        Bound::at_most("a peer's wait while all routes are listed", session("routes", "idle"), BLOCKED_MS),
    ]
}

fn line(row: &Row) -> Vec<String> {
    let ms = |ms: f64| format!("{ms:.1}");
    let wait = |ms: Option<f64>| ms.map(|ms| format!("{ms:.1}")).unwrap_or_default();
    vec![
        row.who.to_owned(),
        row.question.to_owned(),
        row.state.to_owned(),
        row.asked.to_string(),
        ms(row.p50_ms),
        ms(row.p99_ms),
        ms(row.max_ms),
        row.cut.to_string(),
        row.octets.to_string(),
        wait(row.session_p50_ms),
        wait(row.session_p99_ms),
        wait(row.session_max_ms),
        row.silence_s.map(|seconds| format!("{seconds:.2}")).unwrap_or_default(),
        format!("{:.1}", row.prefixes_per_s / 1e6),
        format!("{:.2}", row.cpu_s),
    ]
}

fn words(figures: &Figures) -> String {
    let head = [
        "who",
        "question",
        "state",
        "asked",
        "p50 ms",
        "p99",
        "max",
        "cut",
        "octets",
        "session p50",
        "p99",
        "max",
        "silence s",
        "M prefixes/s",
        "CPU s",
    ];
    let head = head.map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(figures.rows.iter().map(line)).collect();
    format!(
        "{}\n  a scrape's p99 divided by BIRD's: {:.2} idle, {:.2} again; by FRR's: {:.2} idle, \
         {:.2} again\n  the agent's PSS: {:.0} MB without routes, {:.0} MB with {}, {:.0} MB after \
         everything; RSS {:.0} MB before a listing, {:.0} MB at most in it\n",
        table(&rows),
        figures.against_bird_idle,
        figures.against_bird_again,
        figures.against_frr_idle,
        figures.against_frr_again,
        figures.pss_empty_mb,
        figures.pss_full_mb,
        figures.prefixes,
        figures.pss_after_mb,
        figures.rss_before_listing_mb,
        figures.peak_rss_listing_mb,
    )
}

#[cfg(test)]
mod tests {
    use super::has_all;

    #[test]
    fn full_tables_of_other_speakers_are_recognised() {
        assert!(has_all("    Routes:         1000000 imported, 0 exported, 1000000 preferred"));
        assert!(has_all("\"pfxRcd\":1000000,\"pfxSnt\":0"));
        assert!(!has_all("Routes:         100000 imported"));
        assert!(!has_all("\"pfxRcd\":100000,"));
    }
}
