//! Recent events, once or continuously.
//!
//! With `--follow`, the command sends one request after the other. The agent answers each request
//! when there is a newer event. The agent keeps no list of followers, so a follower that stops
//! costs nothing.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use trunkline_api::control::{Event, Events, Query, Severity};

use crate::arguments::{ClientArgs, Output};
use crate::client;

/// One line for each event, oldest first.
pub(crate) fn table(events: &Events) -> String {
    let mut text = missed(events);
    events.events.iter().for_each(|event| text.push_str(&line(event)));
    text
}

fn missed(events: &Events) -> String {
    match events.missed {
        0 => String::new(),
        missed => format!("… {missed} older events were dropped\n"),
    }
}

/// Columns have a fixed width that fits most events, so lines that are printed one by one are
/// aligned.
fn line(event: &Event) -> String {
    let mut text = String::new();
    let mark = match event.severity {
        Severity::Info => " ",
        Severity::Warning => "!",
    };
    let peer = event.peer.as_deref().unwrap_or("-");
    let _ = writeln!(text, "{} {mark} {:<15} {peer:<15} {}", event.at, event.kind.name(), event.text);
    text
}

/// Prints the stored events, then new ones, until the agent or the reader of the output ends.
pub(crate) fn follow(args: &ClientArgs) -> anyhow::Result<()> {
    let mut kept: Events = client::query(&args.socket, Query::Events { after: 0, run: None, wait: false })?;
    let mut after = 0;
    loop {
        after = kept.events.last().map_or(after, |last| last.number);
        let text = match args.output {
            Output::Table => table(&kept),
            Output::Json => {
                let lines: Result<Vec<String>, _> = kept.events.iter().map(serde_json::to_string).collect();
                lines?.iter().map(|line| format!("{line}\n")).collect()
            }
        };
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            outcome => outcome?,
        }
        kept = client::query_when(&args.socket, Query::Events { after, run: Some(kept.run), wait: true })?;
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::control::EventKind;

    use super::*;

    #[test]
    fn each_event_is_a_line_and_dropped_events_are_counted() {
        let event = |kind: EventKind, peer: Option<&str>, text: &str| Event {
            number: 4,
            at: "2026-11-21T03:00:00.125Z".to_owned(),
            kind,
            severity: kind.severity(),
            peer: peer.map(str::to_owned),
            prefix: None,
            text: text.to_owned(),
        };
        let events = Events {
            run: 1,
            missed: 3,
            events: vec![
                event(EventKind::SessionDown, Some("10.0.0.1"), "session down: hold timer expired"),
                event(EventKind::Originated, None, "10.1.0.2/32 is advertised"),
            ],
        };
        assert_eq!(
            table(&events),
            "… 3 older events were dropped\n\
             2026-11-21T03:00:00.125Z ! sessionDown     10.0.0.1        session down: hold timer expired\n\
             2026-11-21T03:00:00.125Z   originated      -               10.1.0.2/32 is advertised\n"
        );
    }
}
