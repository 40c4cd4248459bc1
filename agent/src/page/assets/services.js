// The service addresses of this node, with the reason if one is withheld, the service proxy, and anycast addresses. Each new
// document triggers a new request of the list.

import { ask, empty, facts, h, number, pill, plural, since, swap } from "./dom.js";
import { live } from "./live.js";

let parts = null;
let found = null;
let busy = false;
let again = false;

export function show(main, parameters, fresh) {
  if (!fresh) return;
  const q = h("input", { id: "q", type: "search", class: "mono", placeholder: "name, address, pool, state, reason", autocomplete: "off", spellcheck: "false", oninput: draw });
  const summary = h("p", { class: "muted", role: "status" });
  const list = h("div", { class: "services" });
  parts = { q, summary, list };
  q.value = parameters.get("q") ?? "";
  swap(main, h("div", { class: "head" }, h("h2", {}, "Services"), summary),
    h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, h("div", { class: "field grow" }, h("label", { for: "q" }, "Filter addresses"), q)), list);
  found = null;
  update();
}

export async function update() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    found = await ask("/page/services");
  } catch (error) {
    found = { error };
  }
  busy = false;
  draw();
  if (again) {
    again = false;
    update();
  }
}

const STATES = { advertised: ["up", "advertised"], retained: ["up", "retained"], shuttingDown: ["warn", "shutting down"], withheld: ["off", "withheld"] };
// With these reasons the node itself needs attention. With the others another node advertises the address, or none should.
const FAULTS = new Set(["noRules", "rulesBlock", "rulesLag", "proxyDown", "noHostRoute", "noBgp", "noVlan", "unhealthy", "notKnown"]);
const PROXY = {
  up: ["up", "healthy"],
  away: ["down", "no answer"],
  unhealthy: ["down", "unhealthy"],
  notEligible: ["warn", "node not eligible"],
  notChecked: ["off", "not checked"],
};
const RULES = { nftables: "mode nftables", iptables: "mode iptables", notVisible: "not visible to the agent", absent: "none" };

function state(row) {
  const [kind, text] = STATES[row.state] ?? ["off", row.state];
  return pill(row.state === "withheld" && FAULTS.has(row.reason) ? "warn" : kind, text);
}

// The text of the agent without the state, which has its own column.
const reason = ({ text }) => (text === "advertised" ? "" : text.replace(/^(withheld: |advertised; )/, ""));
const host = (address) => `${address}/${address.includes(":") ? 128 : 32}`;
const route = (address, prefix = host(address)) => h("a", { class: "mono", href: `#/routes?${new URLSearchParams({ q: address, why: prefix })}`, title: "Its route and advertisement" }, prefix === host(address) ? address : prefix);
const age = (row, at) => since(at - row.sinceSeconds * 1000, "in this state since");

// "by ServiceAdvertisement edge to 10.0.0.1"
function advertised({ prefix, advertisements, peers, linkBandwidth }) {
  const by = advertisements.length ? `by ServiceAdvertisement ${advertisements.join(", ")}` : "by default";
  const to = peers ? `to ${peers.join(", ") || "no peer"}` : "to all peers";
  const weight = linkBandwidth ? `, link bandwidth ${number(Math.round(linkBandwidth * 8 / 1e6) / 1e3)} Gbit/s` : "";
  return h("span", { class: "small muted" }, route(prefix.split("/")[0], prefix), ` ${by} ${to}${weight}`);
}

function proxy(row) {
  const [kind, text] = PROXY[row.state] ?? ["off", "no answer yet"];
  return h("section", { class: "panel" }, h("h3", {}, "Service proxy"), facts(
    ["Health", pill(kind, text)],
    ["Rules", row.rules ? RULES[row.rules] ?? row.rules : "not known yet"],
    ["Delay", row.late ? h("span", { class: "warn-text" }, "the rules are later than the endpoints") : null]));
}

