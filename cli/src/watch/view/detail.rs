//! The popups over the tables: the details of one row, and the help for the keys.

use std::net::IpAddr;

use ratatui::style::Style;
use trunkline_api::control::PodStatus;

use super::{Entry, Page, Palette, clock, title};
use crate::watch::model::{Model, Tab};
use crate::watch::text::{plain, wrap};
use crate::{services, show};

/// Maximum number of events below a peer's details.
const EVENTS: usize = 50;

const HELP: &[&str] = &[
    "j k ↓ ↑              select a row; g G Home End: the first, the last; Space Ctrl-D Ctrl-U PgDn PgUp: scroll by a page",
    "Tab ← → 1 2 3 4      peers, pods, events, service addresses",
    "Enter                details of the selected row; Esc: back",
    "/                    show only rows with these words; Esc removes the filter",
    "q Ctrl-C             quit",
    "",
    "!                    attention: a session that is down, a pod that is not attached, a full subnet, an event that may be an outage",
    "-                    down as intended (shutdown), or pods may be ready without it (allowNotEstablished)",
    "~                    up, with another fault: BFD is not Up, paths are stale; a subnet with less than a tenth of its addresses free",
    "",
    "SINCE                duration of the session, or of its absence",
    "CAUSE                the reason why there is no session; the action is below the table",
    "RECV ACC ADV         prefixes received, accepted and advertised, all families together",
    "ENDPOINTS            ready endpoints of the Service on this node, and on all nodes",
    "UTC                  times of the node's clock",
    "",
    "For programs: trunkline status, peers, pods, services, events, each with -o json. docs/commands.md describes everything.",
];

pub(super) fn help(page: &mut Page<'_>) {
    page.line("", Style::new());
    let lines: Vec<String> =
        HELP.iter().flat_map(|line| wrap(&format!(" {line}"), page.columns(), 22)).collect();
    lines.iter().for_each(|line| page.line(line, Style::new()));
}

/// Draws the details of the selected row, from this line on. Returns the last possible first line.
pub(super) fn detail(model: &Model, line: usize, palette: &Palette, page: &mut Page<'_>) -> usize {
    let chosen = model.chosen();
    let lines = match model.tab {
        Tab::Peers => model.peers().get(chosen).map(|peer| {
            let mut lines: Vec<String> = show::peer(peer).lines().map(str::to_owned).collect();
            let name = peer.name();
            let own = model.newest().filter(|entry| entry.peer.as_ref() == Some(&name));
            let events: Vec<String> = own.take(EVENTS).map(event).collect();
            if !events.is_empty() {
                lines.push(String::new());
                lines.push("recent events".to_owned());
                lines.extend(events);
            }
            (format!("peer {name}"), 23, lines)
        }),
        Tab::Pods => model.pods().get(chosen).map(|pod| (format!("pod {}", title(pod)), 14, pod_lines(pod))),
        Tab::Events => model.entries().nth(chosen).map(|entry| {
            let peer = entry.peer.as_deref().unwrap_or("-");
            let lines = [("at", &*entry.at), ("kind", entry.kind), ("peer", peer), ("what", &*entry.text)];
            ("event".to_owned(), 14, lines.map(|(name, value)| format!("{name:<13} {value}")).to_vec())
        }),
        Tab::Services => model.services().get(chosen).map(|view| {
            let text = services::details(std::slice::from_ref(view), &[]);
            let lines = text.lines().skip(1).map(|line| line.trim_start().to_owned()).collect();
            (format!("{} {}", view.title(), view.address), 11, lines)
        }),
    };
    let Some((title, indent, lines)) = lines else {
        page.line(" this row no longer exists: press Esc", palette.head);
        return 0;
    };
    page.line(&format!(" {title}"), palette.head);
    let columns = page.columns().saturating_sub(1);
    let lines: Vec<String> = lines.iter().flat_map(|line| wrap(&plain(line), columns, indent)).collect();
    let last = lines.len().saturating_sub(page.rows());
    let room = page.rows();
    lines
        .iter()
        .skip(line.min(last))
        .take(room)
        .for_each(|line| page.line(&format!(" {line}"), Style::new()));
    last
}

fn event(entry: &Entry) -> String {
    let mark = if entry.warning { "!" } else { " " };
    format!("{} {mark} {:<15} {}", clock(&entry.at), entry.kind, entry.text)
}

fn pod_lines(pod: &PodStatus) -> Vec<String> {
    let addresses: Vec<String> = pod.addresses.iter().map(IpAddr::to_string).collect();
    let prefixes: Vec<String> = pod.extra_prefixes.iter().map(ToString::to_string).collect();
    let lines = [
        ("pod", pod.title()),
        ("state", pod.state.to_string()),
        ("network", pod.network.clone()),
        ("addresses", addresses.join(", ")),
        ("MAC", pod.mac.clone()),
        ("container", pod.container_id.clone()),
        ("interface", format!("{} in the pod, {} here", pod.ifname, pod.host_ifname)),
        ("limits", show::limits(&pod.bandwidth)),
        (
            "may send from",
            if prefixes.is_empty() {
                "its addresses".to_owned()
            } else {
                format!("its addresses, {}", prefixes.join(", "))
            },
        ),
        ("namespace", pod.netns.clone()),
    ];
    lines.map(|(name, value)| format!("{name:<13} {value}")).to_vec()
}
