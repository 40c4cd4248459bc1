// Routes: a search in all tables, and the explanation of one prefix.

import { ask, empty, facts, h, mono, number, peerLink, pill, plural, sentence, swap } from "./dom.js";
import { live } from "./live.js";

const FATES = [["", "All"], ["used", "In use"], ["unused", "Not used"], ["refused", "Rejected"], ["stale", "Stale"]];
const PAUSE = 250;

let parts = null;
let asking = null;
let pause = 0;
let explained = "";
let shown = "";

const address = (changes) => {
  const parameters = { ...Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? "")), ...changes };
  const left = Object.entries(parameters).filter(([, value]) => value);
  return left.length ? `#/routes?${new URLSearchParams(left)}` : "#/routes";
};

export function show(main, parameters, fresh) {
  if (fresh) build(main);
  const given = (name) => parameters.get(name) ?? "";
  choices(given("from"));
  if (document.activeElement !== parts.q) parts.q.value = given("q");
  for (const radio of parts.fates.querySelectorAll("input")) radio.checked = radio.value === given("fate");
  const wanted = JSON.stringify([given("q"), given("from"), given("fate")]);
  if (fresh || wanted !== shown) search(given("q"), given("from"), given("fate"));
  shown = wanted;
  if (given("why") !== explained || fresh) explain(given("why"));
}

export function update() {
  if (document.activeElement !== parts.from) choices(parts.from.value);
}

function build(main) {
  const q = h("input", { id: "q", type: "search", class: "mono", placeholder: "10.24.3.7   10.24.0.0/16   10.24   AS65001   65000:100", autocomplete: "off", spellcheck: "false", autocapitalize: "off", maxlength: 200, "aria-describedby": "q-help", oninput: later });
  const from = h("select", { id: "from", onchange: (event) => go({ from: event.target.value, why: "" }) });
  const fates = h("fieldset", { class: "segments" }, h("legend", { class: "hidden" }, "Status of the paths"),
    FATES.map(([value, text]) => h("label", {}, h("input", { type: "radio", name: "fate", value, onchange: () => go({ fate: value, why: "" }) }), h("span", {}, text))));
  const summary = h("p", { class: "summary muted", role: "status" });
  const results = h("div", { class: "results" });
  const why = h("aside", { class: "explanation", "aria-label": "Explanation", "aria-live": "polite" });
  parts = { q, from, fates, summary, results, why };
  swap(main, h("h2", { class: "hidden" }, "Routes"),
    h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); clearTimeout(pause); go({ q: q.value.trim(), why: "" }); } },
      h("div", { class: "field grow" }, h("label", { for: "q" }, "Search routes"), q, h("p", { id: "q-help", class: "small muted" }, "An address finds the prefixes that contain it; a prefix also finds the prefixes inside it. All words must match. Key: ", h("kbd", {}, "/"))),
      h("div", { class: "field" }, h("label", { for: "from" }, "Received from"), from), fates),
    summary, h("div", { class: "split" }, results, why));
}

function choices(chosen) {
  const names = live.document.peers.map((peer) => peer.name);
  const known = ["", "own", ...names];
  if (!known.includes(chosen)) known.push(chosen);
  const words = { "": "any", own: "this node" };
  swap(parts.from, known.map((name) => h("option", { value: name, selected: name === chosen }, words[name] ?? name)));
  parts.from.value = chosen;
}

function go(changes) {
  const next = address(changes);
  if (next !== location.hash) location.hash = next;
}

function later() {
  clearTimeout(pause);
  pause = setTimeout(() => {
    // Typing replaces the history entry: the back button does not undo single letters.
    history.replaceState(null, "", address({ q: parts.q.value.trim(), why: "" }));
    dispatchEvent(new HashChangeEvent("hashchange"));
  }, PAUSE);
}

async function search(q, from, fate) {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  parts.results.setAttribute("aria-busy", "true");
  try {
    const found = await ask("/page/routes", { q, from, fate }, signal);
    parts.results.removeAttribute("aria-busy");
    listed(found);
  } catch (error) {
    if (error.name === "AbortError") return;
    parts.results.removeAttribute("aria-busy");
    parts.summary.textContent = "";
    swap(parts.results, h("p", { class: "problem", role: "alert" }, error.message));
  }
}

function fate(route) {
  if (route.filtered) return pill("down", "rejected");
  if (route.stale) return pill("warn", "stale");
  return route.best ? pill("up", "in use") : pill("off", "not used");
}

