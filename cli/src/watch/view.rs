//! The model on a terminal: a function of the model and of the terminal's size.
//!
//! Lines are written from the top down and from the bottom up; the table is in between. All text
//! passes [`Page::put`], which removes control sequences. Colours only repeat marks and words (`!`
//! before lines that need attention), because of NO_COLOR and of readers who do not see colours.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use trunkline_api::control::{
    AdvertisementState, AgentStatus, DrainPhase, NetworkStatus, Peer, PeerFamily, PodState, PodStatus,
    Snapshot, SubnetStatus,
};

use super::model::{Entry, Model, PeerHealth, Popup, Tab, VisibleRows, peer_health, since, state};
use super::text::{Grid, fit, number, plain, words, wrap};
use crate::policies;
use crate::remote;
use crate::services::reason;
use crate::show;
use crate::table::duration;

mod detail;

/// Minimum size of a useful screen.
const LEAST: (u16, u16) = (40, 10);
/// Maximum number of lines with faults of the agent.
const FAULTS: usize = 3;

/// The styles of the screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    bad: Style,
    warning: Style,
    good: Style,
    faint: Style,
    head: Style,
    chosen: Style,
}

impl Palette {
    /// The palette of the environment: no colours if NO_COLOR is set (<https://no-color.org>).
    pub(super) fn of_environment() -> Palette {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if unwanted { Palette::plain() } else { Palette::coloured() }
    }

    pub(super) fn coloured() -> Palette {
        let colour = |colour| Style::new().fg(colour);
        Palette {
            bad: colour(Color::Red).add_modifier(Modifier::BOLD),
            warning: colour(Color::Yellow),
            good: colour(Color::Green),
            ..Palette::plain()
        }
    }

    pub(super) fn plain() -> Palette {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Palette {
            bad: bold,
            warning: Style::new(),
            good: Style::new(),
            faint: Style::new().add_modifier(Modifier::DIM),
            head: bold,
            chosen: Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    fn of(&self, peer_health: PeerHealth) -> Style {
        match peer_health {
            PeerHealth::Down => self.bad,
            PeerHealth::ExpectedDown | PeerHealth::Degraded => self.warning,
            PeerHealth::Up => Style::new(),
        }
    }
}

/// The free lines of the screen.
struct Page<'a> {
    buffer: &'a mut Buffer,
    free: Rect,
}

impl Page<'_> {
    fn put(&mut self, y: u16, text: &str, style: Style) {
        let (x, columns) = (self.free.x, usize::from(self.free.width));
        self.buffer.set_stringn(x, y, fit(&plain(text), columns), columns, style);
    }

    /// Writes the next line from above.
    fn line(&mut self, text: &str, style: Style) {
        if self.free.height > 0 {
            self.put(self.free.y, text, style);
            self.free = Rect { y: self.free.y + 1, height: self.free.height - 1, ..self.free };
        }
    }

    /// Writes the next line from below.
    fn last_line(&mut self, text: &str, style: Style) {
        if self.free.height > 0 {
            self.free.height -= 1;
            self.put(self.free.y + self.free.height, text, style);
        }
    }

    /// Splits the free lines after this number of rows.
    fn split(&self, rows: usize) -> (Rect, Rect) {
        let height = self.free.height.min(u16::try_from(rows).unwrap_or(u16::MAX));
        let upper = Rect { height, ..self.free };
        (upper, Rect { y: self.free.y + height, height: self.free.height - height, ..self.free })
    }

    fn rows(&self) -> usize {
        usize::from(self.free.height)
    }

    fn columns(&self) -> usize {
        usize::from(self.free.width)
    }
}

