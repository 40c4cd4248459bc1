// Receives the agent's documents. Notifies listeners of each document, and when the connection is lost or restored.

import { useClock } from "./dom.js";

// The agent sends a tick every 15 s.
const SILENCE = 40_000;
const AGAIN = 3_000;

export const live = { document: null, receivedAt: null, skew: 0, lost: null, why: "" };
const listeners = new Set();
let source = null;
let watchdog = 0;
let retry = 0;

useClock(() => Date.now() + live.skew);
export const now = () => Date.now() + live.skew;
export function listen(listener) { listeners.add(listener); }
const notify = () => listeners.forEach((listener) => listener());

function received(nodeTime) {
  live.receivedAt = Date.now();
  live.skew = nodeTime - live.receivedAt;
  live.lost = null;
  clearTimeout(watchdog);
  watchdog = setTimeout(() => gone("It has sent nothing for 40 s."), SILENCE);
}

function gone(why) {
  source?.close();
  source = null;
  clearTimeout(watchdog);
  clearTimeout(retry);
  live.lost ??= live.receivedAt ?? Date.now();
  live.why = why;
  retry = setTimeout(connect, AGAIN);
  notify();
}

// An EventSource does not report why the agent refused it.
async function reason() {
  try {
    const answer = await fetch("/page/live", { method: "HEAD" });
    if (answer.status === 503) return "It serves the maximum number of pages already.";
    if (answer.status === 403) return "It serves the page to its own host only.";
    return answer.ok ? "The connection was closed." : `It answers ${answer.status}.`;
  } catch {
    return "It does not answer.";
  }
}

export function connect() {
  source = new EventSource("/page/live");
  const mine = source;
  source.addEventListener("state", (event) => {
    live.document = JSON.parse(event.data);
    received(live.document.now);
    notify();
  });
  source.addEventListener("tick", (event) => {
    const wasLost = live.lost !== null;
    received(Number(event.data));
    if (wasLost) notify();
  });
  source.addEventListener("error", async () => {
    mine.close();
    const why = await reason();
    if (source === mine) gone(why);
  });
}

export const reconnect = () => { clearTimeout(retry); connect(); };
