// Everything at a glance: what is wrong, since when and why; then the peers, the networks, and what happened last.

import { empty, facts, h, mono, number, peerLink, pill, plural, sentence, since, swap } from "./dom.js";
import * as events from "./events.js";
import { live } from "./live.js";
import { isUp, reason, table } from "./peers.js";

let main = null;

export function show(element) {
  main = element;
  update();
}

// What an operator should know beside the peers.
function problems(agent) {
  const found = [];
  const add = (title, texts) => texts.forEach((text) => text && found.push([title, text]));
  add("Not ready", agent.notReady.filter((text) => !text.startsWith("no BGP peer is established")));
  add(agent.manifests.applied ? "Refused, what ran before runs on" : "Refused", agent.manifests.refused);
  add("Store", [agent.store.fault]);
  if (agent.cluster && !agent.cluster.connected) add("API server", [agent.cluster.lastError ?? "not heard yet"]);
  add("Object not served", agent.cluster?.faults ?? []);
  for (const network of agent.networks) {
    add(`Network ${network.name}`, [network.refused]);
    for (const subnet of network.subnets) add(`Subnet ${subnet.name}`, [subnet.refused, subnet.deviceFault]);
  }
  if (agent.kernel.lastError) add("Kernel", [agent.kernel.lastError]);
  add("BGP", [agent.bgp?.fault]);
  for (const { address, fault } of agent.bgp?.listening ?? []) {
    if (fault) add("BGP", [`incoming connections are not accepted at ${address}: ${fault}`]);
  }
  for (const way of agent.bgp?.waysOut ?? []) {
    for (const { peer, cause, reason } of way.leftOut) {
      if (cause !== "pending") add("Way out", [`pods' ${way.family} packets do not go by ${peer}: it ${reason}`]);
    }
    if (`${way.wanted}` !== `${way.installed}`) {
      add("Way out", [`the kernel sends pods' ${way.family} packets by ${way.installed.join(", ") || "no next hop"}, the agent wants ${way.wanted.join(", ") || "none"}`]);
    }
  }
  add("BGP", (agent.bgp?.duplicateIdentifiers ?? []).map((duplicate) => duplicate.text));
  add("Probes", (agent.probes?.routers ?? []).flatMap((router) => router.faults.map((fault) => fault.text)));
  add("HTTP", [agent.httpFault]);
  if (agent.unrecorded) add("Pods", [`${agent.unrecorded} run in the kernel without a record: the store was lost; they keep running`]);
  const seen = new Set();
  return found.filter(([, text]) => !seen.has(text) && seen.add(text));
}

function verdict(state, wrong) {
  const { agent, peers, more } = state;
  const all = peers.length + more;
  const down = peers.filter((peer) => !isUp(peer) && !peer.shutdown);
  const needed = down.filter((peer) => !peer.optional);
  const up = peers.filter(isUp);
  const kind = needed.length || !agent.ready ? "bad" : down.length || wrong.length ? "warn" : "good";
  const attach = agent.ready ? "Pods can be attached." : "No pod can be attached now.";
  const first = needed[0] ?? down[0];
  let title;
  let lines;
  if (!agent.bgp) {
    [title, lines] = [agent.ready ? "Everything is in order" : "Not ready", ["No Network of mode BGP is on this node."]];
  } else if (!down.length) {
    const latest = up.map((peer) => peer.since).sort((one, other) => other - one)[0];
    title = all === 0 ? "No peer is configured" : all === 1 ? "The peer is established" : `All ${all} peers are established`;
    lines = [latest ? ["for ", since(latest), " at least"] : ""];
  } else {
    title = down.length === 1 ? [h("a", { class: "mono", href: peerLink(first.name), "data-key": "first" }, first.name), " is down"]
      : down.length === all ? `All ${all} peers are down` : `${down.length} of ${all} peers are down`;
    lines = down.slice(0, 3).map((peer) => [
      down.length > 1 ? [h("a", { class: "mono", href: peerLink(peer.name), "data-key": `down ${peer.name}` }, peer.name), " "] : "",
      peer.since ? ["for ", since(peer.since, "down since"), ". "] : "never up since the agent began. ",
      h("span", { class: "reason" }, reason(peer))]);
    if (down.length > 3) lines.push(plural(down.length - 3, "more peer", "more peers"));
  }
  return h("section", { class: `verdict ${kind}`, "aria-label": "How this node stands" },
    h("div", {}, h("h2", {}, title), lines.map((line) => h("p", { class: "lead" }, line)), h("p", { class: "attach" }, attach)),
    facts(
      ["Established", agent.bgp && `${agent.bgp.established} of ${all}`],
      ["Routes in the kernel", agent.kernel.routesInstalled === agent.kernel.routesWanted ? number(agent.kernel.routesWanted)
        : h("span", { class: "warn-text" }, `${number(agent.kernel.routesInstalled)} of ${number(agent.kernel.routesWanted)}`)],
      ["Pods", h("a", { href: "#/pods" }, number(agent.attachments))],
      ...(agent.bgp?.waysOut ?? []).map((way) => [`Way out, ${way.family.startsWith("ipv6") ? "IPv6" : "IPv4"}`, way.installed.length ? mono(way.installed.join(", ")) : "none"]),
      ["AS", agent.bgp?.localAs], ["Router ID", agent.bgp && mono(agent.bgp.routerId)],
      ["Agent", [`${agent.version}, up `, since(state.began)]]));
}

