// The selected view and the header: the node's name, the state of the connection, the number of peers that are down.

import { age, clock, duration, h, plural, swap } from "./dom.js";
import { connect, listen, live, reconnect } from "./live.js";
import * as events from "./events.js";
import * as overview from "./overview.js";
import * as peers from "./peers.js";
import * as pods from "./pods.js";
import * as routes from "./routes.js";
import * as services from "./services.js";

// A view has show(main, parameters), which draws the whole view, and update(), which is called with each document.
const views = { "": overview, peers, routes, pods, services, events };
const main = document.getElementById("main");
let shown = null;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [path in views ? path : "", new URLSearchParams(query)];
}

function route() {
  const [name, parameters] = place();
  const view = views[name];
  for (const tab of document.querySelectorAll(".tabs a")) {
    if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  if (!live.document) return;
  const fresh = view !== shown;
  shown = view;
  if (fresh) main.replaceChildren();
  view.show(main, parameters, fresh);
  if (fresh) scrollTo(0, 0);
}

function frame() {
  const { document: state, lost, why } = live;
  const link = document.getElementById("link");
  link.dataset.link = lost ? "lost" : state ? "live" : "waiting";
  document.getElementById("link-text").textContent = lost ? "no connection" : state ? "live" : "connecting";
  document.body.classList.toggle("is-lost", Boolean(lost && state));
  const banner = document.getElementById("lost");
  banner.hidden = !lost;
  if (lost) {
    const stale = state ? " The page shows the state of that time." : "";
    swap(banner, h("strong", {}, `No connection to the agent since ${clock(lost)}`), ` (${duration(Date.now() - lost)}). ${why} The page tries again.${stale} `,
      h("button", { type: "button", "data-key": "again", onclick: reconnect }, "Try now"));
  }
  if (!state) {
    if (!lost) main.setAttribute("aria-busy", "true");
    return;
  }
  main.removeAttribute("aria-busy");
  document.getElementById("node").textContent = state.agent?.node ?? "";
  const down = state.peers.filter((peer) => peer.state !== "Established" && !peer.shutdown).length;
  const badge = document.getElementById("peers-badge");
  badge.hidden = down === 0;
  badge.textContent = down;
  badge.setAttribute("aria-label", `${plural(down, "peer")} down`);
  const mark = lost ? "? " : down ? `▼${down} ` : "";
  document.title = `${mark}${state.agent?.node ?? "agent"} · Trunkline`;
}

listen(() => {
  frame();
  if (!live.document) return;
  events.follow();
  if (shown === null) route();
  else shown.update();
});
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const field = main.querySelector("input[type=search]");
  if (field) field.focus();
  else location.hash = "#/routes";
});
setInterval(() => {
  if (live.lost) frame();
  else age();
}, 1000);
frame();
route();
connect();
