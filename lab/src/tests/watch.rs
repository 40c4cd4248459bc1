//! `trunkline watch` at a terminal, as an engineer sees it. Meanwhile a router shuts a session
//! down, pods are attached and detached, and the agent is killed.

use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::daemons::vtysh;
use crate::terminal::Terminal;
use crate::{client, cni};

pub(super) const TESTS: &[Test] = &[Test {
    name: "operator/watch",
    about: "the live view shows a session that goes down and up, pods and a killed agent, and restores the terminal",
    run: watch,
}];

const TOR: &str = "10.1.0.1";
const OTHER: &str = "10.2.0.1";

/// Ctrl-U.
const ERASE: char = '\u{15}';

fn start(bed: &Bed<'_>) -> Result<Terminal> {
    Terminal::start(&bed.node()?.command("trunkline", ["watch"]))
}

fn watch(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (pod, _) = bed.attached("cart", "rack1")?;
        let mut terminal = start(bed)?;
        terminal.wait_for(
            &["node1", "AS 65101", "2 of 2 peers established", "READY", TOR, OTHER, "rack1", "WHAT HAPPENED"],
            PATIENCE,
        )?;

        // The other side ends a session, with a message.
        let speaks = |line: &str| {
            vtysh(bed.host("tor1")?, &["configure terminal", "router bgp 65001", line]).map(drop)
        };
        let began = Instant::now();
        speaks("neighbor 10.1.0.11 shutdown message maintenance in rack 1")?;
        let text = terminal.wait_for(&["1 of 2 peers established", "1 DOWN", "maintenance"], PATIENCE)?;
        let turned = began.elapsed();
        let row = |address: &str| text.lines().position(|line| line.contains(address));
        ensure!(
            row(&format!("! {TOR} ")) < row(&format!("  {OTHER} ")),
            "sessions that are down are not first:\n{text}"
        );
        terminal.wait_for(&[&format!("! {TOR} ")], PATIENCE)?;
        let colour = terminal.colour_of(&format!("! {TOR} "))?;
        ensure!(colour == vt100::Color::Idx(1), "the row is {colour:?}, not red");
        terminal.press("\r")?;
        terminal
            .wait_for(&[&format!("peer {TOR}"), "last session down", "Administrative Shutdown"], PATIENCE)?;
        terminal.press("\x1b")?;
        terminal.wait_without(&format!("peer {TOR}"), PATIENCE)?;

        // Pods are attached and detached.
        terminal.press("2")?;
        terminal.wait_for(&["2 Pods (1)", "cart", "attached"], PATIENCE)?;
        let (second, _) = bed.attached("mail", "rack1")?;
        terminal.wait_for(&["2 Pods (2)", "mail"], PATIENCE)?;
        cni::del(bed.fabric, &cni::trunkline(Some("rack1")), &second)?;
        terminal.wait_for(&["2 Pods (1)"], PATIENCE)?;

        // The agent is killed and restarted. The view continues without a restart.
        terminal.press("1")?;
        client::end_agent(bed.node()?, Signal::KILL)?;
        terminal.wait_for(&["THE AGENT DOES NOT ANSWER since"], PATIENCE)?;
        client::start_agent(bed.node()?)?;
        let answers = Instant::now();
        terminal.wait_without("THE AGENT DOES NOT ANSWER", PATIENCE)?;
        let back = answers.elapsed();
        speaks("no neighbor 10.1.0.11 shutdown")?;
        terminal.wait_for(&["2 of 2 peers established", "READY"], PATIENCE)?;
        terminal.wait_without("DOWN", PATIENCE)?;
        terminal.press("3")?;
        // Earlier events are still shown, among later ones.
        let words = [
            ("does not", "the agent does not answer:"),
            ("again", "the agent answers again, after"),
            ("run of", "events of another run of the agent"),
            ("session down", "session down: received NOTIFICATION"),
        ];
        for (filter, words) in words {
            terminal.press(&format!("/{ERASE}{filter}\r"))?;
            terminal.wait_for(&[&format!("filter: {filter} "), words], PATIENCE)?;
        }
        terminal.press("q")?;
        let status = terminal.wait_ended(PATIENCE)?;
        ensure!(status.code() == Some(0), "q ends it with {status}");

        let mut terminal = start(bed)?;
        terminal.wait_for(&["2 of 2 peers established"], PATIENCE)?;
        terminal.signal(Signal::TERM)?;
        let status = terminal.wait_ended(PATIENCE)?;
        ensure!(status.code() == Some(0), "SIGTERM ends it with {status}");

        let refused =
            bed.node()?.run("trunkline", ["watch"]).err().map(|e| format!("{e:#}")).unwrap_or_default();
        ensure!(refused.contains("is no terminal") && refused.contains("trunkline peers"), "{refused}");
        drop(pod);
        passed(format!(
            "a shutdown shown {} ms after it was typed at the router, an agent that came back {} ms after it answered",
            turned.as_millis(),
            back.as_millis()
        ))
    })
}
