// The events: stored here, and shown by each panel with its own filter.

import { ask, clock, empty, h, number, peerLink, plural, swap } from "./dom.js";
import { live, now } from "./live.js";

const KEPT = 1000;
const store = { run: null, last: 0, events: [], error: null };
const panels = new Map();
let busy = false;

// "sessionDown" is "session down".
const words = (kind) => kind.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`).replace("bfd", "BFD").replace("end of rib", "End-of-RIB");

// Requests the events after the last stored one. Called with each document.
export async function follow() {
  const newest = live.document.newestEvent;
  if (busy || newest === undefined || (newest === store.last && live.document.run === store.run)) return;
  busy = true;
  try {
    // Another run of the agent counts from 1 again.
    const after = live.document.run === store.run ? store.last : 0;
    const found = await ask("/page/events", { after });
    if (found.run !== store.run || !after) store.events = [];
    store.run = found.run;
    store.events = store.events.concat(found.events).slice(-KEPT);
    store.last = store.events.at(-1)?.number ?? newest;
    store.error = null;
  } catch (error) {
    store.error = error.message;
  }
  busy = false;
  for (const [element, draw] of panels) {
    if (element.isConnected) draw();
    else panels.delete(element);
  }
}

function item(event) {
  const at = Date.parse(event.at);
  // Do not repeat the prefix of a text that begins with it.
  const text = event.prefix ? event.text.replace(new RegExp(`^${event.prefix.replaceAll(".", "\\.")}:? `), "") : event.text;
  return h("li", { class: `event ${event.severity}` },
    h("time", { class: "mono small", datetime: event.at }, clock(at, now())),
    h("span", { class: "kind" }, words(event.kind)),
    h("span", { class: "text" }, event.peer ? [h("a", { class: "mono", href: peerLink(event.peer) }, event.peer), " "] : "",
      event.prefix ? [h("a", { class: "mono", href: `#/routes?${new URLSearchParams({ q: event.prefix, why: event.prefix })}` }, event.prefix), " "] : "", text));
}

// A panel with the newest events that match, newest first.
export function panel(title, wanted, limit = 20) {
  const list = h("div", {});
  const draw = () => {
    const events = store.events.filter(wanted).slice(-limit).reverse();
    swap(list, store.error ? h("p", { class: "problem" }, store.error) : events.length ? h("ol", { class: "events" }, events.map(item)) : h("p", { class: "muted" }, "No events."));
  };
  draw();
  const section = h("section", { class: "panel" }, h("h3", {}, title), list);
  panels.set(section, draw);
  return section;
}

// ---- the view

export function show(main, parameters, fresh) {
  if (!fresh) return;
  const q = h("input", { id: "q", type: "search", placeholder: "peer, prefix, word", autocomplete: "off", spellcheck: "false" });
  const grave = h("input", { type: "checkbox" });
  const summary = h("p", { class: "muted", role: "status" });
  const list = h("section", { class: "panel" });
  const draw = () => {
    const wanted = q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (event) => [words(event.kind), event.peer ?? "", event.prefix ?? "", event.text].join(" ").toLowerCase();
    const events = store.events.filter((event) => (!grave.checked || event.severity !== "info") && wanted.every((word) => text(event).includes(word)));
    summary.textContent = events.length === store.events.length ? plural(events.length, "event") : `${number(events.length)} of ${plural(store.events.length, "event")}`;
    swap(list, store.error ? h("p", { class: "problem", role: "alert" }, store.error)
      : events.length ? h("ol", { class: "events" }, events.toReversed().map(item))
        : store.events.length ? empty("Nothing found", "No event matches all words.") : empty("No events", "Sessions, routes and operators' commands appear here: the last 1,000 events."));
  };
  q.addEventListener("input", draw);
  grave.addEventListener("change", draw);
  swap(main, h("div", { class: "head" }, h("h2", {}, "Events"), summary),
    h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, h("div", { class: "field grow" }, h("label", { for: "q" }, "Filter events"), q), h("label", { class: "check" }, grave, " warnings only")), list);
  panels.set(list, draw);
  draw();
}

export function update() {
  // follow() adds new events.
}
