// The page: events in, elements out; a picture in, an answer out.

import { watchDay } from "./day.js";
import { showDevices } from "./devices.js";
import { byId, counted, milliseconds, setText } from "./dom.js";
import { showMinute } from "./minute.js";
import { drawOverlay, listFound } from "./picture.js";
import { race } from "./race.js";
import { showRequest } from "./timeline.js";

const AUTO = "as configured";
// As many as a page that opens is told of.
const RECENT = 15;
const now = { names: new Map(), plan: null, planned: "", answer: null, file: null, last: null, alone: new Map(), recent: new Map() };

// ------------------------------------------------------------ live

function watch() {
  const source = new EventSource("page/events");
  source.addEventListener("state", (event) => showState(JSON.parse(event.data)));
  source.addEventListener("request", (event) => {
    remember(JSON.parse(event.data));
    showRequest(now.last, now.names);
    showRace();
  });
  // Once per connection: what was answered before, the last request among it.
  source.addEventListener("recent", (event) => {
    now.recent = new Map(Object.entries(JSON.parse(event.data)));
    showRace();
  });
  source.onerror = () => pill("connection lost", "bad");
}

function showState(state) {
  now.names = new Map(state.devices.map((each) => [each.id, each.name]));
  const ready = state.devices.filter((each) => each.state === "ready").length;
  pill(state.ready ? `${counted(ready, "device")} ready` : state.reason.split(". ")[0], state.ready ? "good" : "bad");
  showDevices(state.devices);
  showModels(state.models);
  now.alone = new Map(state.models.filter((each) => each.alone).map((each) => [each.name, each.alone]));
  const model = state.models.find((each) => each.name === byId("model").value);
  showMinute(state, model);
  showAssumed(model);
  const planned = model ? `${model.name} ${model.plan_version} ${byId("strategy").value} ${ready}` : "";
  if (planned && planned !== now.planned) {
    now.planned = planned;
    showPlan();
  }
  showRace();
}

function pill(text, kind) {
  setText("status", text);
  byId("status").className = `pill ${kind}`;
}

function showModels(models) {
  const select = byId("model");
  const names = models.map((each) => each.name);
  if ([...select.options].map((each) => each.value).join() === names.join()) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) select.value = chosen;
}

function showAssumed(model) {
  const assumed = Object.entries(model?.assumed ?? {});
  const parts = assumed.map(([what, why]) => `${what}: ${why}`);
  byId("assumed").hidden = !parts.length;
  setText("assumed", parts.length ? `Assumed ${parts.join("; ")}. If that is right: imbrex models confirm ${model.name}` : "");
}

// ------------------------------------------------------------ the plan

function query() {
  const strategy = byId("strategy").value;
  return strategy ? `?strategy=${encodeURIComponent(strategy)}` : "";
}

async function showPlan() {
  const model = byId("model").value;
  const asked = query();
  if (asked) setText("plan", "planning …");
  try {
    const plan = await answered(await fetch(`page/plans/${encodeURIComponent(model)}${asked}`, { method: "POST" }));
    if (model !== byId("model").value || asked !== query()) return;
    now.plan = plan;
    const used = plan.devices.map((each) => now.names.get(each) ?? each);
    setText("plan", `${plan.strategy}: ${counted(plan.blocks, "block")} on ${used.join(", ")}; predicted ${milliseconds(plan.predicted_ms)}`);
  } catch (error) {
    now.plan = null;
    setText("plan", error.message);
  }
  showRace();
  drawOverlay(now.plan, now.answer, now.names);
}

function remember(request) {
  now.last = request;
  if (request.outcome !== "ok") return;
  const before = now.recent.get(request.model) ?? [];
  now.recent.set(request.model, [...before, request].slice(-RECENT));
}

function showRace() {
  const model = byId("model").value;
  const byPlan = (now.recent.get(model) ?? []).filter((each) => each.plan_version === now.plan?.version);
  race(now.plan, now.alone.get(model), byPlan.map((each) => each.taken_ms));
}

async function measureAlone() {
  const button = byId("measure");
  const model = byId("model").value;
  button.disabled = true;
  setText("race-note", "measuring the whole model on the best device; requests wait meanwhile …");
  try {
    const found = await answered(await fetch(`v1/models/${encodeURIComponent(model)}/baseline`, { method: "POST" }));
    now.alone.set(model, { device: found.device, ms: found.latency_s * 1000 });
    setText("race-note", `${now.names.get(found.device) ?? found.device} alone takes ${milliseconds(found.latency_s * 1000)}`);
  } catch (error) {
    setText("race-note", error.message);
  }
  button.disabled = false;
  showRace();
}

// ------------------------------------------------------------ a picture

function take(file) {
  if (!file) return;
  const image = byId("picture");
  URL.revokeObjectURL(image.src);
  now.file = file;
  now.answer = null;
  image.onload = () => drawOverlay(now.plan, now.answer, now.names);
  image.src = URL.createObjectURL(file);
  byId("stage").hidden = false;
  byId("hint").hidden = true;
  byId("drop").classList.add("filled");
  byId("again").disabled = false;
  ask();
}

async function ask() {
  const stage = byId("stage");
  const model = byId("model").value;
  stage.classList.add("busy");
  say("in flight …");
  try {
    const url = `v1/models/${encodeURIComponent(model)}/infer${query()}`;
    const headers = { "Content-Type": "application/octet-stream", Accept: "application/json" };
    now.answer = await answered(await fetch(url, { method: "POST", body: now.file, headers }));
    const count = now.answer.predictions.length;
    say(`${count} found by ${counted(now.answer.devices.length, "device")}`);
    listFound(now.answer.predictions);
  } catch (error) {
    now.answer = null;
    listFound([]);
    say(error.message, true);
  }
  stage.classList.remove("busy");
  drawOverlay(now.plan, now.answer, now.names);
}

function say(text, bad = false) {
  setText("answer", text);
  byId("answer").classList.toggle("bad", bad);
}

async function answered(response) {
  const document = await response.json();
  if (!response.ok) throw new Error(document.error.message);
  return document;
}

// ------------------------------------------------------------ wiring

function wire() {
  const drop = byId("drop");
  byId("file").addEventListener("change", (event) => take(event.target.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  byId("sample").addEventListener("click", async () => take(await (await fetch("page/sample")).blob()));
  byId("measure").addEventListener("click", measureAlone);
  addEventListener("resize", () => {
    if (now.last) showRequest(now.last, now.names);
    drawOverlay(now.plan, now.answer, now.names);
  });
  byId("again").addEventListener("click", ask);
  byId("model").addEventListener("change", showPlan);
  byId("strategy").addEventListener("change", showPlan);
  for (const id of ["show-tiles", "show-found"]) {
    byId(id).addEventListener("change", () => drawOverlay(now.plan, now.answer, now.names));
  }
  byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

async function fillStrategies() {
  const { strategies } = await answered(await fetch("page/strategies"));
  byId("strategy").append(new Option(AUTO, ""), ...strategies.map((name) => new Option(name, name)));
}

const darker = matchMedia("(prefers-color-scheme: dark)");
theme(darker.matches);
darker.addEventListener("change", () => theme(darker.matches));
wire();
await fillStrategies();
watch();
watchDay();
