//! The commands of the suite, that is of the lab with the feature `suite`: tests, benchmarks,
//! fuzzing, generated files, the API server and clusters, the user-mode kernel.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cli::{Bench, Inside, Kube, Suite};
use crate::cluster::Settings;
use crate::cluster::layout::Layout;
use crate::fabric::Place;
use crate::progress::say;
use crate::tests::soak::Until;
use crate::{bench, cluster, crds, deb, docs, fuzz, kube, tests, uml};

pub(crate) fn run(place: &Place, command: Suite) -> Result<ExitCode> {
    match command {
        Suite::Deb => say(&deb::build(place)?.display().to_string()),
        Suite::Bench { what, json, speakers, parts, before } => {
            let met = match what {
                Bench::Attach => bench::attach::bench(place, json)?,
                Bench::Clusters => bench::clusters::bench(place, json)?,
                Bench::Codec => bench::codec::bench(place, json)?,
                Bench::Fib => bench::fib::bench(place, json)?,
                Bench::Guard => bench::guard::bench(place, json, before.as_deref())?,
                Bench::Interfaces => bench::interfaces::bench(place, json)?,
                Bench::Ipam => bench::ipam::bench(place, json)?,
                Bench::L2 => bench::l2::bench(place, json)?,
                Bench::Memory => bench::memory::bench(place, json)?,
                Bench::Policy => bench::policy::bench(place, json)?,
                Bench::Scrape => bench::scrape::bench(place, json)?,
                Bench::Services => bench::services::bench(place, json, &parts, before.as_deref())?,
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
        Suite::Kube { action: Kube::Up { nodes: None, .. } } => kube::up(place)?,
        Suite::Kube { action: Kube::Up { nodes: Some(nodes), racks, proxy, family } } => {
            let layout = Layout::new(nodes, racks, family)?;
            cluster::up(place, Settings { layout, proxy: proxy.into() })?;
        }
        Suite::Kube { action: Kube::Down } => cluster::down(place)?,
        Suite::Kube { action: Kube::Build } => cluster::build(place)?,
        Suite::E2e(of) => {
            let good = cluster::e2e::command(place, &of)?;
            return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Suite::Forward(of) => cluster::forward::run(&of)?,
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
