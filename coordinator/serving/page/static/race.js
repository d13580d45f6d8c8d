// Alone or together: each is what was measured last, and predicted only until then.

import { byId, counted, milliseconds, setText } from "./dom.js";

// By what is measured: together and alone, one of them, or neither.
const FASTER = {
  both: "as fast, measured",
  together: "as fast as one device is predicted to be",
  alone: "as fast, predicted; one device alone was measured",
  neither: "as fast, predicted",
};
const SLOWER = {
  both: "than one device alone, measured",
  together: "than one device alone is predicted to be",
  alone: "than one device alone, predicted",
  neither: "than one device alone, predicted",
};

// `alone` is the baseline that was measured, if any; `times` are those of the latest requests by
// this plan, in milliseconds. One slow answer says little: their median counts.
export function race(plan, alone, times) {
  const measured = [...times].sort((a, b) => a - b)[times.length >> 1];
  const before = alone?.ms ?? plan?.alone_ms ?? null;
  const after = measured ?? plan?.predicted_ms ?? null;
  setText("alone", milliseconds(before));
  setText("together", milliseconds(after));
  setText("alone-note", alone ? `${alone.device}, measured` : "best device, predicted");
  setText("together-note", times.length ? `measured, median of ${counted(times.length, "request")}` : "predicted; no request by this plan yet");
  headline(before, after, measured === undefined ? (alone ? "alone" : "neither") : alone ? "both" : "together");
  const most = Math.max(before ?? 0, after ?? 0) || 1;
  byId("alone-bar").style.width = `${((before ?? 0) / most) * 50}%`;
  byId("together-bar").style.width = `${((after ?? 0) / most) * 50}%`;
}

function headline(before, after, how) {
  const ratio = before && after ? before / after : null;
  const slower = ratio !== null && ratio < 1;
  byId("race").classList.toggle("slow", slower);
  setText("gain", ratio === null ? "–" : slower ? "slower" : `${ratio.toFixed(1)}×`);
  if (ratio === null) setText("gain-note", "");
  else setText("gain-note", slower ? `${SLOWER[how]}: sending costs more than dividing saves` : FASTER[how]);
}
