// The list of devices. Elements are kept from state to state, so that focus and readers stay.

import { byId, element, rate, setText, tint } from "./dom.js";

const rows = new Map();
const states = new Map();

export function showDevices(devices) {
  const present = new Set(devices.map((each) => each.id));
  byId("no-devices").hidden = devices.length > 0;
  for (const [id, row] of rows) {
    if (!present.has(id)) {
      row.remove();
      rows.delete(id);
    }
  }
  for (const each of [...devices].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }))) {
    const row = rows.get(each.id) ?? made(each);
    fill(row, each);
    announce(each);
  }
}

function made(device) {
  const row = element("li", "device");
  const top = element("div", "top");
  top.append(element("span", "name"), element("span", "state"));
  const meter = element("meter");
  meter.min = 0;
  meter.max = 1;
  row.append(top, element("div", "facts"), meter);
  row.style.setProperty("--tint", tint(device.id));
  rows.set(device.id, row);
  byId("devices").append(row);
  return row;
}

function fill(row, device) {
  const away = device.state !== "ready";
  row.classList.toggle("away", away);
  row.dataset.state = device.state;
  row.querySelector(".name").textContent = device.name;
  row.querySelector(".state").textContent = device.state;
  row.querySelector(".facts").textContent = away ? last(device) : device.reason || facts(device);
  const meter = row.querySelector("meter");
  meter.hidden = away;
  meter.value = device.load;
  meter.setAttribute("aria-label", `${device.name} computes ${Math.round(device.load * 100)} % of the time`);
}

// A device that is away keeps its last rate.
function last(device) {
  const rate = device.gflops ? `${device.gflops.toFixed(1)} GFLOP/s` : "";
  return [device.reason, rate].filter(Boolean).join(" · ");
}

function facts(device) {
  const parts = [`${device.gflops.toFixed(1)} GFLOP/s`];
  if (device.mbps) parts.push(rate(device.mbps));
  parts.push(`load ${Math.round(device.load * 100)} %`);
  if (device.celsius) parts.push(`${Math.round(device.celsius)} °C`);
  if (device.engine) parts.push(engine(device));
  if (device.throttled) parts.push("throttled");
  if (device.host) parts.push("this machine");
  return parts.join(" · ");
}

function engine(device) {
  const faster = device.speedup ? `, ${device.speedup.toFixed(2)} × onnxruntime` : "";
  const shares = device.engines.map(
    (each) => `${each.name}, ${each.programs} programs, ${each.speedup.toFixed(2)} × onnxruntime`,
  );
  const computes = shares.length ? shares.join("; ") : `${device.engine}${faster}`;
  return `${computes}${device.limits ? `: ${device.limits}` : ""}`;
}

// Changes are told to screen readers; loads, which change every second, are not.
function announce(device) {
  const before = states.get(device.id);
  states.set(device.id, device.state);
  if (before !== undefined && before !== device.state) {
    setText("devices-news", `${device.name} is ${device.state}`);
  }
}