function networks(agent) {
  if (!agent.networks.length) return empty("No Network selects this node", "Compare its nodeSelector with the labels of the node.");
  const bar = (subnet) => {
    const share = subnet.total ? subnet.used / subnet.total : 0;
    const meter = h("meter", { min: 0, max: subnet.total || 1, high: subnet.total * 0.85, optimum: 0, value: subnet.used, "aria-label": `${number(subnet.used)} of ${number(subnet.total)} addresses used` });
    return [meter, h("span", { class: share > 0.85 ? "warn-text small" : "small muted" }, subnet.total > 1e6 ? `${number(subnet.used)} used` : subnet.total ? `${number(subnet.used)} of ${number(subnet.total)}` : "given by the cluster")];
  };
  const rows = agent.networks.flatMap((network) => network.subnets.map((subnet, index) => h("tr", {},
    h("th", { scope: "row" }, index ? "" : [network.name, " ", pill("mode", network.mode)]),
    h("td", { "data-label": "Subnet" }, subnet.name), h("td", { "data-label": "Prefix" }, subnet.cidr ? mono(subnet.cidr) : "–"),
    h("td", { "data-label": "Addresses", class: "meter" }, subnet.refused ? pill("down", "refused") : bar(subnet)),
    h("td", { "data-label": "By" }, subnet.device ? mono(subnet.device) : network.mode === "VLAN" ? pill("down", "no device") : "the peers"))));
  return h("table", { class: "cards" }, h("caption", { class: "hidden" }, "Networks on this node"),
    h("thead", {}, h("tr", {}, ["Network", "Subnet", "Prefix", "Addresses", "Leaves by"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows));
}

export function update() {
  const state = live.document;
  if (!state.agent) {
    swap(main, empty("The agent is stopping", "Pods, routes and rules stay as they are. This page comes back with it."));
    return;
  }
  const wrong = problems(state.agent);
  swap(main, verdict(state, wrong),
    wrong.length ? h("section", { class: "panel problems" }, h("h3", {}, plural(wrong.length, "problem")),
      h("dl", {}, wrong.slice(0, 12).map(([title, text]) => h("div", {}, h("dt", {}, title), h("dd", {}, sentence(text)))))) : null,
    state.agent.bgp ? h("section", { class: "panel" }, h("h3", {}, h("a", { href: "#/peers", "data-key": "peers" }, "Peers")),
      state.peers.length ? table(state.peers.slice(0, 12), "BGP peers of this node") : empty("No peer is configured", "Peers stand in a Network of mode BGP, under bgpPeers."),
      state.peers.length + state.more > 12 ? h("p", {}, h("a", { href: "#/peers" }, `All ${number(state.peers.length + state.more)} peers →`)) : null) : null,
    h("div", { class: "columns wide" },
      h("section", { class: "panel" }, h("h3", {}, "Networks"), networks(state.agent)),
      events.panel("Last events", () => true, 8)));
}
