//! Screens as a terminal shows them, after keys and updates of the agent.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use ratatui::style::{Color, Modifier};
use ratatui::{TerminalOptions, Viewport, layout::Rect};
use serde_json::{Value, json};
use trunkline_api::control::{Events, PeerState, ServiceView, Snapshot};

use super::model::{Action, AgentUpdate, Model, Popup, Tab};
use super::view::{self, Palette};

fn peer(address: &str, state: PeerState, change: Value) -> Value {
    let mut peer = json!({
        "address": address, "remoteAs": 65001, "localAs": 65101, "state": state, "stateSeconds": 7800,
        "shutdown": false, "optional": false, "flaps": 0,
        "families": [
            { "family": "ipv4-unicast", "negotiated": state == PeerState::Established, "received": 12, "accepted": 11, "advertised": 3,
              "stale": 0, "endOfRibReceived": true, "endOfRibSent": true },
            { "family": "ipv6-unicast", "negotiated": state == PeerState::Established, "received": 2, "accepted": 2, "advertised": 1,
              "stale": 0, "endOfRibReceived": true, "endOfRibSent": true },
        ],
        "received": messages(), "sent": messages(),
    });
    merge(&mut peer, change);
    peer
}

fn messages() -> Value {
    json!({ "open": 1, "update": 4, "notification": 0, "keepalive": 2600, "routeRefresh": 0, "octets": 50171 })
}

fn merge(into: &mut Value, change: Value) {
    if let (Value::Object(into), Value::Object(change)) = (into, change) {
        into.extend(change);
    }
}

fn down() -> Value {
    let text = "received Cease/Administrative Shutdown: \"maintenance in rack 1 until 05:00, call 4711\"";
    let said = json!({ "text": text, "secondsAgo": 65 });
    let advice = "an operator shut the session down on the router: it comes back when it is enabled there";
    let cause =
        json!({ "kind": "shutdown", "side": "peer", "text": text, "advice": advice, "secondsAgo": 65 });
    peer(
        "10.2.0.1",
        PeerState::Active,
        json!({ "remoteAs": 65002, "stateSeconds": 3, "flaps": 1, "lastDown": said, "lastError": said, "families": [],
            "downSeconds": 65, "cause": cause, "lastLoss": cause,
            "notificationReceived": { "code": 6, "subcode": 2, "text": text, "secondsAgo": 65 } }),
    )
}

fn snapshot(peers: Vec<Value>, change: Value) -> Snapshot {
    let established = peers.iter().filter(|peer| peer["state"] == json!(PeerState::Established)).count();
    let mut agent = json!({
        "node": "node1", "version": "0.1.0", "uptimeSeconds": 183_600, "ready": true, "notReady": [],
        "manifests": { "folder": "/etc/trunkline/manifests", "applied": true, "refused": [] },
        "store": { "path": "/var/lib/trunkline/store.redb" },
        "bgp": { "localAs": 65101, "routerId": "10.255.0.2", "peers": peers.len(), "established": established, "converged": [] },
        "networks": [{
            "name": "rack1", "mode": "BGP", "table": 10000, "attachments": 3,
            "subnets": [
                { "name": "rack1-v4", "cidr": "10.201.0.0/24", "total": 253, "used": 240, "free": 13 },
                { "name": "rack1-v6", "cidr": "fd00:201::/112", "total": 65534, "used": 3, "free": 65531 },
            ],
        }],
        "attachments": 3, "unrecorded": 0,
        "kernel": { "routesWanted": 9, "routesInstalled": 9, "routesStale": 0, "rules": 7, "repairs": 0, "errors": 0 },
    });
    merge(&mut agent, change);
    let pod = |name: &str, address: &str, state: &str| {
        json!({ "containerId": format!("{name}-0123456789abcdef"), "ifname": "eth0", "namespace": "default", "name": name,
            "network": "rack1", "addresses": [address], "mac": "02:12:34:5a:01:9c", "hostIfname": format!("tl{name}"), "state": state })
    };
    let pods = [
        pod("cart", "10.201.0.2", "attached"),
        pod("mail", "10.201.0.4", "broken"),
        pod("ledger", "10.201.0.3", "attached"),
    ];
    serde_json::from_value(json!({ "run": 7, "number": 1, "agent": agent, "peers": peers, "pods": pods }))
        .unwrap()
}

