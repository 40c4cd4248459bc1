// The agent's documents as they come. Who is interested is told of each, and of losing and finding the agent.

import { useClock } from "./dom.js";

// The agent gives a sign of life every 15 s.
const SILENCE = 40_000;
const AGAIN = 3_000;

export const live = { document: null, heard: null, skew: 0, lost: null, why: "" };
const listeners = new Set();
let source = null;
let watchdog = 0;
let retry = 0;

useClock(() => Date.now() + live.skew);
export const now = () => Date.now() + live.skew;
export function listen(listener) { listeners.add(listener); }
const tell = () => listeners.forEach((listener) => listener());

function heard(nodeTime) {
  live.heard = Date.now();
  live.skew = nodeTime - live.heard;
  live.lost = null;
  clearTimeout(watchdog);
  watchdog = setTimeout(() => gone("It has not been heard for 40 s."), SILENCE);
}

function gone(why) {
  source?.close();
  source = null;
  clearTimeout(watchdog);
  clearTimeout(retry);
  live.lost ??= live.heard ?? Date.now();
  live.why = why;
  retry = setTimeout(connect, AGAIN);
  tell();
}

// An EventSource does not say why it was turned away.
async function reason() {
  try {
    const answer = await fetch("/page/live", { method: "HEAD" });
    if (answer.status === 503) return "As many pages are open at it as it serves.";
    if (answer.status === 403) return "It shows the page to its own host only.";
    return answer.ok ? "The connection was cut." : `It answers ${answer.status}.`;
  } catch {
    return "It does not answer.";
  }
}

export function connect() {
  source = new EventSource("/page/live");
  const mine = source;
  source.addEventListener("state", (event) => {
    live.document = JSON.parse(event.data);
    heard(live.document.now);
    tell();
  });
  source.addEventListener("tick", (event) => {
    const wasLost = live.lost !== null;
    heard(Number(event.data));
    if (wasLost) tell();
  });
  source.addEventListener("error", async () => {
    mine.close();
    const why = await reason();
    if (source === mine) gone(why);
  });
}

export const reconnect = () => { clearTimeout(retry); connect(); };
