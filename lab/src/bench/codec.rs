//! Cost of the codec of `bgp/`, compared with zettabgp and netgauze. `bgp/benches/codec.rs`
//! measures all three in one process; this module reads the results and compares. The figure of a
//! codec is the minimum of criterion's samples, because a disturbance only ever makes a sample
//! longer.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Bound, report, warn_if_busy};
use crate::fabric::Place;
use crate::product::cargo_with_log as cargo;
use crate::progress::{step, table};
use crate::stats::round;

/// Name of a load in the bench, with its number of messages and prefixes.
const LOADS: [(&str, u32, u32); 2] = [("1x500", 1, 500), ("20x1-5", 20, 60)];

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    rows: Vec<Row>,
    bounds: Vec<Bound>,
}

/// A codec's figures for one load, in one direction.
#[derive(Debug, Clone, Serialize)]
struct Row {
    way: &'static str,
    load: &'static str,
    codec: &'static str,
    ns_per_message: f64,
    ns_per_prefix: f64,
    allocations_per_message: f64,
    /// Relative to zettabgp's time.
    ratio: f64,
}

/// criterion's record of a run.
#[derive(Deserialize)]
struct Sample {
    iters: Vec<f64>,
    times: Vec<f64>,
}

/// `cargo lab bench codec`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    warn_if_busy();
    let home = place.state.join("bench/criterion");
    let home_text = home.to_str().context("a path in UTF-8")?;
    let args = ["bench", "--package", "trunkline-bgp", "--bench", "codec", "--", "--noplot"];
    let log = step("three codecs, two loads, decoding and encoding", || {
        cargo(place, "bench-codec", &args, &[("CRITERION_HOME", home_text)])
    })?;
    let mut rows = Vec::new();
    for way in ["decode", "encode"] {
        for (load, messages, prefixes) in LOADS {
            let group = format!("{way}-{load}");
            let reference = least(&home, &group, "zettabgp")?;
            for codec in ["trunkline", "zettabgp", "netgauze"] {
                let ns = least(&home, &group, codec)?;
                rows.push(Row {
                    way,
                    load,
                    codec,
                    ns_per_message: round(ns / f64::from(messages)),
                    ns_per_prefix: round(ns / f64::from(prefixes)),
                    allocations_per_message: round(allocations(&log, &group, codec)? / f64::from(messages)),
                    ratio: round(ns / reference),
                });
            }
        }
    }
    let bounds = bounds(&rows);
    let mut text = vec![
        ["", "LOAD", "CODEC", "NS/MESSAGE", "NS/PREFIX", "ALLOCATIONS", "OF ZETTABGP'S TIME"]
            .map(str::to_owned)
            .to_vec(),
    ];
    text.extend(rows.iter().map(|r| {
        vec![
            r.way.to_owned(),
            r.load.to_owned(),
            r.codec.to_owned(),
            format!("{:.0}", r.ns_per_message),
            format!("{:.1}", r.ns_per_prefix),
            format!("{:.1}", r.allocations_per_message),
            format!("{:.2}", r.ratio),
        ]
    }));
    report(json, &Figures { bench: "codec", rows, bounds: bounds.clone() }, &table(&text), &bounds)
}

/// A prototype kept attributes as borrowed octets and checked nothing. It took 42 ns for 1 to 5
/// prefixes (zettabgp: 273 ns), and 3177 ns for 500 prefixes (zettabgp: 3169 ns). No codec should
/// need more.
fn bounds(rows: &[Row]) -> Vec<Bound> {
    let ours = |load| rows.iter().find(move |r| (r.way, r.codec, r.load) == ("decode", "trunkline", load));
    let ratio = |load| ours(load).map_or(0.0, |r| r.ratio);
    let allocations: f64 =
        rows.iter().filter(|r| r.codec == "trunkline").map(|r| r.allocations_per_message).sum();
    vec![
        Bound::at_most(
            "decoding 1 to 5 prefixes, relative to zettabgp's time",
            ratio("20x1-5"),
            42.0 / 273.0,
        ),
        Bound::at_most("decoding 500 prefixes, relative to zettabgp's time", ratio("1x500"), 3177.0 / 3169.0),
        Bound { name: "allocations", value: allocations, at_most: 0.0, met: allocations == 0.0 },
    ]
}

/// Nanoseconds of one run of a load.
fn least(home: &Path, group: &str, codec: &str) -> Result<f64> {
    let path = home.join(group).join(codec).join("new/sample.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let Sample { iters, times } = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let least = times.iter().zip(&iters).map(|(time, runs)| time / runs).fold(f64::INFINITY, f64::min);
    ensure!(least.is_finite(), "{} has no sample", path.display());
    Ok(least)
}

/// Allocations in one run of a load: the bench prints `allocations decode-1x500 trunkline 0`.
fn allocations(log: &str, group: &str, codec: &str) -> Result<f64> {
    let start = format!("allocations {group} {codec} ");
    let count = log.lines().find_map(|line| line.strip_prefix(&start));
    count.and_then(|count| count.parse().ok()).with_context(|| format!("the bench printed no `{start}…`"))
}

#[cfg(test)]
mod tests {
    use super::allocations;

    #[test]
    fn allocations_are_found_by_group_and_codec() {
        let log = "x\nallocations decode-1x500 trunkline 0\nallocations decode-1x500 zettabgp 14\n";
        assert_eq!(allocations(log, "decode-1x500", "zettabgp").unwrap(), 14.0);
        assert!(allocations(log, "decode-1x500", "netgauze").is_err());
    }
}
