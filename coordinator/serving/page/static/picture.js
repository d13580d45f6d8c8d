// The picture that is tried: the plan's tiles and what was found, over it.

import { byId, element, svg, tint } from "./dom.js";

const HUES = 0.618034;

// Where the model's input lies in the picture, in the picture's pixels.
function placement(plan, width, height) {
  const model = plan.input;
  if (plan.resize === "letterbox") {
    const scale = Math.min(model.width / width, model.height / height);
    const left = (model.width - width * scale) / 2;
    const top = (model.height - height * scale) / 2;
    return { scaleX: 1 / scale, scaleY: 1 / scale, left: -left / scale, top: -top / scale };
  }
  if (plan.resize === "centre-crop") {
    const scale = plan.resize_shorter / Math.min(width, height);
    const left = (width * scale - model.width) / 2;
    const top = (height * scale - model.height) / 2;
    return { scaleX: 1 / scale, scaleY: 1 / scale, left: left / scale, top: top / scale };
  }
  return { scaleX: width / model.width, scaleY: height / model.height, left: 0, top: 0 };
}

export function drawOverlay(plan, answer, names) {
  const image = byId("picture");
  const overlay = byId("overlay");
  const width = image.naturalWidth;
  const height = image.naturalHeight;
  overlay.replaceChildren();
  if (!width) return;
  overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
  // A pixel of the screen: letters and lines keep their size on every one.
  const unit = width / (image.clientWidth || width);
  if (plan && byId("show-tiles").checked) tiles(overlay, plan, width, height, unit, names);
  if (answer && byId("show-found").checked) found(overlay, answer.predictions, unit);
}

function tiles(overlay, plan, width, height, unit, names) {
  const at = placement(plan, width, height);
  // What a tile has of the picture: a letterbox's margins are no part of it.
  const box = ([x, y, w, h], inset) => {
    const left = Math.max(0, x * at.scaleX + at.left) + inset;
    const top = Math.max(0, y * at.scaleY + at.top) + inset;
    const right = Math.min(width, (x + w) * at.scaleX + at.left) - inset;
    const bottom = Math.min(height, (y + h) * at.scaleY + at.top) - inset;
    return { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
  };
  for (const tile of plan.tiles) {
    const colour = tint(tile.device);
    const halo = { fill: "none", stroke: colour, "stroke-width": unit, "stroke-dasharray": `${4 * unit} ${3 * unit}` };
    overlay.append(svg("rect", { ...box(tile.read, unit), ...halo, class: "halo" }));
  }
  const area = ({ own: [, , w, h] }) => w * h;
  // A device may compute its part in several tasks: its largest tile bears the name.
  const largest = new Map([...plan.tiles].sort((a, b) => area(a) - area(b)).map((tile) => [tile.device, tile]));
  const named = [];
  for (const tile of plan.tiles) {
    const colour = tint(tile.device);
    const own = box(tile.own, 1.5 * unit);
    if (!own.width || !own.height) continue;
    overlay.append(svg("rect", { ...own, fill: colour, stroke: colour, "stroke-width": 2.5 * unit, class: "tile" }));
    if (largest.get(tile.device) === tile) named.push([names.get(tile.device) ?? tile.device, own, colour]);
  }
  // Where tiles are smaller than their names, a name that would cover another one is left out.
  const placed = [];
  for (const [name, own, colour] of named) {
    const where = tagBox(name, own.x + own.width, own.y + own.height, unit, true);
    if (placed.some((each) => overlap(each, where))) continue;
    placed.push(where);
    tag(overlay, name, where, colour, "#fff", unit);
  }
}

function overlap(one, other) {
  const along = (start, size) => one[start] < other[start] + other[size] && other[start] < one[start] + one[size];
  return along("x", "width") && along("y", "height");
}

function found(overlay, predictions, unit) {
  for (const each of [...predictions].reverse().filter((one) => one.box)) {
    const [left, top, right, bottom] = each.box;
    const colour = hue(each.index);
    const shape = { x: left, y: top, width: right - left, height: bottom - top, fill: "none", rx: unit };
    overlay.append(svg("rect", { ...shape, stroke: "#000", "stroke-opacity": 0.55, "stroke-width": 4 * unit }));
    overlay.append(svg("rect", { ...shape, stroke: colour, "stroke-width": 2 * unit, class: "found" }));
    const said = `${each.label} ${Math.round((each.score ?? each.share) * 100)}`;
    tag(overlay, said, tagBox(said, left, top, unit, false), colour, "#000", unit);
  }
}

// Where a label is: at its lower right corner inside, or above its upper left one.
function tagBox(text, x, y, unit, inside) {
  const size = 12 * unit;
  const width = (text.length * 0.6 + 0.7) * size;
  const height = size * 1.35;
  return { x: inside ? x - width : x, y: inside ? y - height : Math.max(0, y - height), width, height };
}

function tag(overlay, text, where, fill, ink, unit) {
  const size = 12 * unit;
  overlay.append(svg("rect", { ...where, fill, rx: 2 * unit }));
  const label = svg("text", { x: where.x + 0.35 * size, y: where.y + size }, text);
  label.style.fontSize = `${size}px`;
  label.style.fill = ink;
  overlay.append(label);
}

function hue(index) {
  return `hsl(${((index * HUES) % 1) * 360} 90% 66%)`;
}

export function listFound(predictions) {
  const body = byId("found");
  const named = predictions.filter((each) => each.label !== undefined);
  body.replaceChildren(...named.slice(0, 100).map((each) => {
    const row = element("tr");
    const where = each.box ? each.box.map((edge) => Math.round(edge)).join(", ") : "the whole picture";
    row.append(element("td", "", each.label), element("td", "", `${((each.score ?? each.share) * 100).toFixed(1)} %`), element("td", "", where));
    return row;
  }));
  byId("listed").hidden = !named.length;
  byId("listed-title").textContent = `Predictions (${named.length})`;
}
