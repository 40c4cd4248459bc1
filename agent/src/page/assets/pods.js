// The pods of this node. Each new document triggers a new request of the list.

import { ask, empty, h, mono, number, pill, plural, swap } from "./dom.js";

let parts = null;
let found = null;
let busy = false;
let again = false;

export function show(main, parameters, fresh) {
  if (!fresh) return;
  const q = h("input", { id: "q", type: "search", class: "mono", placeholder: "name, network, address", autocomplete: "off", spellcheck: "false", oninput: draw });
  const summary = h("p", { class: "muted", role: "status" });
  const list = h("div", {});
  parts = { q, summary, list };
  q.value = parameters.get("q") ?? "";
  swap(main, h("div", { class: "head" }, h("h2", {}, "Pods"), summary),
    h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, h("div", { class: "field grow" }, h("label", { for: "q" }, "Filter pods"), q)), list);
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
    found = await ask("/page/pods");
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

const KINDS = { attached: "up", attaching: "warn", broken: "down", unrecorded: "warn" };
const MEANT = { broken: "Its link is gone; its addresses stay allocated until its DEL.", unrecorded: "It is in the kernel without a record: the store was lost." };

function draw() {
  if (found.error) {
    parts.summary.textContent = "";
    swap(parts.list, h("p", { class: "problem", role: "alert" }, found.error.message));
    return;
  }
  const words = parts.q.value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (pod) => [pod.namespace, pod.name, pod.network, pod.state, pod.containerId, pod.mac, pod.hostIfname, ...pod.addresses].join(" ").toLowerCase();
  const pods = found.pods.filter((pod) => words.every((word) => text(pod).includes(word)));
  parts.summary.textContent = words.length ? `${number(pods.length)} of ${plural(found.count, "pod")}` : plural(found.count, "pod");
  if (!found.count) return swap(parts.list, empty("No pod is attached", "A pod appears here when the container runtime calls the plugin for it."));
  if (!pods.length) return swap(parts.list, empty("Nothing found", "No pod matches all words."));
  const row = (pod) => h("tr", { class: pod.state === "broken" ? "is-down" : "" },
    h("th", { scope: "row" }, pod.name ? [pod.namespace ? h("span", { class: "muted" }, `${pod.namespace}/`) : "", pod.name] : mono(pod.containerId.slice(0, 13))),
    h("td", { "data-label": "State" }, h("span", { title: MEANT[pod.state] }, pill(KINDS[pod.state] ?? "off", pod.state))),
    h("td", { "data-label": "Addresses" }, h("div", { class: "stack" }, pod.addresses.map((address) => h("a", { class: "mono", href: `#/routes?${new URLSearchParams({ q: address, why: `${address}/${address.includes(":") ? 128 : 32}` })}`, title: "Its route and advertisement" }, address)))),
    h("td", { "data-label": "Network" }, pod.network || h("span", { class: "muted" }, "–")),
    h("td", { "data-label": "Host interface", class: "mono small" }, pod.hostIfname),
    h("td", { "data-label": "MAC", class: "mono small" }, pod.mac));
  swap(parts.list, h("section", { class: "panel" }, h("table", { class: "cards" }, h("caption", { class: "hidden" }, "Pods of this node"),
    h("thead", {}, h("tr", {}, ["Pod", "State", "Addresses", "Network", "Host interface", "MAC"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, pods.slice(0, 500).map(row)))), pods.length > 500 ? h("p", { class: "muted" }, `${number(pods.length - 500)} more: add words to the filter.`) : null);
}
