// The table of peers, and the details of one peer.

import { ask, clock, duration, empty, facts, h, mono, number, peerLink, pill, plural, sentence, since, swap } from "./dom.js";
import * as events from "./events.js";
import { live, now } from "./live.js";
import { spark } from "./spark.js";

export const isUp = (peer) => peer.state === "Established";

export function state(peer) {
  if (peer.shutdown) return pill("off", "Shut down");
  if (isUp(peer)) return pill(peer.stale ? "warn" : "up", "Established");
  return pill(peer.optional ? "warn" : "down", peer.state);
}

// The time since the last change of the session.
export function standing(peer) {
  if (peer.since) return [isUp(peer) ? "for " : "down for ", since(peer.since, isUp(peer) ? "established since" : "down since")];
  return peer.shutdown ? "" : "never up since the agent's start";
}

// The cause of a session that is down; for a session that is up, its last loss within an hour.
export function why(peer) {
  if (isUp(peer)) {
    if (!peer.down || now() - peer.down.at > 3_600_000) return null;
    return h("span", { class: "muted" }, "lost ", since(peer.down.at, "lost at"), " ago: ", peer.down.text);
  }
  if (!peer.cause) return null;
  const { text, advice } = peer.cause;
  return [
    h("span", { class: "reason" }, text),
    h("span", { class: "then" }, `→ ${advice}`),
    peer.down && peer.down.text !== text ? h("span", { class: "then" }, `last session down: ${peer.down.text}`) : null,
    peer.attempt && peer.attempt.text !== text ? h("span", { class: "then" }, "last attempt: ", peer.attempt.text) : null,
  ];
}

export function table(peers, caption) {
  const cell = (label, attributes, ...children) => h("td", { "data-label": label, ...attributes }, children);
  const row = (peer) => h("tr", { class: isUp(peer) || peer.shutdown ? "" : peer.optional ? "is-warn" : "is-down" },
    h("th", { scope: "row" },
      h("a", { class: "mono", href: peerLink(peer.name), "data-key": `peer ${peer.name}` }, peer.name),
      h("span", { class: "muted small" }, `AS ${peer.remoteAs}`, peer.dynamic ? " · dynamic" : "", peer.optional ? " · optional" : "")),
    cell("State", {}, h("div", { class: "stack" }, h("span", {}, state(peer)), h("span", { class: "small muted" }, standing(peer)))),
    cell("Last hour", { class: "hour" }, spark(peer.trend)),
    cell("Accepted", { class: "figure" }, number(peer.accepted), peer.received !== peer.accepted ? h("span", { class: "small muted" }, ` of ${number(peer.received)}`) : null,
      peer.stale ? h("span", { class: "small warn-text" }, `${number(peer.stale)} stale`) : null),
    cell("Advertised", { class: "figure" }, number(peer.advertised)),
    cell("BFD", {}, peer.bfd ? h("span", { class: peer.bfd === "Up" ? "" : "warn-text" }, peer.bfd) : h("span", { class: "muted" }, "–")),
    cell("Flaps", { class: "figure" }, number(peer.flaps)),
    cell("Cause", { class: "why" }, why(peer)));
  return h("table", { class: "cards peers" }, h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, ["Peer", "State", "Last hour", "Accepted", "Advertised", "BFD", "Flaps", "Cause"].map((name) => h("th", { scope: "col", class: ["Accepted", "Advertised", "Flaps"].includes(name) ? "figure" : "" }, name)))),
    h("tbody", {}, peers.map(row)));
}

let main = null;
let name = "";
let detail = null;
let asked = 0;

export function show(element, parameters) {
  main = element;
  const wanted = parameters.get("name") ?? "";
  if (wanted !== name) detail = null;
  name = wanted;
  update();
}

export function update() {
  if (name) return one();
  const { peers, more, agent } = live.document;
  const down = peers.filter((peer) => !isUp(peer) && !peer.shutdown).length;
  swap(main, h("div", { class: "head" }, h("h2", {}, "Peers"),
    h("p", { class: "muted" }, peers.length ? `${peers.length + more - down} of ${peers.length + more} established` : "")),
  peers.length ? h("section", { class: "panel" }, table(peers, "BGP peers of this node"))
    : agent?.bgp ? empty("No peer is configured", "Add peers to a Network of mode BGP, in bgpPeers.") : empty("No BGP speaker on this node", "No Network of mode BGP selects this node."),
  more ? h("p", { class: "muted" }, `${plural(more, "more peer")}: see trunkline peers.`) : null);
}

// ---- one peer

function one() {
  const peer = live.document.peers.find((other) => other.name === name);
  draw(peer);
  const mine = ++asked;
  ask("/page/peer", { name }).then(([found]) => ({ found, at: now() }), (error) => ({ error })).then((answer) => {
    if (mine !== asked || location.hash !== peerLink(name)) return;
    detail = answer;
    draw(live.document.peers.find((other) => other.name === name));
  });
}