function listed(found) {
  const all = found.complete ? "" : ` The search ended after ${number(found.lookedAt)} of ${number(found.prefixes)} prefixes.`;
  parts.summary.textContent = (found.matched > found.shown ? `First ${number(found.shown)} of ${number(found.matched)} prefixes.` : `${plural(found.matched, "prefix", "prefixes")}.`) + all;
  if (!found.routes.length) {
    swap(parts.results, found.prefixes ? empty("Nothing found", "No path matches all words. ", `The tables have ${plural(found.prefixes, "prefix", "prefixes")}.`) : empty("The tables are empty", "No peer has advertised a path yet, and this node originates none."));
    return;
  }
  const row = (route, index, routes) => {
    const again = index > 0 && routes[index - 1].prefix === route.prefix;
    const to = address({ why: route.prefix });
    return h("tr", { class: route.prefix === explained ? "is-chosen" : "", "data-prefix": route.prefix },
      h("th", { scope: "row", class: again ? "again" : "" }, h("a", { class: "mono", href: to, "data-key": `route ${index}`, "aria-label": `${route.prefix}: explain` }, route.prefix)),
      h("td", { "data-label": "Status" }, fate(route)),
      h("td", { "data-label": "Next hop", class: "mono" }, route.nextHop ?? h("span", { class: "muted" }, "this node")),
      h("td", { "data-label": "Received from", class: "mono" }, route.peer ?? h("span", { class: "muted" }, "this node")),
      h("td", { "data-label": "AS path", class: "mono wrap" }, route.asPath || h("span", { class: "muted" }, "–")),
      h("td", { "data-label": "Communities", class: "mono small wrap" }, route.communities.join(" ") || h("span", { class: "muted" }, "–")));
  };
  swap(parts.results, h("section", { class: "panel" }, h("table", { class: "cards" }, h("caption", { class: "hidden" }, "Found paths"),
    h("thead", {}, h("tr", {}, ["Prefix", "Status", "Next hop", "Received from", "AS path", "Communities"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, found.routes.map(row)))));
}

// ---- the explanation of a prefix

async function explain(prefix) {
  explained = prefix;
  for (const row of parts.results.querySelectorAll("tr[data-prefix]")) row.classList.toggle("is-chosen", row.dataset.prefix === prefix);
  parts.why.hidden = !prefix;
  if (!prefix) return swap(parts.why);
  const head = h("div", { class: "head" }, h("h3", {}, "Explanation of ", mono(prefix)), h("a", { class: "close", href: address({ why: "" }), "aria-label": "Close the explanation" }, "✕"));
  swap(parts.why, head, h("p", { class: "muted" }, "…"));
  let body;
  try {
    body = explanation(await ask("/page/explain", { prefix }));
  } catch (error) {
    body = h("p", { class: "problem" }, error.message);
  }
  if (explained !== prefix) return;
  swap(parts.why, head, body);
  if (matchMedia("(max-width: 60rem)").matches) parts.why.scrollIntoView({ block: "start" });
}

const STANDINGS = { best: ["up", "best"], used: ["up", "multipath"], lost: ["off", "not used"], refused: ["down", "rejected"], waiting: ["warn", "waiting"] };
const ADVERTISEMENTS = { advertised: ["up", "advertised"], pending: ["warn", "pending"], withheld: ["off", "not advertised"], withdrawing: ["warn", "withdrawing"] };

const BASES = { advertised: "These peers advertise a default route.", configured: "No peer advertises a default route: all established peers are used.", retained: "These are the next hops from before the agent's restart, until the peers have sent their routes." };

// Without `import`, packets follow the default route to the peers, whatever the best path is.
function nextHops(way) {
  const hops = way.installed.map((hop, index) => [index ? ", " : "", mono(hop)]);
  return [hops.length ? ["Next hops of pods' packets: ", hops, ". "] : "The kernel has no next hop for pods' packets. ", BASES[way.basis] ?? "",
    way.leftOut.map(({ peer, reason }) => [" Left out: ", h("a", { class: "mono", href: peerLink(peer) }, peer), `: it ${reason}.`])];
}

function outcome(why) {
  if (why.wayOut && why.wayOut.basis !== "imported") return nextHops(why.wayOut);
  const used = why.paths.filter((path) => path.standing === "best" || path.standing === "used");
  if (used.length) {
    const hops = used.map((path) => path.nextHop ?? "this node itself");
    return ["Packets go to ", hops.map((hop, index) => [index ? (index === hops.length - 1 ? " and " : ", ") : "", mono(hop)]), "."];
  }
  if (why.paths.some((path) => path.standing === "waiting")) return "No selection yet: the speaker collects paths after a restart.";
  if (why.paths.length) return "No path is selected: packets do not follow this prefix.";
  return why.coveredBy ? ["No path for this prefix; ", h("a", { class: "mono", href: address({ why: why.coveredBy }) }, why.coveredBy), " contains it."] : "No path for this prefix, and no prefix contains it.";
}

const ruled = (ruling) => ruling && `${ruling.accepted ? "accepted" : "rejected"} by ${ruling.rule ? `rule ${ruling.rule}${ruling.name ? ` (${ruling.name})` : ""}` : "the policy's default"}`;

function explanation(why) {
  const path = (one) => h("li", {},
    h("p", {}, pill(...(STANDINGS[one.standing] ?? ["off", one.standing])), " ", one.peer ? ["from ", h("a", { class: "mono", href: peerLink(one.peer) }, one.peer)] : "originated here", one.stale ? [" ", pill("warn", "stale")] : ""),
    one.reason ? h("p", { class: "reason" }, sentence(one.reason)) : null,
    facts(["Next hop", mono(one.nextHop ?? "this node")], ["AS path", one.asPath && mono(one.asPath)], ["Local preference", one.localPref], ["MED", one.med], ["Origin", one.origin],
      ["Communities", one.communities.length ? mono(one.communities.join(" ")) : null], ["Path identifier", one.pathId], ["Import policy", ruled(one.import)]));
  const peer = (one) => h("li", {}, h("p", {}, pill(...(ADVERTISEMENTS[one.standing] ?? ["off", one.standing])), " ", h("a", { class: "mono", href: peerLink(one.peer) }, one.peer), one.from ? h("span", { class: "muted" }, ` the path from ${one.from}`) : null),
    one.reason ? h("p", { class: "small muted" }, sentence(one.reason)) : null);
  return [
    h("p", { class: "outcome" }, outcome(why)),
    why.paths.length ? [h("h4", {}, plural(why.paths.length, "path")), h("ol", { class: "paths" }, why.paths.map(path))] : null,
    why.peers.length ? [h("h4", {}, "Advertised to"), h("ul", { class: "paths" }, why.peers.map(peer))] : null,
  ];
}