fn service(name: &str, address: &str, state: &str, text: &str) -> ServiceView {
    let prefixes = match state {
        "withheld" => json!([]),
        _ => {
            json!([{ "prefix": format!("{address}/32"), "advertisements": ["edge"], "peers": ["10.1.0.1"] }])
        }
    };
    serde_json::from_value(json!({ "namespace": "shop", "name": name, "address": address, "kind": "LoadBalancer",
        "policy": "Local", "pool": "public", "state": state, "text": text, "prefixes": prefixes, "localReady": 1, "ready": 3,
        "sinceSeconds": 60 }))
    .unwrap()
}

fn update(snapshot: Snapshot) -> AgentUpdate {
    AgentUpdate::State { snapshot: Box::new(snapshot), at: "2026-11-21T03:02:00Z".to_owned() }
}

fn event(number: u64, second: u64, kind: &str, severity: &str, peer: Option<&str>, text: &str) -> Value {
    json!({ "number": number, "at": format!("2026-11-21T03:00:{second:02}.125Z"), "kind": kind, "severity": severity,
        "peer": peer, "text": text })
}

fn events(run: u64, events: Vec<Value>) -> AgentUpdate {
    AgentUpdate::Events(
        serde_json::from_value::<Events>(json!({ "run": run, "missed": 0, "events": events })).unwrap(),
    )
}

/// A node whose second ToR was shut down.
fn night() -> Model {
    let mut model = Model::new("/run/trunkline/agent.sock".to_owned());
    model.handle_update(update(snapshot(
        vec![peer("10.1.0.1", PeerState::Established, json!({ "bfd": bfd("Up") })), down()],
        json!({}),
    )));
    model.handle_update(events(
        7,
        vec![
            event(1, 1, "sessionUp", "info", Some("10.1.0.1"), "session with AS 65001 is Established: ipv4-unicast"),
            event(2, 2, "sessionUp", "info", Some("10.2.0.1"), "session with AS 65002 is Established: ipv4-unicast"),
            event(3, 4, "originated", "info", None, "10.201.0.2/32 is advertised"),
            event(
                4,
                55,
                "sessionDown",
                "warning",
                Some("10.2.0.1"),
                "session down: received Cease/Administrative Shutdown: \"maintenance in rack 1 until 05:00, call 4711\"",
            ),
        ],
    ));
    model
}

fn bfd(state: &str) -> Value {
    json!({ "state": state, "stateSeconds": 7, "remoteState": state, "diagnostic": "No Diagnostic",
        "remoteDiagnostic": "No Diagnostic", "multihop": false, "transmitMilliseconds": 50, "detectionMilliseconds": 150,
        "controlPlaneIndependent": false, "localDiscriminator": 1, "remoteDiscriminator": 2, "ups": 1, "downs": 0,
        "detections": 0, "packetsReceived": 10, "packetsSent": 11 })
}

fn terminal(model: &Model, palette: &Palette, columns: u16, rows: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| view::draw(model, palette, frame)).unwrap();
    terminal
}

/// The text on the screen, without blanks at the ends of lines.
fn screen(model: &Model, columns: u16, rows: u16) -> String {
    let terminal = terminal(model, &Palette::plain(), columns, rows);
    let buffer = terminal.backend().buffer();
    let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..rows).map(|y| format!("{}\n", line(y).trim_end())).collect()
}

fn assert_screen(model: &Model, columns: u16, rows: u16, name: &str) {
    let shown = screen(model, columns, rows);
    assert!(shown == kept(name), "screens/{name}.txt differs from the screen:\n{shown}");
}