/// Draws the model.
pub(super) fn draw(model: &Model, palette: &Palette, frame: &mut Frame<'_>) {
    let free = frame.area();
    let mut page = Page { buffer: frame.buffer_mut(), free };
    if free.width < LEAST.0 || free.height < LEAST.1 {
        page.line("make this window larger: 80x24 is good", palette.warning);
        page.line(&format!("this is {}x{}, q quits", free.width, free.height), Style::new());
        return;
    }
    header(model, palette, &mut page);
    footer(model, palette, &mut page);
    match model.popup {
        Popup::Help => detail::help(&mut page),
        Popup::Detail(line) => {
            let last_line = detail::detail(model, line, palette, &mut page);
            model.visible_rows.set(VisibleRows { rows: page.rows(), last_line });
        }
        Popup::Nothing => match model.tab {
            Tab::Peers => peers(model, palette, &mut page),
            Tab::Pods => pods(model, palette, &mut page),
            Tab::Services => services(model, palette, &mut page),
            Tab::Events => {
                let rows: Vec<&Entry> = model.entries().collect();
                let (head, lines) = event_lines(&rows, page.columns());
                let lines =
                    lines.into_iter().zip(&rows).map(|(line, entry)| (line, entry_style(entry, palette)));
                table(model, palette, &mut page, &head, lines.collect(), "no events yet");
            }
        },
    }
}

fn header(model: &Model, palette: &Palette, page: &mut Page<'_>) {
    let columns = page.columns();
    let unreachable = model.unreachable.as_ref().map(|unreachable| {
        let ago = duration(model.silent_for().unwrap_or_default().as_secs());
        format!(" THE AGENT DOES NOT ANSWER since {} ({ago}): {}", clock(&unreachable.at), unreachable.text)
    });
    let Some(agent) = model.agent() else {
        page.line(" trunkline watch", palette.head);
        match unreachable {
            Some(unreachable) => wrap(&unreachable, columns, 1)
                .iter()
                .take(FAULTS)
                .for_each(|line| page.line(line, palette.bad)),
            None => page.line(&format!(" connecting to the agent at {}", model.socket), Style::new()),
        }
        tabs(model, palette, page);
        return;
    };
    let bgp = match &agent.bgp {
        Some(bgp) => format!("AS {}   {} of {} peers established", bgp.local_as, bgp.established, bgp.peers),
        None => "no BGP network".to_owned(),
    };
    let right = format!("version {}   up {} ", agent.version, duration(agent.uptime_seconds));
    let left = fit(&format!(" {}   {bgp}", plain(&agent.node)), columns.saturating_sub(right.len() + 1));
    page.line(&format!("{left} {right}"), palette.head);
    match (unreachable, agent.ready) {
        (Some(unreachable), _) => {
            // The following lines show the last known state.
            let emphasis = palette.bad.add_modifier(Modifier::REVERSED);
            wrap(&unreachable, columns, 1).iter().take(2).for_each(|line| page.line(line, emphasis));
        }
        (None, true) => page.line(" READY: pods can be attached", palette.good),
        (None, false) => {
            let text = format!(" NOT READY: {}", agent.not_ready.join("; "));
            wrap(&text, columns, 12).iter().take(FAULTS).for_each(|line| page.line(line, palette.bad));
        }
    }
    if agent.drain.phase != DrainPhase::Undrained {
        let text = show::drain(&agent.drain);
        let text = format!(" drain: {}", text.lines().next().unwrap_or_default());
        wrap(&text, columns, 8).iter().take(2).for_each(|line| page.line(line, palette.warning));
    }
    let faults = faults(&agent);
    let shown = if faults.len() > FAULTS { FAULTS - 1 } else { FAULTS };
    faults.iter().take(shown).for_each(|fault| page.line(&format!(" ! {fault}"), palette.warning));
    if faults.len() > FAULTS {
        page.line(&format!(" ! and {} more: see `trunkline status`", faults.len() - shown), palette.warning);
    }
    tabs(model, palette, page);
}

