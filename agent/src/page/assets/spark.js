// Draws a peer's last hour: prefixes as a line with its area, the session's state as a band below, one cell per minute.

import { number, s } from "./dom.js";

const WORDS = { u: "up", d: "down", m: "lost and regained", "-": "unknown" };
const KINDS = { u: "up", d: "down", m: "mixed", "-": "unknown" };

// Runs of equal letters: [letter, first, count].
function stretches(state) {
  const found = [];
  [...state].forEach((letter, minute) => {
    const last = found.at(-1);
    if (last?.[0] === letter) last[2] += 1;
    else found.push([letter, minute, 1]);
  });
  return found;
}

export function inWords(trend) {
  const parts = stretches(trend.state).filter(([letter]) => letter !== "-").map(([letter, , count]) => `${WORDS[letter]} ${count} min`);
  const most = Math.max(...trend.prefixes);
  return parts.length ? `Last hour: ${parts.join(", ")}; at most ${number(most)} prefixes` : "Last hour: unknown";
}

export function spark(trend, { width = 240, height = 40, large = false } = {}) {
  const band = large ? 10 : 6;
  const chart = height - band - 3;
  const minutes = trend.state.length;
  const step = width / minutes;
  const most = Math.max(1, ...trend.prefixes);
  const y = (value) => chart - (value / most) * (chart - 3);
  const known = [...trend.state].findIndex((letter) => letter !== "-");
  const svg = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": inWords(trend) });
  if (large) {
    for (const quarter of [1, 2, 3]) {
      svg.append(s("line", { class: "grid", x1: width * quarter / 4, x2: width * quarter / 4, y1: 0, y2: chart }));
    }
  }
  if (known >= 0) {
    const points = trend.prefixes.slice(known).flatMap((value, index) => {
      const x = (known + index) * step;
      return [`${x.toFixed(1)},${y(value).toFixed(1)}`, `${(x + step).toFixed(1)},${y(value).toFixed(1)}`];
    });
    const left = (known * step).toFixed(1);
    svg.append(
      s("polygon", { class: "area", points: `${left},${chart} ${points.join(" ")} ${width},${chart}` }),
      s("polyline", { class: "line", points: points.join(" ") }),
    );
  }
  for (const [letter, first, count] of stretches(trend.state)) {
    svg.append(s("rect", { class: `band ${KINDS[letter]}`, x: first * step, y: chart + 3, width: Math.max(count * step - 0.6, 0.6), height: band, rx: large ? 2 : 1.5 }));
  }
  return svg;
}