/// A stored, reviewed screen.
fn kept(name: &str) -> String {
    read(&format!("src/watch/screens/{name}.txt"))
}

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn act(model: &mut Model, actions: &[Action]) {
    for action in actions {
        assert!(model.act(*action).is_continue());
    }
}

fn typed(model: &mut Model, text: &str) {
    act(model, &[Action::Filter]);
    text.chars().for_each(|letter| act(model, &[Action::Type(letter)]));
    act(model, &[Action::Open]);
}

#[test]
fn peer_that_is_down_is_the_first_row() {
    assert_screen(&night(), 80, 24, "down");
}

#[test]
fn docs_show_one_of_the_stored_screens() {
    let picture = format!("```text\n{}```\n", kept("down"));
    assert!(read("../docs/commands.md").contains(&picture), "docs/commands.md lacks:\n{picture}");
}

#[test]
fn healthy_node_on_a_wide_screen() {
    let mut model = Model::new(String::new());
    let other = peer(
        "fe80::a8c1:abff:fe12:3456",
        PeerState::Established,
        json!({ "interface": "eth1", "remoteAs": 4_200_000_001_u32 }),
    );
    model.handle_update(update(snapshot(
        vec![peer("10.1.0.1", PeerState::Established, json!({})), other],
        json!({}),
    )));
    assert_screen(&model, 132, 20, "quiet");
}

#[test]
fn peer_details_are_shown() {
    let mut model = night();
    act(&mut model, &[Action::Open]);
    assert_screen(&model, 80, 24, "peer");
    // Scrolling stops at the end of the details. One key closes the details.
    act(&mut model, &[Action::Last]);
    let end = screen(&model, 80, 24);
    assert!(end.contains("session with AS 65002"), "{end}");
    act(&mut model, &[Action::Up]);
    assert_ne!(screen(&model, 80, 24), end);
    act(&mut model, &[Action::Back]);
    assert_eq!(screen(&model, 80, 24), screen(&night(), 80, 24));
}

#[test]
fn pods_and_faults_of_the_agent_are_shown() {
    let mut model = night();
    let change = json!({
        "ready": false, "notReady": ["the store cannot be used", "no peer of network rack1 is established"],
        "store": { "path": "/x", "fault": "its checksum is wrong" },
        "manifests": { "folder": "/m", "applied": true, "refused": ["a.yaml: x", "b.yaml: y", "c.yaml: z"] },
        "drain": { "phase": "announcing", "phaseSeconds": 4, "settleSeconds": 11, "message": "", "prefixes": 0, "alternatives": 0,
            "faults": [] },
    });
    model.handle_update(update(snapshot(vec![down()], change)));
    model.pass(Duration::from_secs(2));
    act(&mut model, &[Action::NextTab]);
    assert_screen(&model, 80, 24, "pods");
    act(&mut model, &[Action::Open]);
    let pod = screen(&model, 80, 24);
    assert!(
        pod.contains("mail") && pod.contains("broken") && pod.contains("eth0 in the pod, tlmail here"),
        "{pod}"
    );
}

#[test]
fn service_addresses_are_shown_with_their_reason() {
    let mut shot = snapshot(vec![peer("10.1.0.1", PeerState::Established, json!({}))], json!({}));
    shot.services = vec![
        service("api", "192.0.2.11", "advertised", "advertised"),
        service("web", "192.0.2.10", "withheld", "withheld: no endpoint on this node is ready"),
    ];
    shot.service_count = 2;
    let mut model = Model::new(String::new());
    model.handle_update(update(shot));
    model.pass(Duration::from_secs(5));
    act(&mut model, &[Action::Go(Tab::Services)]);
    assert_screen(&model, 100, 12, "services");
    // The advertised address is the second row.
    act(&mut model, &[Action::Down, Action::Open]);
    let detail = screen(&model, 100, 20);
    for words in [
        "shop/api 192.0.2.11",
        "LoadBalancer of ServicePool public",
        "192.0.2.11/32 by ServiceAdvertisement edge to 10.1.0.1",
    ] {
        assert!(detail.contains(words), "{words}: {detail}");
    }
    act(&mut model, &[Action::Back]);
    typed(&mut model, "192.0.2.10");
    assert_eq!(model.services().len(), 1);
}

