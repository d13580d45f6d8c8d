// Requests and errors of the last minute.

import { byId, milliseconds, setText, svg } from "./dom.js";

const HEIGHT = 104;

export function showMinute(state, model) {
  const { answered, failed, median_ms, p99_ms } = state.requests;
  const answers = answered.reduce((a, b) => a + b, 0);
  const errors = failed.reduce((a, b) => a + b, 0);
  setText("answers", String(answers));
  setText("errors", String(errors));
  setText("median", milliseconds(median_ms));
  // Of a few answers it would be the slowest one.
  setText("p99", answers < 20 ? "–" : milliseconds(p99_ms));
  setText("queue", String(state.queue));
  setText("capacity", model?.capacity_per_s ? `${model.capacity_per_s.toFixed(1)}/s` : "–");
  showFrigate(state.frigate);
  const chart = byId("chart");
  chart.setAttribute("aria-label", `${answers} answers and ${errors} errors in the last minute`);
  draw(chart, answered, failed);
}

function showFrigate(judged) {
  const note = byId("frigate");
  note.hidden = !judged;
  if (!judged) return;
  note.classList.toggle("bad", !judged.in_time);
  setText("frigate", `Frigate: ${judged.seen}, ${judged.in_time ? "in time" : `too late for its default timeout: ${judged.cure} in its detector`}`);
}

function draw(chart, answered, failed) {
  const most = Math.max(4, ...answered.map((count, index) => count + failed[index]));
  const width = Math.max(240, chart.clientWidth);
  const wide = width / answered.length;
  const tall = (count) => (count / most) * (HEIGHT - 22);
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.replaceChildren(svg("line", { class: "axis", x1: 0, x2: width, y1: HEIGHT - 14, y2: HEIGHT - 14 }));
  answered.forEach((count, index) => {
    const x = index * wide + 1;
    const base = HEIGHT - 14;
    if (count) chart.append(svg("rect", { class: "answered", x, y: base - tall(count), width: wide - 2, height: tall(count), rx: 1.5 }));
    if (failed[index]) {
      const top = base - tall(count) - tall(failed[index]);
      chart.append(svg("rect", { class: "failed", x, y: top, width: wide - 2, height: tall(failed[index]), rx: 1.5 }));
    }
  });
  chart.append(svg("text", { class: "dim", x: 0, y: HEIGHT - 3 }, "a minute ago"));
  chart.append(svg("text", { class: "dim", x: width, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
}
