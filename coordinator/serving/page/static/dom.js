// Small means of drawing: elements by id, SVG elements, colours of devices, numbers for people.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people with any kind of colour vision tell apart.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#c9b800", "#8a8a8a"];
const tints = new Map();

export const byId = (id) => document.getElementById(id);

export function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// A device keeps its colour for as long as the page is open, even while it is away.
export function tint(device) {
  if (!tints.has(device)) tints.set(device, COLOURS[tints.size % COLOURS.length]);
  return tints.get(device);
}

export function setText(id, text) {
  const found = byId(id);
  if (found.textContent !== text) found.textContent = text;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

export function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

export function rate(mbps) {
  return mbps >= 1000 ? `${(mbps / 1000).toFixed(1)} Gbit/s` : `${Math.round(mbps)} Mbit/s`;
}