#[test]
fn small_windows_keep_the_sessions() {
    let small = screen(&night(), 60, 10);
    assert!(small.contains("! 10.2.0.1") && small.contains("1 DOWN"), "{small}");
    let tiny = screen(&night(), 39, 8);
    assert!(tiny.contains("make this window larger") && tiny.contains("39x8"), "{tiny}");
    // Every size can be drawn.
    for columns in [1, 2, 39, 40, 41, 79, 200, 500] {
        for rows in [1, 2, 9, 10, 11, 12, 13, 14, 23, 100] {
            let mut model = night();
            for _ in 0..5 {
                screen(&model, columns, rows);
                act(&mut model, &[Action::Open]);
                screen(&model, columns, rows);
                act(&mut model, &[Action::Help]);
                screen(&model, columns, rows);
                act(&mut model, &[Action::NextTab]);
            }
        }
    }
}

#[test]
fn unreachable_agent_is_shown_and_times_stand_still() {
    let mut model = night();
    model.pass(Duration::from_secs(10));
    assert!(screen(&model, 80, 24).contains("2h10m"), "{}", screen(&model, 80, 24));
    let unreachable = || AgentUpdate::Unreachable {
        text: "no agent answers at /x".to_owned(),
        at: "2026-11-21T03:01:10Z".to_owned(),
    };
    model.pass(Duration::from_secs(60));
    model.handle_update(unreachable());
    model.pass(Duration::from_secs(600));
    model.handle_update(unreachable());
    let gone = screen(&model, 80, 24);
    assert!(
        gone.contains("THE AGENT DOES NOT ANSWER since 03:01:10 (9m00s): no agent answers at /x"),
        "{gone}"
    );
    // The session's time is 7860 s: 7800 s in the snapshot, and the 60 s until the agent stopped
    // answering.
    assert!(gone.contains("2h11m") && !gone.contains("READY"), "{gone}");
    assert_eq!(gone.matches("the agent does not answer:").count(), 1, "{gone}");
    model.handle_update(update(snapshot(vec![down()], json!({}))));
    model.handle_update(events(
        8,
        vec![event(1, 59, "converged", "info", None, "the first selection is done")],
    ));
    act(&mut model, &[Action::Go(Tab::Events)]);
    let back = screen(&model, 80, 24);
    let row = |text: &str| {
        back.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {back}"))
    };
    // Events of the previous run remain. The newest event is at the top.
    let rows = [
        "the first selection",
        "another run",
        "answers again, after 540 s",
        "does not answer",
        "session down",
    ]
    .map(row);
    assert!(rows.is_sorted(), "{back}");
    assert!(back.contains("READY"), "{back}");
}

#[test]
fn reason_is_shown_before_the_first_answer() {
    let mut model = Model::new("/run/x.sock".to_owned());
    assert!(screen(&model, 80, 24).contains("connecting to the agent at /run/x.sock"));
    model.handle_update(AgentUpdate::Unreachable {
        text: "no agent answers at /run/x.sock".to_owned(),
        at: "2026-11-21T03:01:10Z".to_owned(),
    });
    assert!(
        screen(&model, 80, 24)
            .contains("DOES NOT ANSWER since 03:01:10 (0s): no agent answers at /run/x.sock")
    );
    assert!(model.act(Action::Quit).is_break());
}

