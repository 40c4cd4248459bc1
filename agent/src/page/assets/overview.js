// The overview: problems with time and cause, then peers, networks and the last events.

import { empty, facts, h, mono, number, peerLink, pill, plural, sentence, since, swap } from "./dom.js";
import * as events from "./events.js";
import { live } from "./live.js";
import { isUp, reason, table } from "./peers.js";

let main = null;

export function show(element) {
  main = element;
  update();
}

// Problems other than peers that are down.
function problems(agent) {
  const found = [];
  const add = (title, texts) => texts.forEach((text) => text && found.push([title, text]));
  add("Not ready", agent.notReadyReasons.filter(({ kind }) => kind !== "peers").map(({ text }) => text));
  add(agent.manifests.applied ? "Refused, the previous manifests stay in force" : "Refused", agent.manifests.refused);
  add("Store", [agent.store.fault]);
  if (agent.cluster && !agent.cluster.connected) add("API server", [agent.cluster.lastError ?? "no answer yet"]);
  add("Object not served", agent.cluster?.faults ?? []);
  for (const network of agent.networks) {
    add(`Network ${network.name}`, [network.refused]);
    for (const subnet of network.subnets) add(`Subnet ${subnet.name}`, [subnet.refused, subnet.deviceFault]);
  }
  if (agent.policies && agent.policies.state !== "inForce") add(`Network policies ${agent.policies.state}`, [agent.policies.reason ?? "the rules are not in the kernel yet"]);
  if (agent.policies?.unenforced) add("Network policies", [`not enforced for ${plural(agent.policies.unenforced, "interface", "interfaces")} of pods with attachment: ipvlan`]);
  if (agent.kernel.lastError) add("Kernel", [agent.kernel.lastError]);
  add("BGP", [agent.bgp?.fault]);
  for (const { address, fault } of agent.bgp?.listening ?? []) {
    if (fault) add("BGP", [`no incoming connections at ${address}: ${fault}`]);
  }
  for (const way of agent.bgp?.waysOut ?? []) {
    for (const { peer, cause, reason } of way.leftOut) {
      if (cause !== "pending") add("Next hops", [`${peer} is no next hop of pods' ${way.family} packets: it ${reason}`]);
    }
    if (`${way.wanted}` !== `${way.installed}`) {
      add("Next hops", [`next hops of pods' ${way.family} packets in the kernel: ${way.installed.join(", ") || "none"}; planned: ${way.wanted.join(", ") || "none"}`]);
    }
  }
  add("BGP", (agent.bgp?.duplicateIdentifiers ?? []).map((duplicate) => duplicate.text));
  add("Probes", (agent.probes?.routers ?? []).flatMap((router) => router.faults.map((fault) => fault.text)));
  add("HTTP", [agent.httpFault]);
  if (agent.unrecorded) add("Pods", [`${agent.unrecorded} without a record, because the store was lost; they keep running`]);
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
  const attach = agent.ready ? "Pods can be attached." : "No pod can be attached.";
  const first = needed[0] ?? down[0];
  let title;
  let lines;
  if (!agent.bgp) {
    [title, lines] = [agent.ready ? "No problems" : "Not ready", ["This node is in no Network of mode BGP."]];
  } else if (!down.length) {
    const latest = up.map((peer) => peer.since).sort((one, other) => other - one)[0];
    title = all === 0 ? "No peer is configured" : all === 1 ? "The peer is established" : `All ${all} peers are established`;
    lines = [latest ? ["for at least ", since(latest)] : ""];
  } else {
    title = down.length === 1 ? [h("a", { class: "mono", href: peerLink(first.name), "data-key": "first" }, first.name), " is down"]
      : down.length === all ? `All ${all} peers are down` : `${down.length} of ${all} peers are down`;
    lines = down.slice(0, 3).map((peer) => [
      down.length > 1 ? [h("a", { class: "mono", href: peerLink(peer.name), "data-key": `down ${peer.name}` }, peer.name), " "] : "",
      peer.since ? ["for ", since(peer.since, "down since"), ". "] : "never up since the agent's start. ",
      h("span", { class: "reason" }, reason(peer))]);
    if (down.length > 3) lines.push(plural(down.length - 3, "more peer", "more peers"));
  }
  return h("section", { class: `verdict ${kind}`, "aria-label": "State of this node" },
    h("div", {}, h("h2", {}, title), lines.map((line) => h("p", { class: "lead" }, line)), h("p", { class: "attach" }, attach)),
    facts(
      ["Established", agent.bgp && `${agent.bgp.established} of ${all}`],
      ["Routes in the kernel", agent.kernel.routesInstalled === agent.kernel.routesWanted ? number(agent.kernel.routesWanted)
        : h("span", { class: "warn-text" }, `${number(agent.kernel.routesInstalled)} of ${number(agent.kernel.routesWanted)}`)],
      ["Pods", h("a", { href: "#/pods" }, number(agent.attachments))],
      ["Network policies", agent.policies ? `${number(agent.policies.policies)}, ${number(agent.policies.pods)} pods selected` : "off"],
      ...(agent.bgp?.waysOut ?? []).map((way) => [`Next hops, ${way.family.startsWith("ipv6") ? "IPv6" : "IPv4"}`, way.installed.length ? mono(way.installed.join(", ")) : "none"]),
      ["AS", agent.bgp?.localAs], ["Router ID", agent.bgp && mono(agent.bgp.routerId)],
      ["Agent", [`${agent.version}, up `, since(state.began)]]));
}

