// Requests, errors and latencies of the last day, in columns of ten minutes.

import { byId, milliseconds, setText, svg } from "./dom.js";

const HEIGHT = 128;
const BASE = HEIGHT - 16;
const TOP = 14;
const REFRESH_MS = 60_000;
let columns = [];

export async function watchDay() {
  await refresh();
  setInterval(refresh, REFRESH_MS);
  addEventListener("resize", draw);
}

async function refresh() {
  try {
    const response = await fetch("page/day");
    if (response.ok) columns = (await response.json()).columns;
  } catch {
    return; // the connection is lost: the page says so, and what was drawn stays
  }
  draw();
}

function draw() {
  const sum = (key) => columns.reduce((total, each) => total + each[key], 0);
  const [answers, errors] = [sum("answered"), sum("failed")];
  const slowest = Math.max(0, ...columns.map((each) => each.slowest_ms ?? 0));
  setText("day-answers", String(answers));
  setText("day-errors", String(errors));
  setText("day-slowest", answers ? milliseconds(slowest) : "–");
  const chart = byId("day-chart");
  chart.setAttribute("aria-label", `${answers} answers and ${errors} errors in the last day`);
  const width = Math.max(240, chart.clientWidth);
  const wide = width / Math.max(1, columns.length);
  const most = Math.max(4, ...columns.map((each) => each.answered + each.failed));
  const longest = Math.max(1, ...columns.map((each) => each.median_ms ?? 0));
  const tall = (count) => (count / most) * (BASE - TOP);
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.replaceChildren(svg("line", { class: "axis", x1: 0, x2: width, y1: BASE, y2: BASE }));
  let line = "";
  columns.forEach((each, index) => {
    const x = index * wide;
    const [good, bad] = [tall(each.answered), tall(each.failed)];
    if (good) chart.append(svg("rect", { class: "answered faint", x, y: BASE - good, width: wide, height: good }));
    if (bad) chart.append(svg("rect", { class: "failed", x, y: BASE - good - bad, width: wide, height: bad }));
    if (each.median_ms === null) return;
    const y = BASE - (each.median_ms / longest) * (BASE - TOP);
    // A line only where columns adjoin; a dot's length where one stands alone.
    line += `${columns[index - 1]?.median_ms == null ? "M" : "L"}${x + wide / 2} ${y}h.01`;
  });
  chart.append(svg("path", { class: "median", d: line }));
  if (answers) chart.append(svg("text", { class: "dim", x: 0, y: 10 }, `median, up to ${milliseconds(longest)}`));
  hours(chart, wide);
}

function hours(chart, wide) {
  columns.forEach((each, index) => {
    const at = new Date(each.from * 1000);
    if (at.getMinutes() !== 0 || at.getHours() % 6 !== 0) return;
    const x = index * wide;
    chart.append(svg("line", { class: "axis", x1: x, x2: x, y1: BASE, y2: BASE + 3 }));
    chart.append(svg("text", { class: "dim", x, y: HEIGHT - 2, "text-anchor": x < 20 ? "start" : "middle" }, `${at.getHours()}:00`));
  });
}