#[test]
fn a_row_stays_selected_when_others_move() {
    let many = |state: PeerState| {
        let peers = (1..=30).map(|number| {
            let state = if number == 20 { state } else { PeerState::Established };
            peer(&format!("10.0.0.{number}"), state, json!({}))
        });
        update(snapshot(peers.collect(), json!({})))
    };
    let mut model = Model::new(String::new());
    model.handle_update(many(PeerState::Established));
    screen(&model, 80, 24);
    act(&mut model, &[Action::Last, Action::Up]);
    assert!(screen(&model, 80, 24).contains("10.0.0.29"));
    model.handle_update(many(PeerState::Idle));
    assert_eq!(model.peers()[model.chosen()].name(), "10.0.0.29");
    assert_eq!(model.peers()[0].name(), "10.0.0.20");
    // A page is the number of visible rows.
    act(&mut model, &[Action::First]);
    let rows = model.visible_rows.get().rows;
    act(&mut model, &[Action::PageDown]);
    assert_eq!(model.chosen(), rows - 1);
    // Peers that are down as intended are not first.
    let peers = vec![
        peer("10.0.0.1", PeerState::Established, json!({})),
        peer("10.0.0.2", PeerState::Idle, json!({ "shutdown": true })),
        peer("10.0.0.3", PeerState::Active, json!({})),
        peer("10.0.0.4", PeerState::Established, json!({ "bfd": bfd("Down") })),
    ];
    model.handle_update(update(snapshot(peers, json!({}))));
    let names: Vec<String> = model.peers().iter().map(|peer| peer.name()).collect();
    assert_eq!(names, ["10.0.0.3", "10.0.0.2", "10.0.0.4", "10.0.0.1"]);
}

#[test]
fn filter_leaves_only_matching_rows() {
    let mut model = night();
    typed(&mut model, "MAINTENANCE");
    let shown = screen(&model, 80, 24);
    assert!(shown.contains("filter: MAINTENANCE") && !shown.contains("10.1.0.1     6"), "{shown}");
    assert_eq!(model.peers().len(), 1);
    assert_eq!(model.all_peers().len(), 2);
    act(&mut model, &[Action::Go(Tab::Events)]);
    assert_eq!(model.entries().count(), 1);
    act(&mut model, &[Action::Back]);
    assert_eq!(model.entries().count(), 4);
    typed(&mut model, "nobody");
    assert!(screen(&model, 80, 24).contains("no row matches the filter"));
    act(&mut model, &[Action::Open]);
    assert_eq!(model.popup, Popup::Nothing, "there is no row to open");
}

#[test]
fn newest_event_is_selected_until_another_is_selected() {
    let mut model = night();
    act(&mut model, &[Action::Go(Tab::Events)]);
    let newest = |model: &Model| model.entries().nth(model.chosen()).map(|entry| entry.text.clone()).unwrap();
    let more = |number: u64| {
        events(7, vec![event(number, 56, "sessionUp", "info", None, &format!("number {number}"))])
    };
    model.handle_update(more(5));
    assert_eq!(newest(&model), "number 5");
    act(&mut model, &[Action::Down]);
    assert!(newest(&model).starts_with("session down"));
    model.handle_update(more(6));
    assert!(newest(&model).starts_with("session down"));
    act(&mut model, &[Action::Open]);
    let shown = screen(&model, 80, 24);
    assert!(shown.contains("call 4711") && shown.contains("2026-11-21T03:00:55.125Z"), "{shown}");
}

#[test]
fn a_down_peer_is_red_unless_colours_are_disabled() {
    let model = night();
    for (palette, red) in [(Palette::coloured(), Color::Red), (Palette::plain(), Color::Reset)] {
        let terminal = terminal(&model, &palette, 80, 24);
        let buffer = terminal.backend().buffer();
        let row = (0..24).find(|y| {
            (0..12).map(|x| buffer[(x, *y)].symbol()).collect::<String>().starts_with("! 10.2.0.1")
        });
        let cell = &buffer[(2, row.unwrap())];
        assert_eq!(cell.fg, red);
        assert!(
            cell.modifier.contains(Modifier::BOLD | Modifier::REVERSED),
            "the row is selected, and its peer is down"
        );
        let colours = buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(colours, red != Color::Reset);
    }
}

