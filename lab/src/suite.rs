//! The commands of the suite, that is of the lab with the feature `suite`: tests, benchmarks,
//! fuzzing, generated files, the API server, the user-mode kernel.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cli::{Bench, Inside, Kube, Suite};
use crate::fabric::Place;
use crate::progress::say;
use crate::tests::soak::Until;
use crate::{bench, crds, deb, docs, fuzz, kube, tests, uml};

pub(crate) fn run(place: &Place, command: Suite) -> Result<ExitCode> {
    match command {
        Suite::Deb => say(&deb::build(place)?.display().to_string()),
        Suite::Bench { what, json, speakers, before } => {
            let met = match what {
                Bench::Attach => bench::attach::bench(place, json)?,
                Bench::Codec => bench::codec::bench(place, json)?,
                Bench::Fib => bench::fib::bench(place, json)?,
                Bench::Guard => bench::guard::bench(place, json, before.as_deref())?,
                Bench::Ipam => bench::ipam::bench(place, json)?,
                Bench::L2 => bench::l2::bench(place, json)?,
                Bench::Memory => bench::memory::bench(place, json)?,
                Bench::Scrape => bench::scrape::bench(place, json)?,
                Bench::Speakers => bench::speakers::bench(place, json, &speakers)?,
            };
            return Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Test { list: true, .. } => tests::list(),
        Suite::Test { filter, list: false } => {
            return Ok(if tests::run(place, &filter)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Soak { filter, hours, rounds } => {
            let until = match hours {
                Some(hours) => {
                    Until::Elapsed(Duration::try_from_secs_f64(hours * 3600.0).context("--hours")?)
                }
                None => Until::Rounds(rounds),
            };
            let good = tests::soak::run(place, &filter, until)?;
            return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Fuzz { target, seconds, minimise } => {
            let good = fuzz::run(place, &target, seconds, minimise)?;
            return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Crds { check } => {
            return Ok(if crds::run(place, check)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Docs { check } => {
            return Ok(if docs::run(place, check)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Kube { action: Kube::Up } => kube::up(place)?,
        Suite::Uml { bound, command } => {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let ended = uml::run(place, "command", &command, Duration::from_secs(bound))?;
            print!("{}", ended.stdout);
            return Ok(ExitCode::from(ended.status));
        }
        Suite::UserModeKernel { action: Inside::Init { order, .. } } => uml::init(&order)?,
        Suite::UserModeKernel { action: Inside::BenchL2 { json } } => {
            return Ok(if bench::l2::inside(place, json)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::UserModeKernel { action: Inside::Test { name, handed } } => {
            tests::run_inside(place, &name, handed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