function networks(agent) {
  if (!agent.networks.length) return empty("No Network selects this node", "Compare its nodeSelector with the labels of the node.");
  const bar = (subnet) => {
    const share = subnet.total ? subnet.used / subnet.total : 0;
    const meter = h("meter", { min: 0, max: subnet.total || 1, high: subnet.total * 0.85, optimum: 0, value: subnet.used, "aria-label": `${number(subnet.used)} of ${number(subnet.total)} addresses used` });
    return [meter, h("span", { class: share > 0.85 ? "warn-text small" : "small muted" }, subnet.total > 1e6 ? `${number(subnet.used)} used` : subnet.total ? `${number(subnet.used)} of ${number(subnet.total)}` : "allocated by the cluster")];
  };
  const rows = agent.networks.flatMap((network) => network.subnets.map((subnet, index) => h("tr", {},
    h("th", { scope: "row" }, index ? "" : [network.name, " ", pill("mode", network.mode)]),
    h("td", { "data-label": "Subnet" }, subnet.name), h("td", { "data-label": "Prefix" }, subnet.cidr ? mono(subnet.cidr) : "–"),
    h("td", { "data-label": "Addresses", class: "meter" }, subnet.refused ? pill("down", "refused") : bar(subnet)),
    h("td", { "data-label": "Leaves through" }, subnet.device ? mono(subnet.device) : network.mode === "VLAN" ? pill("down", "no device") : "the peers"))));
  return h("table", { class: "cards" }, h("caption", { class: "hidden" }, "Networks on this node"),
    h("thead", {}, h("tr", {}, ["Network", "Subnet", "Prefix", "Addresses", "Leaves through"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows));
}

export function update() {
  const state = live.document;
  if (!state.agent) {
    swap(main, empty("The agent is stopping", "Pods, routes and rules do not change. This page returns with the agent."));
    return;
  }
  const wrong = problems(state.agent);
  swap(main, verdict(state, wrong),
    wrong.length ? h("section", { class: "panel problems" }, h("h3", {}, plural(wrong.length, "problem")),
      h("dl", {}, wrong.slice(0, 12).map(([title, text]) => h("div", {}, h("dt", {}, title), h("dd", {}, sentence(text)))))) : null,
    state.agent.bgp ? h("section", { class: "panel" }, h("h3", {}, h("a", { href: "#/peers", "data-key": "peers" }, "Peers")),
      state.peers.length ? table(state.peers.slice(0, 12), "BGP peers of this node") : empty("No peer is configured", "Add peers to a Network of mode BGP, in bgpPeers."),
      state.peers.length + state.more > 12 ? h("p", {}, h("a", { href: "#/peers" }, `All ${number(state.peers.length + state.more)} peers →`)) : null) : null,
    h("div", { class: "columns wide" },
      h("section", { class: "panel" }, h("h3", {}, "Networks"), networks(state.agent)),
      events.panel("Last events", () => true, 8)));
}