/// Other faults, the worst first.
fn faults(agent: &AgentStatus) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(agent.store.fault.iter().map(|fault| format!("the store is UNUSABLE: {fault}")));
    faults.extend(agent.manifests.refused.iter().map(|fault| format!("manifests REFUSED: {fault}")));
    if let Some(cluster) = agent.cluster.as_ref().filter(|cluster| !cluster.connected) {
        let error = cluster.last_error.as_deref().unwrap_or("no answer yet");
        let outage = cluster.outage_seconds.map(|seconds| format!(" for {}", duration(seconds)));
        faults.push(format!("the API server does not answer{}: {error}", outage.unwrap_or_default()));
    }
    faults.extend(
        agent.cluster.iter().flat_map(|cluster| &cluster.faults).map(|fault| format!("NOT SERVED: {fault}")),
    );
    for network in &agent.networks {
        let refused = network
            .refused
            .iter()
            .map(|fault| format!("network {} is not served here: {fault}", network.name));
        faults.extend(refused);
        for subnet in &network.subnets {
            let found = subnet.refused.iter().chain(&subnet.device_fault);
            faults.extend(found.map(|fault| format!("subnet {}: {fault}", subnet.name)));
        }
    }
    let policies = agent.policies.iter().flat_map(policies::faults);
    faults.extend(policies.map(|fault| format!("network policies: {fault}")));
    if let Some(bgp) = &agent.bgp {
        faults.extend(bgp.fault.iter().map(|fault| format!("the BGP speaker does NOT RUN: {fault}")));
        let unbound =
            bgp.listening.iter().filter_map(|listener| Some((listener.address, listener.fault.as_ref()?)));
        faults.extend(unbound.map(|(address, fault)| {
            format!("incoming BGP connections are NOT ACCEPTED at {address}: {fault}")
        }));
        faults.extend(bgp.duplicate_identifiers.iter().map(|duplicate| duplicate.text.clone()));
    }
    let probed = agent.probes.iter().flat_map(|probes| &probes.routers);
    faults.extend(probed.flat_map(|router| &router.faults).map(|fault| format!("probes: {}", fault.text)));
    for object in &agent.anycast {
        let refused = object.refused.iter();
        faults.extend(refused.map(|fault| format!("anycast address {}: NOT IN FORCE: {fault}", object.name)));
        let unhealthy = object.addresses.iter().filter(|address| address.healthy == Some(false));
        faults.extend(
            unhealthy.map(|it| format!("anycast address {} ({}): {}", it.address, object.name, it.check)),
        );
    }
    faults.extend(remote::ignored_claims(&agent.ignored_claims).into_iter().next());
    for cluster in &agent.remote_clusters {
        let ignored = remote::ignored(cluster);
        faults.extend(ignored.map(|ignored| format!("remote cluster {}: IGNORED: {ignored}", cluster.name)));
    }
    let kernel = &agent.kernel;
    if kernel.routes_installed < kernel.routes_wanted {
        let error = kernel.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        faults.push(format!(
            "{} of {} routes are in the kernel{error}",
            kernel.routes_installed, kernel.routes_wanted
        ));
    }
    if agent.unrecorded > 0 {
        faults.push(format!("{} pods run without a record: the store was lost", agent.unrecorded));
    }
    faults.extend(
        agent.http_fault.iter().map(|fault| format!("/metrics and the probes are NOT SERVED: {fault}")),
    );
    faults
}

fn tabs(model: &Model, palette: &Palette, page: &mut Page<'_>) {
    let down = model.all_peers().iter().filter(|peer| peer_health(peer) == PeerHealth::Down).count();
    let down = if down > 0 { format!(", {down} DOWN") } else { String::new() };
    let titles = [
        (Tab::Peers, format!(" 1 Peers ({}{down}) ", model.all_peers().len())),
        (Tab::Pods, format!(" 2 Pods ({}) ", model.pod_count())),
        (Tab::Events, format!(" 3 Events ({}) ", model.entry_count())),
        (Tab::Services, format!(" 4 Services ({}) ", model.service_count())),
    ];
    let y = page.free.y;
    page.line(&"─".repeat(page.columns()), palette.faint);
    let mut x = page.free.x + 1;
    for (tab, title) in titles {
        let style = if tab == model.tab { palette.chosen } else { palette.head };
        let room = usize::from(page.free.right().saturating_sub(x));
        x = page.buffer.set_stringn(x, y, title, room, style).0 + 1;
    }
}

fn footer(model: &Model, palette: &Palette, page: &mut Page<'_>) {
    if model.is_typing() {
        return page.last_line(
            &format!("/{}_   Enter keeps the filter, Esc removes it", model.filter),
            palette.head,
        );
    }
    let keys = match model.popup {
        Popup::Nothing => "q quit  ? help  Tab next view  j k ↑ ↓ choose  Enter details  / filter",
        _ => "q quit  ? help  Esc back  j k ↑ ↓ scroll",
    };
    match model.filter.as_str() {
        "" => page.last_line(&format!(" {keys}"), palette.faint),
        filter => page.last_line(&format!(" filter: {filter}   Esc removes it   {keys}"), palette.head),
    }
}