/// Control sequences with 7 and 8 bits: they clear the screen, set the window's title, request
/// input from the terminal, and reverse the line.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{90}q\u{1b}\\\u{202e}\r\u{8}\u{7f}end";

#[test]
fn no_text_of_a_peer_or_a_pod_controls_the_terminal() {
    let said = json!({ "text": HOSTILE, "secondsAgo": 1 });
    let change = json!({ "lastDown": said, "lastError": said, "rules": [HOSTILE], "interface": HOSTILE,
        "bfd": bfd(HOSTILE), "notificationReceived": { "code": 6, "subcode": 2, "text": HOSTILE, "secondsAgo": 1 } });
    let agent = json!({ "node": HOSTILE, "version": HOSTILE, "ready": false, "notReady": [HOSTILE],
        "store": { "path": "", "fault": HOSTILE }, "httpFault": HOSTILE });
    let mut shot = snapshot(vec![peer("fe80::1", PeerState::Idle, change)], agent);
    for pod in &mut shot.pods {
        pod.name = HOSTILE.to_owned();
        pod.network = HOSTILE.to_owned();
    }
    shot.services = vec![service(HOSTILE, "192.0.2.10", "withheld", HOSTILE)];
    shot.service_count = 1;
    for network in &mut shot.agent.networks {
        network.name = HOSTILE.to_owned();
        network.refused = Some(HOSTILE.to_owned());
    }
    let mut model = Model::new(HOSTILE.to_owned());
    let draw = |model: &Model| {
        let mut octets = Vec::new();
        let viewport = Viewport::Fixed(Rect::new(0, 0, 120, 40));
        let backend = CrosstermBackend::new(&mut octets);
        let mut terminal = Terminal::with_options(backend, TerminalOptions { viewport }).unwrap();
        terminal.draw(|frame| view::draw(model, &Palette::coloured(), frame)).unwrap();
        drop(terminal);
        let text = String::from_utf8(octets).unwrap();
        assert_harmless(&text);
        text
    };
    draw(&model);
    model.handle_update(AgentUpdate::Unreachable { text: HOSTILE.to_owned(), at: HOSTILE.to_owned() });
    draw(&model);
    model.handle_update(update(shot));
    model.handle_update(events(7, vec![event(1, 1, "sessionDown", "warning", Some(HOSTILE), HOSTILE)]));
    for tab in Tab::ALL {
        act(&mut model, &[Action::Go(tab)]);
        assert!(draw(&model).contains("end"), "the control characters are shown as text");
        act(&mut model, &[Action::Open]);
        assert!(draw(&model).contains("end"));
    }
    act(&mut model, &[Action::Filter]);
    HOSTILE.chars().for_each(|letter| act(&mut model, &[Action::Type(letter)]));
    draw(&model);
}

/// The text contains only ratatui's control sequences (cursor, colours, hiding), and no other
/// invisible character.
fn assert_harmless(text: &str) {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        assert_seen(before, text);
        let end = after.find(|letter: char| letter.is_ascii_alphabetic()).unwrap();
        let (sequence, end_letter) = (&after[..end], &after[end..=end]);
        assert!(sequence.starts_with('['), "ESC {sequence:?}{end_letter} in {text:?}");
        let parameters =
            sequence[1..].chars().all(|letter| letter.is_ascii_digit() || ";?:".contains(letter));
        assert!(
            parameters && ["m", "H", "h", "l"].contains(&end_letter),
            "ESC {sequence:?}{end_letter} in {text:?}"
        );
        rest = &after[end + 1..];
    }
    assert_seen(rest, text);
}

fn assert_seen(text: &str, whole: &str) {
    let steers = |letter: char| letter.is_control() || ('\u{202a}'..='\u{202e}').contains(&letter);
    assert!(!text.contains(steers), "{text:?} in {whole:?}");
}