function addresses(rows, at) {
  const row = (one) => h("tr", {},
    h("th", { scope: "row" }, h("span", { class: "muted" }, `${one.namespace}/`), one.name),
    h("td", { "data-label": "Address" }, h("div", { class: "stack" }, route(one.address), h("span", { class: "small muted" }, one.pool ? `${one.kind} of ${one.pool}` : one.kind))),
    h("td", { "data-label": "Policy" }, one.policy),
    h("td", { "data-label": "Endpoints", class: "figure", title: `${plural(one.localReady, "ready endpoint")} on this node, ${number(one.ready)} on all nodes` }, `${number(one.localReady)}/${number(one.ready)}`),
    h("td", { "data-label": "State" }, h("div", { class: "stack" }, state(one), age(one, at))),
    h("td", { "data-label": "Reason", class: "wrap" }, h("div", { class: "stack" }, reason(one) ? h("span", { class: "wrap" }, reason(one)) : null, one.prefixes.map(advertised))));
  return h("section", { class: "panel" }, h("table", { class: "cards" }, h("caption", { class: "hidden" }, "Service addresses of this node"),
    h("thead", {}, h("tr", {}, ["Service", "Address", "Policy", "Endpoints", "State", "Reason and prefixes"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(row))));
}

function anycast(objects, at) {
  const health = (one) => (one.healthy === true ? pill("up", "passes") : one.healthy === false ? pill("down", "fails") : pill("off", "no result yet"));
  const row = (object) => (object.refused ? [h("tr", { class: "is-down" }, h("th", { scope: "row" }, object.name),
    h("td", { "data-label": "State" }, pill("down", "not in force")), h("td", {}), h("td", {}), h("td", { "data-label": "Reason", class: "wrap" }, object.refused))]
    : object.addresses.map((one) => h("tr", { class: one.healthy === false ? "is-down" : "" },
      h("th", { scope: "row" }, object.name),
      h("td", { "data-label": "State" }, h("div", { class: "stack" }, state(one), age(one, at))),
      h("td", { "data-label": "Address" }, route(one.address)),
      h("td", { "data-label": "Check" }, health(one)),
      h("td", { "data-label": "Reason", class: "wrap" }, h("div", { class: "stack" }, [reason(one), one.check].filter(Boolean).map((text) => h("span", { class: "wrap" }, text)))))));
  return h("section", { class: "panel" }, h("h3", {}, "Anycast addresses"), h("table", { class: "cards" }, h("caption", { class: "hidden" }, "Anycast addresses of this node"),
    h("thead", {}, h("tr", {}, ["Object", "State", "Address", "Check", "Reason"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, objects.flatMap(row))));
}

function draw() {
  if (!found) return;
  if (found.error) {
    parts.summary.textContent = "";
    swap(parts.list, h("p", { class: "problem", role: "alert" }, found.error.message));
    return;
  }
  const objects = live.document?.agent?.anycast ?? [];
  const words = parts.q.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (texts) => words.every((word) => texts.join(" ").toLowerCase().includes(word));
  const rows = found.services.filter((one) => matches([one.namespace, one.name, `${one.namespace}/${one.name}`, one.address, one.kind, one.pool ?? "", one.policy, STATES[one.state]?.[1] ?? one.state, one.text]));
  const chosen = objects.filter((object) => matches([object.name, object.refused ?? "", ...object.addresses.flatMap((one) => [one.address, one.state, one.text, one.check])]));
  const up = found.services.filter((one) => one.state !== "withheld").length;
  const shown = found.services.length < found.count ? ` of the first ${number(found.services.length)}` : "";
  parts.summary.textContent = found.available ? `${plural(found.count, "address", "addresses")}, ${number(up)}${shown} advertised by this node` : "";
  const sections = [];
  if (found.proxy && found.count) sections.push(proxy(found.proxy));
  if (!found.available) sections.push(empty("No addresses of Services", "This node advertises none: that needs services.enabled and source: kube in agent.yaml."));
  else if (!found.count) sections.push(empty("No service address", found.known ? "A Service has one when it has an address of a ServicePool. See docs/services.md." : "The API server has not sent all Services yet."));
  else if (!rows.length && !chosen.length) sections.push(empty("Nothing found", "No address matches all words."));
  if (rows.length) sections.push(addresses(rows.slice(0, 500), found.at));
  if (rows.length > 500) sections.push(h("p", { class: "muted" }, `${number(rows.length - 500)} more: add words to the filter.`));
  if (chosen.length) sections.push(anycast(chosen, live.document.now));
  swap(parts.list, sections);
}
