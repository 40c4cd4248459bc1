// Elements and texts. Text from the agent, and so perhaps from a peer, becomes a text node: nothing here interprets HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Replaces the children of an element. The keyboard focus stays on an element with a data-key.
export function swap(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren();
  append(element, children);
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export const number = (value) => Number(value).toLocaleString("en-US");
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// "3 min 12 s": two units at most.
export function duration(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [size, unit] = parts[first];
  const rest = seconds % size;
  const [next, nextUnit] = parts[first + 1] ?? [];
  const more = next && Math.floor(rest / next) ? ` ${Math.floor(rest / next)} ${nextUnit}` : "";
  return `${Math.floor(seconds / size)} ${unit}${more}`;
}

// "03:12:45", with the date if that is not today.
export function clock(at, now = Date.now()) {
  const [when, today] = [new Date(at), new Date(now)];
  const time = when.toLocaleTimeString("en-GB");
  return when.toDateString() === today.toDateString() ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

// A growing duration: `age` updates the page's durations between two documents. All times are the node's.
let nodeNow = () => Date.now();
export const useClock = (now) => { nodeNow = now; };
export function since(at, title = "since") {
  return h("time", { datetime: new Date(at).toISOString(), title: `${title} ${clock(at)}`, "data-at": at }, duration(nodeNow() - at));
}
export function age() {
  for (const element of document.querySelectorAll("time[data-at]")) {
    element.textContent = duration(nodeNow() - Number(element.dataset.at));
  }
}

export const pill = (kind, text) => h("span", { class: `pill ${kind}` }, text);
export const mono = (text, attributes) => h("span", { class: "mono", ...attributes }, text);
export const facts = (...rows) => h("dl", { class: "facts" },
  rows.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
export const empty = (title, ...words) => h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), words.length ? h("p", {}, words) : null);

// Sends a request to the agent. Throws an Error with a message for the user.
export async function ask(path, parameters = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The agent does not answer.");
  }
  const text = await answer.text();
  let read = null;
  try { read = JSON.parse(text); } catch { /* Not everything is JSON. */ }
  if (answer.ok && read !== null) return read;
  const words = read?.error ?? text.trim();
  throw new Error(answer.status === 503 && words.startsWith("too many") ? "The agent is busy with other requests. Try again in a moment." : sentence(words));
}

export const sentence = (words) => {
  const text = String(words).trim();
  return text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "The agent gave no reason.";
};

// The address of a peer's view.
export const peerLink = (peer) => `#/peers?name=${encodeURIComponent(peer)}`;
