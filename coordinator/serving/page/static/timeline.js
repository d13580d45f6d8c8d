// The last request: a row per device, with what was on the wire, what waited and what computed.

import { byId, counted, milliseconds, setText, svg, tint } from "./dom.js";

const ROW = 28;
const TOP = 8;
const LEAST = 280;

export function showRequest(request, names) {
  const link = byId("trace");
  const failed = request.outcome !== "ok";
  byId("last-note").classList.toggle("bad", failed);
  setText("last-note", failed
    ? `${request.model}: ${request.cause}`
    : `${request.model}, ${milliseconds(request.total_ms)} in all, plan ${request.plan_version}, ${counted(request.tasks.length, "task")}`);
  link.hidden = failed;
  link.href = `v1/requests/${encodeURIComponent(request.id)}/trace`;
  link.download = `imbrex-${request.id}.json`;
  draw(request, names);
}

function draw(request, names) {
  const picture = byId("timeline");
  const name = (device) => names.get(device) ?? device;
  const used = [...new Set(request.tasks.map((task) => task.device))];
  const devices = used.sort((a, b) => name(a).localeCompare(name(b), "en", { numeric: true }));
  // One unit is one pixel: letters keep their size on every screen.
  const width = Math.max(LEAST, picture.clientWidth);
  const height = TOP + devices.length * ROW + 24;
  const left = width < 420 ? 84 : 110;
  const x = (ms) => left + (Math.max(0, Math.min(ms, request.total_ms)) / request.total_ms) * (width - left - 4);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.replaceChildren();
  picture.setAttribute("aria-label", told(request, devices, names));
  if (!devices.length) return;
  for (const share of width < 420 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const at = x(share * request.total_ms);
    picture.append(svg("line", { class: "axis", x1: at, x2: at, y1: TOP, y2: height - 20 }));
    const anchor = share === 1 ? "end" : share ? "middle" : "start";
    picture.append(svg("text", { class: "dim", x: at, y: height - 5, "text-anchor": anchor }, milliseconds(share * request.total_ms)));
  }
  devices.forEach((device, row) => {
    const y = TOP + row * ROW + 4;
    const text = name(device);
    picture.append(svg("text", { x: 0, y: y + 14 }, text.length > 13 ? `${text.slice(0, 12)}…` : text));
    for (const task of request.tasks.filter((each) => each.device === device)) bars(picture, task, x, y);
  });
}

function bars(picture, task, x, y) {
  const bar = (from, to, attributes, height = ROW - 14, down = 3) => {
    if (from === null || to === null || to <= from) return;
    picture.append(svg("rect", { x: x(from), y: y + down, width: Math.max(0.75, x(to) - x(from)), height, rx: 2, ...attributes }));
  };
  bar(task.sent, task.ready, { class: "wire" });
  bar(task.ready, task.start, { class: "wait" });
  bar(task.start, task.stop, { fill: tint(task.device) }, ROW - 8, 0);
  bar(task.stop, task.received, { class: "wire" });
}

function told(request, devices, names) {
  if (!devices.length) return "The last request failed before any device computed";
  const parts = devices.map((device) => {
    const tasks = request.tasks.filter((task) => task.device === device);
    const spent = tasks.reduce((sum, task) => sum + task.stop - task.start, 0);
    return `${names.get(device) ?? device} computed ${milliseconds(spent)}`;
  });
  return `The last request took ${milliseconds(request.total_ms)}: ${parts.join(", ")}`;
}