/// Draws the table in the free lines; the selected row is always visible.
fn table(
    model: &Model,
    palette: &Palette,
    page: &mut Page<'_>,
    head: &str,
    lines: Vec<(String, Style)>,
    none: &str,
) {
    page.line(head, palette.head);
    let rows = page.rows();
    model.visible_rows.set(VisibleRows { rows, last_line: 0 });
    if lines.is_empty() {
        let text = if model.filter.is_empty() { none } else { "no row matches the filter: Esc removes it" };
        return page.line(&format!("  {text}"), palette.faint);
    }
    let chosen = model.chosen();
    let first = chosen.saturating_sub(rows.saturating_sub(1));
    for (index, (line, style)) in lines.iter().enumerate().skip(first).take(rows) {
        page.line(line, if index == chosen { style.patch(palette.chosen) } else { *style });
    }
}

fn peers(model: &Model, palette: &Palette, page: &mut Page<'_>) {
    let shown = model.peers();
    let (head, lines) = peer_lines(&shown, page.columns());
    let styles = shown.iter().map(|peer| palette.of(peer_health(peer)));
    let lines: Vec<(String, Style)> = lines.into_iter().zip(styles).collect();
    // If there is space below the table, it shows the fault of the selected peer, the networks, and
    // recent events.
    let mut said: Vec<String> = shown.get(model.chosen()).map(last_words).unwrap_or_default();
    said = said.iter().flat_map(|line| wrap(&plain(line), page.columns(), 4)).take(4).collect();
    let spare = page.rows().saturating_sub(1 + lines.len().clamp(1, 4));
    said.truncate(spare);
    let spare = spare - said.len();
    let networks = model.agent().map(|agent| agent.networks).unwrap_or_default();
    let (network_head, mut network_lines) = network_lines(&networks, page.columns(), palette);
    if network_lines.len() > 4 {
        let more = network_lines.len() - 3;
        network_lines.truncate(3);
        network_lines.push((format!("  and {more} more among the pods: press 2"), palette.faint));
    }
    // There is an empty line between the table and these lines.
    let networks = match network_lines.len() + 2 {
        _ if network_lines.is_empty() => 0,
        needed if needed > spare => 0,
        needed => needed,
    };
    let happened = (spare - networks).min(page.rows() / 3);
    let height = (1 + lines.len().max(1)).min(page.rows() - networks - happened - said.len());
    let (upper, lower) = page.split(height);
    table(model, palette, &mut Page { free: upper, buffer: &mut *page.buffer }, &head, lines, "no peers");
    page.free = lower;
    said.iter().for_each(|line| page.line(line, palette.faint));
    if networks > 0 {
        page.line("", Style::new());
        page.line(&network_head, palette.head);
        network_lines.iter().for_each(|(line, style)| page.line(line, *style));
    }
    if page.rows() > 2 {
        let newest: Vec<&Entry> = model.newest().take(page.rows() - 2).collect();
        let (head, lines) = event_lines(&newest, page.columns());
        page.line("", Style::new());
        page.line(&head, palette.head);
        lines.iter().zip(&newest).for_each(|(line, entry)| page.line(line, entry_style(entry, palette)));
        if newest.is_empty() {
            page.line("  no events yet", palette.faint);
        }
    }
}

/// The cause of the missing session, and the recommended action.
fn last_words(peer: &Peer) -> Vec<String> {
    let name = peer.name();
    if let Some(cause) = &peer.cause {
        let attempt = peer.last_attempt.as_ref().filter(|attempt| attempt.text != cause.text);
        let attempt = attempt.map(|attempt| {
            format!("  {name} last attempt {} ago: {}", duration(attempt.seconds_ago), attempt.text)
        });
        let cause_line = format!(
            "  {name} down for {}: {}",
            since(peer).map_or_else(|| "?".to_owned(), duration),
            cause.text
        );
        let advice = format!("    → {}", cause.advice);
        return [cause_line, advice].into_iter().chain(attempt).collect();
    }
    let down = peer.last_down.as_ref().filter(|_| !peer.is_established());
    let error = peer.last_error.as_ref().filter(|error| down.is_none_or(|down| down.text != error.text));
    let down =
        down.map(|said| format!("  {name} session down {} ago: {}", duration(said.seconds_ago), said.text));
    let error =
        error.map(|said| format!("  {name} last error {} ago: {}", duration(said.seconds_ago), said.text));
    down.into_iter().chain(error).collect()
}