function draw(peer) {
  const back = h("p", { class: "back" }, h("a", { href: "#/peers", "data-key": "back" }, "← All peers"));
  if (!peer) {
    swap(main, back, empty(`There is no peer ${name}`, "Possible causes: it was removed from the configuration, or it was a dynamic neighbour and its session has ended."));
    return;
  }
  const kind = peer.shutdown ? "off" : isUp(peer) ? "good" : peer.optional ? "warn" : "bad";
  swap(main, back,
    h("section", { class: `verdict ${kind}` },
      h("div", {}, h("p", { class: "kicker" }, `AS ${peer.remoteAs}`, peer.dynamic ? " · dynamic neighbour" : "", peer.optional ? " · not required for readiness" : ""),
        h("h2", {}, mono(peer.name), " ", state(peer)),
        h("p", { class: "lead" }, standing(peer)),
        h("div", { class: "said" }, why(peer)))),
    h("section", { class: "panel" }, h("h3", {}, "Last hour"),
      h("div", { class: "large" }, spark(peer.trend, { width: 1000, height: 120, large: true }),
        h("div", { class: "axis", "aria-hidden": "true" }, ["−60 min", "−45", "−30", "−15", "now"].map((text) => h("span", {}, text)))),
      h("p", { class: "legend small muted" }, h("span", { class: "key line" }), `accepted prefixes (at most ${number(Math.max(...peer.trend.prefixes))}) `,
        h("span", { class: "key up" }), "up ", h("span", { class: "key mixed" }), "lost and regained within the minute ", h("span", { class: "key down" }), "down ", h("span", { class: "key unknown" }), "unknown")),
    detail?.error ? h("p", { class: "problem", role: "alert" }, detail.error.message) : detail?.found ? known(peer, detail) : h("p", { class: "muted" }, "…"),
    events.panel(`Events of ${peer.name}`, (event) => event.peer === peer.name));
}

function known(peer, { found, at }) {
  const ago = (said) => said && [said.text, " ", h("span", { class: "muted small" }, clock(at - said.secondsAgo * 1000, at))];
  const session = found.session;
  const counts = (of) => Object.entries({ OPEN: of.open, UPDATE: of.update, KEEPALIVE: of.keepalive, NOTIFICATION: of.notification, "ROUTE-REFRESH": of.routeRefresh });
  const received = counts(found.received);
  const sent = counts(found.sent);
  const figure = (value) => h("td", { class: "figure" }, number(value));
  const yes = (value) => h("td", {}, value ? "yes" : h("span", { class: "muted" }, "no"));
  return [
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("h3", {}, "Session"), facts(
        ["Local", session && mono(session.local)], ["Remote", session && mono(session.remote)], ["Router ID", session && mono(session.routerId)],
        ["Round trip", session?.roundTripMicroseconds && `${(session.roundTripMicroseconds / 1000).toFixed(3)} ms`],
        ["Local AS", found.localAs], ["Hold time", session && (session.holdSeconds ? `${session.holdSeconds} s, keepalive ${session.keepaliveSeconds} s` : "off")],
        ["Restart time of the peer", session?.peerRestartSeconds && `${session.peerRestartSeconds} s`],
        ["Prefix limit", found.maxPrefixes && number(found.maxPrefixes)], ["Rules", found.rules.join(", ")],
        ["Next attempt", peer.nextAttempt && !isUp(peer) && `in ${duration(peer.nextAttempt - now())}`],
        ["Flaps", number(found.flaps)]),
      h("p", {}, h("a", { href: `#/routes?from=${encodeURIComponent(peer.name)}` }, "Routes from this peer →"))),
      h("section", { class: "panel" }, h("h3", {}, "Errors"), facts(
        ["Last error", ago(found.lastError)], ["Last loss", peer.down && [peer.down.text, " ", h("span", { class: "muted small" }, clock(peer.down.at, now()))]],
        ["NOTIFICATION received", ago(found.notificationReceived)], ["NOTIFICATION sent", ago(found.notificationSent)]),
      found.lastError || found.notificationReceived || found.notificationSent || peer.down ? null : h("p", { class: "muted" }, "None since the agent's start.")),
      found.bfd ? h("section", { class: "panel" }, h("h3", {}, "BFD"), facts(
        ["State", [found.bfd.state, ` for ${duration(found.bfd.stateSeconds * 1000)}`]], ["State of the peer", found.bfd.remoteState],
        ["Interval", `${found.bfd.transmitMilliseconds} ms`], ["Detection time", found.bfd.detectionMilliseconds && `${found.bfd.detectionMilliseconds} ms`],
        ["Path", found.bfd.multihop ? "several hops" : "one hop"], ["Losses", number(found.bfd.downs)],
        ["Last diagnostic", found.bfd.downs ? found.bfd.diagnostic : null])) : null),
    h("section", { class: "panel" }, h("h3", {}, "Families"),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Family", "Negotiated", "Received", "Accepted", "Advertised", "Stale", "End-of-RIB received", "End-of-RIB sent"].map((text) => h("th", { scope: "col", class: ["Received", "Accepted", "Advertised", "Stale"].includes(text) ? "figure" : "" }, text)))),
        h("tbody", {}, found.families.map((family) => h("tr", {}, h("th", { scope: "row" }, family.family), yes(family.negotiated), figure(family.received), figure(family.accepted), figure(family.advertised), figure(family.stale), yes(family.endOfRibReceived), yes(family.endOfRibSent))))))),
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("h3", {}, "Messages"),
        h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Kind"), h("th", { scope: "col", class: "figure" }, "Received"), h("th", { scope: "col", class: "figure" }, "Sent"))),
          h("tbody", {}, received.map(([kind, count], index) => h("tr", {}, h("th", { scope: "row" }, kind), figure(count), figure(sent[index][1]))),
            h("tr", {}, h("th", { scope: "row" }, "Octets"), figure(found.received.octets), figure(found.sent.octets))))),
      session ? h("section", { class: "panel" }, h("h3", {}, "Capabilities"), facts(
        ["Received", h("ul", { class: "plain" }, session.capabilitiesReceived.map((text) => h("li", {}, text)))],
        ["Sent", h("ul", { class: "plain" }, session.capabilitiesSent.map((text) => h("li", {}, text)))])) : null),
  ];
}

export const reason = (peer) => sentence(peer.cause?.text ?? "no connection attempt is complete yet");
