//! The effect of a stopped agent on this node's pods, and the deadline. Without the agent, the
//! routers retain the node's routes for the graceful restart time (RFC 4724), and then remove these
//! routes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use trunkline_agent::history::last_run::{self, LastRun, Retention};
use trunkline_api::resources::BgpPeer;

const START: &str = "Start the agent, and read the reason for its end in its log: systemctl status \
                     trunkline, or kubectl logs of its pod. Until then, no pod can be attached or \
                     detached";
/// The unit of the Debian package.
const UNIT: &str = "trunkline.service";

/// The recommended action and its deadline. `store` is the agent's store, if the configuration is
/// valid.
pub(super) fn fix(store: Option<&Path>) -> String {
    let run = store.and_then(|store| LastRun::read(&last_run::path_for_store(store)));
    format!("{}. {START}", deadline(run.as_ref(), exit_by_systemd(), Timestamp::now()))
}

/// The time at which systemd saw the end of the agent's process, if systemd runs the agent.
fn exit_by_systemd() -> Option<Timestamp> {
    let asked = ["show", UNIT, "--property=ExecMainExitTimestamp", "--value", "--timestamp=unix"];
    let output = Command::new("systemctl").args(asked).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let seconds = text.trim().strip_prefix('@')?.parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

fn deadline(run: Option<&LastRun>, exit: Option<Timestamp>, now: Timestamp) -> String {
    let Some(run) = run else {
        return format!(
            "Routers keep this node's routes for the graceful restart time after the agent ended ({} s unless the Network has another \
             gracefulRestartSeconds), and attached pods work until then. When it ended is unknown",
            BgpPeer::DEFAULT_GRACEFUL_RESTART
        );
    };
    let Some(sessions) = &run.sessions else {
        return "Attached pods keep working: this node was in no BGP network".to_owned();
    };
    if sessions.is_empty() {
        return "No BGP session was up when the agent ended: no router keeps this node's routes, and its pods are cut off from the fabric"
            .to_owned();
    }
    // An exit before the last start belongs to another run.
    let ended = run.stopped.or(exit.filter(|exit| *exit >= run.started));
    let mut ordered: Vec<&Retention> = sessions.iter().collect();
    ordered.sort_by_key(|session| std::cmp::Reverse(session.seconds));
    let longest = ordered[0].seconds;
    let mut text = match ended {
        None => format!(
            "Routers keep this node's routes for {longest} s after the agent ended, and attached pods work until then. When it ended is unknown: it \
             was killed or crashed, some time after {:.0}",
            run.started
        ),
        Some(ended) => {
            let until = after(ended, longest);
            let since = format!("{longest} s after the agent ended at {ended:.0}");
            if longest == 0 {
                format!(
                    "Routers dropped this node's routes when the agent ended at {ended:.0}: its pods are cut off from the fabric"
                )
            } else if until > now {
                format!(
                    "Routers keep this node's routes until {until:.0} ({since}), and attached pods work until then; after that they are cut off \
                     from the fabric"
                )
            } else {
                format!(
                    "Routers dropped this node's routes at {until:.0} ({since}): its pods are cut off from the fabric"
                )
            }
        }
    };
    if ordered.iter().any(|session| session.seconds != longest) {
        let each = ordered.iter().map(|session| match (session.seconds, ended) {
            (0, _) => format!("{} not at all (no graceful restart)", session.peer),
            (seconds, Some(ended)) => format!("{} until {:.0}", session.peer, after(ended, seconds)),
            (seconds, None) => format!("{} for {seconds} s", session.peer),
        });
        let _ = write!(text, ". By peer: {}", each.collect::<Vec<_>>().join(", "));
    }
    text
}

fn after(ended: Timestamp, seconds: u16) -> Timestamp {
    // The sum overflows only at the end of the time range.
    ended.checked_add(SignedDuration::from_secs(seconds.into())).unwrap_or(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-21T{text}Z").parse().unwrap()
    }

    fn run(stopped: Option<&str>, sessions: &[(&str, u16)]) -> LastRun {
        let session =
            |(peer, seconds): &(&str, u16)| Retention { peer: (*peer).to_owned(), seconds: *seconds };
        LastRun {
            version: "0.1.0".to_owned(),
            started: at("02:00:00"),
            stopped: stopped.map(at),
            sessions: Some(sessions.iter().map(session).collect()),
        }
    }

    #[test]
    fn the_deadline_is_the_end_of_the_graceful_restart_time() {
        let both = [("10.1.0.1", 300), ("10.2.0.1", 300)];
        let stopped = run(Some("03:09:07"), &both);
        let before = deadline(Some(&stopped), None, at("03:10:00"));
        assert!(
            before.starts_with("Routers keep this node's routes until 2026-11-21T03:14:07Z (300 s after the agent ended at 2026-11-21T03:09:07Z)"),
            "{before}"
        );
        assert!(!before.contains("By peer"), "{before}");
        let after = deadline(Some(&stopped), None, at("03:14:08"));
        assert!(after.starts_with("Routers dropped this node's routes at 2026-11-21T03:14:07Z"), "{after}");
        assert!(after.ends_with("its pods are cut off from the fabric"), "{after}");
    }

    #[test]
    fn unknown_end_is_reported_or_read_from_systemd() {
        let killed = run(None, &[("10.1.0.1", 300)]);
        let unknown = deadline(Some(&killed), None, at("03:10:00"));
        assert!(unknown.contains("for 300 s after the agent ended"), "{unknown}");
        assert!(unknown.contains("When it ended is unknown"), "{unknown}");
        let known = deadline(Some(&killed), Some(at("03:09:07")), at("03:10:00"));
        assert!(known.contains("until 2026-11-21T03:14:07Z"), "{known}");
        let of_an_earlier_run = deadline(Some(&killed), Some(at("01:00:00")), at("03:10:00"));
        assert_eq!(of_an_earlier_run, unknown);
        assert!(deadline(None, None, at("03:10:00")).contains("300 s unless the Network"));
    }

    #[test]
    fn peers_with_other_deadlines_are_named() {
        let stopped = run(Some("03:09:07"), &[("10.1.0.1", 0), ("10.2.0.1", 60)]);
        let text = deadline(Some(&stopped), None, at("03:09:30"));
        assert!(
            text.ends_with(
                ". By peer: 10.2.0.1 until 2026-11-21T03:10:07Z, 10.1.0.1 not at all (no graceful restart)"
            ),
            "{text}"
        );
        let none = deadline(Some(&run(Some("03:09:07"), &[])), None, at("03:09:30"));
        assert!(none.contains("No BGP session was up"), "{none}");
        let dropped = deadline(Some(&run(Some("03:09:07"), &[("10.1.0.1", 0)])), None, at("03:09:08"));
        assert!(dropped.starts_with("Routers dropped this node's routes when the agent ended"), "{dropped}");
        let no_bgp = LastRun { sessions: None, ..run(None, &[]) };
        assert!(deadline(Some(&no_bgp), None, at("03:09:30")).contains("keep working"));
    }
}