fn peer_lines(peers: &[Peer], columns: usize) -> (String, Vec<String>) {
    let wide = columns >= 110;
    let heading = |short, long| if wide { long } else { short };
    let mut grid = Grid::new(&[
        words(" ", 0),
        words("PEER", 0),
        number("AS", 5),
        words("STATE", 0),
        number("SINCE", 0),
        number(heading("RECV", "RECEIVED"), 0),
        number(heading("ACC", "ACCEPTED"), 1),
        number(heading("ADV", "ADVERTISED"), 0),
        words("BFD", 3),
        number("FLAPS", 2),
        words("CAUSE", 4),
    ]);
    for peer in peers {
        let sum =
            |count: fn(&PeerFamily) -> usize| peer.families.iter().map(count).sum::<usize>().to_string();
        let mark = match peer_health(peer) {
            PeerHealth::Down => "!",
            PeerHealth::ExpectedDown => "-",
            PeerHealth::Degraded => "~",
            PeerHealth::Up => " ",
        };
        grid.row([
            mark.to_owned(),
            if peer.range.is_some() { format!("{} (dynamic)", peer.name()) } else { peer.name() },
            peer.remote_as.to_string(),
            state(peer).to_owned(),
            since(peer).map_or_else(|| "never".to_owned(), duration),
            sum(|family| family.received),
            sum(|family| family.accepted),
            sum(|family| family.advertised),
            peer.bfd.as_ref().map_or("-", |bfd| bfd.state.name()).to_owned(),
            peer.flaps.to_string(),
            match (&peer.cause, &peer.last_error) {
                (Some(cause), _) => cause.text.clone(),
                (None, error) => error.as_ref().map(|error| error.text.clone()).unwrap_or_default(),
            },
        ]);
    }
    grid.lines(columns)
}

/// One line per subnet.
fn network_lines(
    networks: &[NetworkStatus],
    columns: usize,
    palette: &Palette,
) -> (String, Vec<(String, Style)>) {
    let mut grid = Grid::new(&[
        words(" ", 0),
        words("NETWORK", 0),
        words("MODE", 1),
        number("PODS", 0),
        words("SUBNET", 3),
        words("CIDR", 2),
        number("USED", 0),
        number("FREE", 0),
        words("FULL", 0),
    ]);
    let mut styles = Vec::new();
    for network in networks {
        let mut names = [network.name.clone(), network.mode.to_string(), network.attachments.to_string()];
        let subnets = network.subnets.iter().filter(|subnet| subnet.refused.is_none());
        for subnet in subnets {
            let (mark, style) = match subnet {
                _ if subnet.free == 0 && subnet.total > 0 => ("!", palette.bad),
                _ if u64::from(subnet.free) * 10 < u64::from(subnet.total) => ("~", palette.warning),
                _ => (" ", Style::new()),
            };
            styles.push(style);
            let [name, mode, pods] = std::mem::take(&mut names);
            let cidr = subnet.cidr.map(|cidr| cidr.to_string()).unwrap_or_default();
            let (used, free) = (subnet.used.to_string(), subnet.free.to_string());
            grid.row([
                mark.to_owned(),
                name,
                mode,
                pods,
                subnet.name.clone(),
                cidr,
                used,
                free,
                gauge(subnet),
            ]);
        }
        if !names[0].is_empty() {
            styles.push(palette.warning);
            let [name, mode, pods] = names;
            let none = || "-".to_owned();
            grid.row(["~".to_owned(), name, mode, pods, none(), none(), none(), none(), none()]);
        }
    }
    let (head, lines) = grid.lines(columns);
    (head, lines.into_iter().zip(styles).collect())
}

/// ` 12% █░░░░░░░░░`: the used part. It is visible from the first address on, and full only if all
/// addresses are in use.
fn gauge(subnet: &SubnetStatus) -> String {
    const BAR: u64 = 10;
    let (used, total) = (u64::from(subnet.used), u64::from(subnet.total).max(1));
    let used = used.min(total);
    let bar = (used * BAR / total).max(u64::from(used > 0)) as usize;
    format!("{:>3}% {}{}", used * 100 / total, "█".repeat(bar), "░".repeat(BAR as usize - bar))
}

fn pods(model: &Model, palette: &Palette, page: &mut Page<'_>) {
    let networks = model.agent().map(|agent| agent.networks).unwrap_or_default();
    let (head, lines) = network_lines(&networks, page.columns(), palette);
    let room = page.rows() / 2;
    page.line(&head, palette.head);
    lines.iter().take(room).for_each(|(line, style)| page.line(line, *style));
    if lines.len() > room {
        page.line(&format!("  and {} more: see `trunkline status`", lines.len() - room), palette.faint);
    }
    page.line("", Style::new());
    let shown = model.pods();
    let mut grid = Grid::new(&[
        words(" ", 0),
        words("POD", 0),
        words("NETWORK", 1),
        words("STATE", 0),
        words("HOST IF", 2),
        words("ADDRESSES", 0),
    ]);
    for pod in &shown {
        let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
        grid.row([
            if pod.state == PodState::Attached { " " } else { "!" }.to_owned(),
            title(pod),
            pod.network.clone(),
            pod.state.to_string(),
            pod.host_ifname.clone(),
            addresses.join(" "),
        ]);
    }
    let (head, lines) = grid.lines(page.columns());
    let styles =
        shown.iter().map(|pod| if pod.state == PodState::Attached { Style::new() } else { palette.warning });
    table(model, palette, page, &head, lines.into_iter().zip(styles).collect(), "no pod is attached");
}

fn services(model: &Model, palette: &Palette, page: &mut Page<'_>) {
    let shown = model.services();
    let mut grid = Grid::new(&[
        words(" ", 0),
        words("SERVICE", 0),
        words("ADDRESS", 0),
        words("POLICY", 2),
        number("ENDPOINTS", 0),
        words("STATE", 0),
        number("SINCE", 1),
        words("REASON", 3),
    ]);
    for view in &shown {
        grid.row([
            if view.state == AdvertisementState::ShuttingDown { "~" } else { " " }.to_owned(),
            view.title(),
            view.address.to_string(),
            view.policy.to_string(),
            format!("{}/{}", view.local_ready, view.ready),
            view.state.to_string(),
            duration(view.since_seconds),
            reason(view).to_owned(),
        ]);
    }
    let (head, lines) = grid.lines(page.columns());
    let style = |state| match state {
        AdvertisementState::ShuttingDown => palette.warning,
        AdvertisementState::Withheld => palette.faint,
        _ => Style::new(),
    };
    let lines = lines.into_iter().zip(shown.iter().map(|view| style(view.state))).collect();
    table(model, palette, page, &head, lines, "no service address");
    let more = model.service_count().saturating_sub(Snapshot::SERVICES);
    if more > 0 {
        page.last_line(&format!("  and {more} more: see `trunkline services`"), palette.faint);
    }
}

/// A container's ID is long, and people use its beginning as its name.
fn title(pod: &PodStatus) -> String {
    if pod.name.is_empty() { pod.container_id.chars().take(12).collect() } else { pod.title() }
}

fn event_lines(entries: &[&Entry], columns: usize) -> (String, Vec<String>) {
    let wide = columns >= 100;
    let mut headings = vec![words(" ", 0), words("UTC", 0), words("PEER", 0), words("WHAT HAPPENED", 0)];
    if wide {
        headings.insert(2, words("KIND", 0));
    }
    let mut grid = Grid::new(&headings);
    for entry in entries {
        let mark = if entry.warning { "!" } else { " " };
        let mut cells = vec![
            mark.to_owned(),
            clock(&entry.at).to_owned(),
            entry.peer.clone().unwrap_or_else(|| "-".to_owned()),
            entry.text.clone(),
        ];
        if wide {
            cells.insert(2, entry.kind.to_owned());
        }
        grid.row(cells);
    }
    grid.lines(columns)
}

fn entry_style(entry: &Entry, palette: &Palette) -> Style {
    if entry.warning { palette.warning } else { Style::new() }
}

/// The time of day of an RFC 3339 time.
fn clock(at: &str) -> &str {
    at.get(11..19).unwrap_or(at)
}
